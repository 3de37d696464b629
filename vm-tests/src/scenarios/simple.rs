//! Managed files for scenarios that need a few or a thousand equal ones.
//!
//! In: a directory and a number. Out: the files as declared, and the MachineConfig that declares them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

/// Declared content of each file.
pub(super) const CONTENT: &str = "declared\n";

/// Creates the files, and their MachineConfig at `config`.
pub(super) fn files(directory: &Path, count: usize, config: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(directory)?;
    let files: Vec<PathBuf> = (0..count).map(|n| directory.join(format!("{n:04}"))).collect();
    for file in &files {
        fs::write(file, CONTENT)?;
    }
    let declared: Vec<Value> = files
        .iter()
        .map(|file| json!({ "path": file, "mode": 0o644, "contents": { "source": "data:,declared%0A" } }))
        .collect();
    let machine_config = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {
            "name": "99-worker-simple",
            "labels": { "machineconfiguration.openshift.io/role": "worker" },
        },
        "spec": { "config": { "ignition": { "version": "3.4.0" }, "storage": { "files": declared } } },
    });
    fs::write(config, machine_config.to_string())?;
    Ok(files)
}

/// Declares in the MachineConfig at `config` also what another one declares.
pub(super) fn declare_too(config: &Path, other: &[u8]) -> Result<()> {
    const FILES: &str = "/spec/config/storage/files";
    let mut all: Value = serde_json::from_slice(&fs::read(config)?)?;
    let mut more: Value = serde_json::from_slice(other)?;
    let of = |config: &mut Value| config.pointer_mut(FILES).and_then(Value::as_array_mut).map(std::mem::take);
    let mut files = of(&mut all).unwrap_or_default();
    files.extend(of(&mut more).unwrap_or_default());
    all["spec"]["config"]["storage"]["files"] = files.into();
    Ok(fs::write(config, all.to_string())?)
}

/// Whether a record of the forensic log reports drift of this file.
pub(super) fn is_drift(record: &Value, file: &Path) -> bool {
    record["kind"] == "drift" && record["path"].as_str() == file.to_str()
}
