//! The reporter of a guest without a kubelet: its account in the cluster, and its container.
//!
//! In: a guest that reaches the control plane on the host. Out: a kubeconfig with a token that names the node, and a running reporter.
//! Dropping it kills the reporter.

use std::fs::{self, File};
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::kube::{self, ADMIN, NODE, kubectl};
use super::{pod, shell};

/// The config with the token of the reporter.
pub const KUBECONFIG: &str = "/etc/kubernetes/reporter.kubeconfig";
/// The namespace of Holdfast.
pub const NAMESPACE: &str = "holdfast-system";
/// The reporter's user in the `DaemonSet`.
pub const USER: u32 = 64_837;
/// What the reporter prints.
pub const OUTPUT: &str = "/run/holdfast-reporter.log";

const TOKEN: &str = "/etc/kubernetes/reporter.token";

/// Makes the Node, applies a kustomization with the reporter's rights, and writes a kubeconfig for its account, whose token names the node.
pub fn account(kustomization: &str) -> Result<()> {
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
    fs::write("/run/node.json", node.to_string())?;
    kubectl(&["apply", "-f", "/run/node.json"])?;
    kube::apply(kustomization)?;
    let token =
        ["create", "token", "holdfast-reporter", "--bound-object-kind=Node", "--bound-object-name", NODE];
    let token = kubectl(&[&["-n", NAMESPACE][..], &token].concat())?;
    let mut config: Value = serde_json::from_str(&fs::read_to_string(ADMIN)?).context(ADMIN)?;
    config["users"][0]["user"] = json!({ "tokenFile": TOKEN });
    fs::write(KUBECONFIG, config.to_string())?;
    fs::write(TOKEN, token.trim())?;
    shell(&format!("chown {USER} {KUBECONFIG} {TOKEN} && chmod 400 {KUBECONFIG} {TOKEN}")).map(drop)
}

/// The last lines that the reporter printed.
pub fn printed() -> String {
    let text = fs::read_to_string(OUTPUT).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// The running container of the reporter.
#[derive(Debug)]
pub struct RunningReporter(Child);

impl RunningReporter {
    /// Starts it in a pod, with more arguments of `holdfast-cluster node`.
    pub fn start(pod: &str, arguments: &[&str]) -> Result<Self> {
        let output = File::options().create(true).append(true).open(OUTPUT)?;
        let all = [&["--node-name", NODE, "--namespace", NAMESPACE][..], arguments].concat();
        let mut command = pod::reporter(pod, USER, &all)?;
        command.env("KUBECONFIG", KUBECONFIG).stdin(Stdio::null());
        command.stdout(output.try_clone()?).stderr(output);
        Ok(Self(command.spawn().context("cannot start the reporter")?))
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Checks that it still runs.
    ///
    /// # Errors
    /// It has ended.
    pub fn check(&mut self) -> Result<()> {
        let ended = self.0.try_wait()?;
        ensure!(ended.is_none(), "the reporter ended ({ended:?}): {}", printed());
        Ok(())
    }
}

impl Drop for RunningReporter {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
