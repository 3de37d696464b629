//! A host whose root is a composefs image, as bootc makes it without ostree: the image's own `/etc` is below the present one.
//!
//! The root is a read-only overlay with the source that bootc gives it, a writable `/etc` is mounted over that of the image, and a made-up
//! mount table shows the root as the host's.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::files::load_module;
use crate::guest::{shell, status};

const LIMIT: Duration = Duration::from_mins(1);

const ROOT: &str = "/run/native/root";

const CONFIG: &str = machine_config!(
    "99-worker-native",
    r#"      - {path: /etc/app.conf, mode: 420, overwrite: true, contents: {source: "data:,declared"}}
"#
);

const NOTHING: &str = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: 99-worker-none\n  \
                       labels: {machineconfiguration.openshift.io/role: worker}\nspec:\n  config:\n    ignition: {version: 3.4.0}\n";

const POLICY: &str = r"apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: native}
spec:
  rules:
  - {path: /etc/closed/, closed: true, action: observe}
";

/// Makes such a root, and looks for the image's `/etc` by a command, an apply, and the daemon.
pub(super) fn root_image() -> Result<String> {
    load_module("overlay")?;
    shell(
        "cd /run && mkdir -p native/image/etc/closed native/image/etc/later native/image/proc/1 native/image/var native/data native/root native/var && \
         echo image > native/image/etc/app.conf && touch native/image/etc/closed/shipped native/image/etc/later/also-shipped && cp -a native/image/etc native/etc && \
         echo local > native/etc/app.conf && touch native/etc/closed/local native/etc/later/also-local && \
         echo '24 1 0:22 / / ro - overlay composefs:0a1b ro,lowerdir=/run/native/image' > native/image/proc/1/mountinfo && \
         mount -t overlay -o ro,lowerdir=/run/native/image:/run/native/data composefs:0a1b native/root && \
         mount --bind native/etc native/root/etc && mount --bind native/var native/root/var",
    )?;
    fs::write("/run/native/config.yaml", CONFIG)?;
    fs::write("/run/native/nothing.yaml", NOTHING)?;
    fs::write("/run/native/policy.yaml", POLICY)?;
    let sources = "--config /run/native/config.yaml --policy /run/native/policy.yaml";
    let checked = shell(&format!("{HOLDFAST} check {sources} --host-root {ROOT} -o json; [ $? = 1 ]"))?;
    ensure!(undeclared(&serde_json::from_str(&checked)?) == ["local"], "{checked}");

    let state = "--state /run/native/state";
    for (config, expected) in [("config", "declared"), ("nothing", "image\n")] {
        shell(&format!(
            "{HOLDFAST} apply /run/native/{config}.yaml --no-acts --allow-empty --yes --host-root {ROOT} {state}"
        ))?;
        let found = fs::read_to_string("/run/native/etc/app.conf")?;
        ensure!(found == expected, "{config}: {found:?}");
    }

    // The daemon gave up the capability by which it found the image's `/etc`, before it reads the policy again.
    let mut arguments = vec!["--standalone", "--host-root", ROOT];
    arguments.extend(sources.split(' '));
    let agent = RunningDaemon::start(&arguments)?;
    let records = agent.records()?;
    let start = records.iter().rfind(|record| record["kind"] == "start").context("no start record")?;
    ensure!(start["detail"]["backend"] != "fanotify", "the kernel programs were to be used: {start}");
    let drift = |names: &[&str]| {
        status::wait_until("the drift of undeclared names", LIMIT, |status| undeclared(status) == names)
    };
    drift(&["local"])?;
    let later = "  - {path: /etc/later/, closed: true, action: observe}\n";
    fs::write("/run/native/policy.yaml", [POLICY, later].concat())?;
    agent.signal(Signal::SIGHUP)?;
    let found = drift(&["also-local", "local"])?;
    agent.stop()?;
    shell(&format!("umount {ROOT}/var {ROOT}/etc {ROOT}"))?;
    Ok(found["drifted"].to_string())
}

/// The undeclared names of the closed directory in a status or in the report of `check`.
fn undeclared(report: &Value) -> Vec<String> {
    let things = report["drifted"].as_array().into_iter().flatten();
    let differences = things.filter_map(|thing| thing["differences"].as_array()).flatten();
    let texts = differences.filter(|one| one["kind"] == "unexpected").filter_map(|one| one["text"].as_str());
    let mut names: Vec<String> =
        texts.filter_map(|text| Some(text.rsplit('/').next()?.trim_end_matches('"').to_owned())).collect();
    names.sort_unstable();
    names
}
