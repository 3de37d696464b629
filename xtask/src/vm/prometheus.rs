//! A Prometheus on this machine that scrapes the reporter in a guest.
//!
//! In: Debian's program, a control plane, and a port of this machine that the emulator leads to the guest. Out: a running Prometheus
//! with the alerts of `policies/prometheus`, at a port of the loopback that the guest reaches too. It ends with its value.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;
use tempfile::TempDir;
use vm_tests::guest::kube::NODE;
use vm_tests::guest::prometheus::{JOB, WITHOUT_RIGHT, WITHOUT_TOKEN};

use crate::dist;
use crate::kube::{ControlPlane, LoggedProcess};
use crate::manifests::ALERTS;
use crate::run::output;
use crate::tools::PackageTree;

/// Longest time until it listens, on a machine that is busy with compilers and guests.
const LIMIT: Duration = Duration::from_mins(1);
/// What makes the account with the right to read metrics, as an admin applies it.
const ACCESS: [&str; 2] =
    ["deploy/kustomize/base/namespace.yaml", "deploy/kustomize/components/prometheus/access.yaml"];
/// Namespace of that account.
const NAMESPACE: &str = "holdfast-system";

/// A running Prometheus. Its process ends before its folder is removed.
#[derive(Debug)]
pub(super) struct Prometheus {
    _process: LoggedProcess,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts it. It listens at `port`, and scrapes the reporter at `reporter`.
    pub(super) fn start(plane: &ControlPlane, tree: &PackageTree, port: u16, reporter: u16) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let rules = ALERTS.map(|path| rules(path, folder.path())).into_iter().collect::<Result<Vec<_>>>()?;
        let (allowed, refused) = tokens(plane)?;
        let config = folder.path().join("prometheus.json");
        // JSON is YAML.
        write(&config, &config_of(&rules, reporter, &allowed, &refused))?;
        let program = tree.program("prometheus").context("the package prometheus holds no prometheus")?;
        let mut command = tree.command(&program);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={}:{port}", Ipv4Addr::LOCALHOST));
        let process = LoggedProcess::start("prometheus", &mut command, &plane.log("prometheus"))?;
        process.until(LIMIT, || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("it does not listen").map(drop)
        })?;
        Ok(Self { _process: process, _folder: folder })
    }
}

fn write(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// A file of rules in which each alert fires after a second. The expressions are the shipped ones. Their minutes of waiting keep short
/// drift from people, and a test need not wait for them: `promtool` tests them.
fn rules(path: &str, folder: &Path) -> Result<PathBuf> {
    let source = dist::root().join(path);
    let text = fs::read_to_string(&source).with_context(|| format!("cannot read {}", source.display()))?;
    let place = folder.join(source.file_name().context("a file of rules has no name")?);
    write(&place, &impatient(&text))?;
    Ok(place)
}

/// The rules with a second in the place of each `for`.
fn impatient(rules: &str) -> String {
    let short = |line: &str| match line.split_once("for: ") {
        Some((indent, _)) if indent.trim().is_empty() => format!("{indent}for: 1s\n"),
        _ => format!("{line}\n"),
    };
    rules.lines().map(short).collect()
}

/// The token of the account that the component `prometheus` makes, and the token of one without rights.
fn tokens(plane: &ControlPlane) -> Result<(String, String)> {
    let mut apply = plane.kubectl();
    apply.args(["apply", "--server-side"]);
    output(apply.args(ACCESS.iter().flat_map(|path| ["-f".into(), dist::root().join(path)])))?;
    let kubectl = |line: &str| output(plane.kubectl().args(["--namespace", NAMESPACE]).args(line.split(' ')));
    // The controllers make both.
    kubectl("wait --for=jsonpath={.data.token} secret/holdfast-metrics --timeout=60s")?;
    kubectl("wait --for=create serviceaccount/default --timeout=60s")?;
    let token = kubectl("get secret holdfast-metrics --output jsonpath={.data.token}")?;
    let token = BASE64.decode(token.trim()).context("the token in the Secret is no base64")?;
    let refused = kubectl("create token default")?;
    Ok((String::from_utf8(token)?, refused.trim().to_owned()))
}

/// The config: a job as docs/kubernetes.md has it, and two that the reporter must refuse.
fn config_of(rules: &[PathBuf], reporter: u16, allowed: &str, refused: &str) -> String {
    let job = |name: &str, token: Option<&str>| {
        let mut job = json!({
            "job_name": name,
            "scheme": "https",
            // The reporter's certificate is self-signed, as in each cluster whose admin gives it none. docs/kubernetes.md tells
            // what that means, and how the reporter gets another one.
            "tls_config": { "insecure_skip_verify": true },
            // The PodMonitor gets this label from the pod.
            "static_configs": [{
                "targets": [format!("{}:{reporter}", Ipv4Addr::LOCALHOST)],
                "labels": { "instance": NODE },
            }],
        });
        if let Some(token) = token {
            job["authorization"] = json!({ "type": "Bearer", "credentials": token });
        }
        job
    };
    let config = json!({
        "global": { "scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s" },
        "rule_files": rules,
        "scrape_configs": [job(JOB, Some(allowed)), job(WITHOUT_TOKEN, None), job(WITHOUT_RIGHT, Some(refused))],
    });
    config.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impatient_alert_waits_a_second_and_is_otherwise_the_shipped_one() {
        let rules = "- alert: A\n  expr: up == 0 # for: 1m\n  for: 5m\n  labels: {a: b}\n";
        assert_eq!(impatient(rules), rules.replace("for: 5m", "for: 1s"));
    }
}
