//! The last status that a daemon wrote, and whether it describes the node now.
//!
//! In: the run directory and procfs. Out: the status, and why its daemon does not run. Without a running daemon the verdict is
//! `unknown`.

use super::status_file::{self, FILE};
use crate::clock::boot_id;
use sensor_model::{
    status::{LeftOut, NodeStatus, SCHEMA, StatusReport},
    verdict::VerdictKind,
};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// The status file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("read {}: {source}", path.display())]
pub struct LastStatusError {
    /// The file.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

/// Why the status does not describe the node now.
#[derive(Debug, thiserror::Error)]
enum Outdated {
    /// The daemon wrote none in this boot.
    #[error("there is no {} since boot; see `systemctl status holdfast`", .0.display())]
    NoFile(PathBuf),
    /// An earlier boot wrote it.
    #[error("its status is from another boot")]
    OtherBoot,
    /// This boot is not known.
    #[error("the boot id cannot be read: {0}")]
    UnknownBoot(io::Error),
    /// Its daemon ended.
    #[error("process {0} is gone")]
    Ended(u32),
    /// Its daemon was stopped, or hangs.
    #[error("process {pid} has not updated its status for {seconds} seconds")]
    NotUpdated { pid: u32, seconds: u64 },
    /// Whether its daemon still updates it is not known.
    #[error("the age of its status is not known: {0}")]
    UnknownAge(io::Error),
}

/// Reads the last status below the run directory. `proc` is where procfs is mounted.
///
/// # Errors
/// A status file that exists and cannot be read.
pub fn last_status(run: &Path, proc: &Path) -> Result<StatusReport, LastStatusError> {
    let path = run.join(FILE);
    let (mut status, outdated) = match status_file::read(run) {
        Ok(status) => {
            let outdated = ended(&status, proc).or_else(|| not_updated(&status, run));
            (status, outdated)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (without_daemon(), Some(Outdated::NoFile(path)))
        }
        Err(source) => return Err(LastStatusError { path, source }),
    };
    if outdated.is_some() {
        status.verdict = VerdictKind::Unknown;
    }
    let reason = outdated.map(|outdated| outdated.to_string());
    Ok(StatusReport { running: reason.is_none(), reason, status })
}

/// Whether the daemon that wrote the status has ended.
fn ended(status: &NodeStatus, proc: &Path) -> Option<Outdated> {
    match boot_id(proc) {
        Ok(boot) if boot != status.boot_id => return Some(Outdated::OtherBoot),
        Ok(_) => {}
        Err(error) => return Some(Outdated::UnknownBoot(error)),
    }
    (!is_holdfast(proc, status.pid)).then_some(Outdated::Ended(status.pid))
}

/// Whether the daemon exists and no longer updates the status.
fn not_updated(status: &NodeStatus, run: &Path) -> Option<Outdated> {
    if status.beat_seconds == 0 {
        return None;
    }
    let longest = status_file::longest_age(Duration::from_secs(status.beat_seconds));
    match status_file::age(run) {
        Ok(age) if age <= longest => None,
        Ok(age) => Some(Outdated::NotUpdated { pid: status.pid, seconds: age.as_secs() }),
        Err(error) => Some(Outdated::UnknownAge(error)),
    }
}

/// Whether a process is Holdfast's: the kernel may have given its number to another one.
fn is_holdfast(proc: &Path, pid: u32) -> bool {
    let comm = fs::read_to_string(proc.join(pid.to_string()).join("comm"));
    comm.is_ok_and(|comm| comm.trim_end().starts_with("holdfast"))
}

/// The status of a node on which no daemon has written one.
pub(super) fn without_daemon() -> NodeStatus {
    NodeStatus {
        schema: SCHEMA.to_owned(),
        verdict: VerdictKind::Unknown,
        degraded: false,
        backend: String::new(),
        capabilities: Vec::new(),
        time: String::new(),
        pid: 0,
        boot_id: String::new(),
        beat_seconds: 0,
        sources: Vec::new(),
        config: None,
        config_refused: None,
        booted_image: None,
        drifted: Vec::new(),
        gaps: Vec::new(),
        node: None,
        waiting: Vec::new(),
        counters: BTreeMap::new(),
        left_out: LeftOut::default(),
    }
}
