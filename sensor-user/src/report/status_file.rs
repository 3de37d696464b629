//! The status file, which `holdfast status` and other reporters read. It is readable also when the daemon does not run.
//!
//! In: the status that [`super::picture`] makes. Out: `status.json`. The daemon replaces it when something is new, in one rename. It touches the
//! file at each beat of the loop, so the file's age shows whether the loop still works.

use crate::bounded;
use sensor_model::status::NodeStatus;
use sensor_model::verdict::VerdictKind;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The directory of the status file.
pub const DIRECTORY: &str = "/run/holdfast";

/// Name of the file in its directory.
pub const FILE: &str = "status.json";

/// The text of the status, as the file has it.
pub(super) fn text(status: &NodeStatus) -> Vec<u8> {
    // A serializer that writes to the file makes a system call for each word.
    let mut text = serde_json::to_vec_pretty(status).expect("the keys of a status are strings");
    text.push(b'\n');
    text
}

/// Replaces the status file. It does not outlive a reboot, so it needs no fsync. Other users may look up names in the directory
/// of the reporter's socket, so the file is readable only by its owner.
fn write(directory: &Path, text: &[u8]) -> io::Result<()> {
    let temporary = directory.join(".status.json.new");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    // An earlier version may have left a file with another mode.
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(text)?;
    fs::rename(temporary, directory.join(FILE))
}

/// The verdict of the node, and how many things have which verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VerdictCounts {
    pub(crate) verdict: VerdictKind,
    pub(crate) compliant: usize,
    pub(crate) drifted: usize,
    pub(crate) unknown: usize,
}

/// The status file of a running daemon.
#[derive(Debug)]
pub(crate) struct StatusFile {
    directory: PathBuf,
    /// The counts that the file has.
    written: Option<VerdictCounts>,
    /// The status has changed since it was written.
    outdated: bool,
    /// Why the last attempt to write it failed.
    failed: Option<String>,
}

impl StatusFile {
    /// In the run directory; nothing is written yet.
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), written: None, outdated: true, failed: None }
    }

    /// The status has changed in more than its counts.
    pub(crate) fn outdate(&mut self) {
        self.outdated = true;
    }

    /// Whether the last attempt to write it failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Whether it has to be written. `steady`: no full verification is under way; its counts are written at its end.
    pub(crate) fn is_due(&self, counts: VerdictCounts, steady: bool) -> bool {
        self.failed.is_none() && (self.outdated || (steady && self.written != Some(counts)))
    }

    /// Writes it. The next beat repeats a write that fails.
    pub(crate) fn write(&mut self, counts: VerdictCounts, text: &[u8]) {
        match write(&self.directory, text) {
            Ok(()) => {
                (self.written, self.outdated) = (Some(counts), false);
                if self.failed.take().is_some() {
                    tracing::info!("The status is written again.");
                }
            }
            Err(error) => {
                self.outdated = true;
                let (reason, directory) = (error.to_string(), self.directory.display());
                if self.failed.replace(reason.clone()).is_none_or(|before| before != reason) {
                    tracing::error!(reason, %directory, "Cannot write the status.");
                }
            }
        }
    }

    /// Touches the file: the loop works, and the status is current. `true` if the file has to be written, because an
    /// attempt failed or another process removed it.
    pub(crate) fn beat(&mut self) -> bool {
        let file = File::options().write(true).open(self.directory.join(FILE));
        let touched = file.and_then(|file| file.set_modified(SystemTime::now()));
        self.outdated |= self.failed.is_some() || touched.is_err();
        self.outdated
    }
}

/// How long ago the daemon touched the file. A time in the future counts like one in the past: the clock was set.
pub fn age(directory: &Path) -> io::Result<Duration> {
    let modified = fs::metadata(directory.join(FILE))?.modified()?;
    let now = SystemTime::now();
    Ok(now.duration_since(modified).unwrap_or_else(|ahead| ahead.duration()))
}

/// The age from which a status does not count as current, by the daemon's time between two beats.
pub fn longest_age(beat: Duration) -> Duration {
    const BEATS: u32 = 3;
    /// A busy node's disk may take as long for one group of records.
    const LEAST: Duration = Duration::from_secs(15);
    (beat * BEATS).max(LEAST)
}

/// Reads the status file.
pub fn read(directory: &Path) -> io::Result<NodeStatus> {
    Ok(serde_json::from_slice(&bounded::read(&directory.join(FILE), bounded::OWN)?)?)
}

#[cfg(test)]
#[path = "status_file_tests.rs"]
mod tests;
