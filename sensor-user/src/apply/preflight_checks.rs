//! The checks before an apply.
//!
//! In: the host, the old and the new config, the targets. Out: every reason against the apply, as text.

use super::{
    error::{ApplyError, ApplyRefusal},
    targets::Writes,
    verify::{Differences, HostComparer, sort},
};
use crate::{
    bounded,
    disk::{DiskError, FirstNames, listed},
    observation::Observer,
    store::RESERVE,
    sys::{self, CallError},
};
use nix::{
    fcntl::OFlag,
    sys::statvfs::{FsFlags, fstatvfs},
};
use sensor_model::{
    drift_policy::DriftPolicy,
    expectation::{Expectation, Expected},
    journal::{PathState, Target},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// How many differences are listed.
const LISTED: usize = 20;

/// The differences of the node from its current config.
pub(super) async fn drift(comparer: &mut HostComparer<'_>) -> Differences {
    let Differences { problems, tolerated } = comparer.compare().await;
    let problem = |text: String| format!("this node has drifted from its current config: {text}");
    Differences { problems: some(problems).map(problem).collect(), tolerated: some(tolerated).collect() }
}

/// The first differences, and how many more there are.
fn some(mut differences: Vec<String>) -> impl Iterator<Item = String> {
    let more = differences.len().saturating_sub(LISTED);
    differences.truncate(LISTED);
    differences.into_iter().chain((more > 0).then(|| format!("and {more} more differences")))
}

/// Undeclared names and keys in the directories and files that the new config closes.
pub(super) fn closed(
    observer: &Observer,
    policy: &DriftPolicy,
    new: &[Expectation],
    targets: &[Target],
    found: &mut Differences,
) {
    let goes: BTreeSet<&Path> = targets
        .iter()
        .filter(|target| target.after == PathState::Absent)
        .map(|target| target.path.as_path())
        .collect();
    for expectation in new {
        let mut problems = Vec::new();
        let path = expectation.thing.path();
        match &expectation.expected {
            Expected::ClosedDirectory(closed) => {
                let stays =
                    |name: &str| closed.is_unexpected(name) && !goes.contains(path.join(name).as_path());
                match listed(observer, &path, stays) {
                    Ok(FirstNames { names, more }) => {
                        problems.extend(names.iter().map(|name| format!(
                            "{}: the new config closes its directory and does not declare it; declare it, move it away, or apply with --force",
                            path.join(name).display()
                        )));
                        if more > 0 {
                            problems.push(format!(
                                "{}: it has at least {more} more such names; move them away",
                                path.display()
                            ));
                        }
                    }
                    Err(error) => problems.push(error.to_string()),
                }
            }
            Expected::AuthorizedKeys(keys) => {
                // The verification reports a file that cannot be opened.
                let bytes = match observer.root().open_at(&path, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
                    Ok(file) => bounded::read_open(file, bounded::KEYS),
                    Err(_) => Ok(Vec::new()),
                };
                let undeclared = bytes.map(|bytes| crate::repair::declared_lines(&bytes, &keys.keys).1);
                match undeclared {
                    Ok(0) => {}
                    Ok(undeclared) => problems.push(format!(
                        "{}: {undeclared} keys in it are not declared by the new config, which declares the user's keys; declare them, remove them, or apply with --force",
                        path.display()
                    )),
                    Err(error) => problems.push(format!("{}: {error}", path.display())),
                }
            }
            _ => {}
        }
        sort(policy, &path, problems, found);
    }
}

/// Checks that each file system is writable and has space for everything twice, so that a rollback has space, too. The state
/// directory needs space for the journal, the originals and `kept` bytes of manifests.
pub(super) fn space(
    observer: &Observer,
    writes: &Writes,
    state: &Path,
    kept: u64,
) -> Result<Vec<String>, ApplyError> {
    struct Need {
        path: PathBuf,
        file_system: OwnedFd,
        bytes: u64,
        objects: u64,
    }
    let mut needs: BTreeMap<u64, Need> = BTreeMap::new();
    let size = |state: &PathState| match state {
        PathState::File(file) => file.size,
        _ => 0,
    };
    for target in &writes.targets {
        let file_system = nearest(observer, &target.path)?;
        let stat = nix::sys::stat::fstat(&file_system)
            .map_err(|errno| CallError::new(&target.path, "stat", errno))?;
        let need = needs.entry(stat.st_dev).or_insert_with(|| Need {
            path: target.path.clone(),
            file_system,
            bytes: 0,
            objects: 0,
        });
        // A file takes whole blocks.
        need.bytes += (size(&target.after) + size(&target.before)).next_multiple_of(4096) + 4096;
        need.objects += 1;
    }
    let directory = sys::directory(state).map_err(|errno| CallError::new(state, "open", errno))?;
    let stat = nix::sys::stat::fstat(&directory).map_err(|errno| CallError::new(state, "stat", errno))?;
    let need = needs.entry(stat.st_dev).or_insert_with(|| Need {
        path: state.to_owned(),
        file_system: directory,
        bytes: 0,
        objects: 0,
    });
    let journal =
        serde_json::to_vec(&(&writes.targets, &writes.matching)).map_or(0, |text| text.len() as u64);
    need.bytes += journal + RESERVE.unsigned_abs() + kept.next_multiple_of(4096);
    let displaced = writes.targets.iter().filter(|target| writes.unmanaged.contains(&target.path));
    let matching = writes.matching.iter().map(|original| &original.state);
    for original in displaced.map(|target| &target.before).chain(matching) {
        need.bytes += size(original).next_multiple_of(4096) + 4096;
        need.objects += 2;
    }
    // The generation with its config, plan and history; the current link; the journal.
    need.bytes += 8 * 4096;
    need.objects += 8;
    let mut problems = Vec::new();
    for need in needs.values() {
        let found =
            fstatvfs(&need.file_system).map_err(|errno| CallError::new(&need.path, "statvfs", errno))?;
        let room = Room {
            is_read_only: found.flags().contains(FsFlags::ST_RDONLY),
            bytes: found.blocks_free().saturating_mul(found.fragment_size()),
            // Some file systems do not count inodes.
            inodes: (found.files() > 0).then_some(found.files_free()),
        };
        problems.extend(room.lacks(&need.path, need.bytes, need.objects));
    }
    Ok(problems)
}

/// The free space of a file system.
#[derive(Debug, Clone, Copy)]
struct Room {
    is_read_only: bool,
    bytes: u64,
    inodes: Option<u64>,
}

impl Room {
    /// Which of the needed bytes and inodes are missing.
    fn lacks(self, path: &Path, bytes: u64, objects: u64) -> Vec<String> {
        let path = path.display();
        let mut problems = Vec::new();
        if self.is_read_only {
            problems.push(format!("the file system of {path} is read-only"));
        }
        if self.bytes < bytes {
            let free = self.bytes;
            problems.push(format!("the file system of {path} has {free} bytes free, and {bytes} are needed"));
        }
        if let Some(free) = self.inodes.filter(|free| *free < objects) {
            problems
                .push(format!("the file system of {path} has {free} inodes free, and {objects} are needed"));
        }
        problems
    }
}

/// The nearest existing directory above a path.
pub(super) fn nearest(observer: &Observer, path: &Path) -> Result<OwnedFd, ApplyError> {
    for parent in path.ancestors().skip(1) {
        match observer.root().open_at(parent, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Ok(directory) => return Ok(directory),
            Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR) => {}
            Err(errno) => return Err(DiskError::opening(parent, "open", errno).into()),
        }
    }
    Err(ApplyError::refused(path, ApplyRefusal::NoOpenDirectory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_bytes_and_missing_inodes_are_reported_apart_and_inodes_only_if_they_are_counted() {
        let path = Path::new("/etc/a");
        let room = Room { is_read_only: false, bytes: 100, inodes: Some(5) };
        assert_eq!(room.lacks(path, 100, 5), [""; 0], "just enough");
        let inodes = "the file system of /etc/a has 5 inodes free, and 6 are needed";
        assert_eq!(room.lacks(path, 100, 6), [inodes]);
        let bytes = "the file system of /etc/a has 100 bytes free, and 101 are needed";
        assert_eq!(room.lacks(path, 101, 5), [bytes]);
        assert_eq!(room.lacks(path, 101, 6), [bytes, inodes]);
        assert_eq!(Room { inodes: None, ..room }.lacks(path, 100, 6), [""; 0], "btrfs");
        let is_read_only = Room { is_read_only: true, ..room }.lacks(path, 1, 1);
        assert_eq!(is_read_only, ["the file system of /etc/a is read-only"]);
    }
}
