//! What must hold before anything is begun.
//!
//! In: the host, the old and the new config, the targets. Out: everything that stands in the way, in words.

use super::{ApplyError, links, store::RESERVE, sys, targets::Writes, verify::Verifier};
use crate::observation::Observer;
use nix::{
    fcntl::OFlag,
    sys::statvfs::{FsFlags, fstatvfs},
};
use sensor_model::{
    expectation::{Expectation, Expected},
    journal::{Image, Target},
};
use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// The name of the Machine Config Operator's daemon.
const MCO_DAEMON: &str = "machine-config-daemon";

/// Differences that are told one by one.
const TOLD: usize = 20;

/// The node departs from its current config.
pub(super) async fn drift(verifier: &mut Verifier<'_>) -> Vec<String> {
    let mut problems = verifier.verify().await;
    let more = problems.len().saturating_sub(TOLD);
    problems.truncate(TOLD);
    if more > 0 {
        problems.push(format!("and {more} more differences"));
    }
    let told = |text: String| format!("the node is not as its current config says: {text}");
    problems.into_iter().map(told).collect()
}

/// Places that the new config closes, and what is in them that nobody declares.
pub(super) fn closed(observer: &Observer, new: &[Expectation], targets: &[Target]) -> Vec<String> {
    let mut problems = Vec::new();
    for expectation in new {
        let path = expectation.thing.path();
        match &expectation.expected {
            Expected::ClosedDirectory(closed) => {
                for name in links::names(observer, &path) {
                    let full = path.join(&name);
                    let goes = targets.iter().any(|t| t.path == full && t.after == Image::Absent);
                    if closed.is_unexpected(&name) && !goes {
                        problems.push(format!(
                            "{}: the new config closes its directory and does not declare it; declare it, move it away, or apply with --force",
                            full.display()
                        ));
                    }
                }
            }
            Expected::AuthorizedKeys(keys) => {
                let mut bytes = Vec::new();
                if let Ok(file) = observer.root().open_at(&path, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
                    // A file that cannot be read is told by the verification.
                    let _ = fs::File::from(file).take(4 << 20).read_to_end(&mut bytes);
                }
                let (_, undeclared) = crate::repair::declared_lines(&bytes, &keys.keys);
                if undeclared > 0 {
                    problems.push(format!(
                        "{}: {undeclared} keys in it are not declared by the new config, which declares the user's keys; declare them, remove them, or apply with --force",
                        path.display()
                    ));
                }
            }
            _ => {}
        }
    }
    problems
}

/// Room for everything twice, so that the way back has room, too; in the state directory for the journal, the originals
/// and `kept` bytes of manifests; and a disk that can be written.
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
    let size = |image: &Image| match image {
        Image::File(file) => file.size,
        _ => 0,
    };
    for target in &writes.targets {
        let file_system = nearest(observer, &target.path)?;
        let stat = nix::sys::stat::fstat(&file_system)
            .map_err(|errno| ApplyError::failed(&target.path, "stat", errno))?;
        let need = needs.entry(stat.st_dev).or_insert_with(|| Need {
            path: target.path.clone(),
            file_system,
            bytes: 0,
            objects: 0,
        });
        // Sizes are rounded up to blocks.
        need.bytes += (size(&target.after) + size(&target.before)).next_multiple_of(4096) + 4096;
        need.objects += 1;
    }
    let directory = sys::directory(state).map_err(|errno| ApplyError::failed(state, "open", errno))?;
    let stat = nix::sys::stat::fstat(&directory).map_err(|errno| ApplyError::failed(state, "stat", errno))?;
    let need = needs.entry(stat.st_dev).or_insert_with(|| Need {
        path: state.to_owned(),
        file_system: directory,
        bytes: 0,
        objects: 0,
    });
    let journal = serde_json::to_vec(&writes.targets).map_or(0, |text| text.len() as u64);
    need.bytes += journal + RESERVE.unsigned_abs() + kept.next_multiple_of(4096);
    for target in writes.targets.iter().filter(|target| writes.unmanaged.contains(&target.path)) {
        need.bytes += size(&target.before).next_multiple_of(4096) + 4096;
        need.objects += 2;
    }
    // The generation with its config, plan and history, the link and the journal.
    need.bytes += 8 * 4096;
    need.objects += 8;
    let mut problems = Vec::new();
    for need in needs.values() {
        let path = need.path.display();
        let found =
            fstatvfs(&need.file_system).map_err(|errno| ApplyError::failed(&need.path, "statvfs", errno))?;
        if found.flags().contains(FsFlags::ST_RDONLY) {
            problems.push(format!("the file system of {path} is read-only"));
        }
        let free = found.blocks_free().saturating_mul(found.fragment_size());
        if free < need.bytes {
            problems.push(format!(
                "the file system of {path} has {free} bytes free, and {} are needed",
                need.bytes
            ));
        }
        // Some file systems count no inodes.
        if found.files() > 0 && found.files_free() < need.objects {
            problems.push(format!(
                "the file system of {path} has {} inodes free, and {} are needed",
                found.files_free(),
                need.objects
            ));
        }
    }
    Ok(problems)
}

/// The nearest directory above a path that is there.
fn nearest(observer: &Observer, path: &Path) -> Result<OwnedFd, ApplyError> {
    for parent in path.ancestors().skip(1) {
        match observer.root().open_at(parent, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Ok(directory) => return Ok(directory),
            Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR) => {}
            Err(errno) => return Err(ApplyError::opening(parent, "open", errno)),
        }
    }
    Err(ApplyError::refused(path, "no directory above it can be opened"))
}

/// The Machine Config Operator's daemon writes the same files; two writers would undo each other.
pub(super) fn mco_daemon(root: &Path) -> Option<String> {
    for entry in fs::read_dir(root.join("proc")).ok()?.flatten() {
        let pid = entry.file_name();
        if !pid.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
        let program = String::from_utf8_lossy(program);
        if Path::new(program.as_ref()).file_name().is_some_and(|name| name == MCO_DAEMON) {
            return Some(format!(
                "{MCO_DAEMON} runs here (process {}) and manages this node; Holdfast does not write beside it unless told with --beside-mco",
                pid.to_string_lossy()
            ));
        }
    }
    None
}
