//! The managed files of the bench.
//!
//! In: their number. Out: different files of 4 KiB with the declared content, and MachineConfigs that declare a hundred each.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::json;

/// The folder of the managed files.
const ROOT: &str = "/etc/bench";
/// The folder of the MachineConfigs.
pub(super) const CONFIGS: &str = "/bench-configs";
/// Bytes of a file.
const SIZE: usize = 4096;
/// Files in a directory and in a MachineConfig.
const A_DIRECTORY: usize = 100;

/// The path of a managed file.
pub(super) fn path(number: usize) -> PathBuf {
    Path::new(ROOT).join(format!("{:03}/{:02}.conf", number / A_DIRECTORY, number % A_DIRECTORY))
}

fn content(number: usize) -> String {
    let mut text = String::with_capacity(SIZE + 32);
    let mut line = 0;
    while text.len() < SIZE {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "setting-{number}-{line}=value");
        line += 1;
    }
    text.truncate(SIZE);
    text
}

/// Writes files of 4 KiB and their MachineConfigs.
pub(super) fn make(count: usize) -> Result<()> {
    make_with(count, content)
}

/// The same with empty files, so that many fit into the guest's memory.
pub(super) fn make_empty(count: usize) -> Result<()> {
    make_with(count, |_| String::new())
}

fn make_with(count: usize, content: impl Fn(usize) -> String) -> Result<()> {
    fs::create_dir_all(CONFIGS)?;
    for first in (0..count).step_by(A_DIRECTORY) {
        let mut declared = Vec::new();
        for number in first..(first + A_DIRECTORY).min(count) {
            let place = path(number);
            let parent = place.parent().context("every file has a parent")?;
            fs::create_dir_all(parent)?;
            let content = content(number);
            fs::write(&place, &content)?;
            fs::set_permissions(&place, fs::Permissions::from_mode(0o644))?;
            let source = format!("data:,{}", content.replace('\n', "%0A").replace('=', "%3D"));
            declared.push(json!({ "path": place, "mode": 0o644, "contents": { "source": source } }));
        }
        let config = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1",
            "kind": "MachineConfig",
            "metadata": {
                "name": format!("99-bench-{first:05}"),
                "labels": { "machineconfiguration.openshift.io/role": "worker" },
            },
            "spec": { "config": { "ignition": { "version": "3.4.0" }, "storage": { "files": declared } } },
        });
        fs::write(Path::new(CONFIGS).join(format!("{first:05}.json")), config.to_string())?;
    }
    Ok(())
}

/// A managed file and its declared first 64 bytes.
#[derive(Debug)]
pub(super) struct BenchFile {
    path: PathBuf,
    start: String,
}

impl BenchFile {
    /// The file with a number.
    pub(super) fn new(number: usize) -> Self {
        let mut start = content(number);
        start.truncate(64);
        Self { path: path(number), start }
    }

    /// Opens the file for writing, writes its declared bytes, and closes it.
    pub(super) fn rewrite(&self) -> Result<()> {
        self.write(self.start.as_bytes())
    }

    /// The same with other bytes, so that the file drifts.
    pub(super) fn spoil(&self) -> Result<()> {
        self.write(&[b'#'; 64])
    }

    /// Opens the file for writing and keeps it open.
    pub(super) fn hold(&self) -> Result<File> {
        Ok(OpenOptions::new().write(true).open(&self.path)?)
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        Ok(self.hold()?.write_all_at(bytes, 0)?)
    }
}
