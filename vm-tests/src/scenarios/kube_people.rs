//! What people of a cluster do with a node: `kubectl holdfast` asks it, and `kubectl exec` changes a file on it.
//!
//! In: a node with the `DaemonSet`'s pod, an API server that reaches its kubelet, and that server's audit log. Out: checks of the answers
//! of the plugin, and of the user whom the audit log names.

use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::guest::agent::HOLDFAST;
use crate::guest::kube::{self, ADMIN, AUDIT, HOST, NODE, kubectl};
use crate::guest::{Context, run, wait};

/// How long each step may take in an emulated guest.
const LIMIT: Duration = Duration::from_secs(100);
const NAMESPACE: &str = "holdfast-system";
/// The account whose token the plugin sends to the node.
const READER: &str = "log-reader";
/// Where the guest keeps its copy of the audit log.
const COPY: &str = "/run/audit.log";
/// The edit in the pod, whose host path is the node's `/etc`.
const EDIT: [&str; 4] = ["/busybox", "sed", "-i", "s/time1.example.com/time.exec.example/"];

/// The plugin asks the node whose file alice has edited and restored.
pub(super) fn plugin(context: &mut Context, file: &str) {
    context.check("kubectl_holdfast_status_says_in_sync", status());
    context.check("kubectl_holdfast_who_asks_the_node_with_the_callers_token", who(file, &[]));
    context.check("kubectl_holdfast_who_asks_the_node_with_an_accounts_token", who_by_account(file));
    context.check("kubectl_holdfast_log_has_the_logs_own_lines", log());
}

/// Runs `kubectl holdfast` from the product's image. Gives its output if the exit code is the expected one.
fn holdfast(code: i32, arguments: &[&str]) -> Result<String> {
    let program = format!("{}/holdfast-cluster", kube::image()?);
    let out = Command::new(program).arg("kubectl").args(arguments).env("KUBECONFIG", ADMIN).output()?;
    let (printed, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    ensure!(out.status.code() == Some(code), "{arguments:?}: {}: {printed}{error}", out.status);
    Ok(printed.into_owned())
}

fn status() -> Result<String> {
    let printed = holdfast(0, &["status"])?;
    ensure!(printed.contains(NODE) && printed.contains("InSync"), "{printed}");
    Ok(printed)
}

fn who(file: &str, more: &[&str]) -> Result<String> {
    let printed = holdfast(0, &[&["who", NODE, file], more].concat())?;
    ensure!(printed.contains("root login alice via sed"), "{printed}");
    Ok(printed)
}

/// The account has no right at first: the node's reporter refuses, and the message names the right.
fn who_by_account(file: &str) -> Result<String> {
    kubectl(&["-n", NAMESPACE, "create", "serviceaccount", READER])?;
    let option = ["--service-account", READER];
    let refused = holdfast(3, &[&["who", NODE, file][..], &option].concat()).map(drop);
    refused.context("an account without the right")?;
    let subject = format!("--serviceaccount={NAMESPACE}:{READER}");
    kubectl(&["create", "clusterrolebinding", READER, "--clusterrole=holdfast-log-reader", &subject])?;
    // The reporter believes the refusal for some seconds.
    wait::until("the right of the account", LIMIT, || Ok(who(file, &option).ok()))
}

/// The lines of the plugin are those of the file.
fn log() -> Result<String> {
    let printed = holdfast(0, &["log", NODE, "--lines", "3", "-o", "json"])?;
    let log = fs::read_to_string("/var/log/holdfast/forensic.jsonl")?;
    ensure!(printed.lines().count() == 3, "{printed}");
    for line in printed.lines() {
        ensure!(log.lines().any(|written| written == line), "not in the log: {line}");
    }
    Ok(String::new())
}

/// A user changes the file by `kubectl exec`: the report names the pod, and the audit log the user.
pub(super) fn exec(file: &str) -> Result<String> {
    const MANIFEST: &str = "/run/shell.yaml";
    fs::write(MANIFEST, include_str!("../../kube/shell.yaml"))?;
    kubectl(&["apply", "-f", MANIFEST])?;
    kubectl(&["-n", "team", "wait", "--for=condition=Ready", "pod/shell", "--timeout=100s"])?;
    let name = Path::new(file).file_name().context("no file name")?.to_string_lossy();
    let inside = format!("/host/{name}");
    kubectl(&[&["-n", "team", "exec", "shell", "--"][..], &EDIT, &[&inside]].concat())?;
    let report = wait::until("the report to name the pod", LIMIT, || {
        let report = kube::get("driftreport", NODE)?;
        let is_so = report["status"]["drifts"][0]["by"]["podName"] == "shell";
        Ok(is_so.then_some(report))
    })?;
    ensure!(report["status"]["drifts"][0]["path"] == file, "{report}");
    fs::write(COPY, audit_log()?)?;
    let printed = run(HOLDFAST, &["who", file, "-n", "1", "--audit-log", COPY, "-o", "json"])?;
    let answer: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
    let users = answer["changes"][0]["users"].as_array().context("no users")?;
    ensure!(users.len() == 1, "{answer:#}");
    let user = &users[0];
    ensure!(user["user"] == "admin" && user["request"] == "exec" && user["container"] == "shell", "{user}");
    Ok(user.to_string())
}

/// The API server's audit log, from the host.
fn audit_log() -> Result<String> {
    let port = fs::read_to_string(AUDIT).with_context(|| format!("cannot read {AUDIT}"))?;
    let mut log = String::new();
    TcpStream::connect(format!("{HOST}:{}", port.trim()))?.read_to_string(&mut log)?;
    ensure!(!log.is_empty(), "the API server has no audit log");
    Ok(log)
}
