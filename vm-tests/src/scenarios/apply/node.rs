//! The node of the scenario: what is declared on it, and the commands that apply a config.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::guest::agent::HOLDFAST;
use crate::guest::command::CONSENT;
use crate::guest::run;

pub(super) const HEAD: &str = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\n\
                    metadata: {name: 99-apply, labels: {machineconfiguration.openshift.io/role: worker}}\n\
                    spec:\n  config:\n    ignition: {version: 3.4.0}\n";

/// The actions for each file and unit of this scenario.
pub(super) const POLICY: &str = r"
apiVersion: operator.openshift.io/v1
kind: MachineConfiguration
metadata: {name: cluster}
spec:
  nodeDisruptionPolicy:
    files:
    - {path: /etc/demo/none, actions: [{type: None}]}
    - {path: /etc/demo/reload, actions: [{type: Reload, reload: {serviceName: demo.service}}]}
    - {path: /etc/demo/restart, actions: [{type: Restart, restart: {serviceName: demo.service}}]}
    - {path: /etc/demo/fails, actions: [{type: Restart, restart: {serviceName: fails.service}, fallback: rollback}]}
    - {path: /etc/demo/hangs, actions: [{type: Restart, restart: {serviceName: hangs.service}, timeout: 3s, fallback: rollback}]}
    - {path: /etc/demo/masked, actions: [{type: Restart, restart: {serviceName: ssh.service}, fallback: rollback}]}
    - {path: /etc/demo/holds, actions: [{type: Restart, restart: {serviceName: holds.service}, fallback: rollback}]}
    - {path: /etc/demo/boots, actions: [{type: Restart, restart: {serviceName: boots.service}}]}
    units:
    - {name: ssh.service, actions: [{type: DaemonReload}]}
    - {name: holds.service, actions: [{type: DaemonReload}]}
    - {name: boots.service, actions: [{type: DaemonReload}]}
    - {name: demo.service, actions: [{type: DaemonReload}]}
    - {name: fails.service, actions: [{type: DaemonReload}]}
    - {name: hangs.service, actions: [{type: DaemonReload}]}
    - {name: other.service, actions: [{type: DaemonReload}]}
    - {name: dpkg-db-backup.timer, actions: [{type: DaemonReload}]}
    - {name: e2scrub_all.timer, actions: [{type: DaemonReload}]}
";

/// Entries that only a `DisruptionPolicy` can have.
pub(super) const OWN_POLICY: &str = r"
apiVersion: holdfast.dev/v1alpha1
kind: DisruptionPolicy
metadata: {name: own}
spec:
  files:
  - path: /etc/demo/either
    actions:
    - {type: ReloadOrRestart, reloadOrRestart: {serviceName: demo.service}}
    - {type: ReloadOrRestart, reloadOrRestart: {serviceName: boots.service}}
";

/// The values of the config.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    /// Content of each file below /etc/demo.
    pub(super) files: Vec<(&'static str, &'static str)>,
    pub(super) description: &'static str,
    pub(super) other_enabled: bool,
    /// Lines for units of the OS.
    pub(super) shipped: &'static str,
}

impl Wish {
    pub(super) fn first() -> Self {
        let files = ["none", "reload", "either", "restart", "fails", "hangs", "holds", "boots"]
            .map(|name| (name, "1"))
            .to_vec();
        Self { files, description: "first", other_enabled: true, shipped: "" }
    }

    pub(super) fn with(&self, file: &'static str, content: &'static str) -> Self {
        let mut wish = self.clone();
        wish.files.retain(|(name, _)| *name != file);
        wish.files.push((file, content));
        wish
    }

    pub(super) fn manifest(&self) -> String {
        let mut text = format!("{HEAD}    storage:\n      files:\n");
        for (name, content) in &self.files {
            let (before, after) = ("      - {path: /etc/demo/", "'}}\n");
            text.extend([
                before,
                name,
                ", mode: 420, overwrite: true, contents: {source: 'data:,",
                content,
                after,
            ]);
        }
        let unit = |name: &str, enabled: bool, body: &str| {
            format!("      - name: {name}\n        enabled: {enabled}\n        contents: |\n{body}")
        };
        let body = |description: &str, service: &str| {
            let lines = format!(
                "[Unit]\nDescription={description}\n[Service]\n{service}\n[Install]\nWantedBy=multi-user.target\n"
            );
            lines.lines().flat_map(|line| ["          ", line, "\n"]).collect::<String>()
        };
        text.push_str("    systemd:\n      units:\n");
        let reloads =
            "ExecStart=/bin/sleep infinity\nExecReload=/bin/sh -c 'cat /etc/demo/reload >> /run/reloads'";
        text.push_str(&unit("demo.service", true, &body(self.description, reloads)));
        // Starts while its file holds 1.
        let fails = "Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/grep -q 1 /etc/demo/fails";
        text.push_str(&unit("fails.service", false, &body("fails", fails)));
        let hangs = "Type=oneshot\nRemainAfterExit=yes\nTimeoutStartSec=infinity\n\
                     ExecStart=/bin/sh -c 'grep -q 1 /etc/demo/hangs || sleep infinity'";
        text.push_str(&unit("hangs.service", false, &body("hangs", hangs)));
        // Runs until its pipe is closed.
        let holds = "Type=oneshot\nRemainAfterExit=yes\nTimeoutStartSec=infinity\n\
                     ExecStart=/bin/sh -c 'test ! -p /run/hold || cat /run/hold'";
        text.push_str(&unit("holds.service", false, &body("holds", holds)));
        let boots = "Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/grep -q 1 /etc/demo/boots";
        text.push_str(&unit("boots.service", true, &body("boots", boots)));
        text.push_str(&unit("other.service", self.other_enabled, &body("other", "ExecStart=/bin/true")));
        text.push_str(self.shipped);
        text
    }
}

/// Runs holdfast and expects this exit code.
pub(in crate::scenarios) fn holdfast(code: i32, arguments: &[&str]) -> Result<(String, String)> {
    let out = Command::new(HOLDFAST).args(arguments).envs(CONSENT).output()?;
    let (printed, error) = (
        String::from_utf8_lossy(&out.stdout).into_owned(),
        String::from_utf8_lossy(&out.stderr).into_owned(),
    );
    ensure!(out.status.code() == Some(code), "holdfast {arguments:?}: {}: {printed}{error}", out.status);
    Ok((printed, error))
}

pub(super) const APPLY: [&str; 8] = [
    "apply",
    "/root/new.yaml",
    "--policy",
    "/root/policy.yaml",
    "--policy",
    "/root/own-policy.yaml",
    "-o",
    "json",
];

pub(super) fn apply(wish: &Wish, code: i32) -> Result<Value> {
    apply_manifest(&wish.manifest(), code)
}

pub(super) fn apply_manifest(manifest: &str, code: i32) -> Result<Value> {
    write_down(manifest)?;
    let (printed, error) = holdfast(code, &APPLY)?;
    serde_json::from_str(&printed).with_context(|| format!("no JSON: {printed}{error}"))
}

/// Writes the manifest that [`APPLY`] reads.
pub(super) fn write_down(manifest: &str) -> Result<()> {
    fs::write("/root/new.yaml", manifest)?;
    fs::write("/root/policy.yaml", POLICY)?;
    Ok(fs::write("/root/own-policy.yaml", OWN_POLICY)?)
}

pub(in crate::scenarios) fn result(report: &Value, wanted: &str) -> Result<()> {
    ensure!(report["result"] == wanted, "wanted {wanted}: {report:#}");
    Ok(())
}

pub(in crate::scenarios) fn history() -> Result<Value> {
    let (printed, _) = holdfast(0, &["history", "-o", "json"])?;
    Ok(serde_json::from_str(&printed)?)
}

pub(super) fn property(unit: &str, name: &str) -> Result<String> {
    Ok(run("systemctl", &["show", "--value", "-p", name, unit])?.trim().to_owned())
}

pub(super) fn file(name: &str) -> String {
    fs::read_to_string(Path::new("/etc/demo").join(name)).unwrap_or_default()
}

/// `systemctl is-enabled`; its exit code says the same.
pub(super) fn enabled(unit: &str) -> Result<String> {
    let out = Command::new("systemctl").args(["is-enabled", unit]).output()?;
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}
