//! The configs of the scenario, and the output of a command.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::super::apply::holdfast;

/// The config that the node has.
pub(super) const CURRENT: &str = "/var/lib/holdfast/apply/current";

/// A file that both versions ship, each with its own content.
pub(super) const DEFAULT: &str = "/etc/issue";

pub(super) const FILE: &str = "/etc/demo/file";

/// A file that both versions ship with their own name as content. The config declares it as version 1 ships it.
pub(super) const PINNED: &str = "/etc/demo-shipped/pinned";

/// A config of this image, these kernel arguments, and this content of a file.
pub(super) fn manifest(image: &str, arguments: &[&str], content: &str) -> String {
    format!(
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\n\
         metadata: {{name: 99-os, labels: {{machineconfiguration.openshift.io/role: worker}}}}\n\
         spec:\n  osImageURL: {image}\n  kernelArguments: {}\n  config:\n    ignition: {{version: 3.4.0}}\n    \
         storage:\n      files:\n      \
         - {{path: {FILE}, mode: 420, overwrite: true, contents: {{source: 'data:,{content}'}}}}\n      \
         - {{path: {PINNED}, mode: 420, overwrite: true, contents: {{source: 'data:,from%20v1%0A'}}}}\n      \
         - {{path: {DEFAULT}, mode: 420, overwrite: true, contents: {{source: 'data:,declared'}}}}\n",
        serde_json::json!(arguments)
    )
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
