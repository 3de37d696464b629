//! The configs of the scenario, and the output of a command.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::super::apply::holdfast;

/// Progress of the scenario, in `/var`, which all deployments share.
pub(super) const STAGE: &str = "/var/lib/holdfast-scenario";

/// The config that the node has.
pub(super) const CURRENT: &str = "/var/lib/holdfast/apply/current";

/// A file that both versions ship, each with its own content.
pub(super) const DEFAULT: &str = "/etc/issue";

pub(super) const FILE: &str = "/etc/demo/file";

/// A file that both versions ship with their own name as content. The config declares it as version 1 ships it.
pub(super) const PINNED: &str = "/etc/demo-shipped/pinned";

/// A config of this image, these kernel arguments, and this content of a file.
pub(super) fn config(image: &str, arguments: &[&str], content: &str) -> Value {
    let file = |path: &str, content: &str| {
        json!({
            "path": path, "mode": 0o644, "overwrite": true, "contents": { "source": format!("data:,{content}") }
        })
    };
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": { "name": "99-os", "labels": { "machineconfiguration.openshift.io/role": "worker" } },
        "spec": {
            "osImageURL": image,
            "kernelArguments": arguments,
            "config": {
                "ignition": { "version": "3.4.0" },
                "storage": { "files": [
                    file(FILE, content), file(PINNED, "from%20v1%0A"), file(DEFAULT, "declared"),
                ] },
            },
        },
    })
}

/// The same as a file's content.
pub(super) fn manifest(image: &str, arguments: &[&str], content: &str) -> String {
    config(image, arguments, content).to_string()
}

pub(super) fn report((printed, error): &(String, String)) -> Result<Value> {
    serde_json::from_str(printed).with_context(|| format!("no JSON: {printed}{error}"))
}

/// `check` against the current config, and its expected output.
pub(super) fn check(code: i32, text: &str) -> Result<String> {
    let (printed, error) = holdfast(code, &["check", "--config", CURRENT])?;
    ensure!(printed.contains(text) && !printed.contains("not checked"), "{printed}{error}");
    Ok(printed.trim().to_owned())
}
