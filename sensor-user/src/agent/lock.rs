//! One daemon at a time for each state, run and pin directory.
//!
//! In: the daemon's directories. Out: locks that the kernel releases when the process ends, or an error that names the holder. It
//! owns the locks. A second daemon would take the socket and the kernel programs from the first.

use super::options::AgentOptions;
use crate::bounded;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::libc::O_NOFOLLOW;
use nix::sys::stat::{major, minor};
use sensor_model::cgroup::Placement;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The file that is locked in the state and the run directory. Only root can open it, so that no other user can hold it.
pub(super) const FILE: &str = "agent.lock";

/// Every lock on the host, with its process.
const LOCKS: &str = "/proc/locks";

/// Most bytes of a process's list of control groups.
const GROUP_BYTES: u64 = 64 << 10;

/// The daemon cannot exclude other daemons.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another daemon runs.
    #[error(
        "`{path}` belongs to the daemon that runs as {holder}: a node has one daemon, as a service of the host or in a pod of \
         the DaemonSet. Stop that one, or give this one its own --state, --run and --pins"
    )]
    Held {
        /// The locked path.
        path: PathBuf,
        /// Its process.
        holder: String,
    },
    /// No lock can be taken.
    #[error("cannot lock `{path}`: {source}")]
    Failed {
        /// The path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The locks of a daemon.
#[derive(Debug)]
pub(super) struct Locks {
    _held: Vec<Flock<File>>,
}

/// Locks the state, the run and the pin directory.
///
/// # Errors
/// Another daemon has one of them, or neither the state nor the run directory can be locked.
pub(super) fn take(options: &AgentOptions) -> Result<Locks, LockError> {
    let mut held = Vec::new();
    let mut failed = None;
    let mut directories = vec![&options.inputs.state, &options.run];
    // The state and the run directory may be the same.
    directories.dedup();
    for directory in directories {
        let path = directory.join(FILE);
        match open(&path) {
            Ok(file) => held.push(lock(file, &path)?),
            // The daemon also starts if one of the two is read-only.
            Err(source) => failed = Some(LockError::Failed { path, source }),
        }
    }
    if let (true, Some(error)) = (held.is_empty(), failed) {
        return Err(error);
    }
    // Daemons with other directories may share the pins. A BPF file system has no files to lock, so this locks the directory. The
    // loading of the programs reports a directory that cannot be created.
    if let Some(pins) = &options.pins {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(pins);
        if let Ok(directory) = made.and_then(|()| File::open(pins)) {
            held.push(lock(directory, pins)?);
        }
    }
    Ok(Locks { _held: held })
}

/// Locks what a daemon left of these directories. A directory that does not exist needs no lock.
///
/// # Errors
/// A daemon has one of them, or one cannot be locked.
pub(super) fn take_left(run: &Path, pins: &Path, state: &Path) -> Result<Locks, LockError> {
    let mut held = Vec::new();
    let mut directories = vec![run, state];
    // The state and the run directory may be the same.
    directories.dedup();
    let files = directories.into_iter().map(|directory| directory.join(FILE));
    for path in files.chain([pins.to_owned()]) {
        let opened = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW).open(&path);
        match opened {
            Ok(file) => held.push(lock(file, &path)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(LockError::Failed { path, source }),
        }
    }
    Ok(Locks { _held: held })
}

fn open(path: &Path) -> io::Result<File> {
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(O_NOFOLLOW)
        .open(path);
    match opened {
        // A lock needs no write access.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path),
        other => other,
    }
}

fn lock(file: File, path: &Path) -> Result<Flock<File>, LockError> {
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((file, Errno::EWOULDBLOCK)) => {
            let locks = fs::read_to_string(LOCKS).unwrap_or_default();
            let holder = file.metadata().ok().and_then(|file| holder(&locks, file.dev(), file.ino()));
            let holder = holder.map_or("a process that cannot be seen from here".to_owned(), described);
            Err(LockError::Held { path: path.to_owned(), holder })
        }
        Err((_, errno)) => Err(LockError::Failed { path: path.to_owned(), source: errno.into() }),
    }
}

/// A process with its unit or pod, for people.
fn described(pid: u32) -> String {
    let group = bounded::read_text(&Path::new("/proc").join(pid.to_string()).join("cgroup"), GROUP_BYTES);
    let Placement { unit, pod_uid, .. } = group.map(|text| Placement::of_proc(&text)).unwrap_or_default();
    match (pod_uid, unit) {
        (Some(pod), _) => format!("process {pid} in the pod {pod}"),
        (None, Some(unit)) => format!("process {pid} of {unit}"),
        (None, None) => format!("process {pid}"),
    }
}

/// The process that holds a lock on a file, from the text of [`LOCKS`]. The kernel shows its own device number there, which on
/// btrfs is not that of stat(2): then the inode number alone decides.
fn holder(locks: &str, dev: u64, ino: u64) -> Option<u32> {
    let held = locks.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        (fields.next()? == "FLOCK").then_some(())?;
        let pid: u32 = fields.nth(2)?.parse().ok()?;
        let mut file = fields.next()?.split(':');
        let major = u64::from_str_radix(file.next()?, 16).ok()?;
        let minor = u64::from_str_radix(file.next()?, 16).ok()?;
        (file.next()?.parse() == Ok(ino) && pid != 0).then_some((pid, (major, minor)))
    });
    let device = (major(dev), minor(dev));
    let held: Vec<_> = held.collect();
    held.iter().find(|(_, of)| *of == device).or(held.first()).map(|(pid, _)| *pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::makedev;

    const TEXT: &str = "1: POSIX  ADVISORY  WRITE 11 08:02:77 0 EOF\n\
                        2: -> FLOCK  ADVISORY  WRITE 12 08:02:77 0 EOF\n\
                        3: FLOCK  ADVISORY  WRITE 13 00:1b:77 0 EOF\n\
                        4: FLOCK  ADVISORY  WRITE 14 08:02:77 0 EOF\n\
                        5: FLOCK  ADVISORY  WRITE 0 08:02:78 0 EOF\n\
                        6: FLOCK  ADVISORY\n";

    #[test]
    fn the_holder_of_a_lock_is_found_by_device_and_inode_else_by_inode() {
        assert_eq!(holder(TEXT, makedev(8, 2), 77), Some(14));
        assert_eq!(holder(TEXT, makedev(9, 9), 77), Some(13));
        assert_eq!(holder(TEXT, makedev(8, 2), 78), None, "a process of another namespace");
        assert_eq!(holder(TEXT, makedev(8, 2), 79), None);
    }

    #[test]
    fn a_lock_is_free_again_when_its_holder_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let held = lock(open(&path).unwrap(), &path).unwrap();
        let error = lock(open(&path).unwrap(), &path).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(held);
        lock(open(&path).unwrap(), &path).unwrap();
    }
}
