//! The daemon's status, as a file that `holdfast status` reads: no socket, no protocol, and readable
//! when the daemon is dead, which the reader then says.
//!
//! In: the detector's state. Out: `status.json`, replaced atomically when something is new, and touched at each beat of the
//! loop, so that its age shows whether the loop still works.

use crate::bounded;
use sensor_model::status::NodeStatus;
use sensor_model::verdict::VerdictKind;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Name of the file in the run directory.
pub const FILE: &str = "status.json";

/// Replaces the status file. It is gone after a reboot, so it needs no fsync.
pub fn write(directory: &Path, status: &NodeStatus) -> io::Result<()> {
    let temporary = directory.join(".status.json.new");
    // In one go: written straight to the file, each of its words would be a system call.
    let mut text = serde_json::to_vec_pretty(status)?;
    text.push(b'\n');
    File::create(&temporary)?.write_all(&text)?;
    fs::rename(temporary, directory.join(FILE))
}

/// The verdict of the node, and how many things are compliant, drifted and unknown.
pub(crate) type Numbers = (VerdictKind, [usize; 3]);

/// The status file of a running daemon.
#[derive(Debug)]
pub(crate) struct StatusFile {
    directory: PathBuf,
    /// How things stood when it was last written.
    written: Option<Numbers>,
    /// It does not say what is so now.
    outdated: bool,
    /// Why it could not be written when that was last tried.
    failed: Option<String>,
}

impl StatusFile {
    /// In the run directory; nothing is written yet.
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), written: None, outdated: true, failed: None }
    }

    /// The status shows something else than the numbers.
    pub(crate) fn outdate(&mut self) {
        self.outdated = true;
    }

    /// Whether it has to be written. `steady`: no full verification goes on; its numbers are written at its end.
    pub(crate) fn is_due(&self, standing: Numbers, steady: bool) -> bool {
        self.failed.is_none() && (self.outdated || (steady && self.written != Some(standing)))
    }

    /// Writes it. What fails is tried again at the next beat.
    pub(crate) fn write(&mut self, standing: Numbers, status: &NodeStatus) {
        match write(&self.directory, status) {
            Ok(()) => {
                (self.written, self.outdated) = (Some(standing), false);
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

    /// The loop turns: what the file says is so now. `true` when it has to be written, since it could not be, or is not
    /// there any more.
    pub(crate) fn beat(&mut self) -> bool {
        let file = File::options().write(true).open(self.directory.join(FILE));
        let touched = file.and_then(|file| file.set_modified(SystemTime::now()));
        self.outdated |= self.failed.is_some() || touched.is_err();
        self.outdated
    }
}

/// How long ago the loop last turned, by the file's time: a status that is older than it may be says nothing of now. A time
/// in the future means as little: the clock was set.
pub fn age(directory: &Path) -> io::Result<Duration> {
    let modified = fs::metadata(directory.join(FILE))?.modified()?;
    let now = SystemTime::now();
    Ok(now.duration_since(modified).unwrap_or_else(|ahead| ahead.duration()))
}

/// How old a status may be whose daemon beats so often.
pub fn patience(beat: Duration) -> Duration {
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
