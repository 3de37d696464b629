//! Change events from fanotify, for hosts on which no kernel program can be loaded, or none runs.
//!
//! In: the paths to watch. Out: the operations that the kernel programs would report, with the number of the process if it is known, or
//! a loss. `agent::receive` takes them as they are; they do not pass through `event`. Events carry file handles. The backend opens each
//! object once under its mark to learn its handle, so it needs no look-up by handle. It never blocks, and never delays or refuses an
//! operation. [`BLIND_SPOTS`] lists what it cannot see.

#[cfg(test)]
mod tests;

use crate::clock::Clock;
use nix::{
    errno::Errno,
    libc,
    sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags},
    unistd::read,
};
use sensor_common::op::Operation;
use sensor_model::host::fanotify::{self, Handle, RawEvent};
use std::{
    collections::HashMap,
    ffi::OsString,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
    sync::Arc,
};

pub use fanotify::MalformedEvent;

/// What this backend cannot see, for `doctor`, the log and the documentation.
pub const BLIND_SPOTS: [&str; 10] = [
    "who made a change, if that process has ended: an event has only the process number",
    "stores through a writable mapping, until the file is closed",
    "the order of changes, and how many there were: the kernel merges equal events of one process",
    "which attribute changed: mode, owner, times, extended attributes and access control lists are one event",
    "inode flags (immutable, append-only)",
    "mounts over a managed path",
    "writes to the block device below the file system",
    "changes that are refused: nothing can be denied",
    "executions of managed files",
    "owner and times of a managed symbolic link itself, until the next verification",
];

/// Bytes of one read: several hundred events.
const BUFFER_BYTES: usize = 64 << 10;

/// Most reads in a row, so that a flood of events cannot occupy the daemon.
const READS: usize = 64;

/// Events of interest for a directory: on names in it, and on the directory itself.
const DIRECTORY_MASK: MaskFlags = MaskFlags::FAN_CREATE
    .union(MaskFlags::FAN_DELETE)
    .union(MaskFlags::FAN_MOVED_FROM)
    .union(MaskFlags::FAN_MOVED_TO)
    .union(MaskFlags::FAN_ATTRIB)
    .union(MaskFlags::FAN_DELETE_SELF)
    .union(MaskFlags::FAN_MOVE_SELF)
    .union(MaskFlags::FAN_ONDIR);

/// Events of interest for a file.
const FILE_MASK: MaskFlags = MaskFlags::FAN_MODIFY
    .union(MaskFlags::FAN_CLOSE_WRITE)
    .union(MaskFlags::FAN_ATTRIB)
    .union(MaskFlags::FAN_OPEN_EXEC)
    .union(MaskFlags::FAN_DELETE_SELF)
    .union(MaskFlags::FAN_MOVE_SELF);

/// Why fanotify cannot be used, or not for this object.
#[derive(Debug, thiserror::Error)]
pub enum FanotifyError {
    /// The group could not be created: the process lacks the privilege, or the kernel has no file handles in events (before 5.9).
    #[error("fanotify cannot be used here: {}", .0.desc())]
    Group(Errno),
    /// No directory or regular file is at the path.
    #[error("fanotify finds no object to watch at {}: {}", path.display(), errno.desc())]
    Absent {
        /// The path.
        path: PathBuf,
        /// Why not.
        errno: Errno,
    },
    /// The object cannot be opened or marked: its file system may have no stable handles.
    #[error("fanotify cannot watch {}: {}", path.display(), errno.desc())]
    Watch {
        /// The path.
        path: PathBuf,
        /// Why not.
        errno: Errno,
    },
    /// The kernel accepted the mark, and sent no event for an open of the object.
    #[error("fanotify sends no events for {}", path.display())]
    Silent {
        /// The path.
        path: PathBuf,
    },
    /// The queue could not be read.
    #[error("cannot read fanotify events: {}", .0.desc())]
    Read(Errno),
    /// The queue contained malformed bytes.
    #[error(transparent)]
    Malformed(#[from] MalformedEvent),
}

impl FanotifyError {
    /// Whether no object was at the path. When one appears, an event on the name in its directory follows.
    pub const fn is_absence(&self) -> bool {
        matches!(self, Self::Absent { .. })
    }
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeEvent {
    /// The path under which the object or directory is watched.
    pub path: PathBuf,
    /// The name in that directory; `None` for a change to the watched object itself.
    pub name: Option<OsString>,
    /// The operation.
    pub operation: Operation,
    /// The process; `None` if it is outside the daemon's pid namespace.
    pub pid: Option<u32>,
    /// Boot-time nanoseconds of the read, because events contain no time.
    pub read_ns: u64,
}

/// Opens the objects to watch. `observation::Observer` implements it.
pub trait Open: std::fmt::Debug + Send + Sync {
    /// The directory or regular file at `path`, not what a link there points to.
    fn open_file(&self, path: &Path) -> Result<OwnedFd, Errno>;

    /// The object of a handle once more.
    fn open_again(&self, handle: OwnedFd) -> Result<OwnedFd, Errno>;
}

/// One entry of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FanotifyEvent {
    /// A change of a watched object.
    Change(ChangeEvent),
    /// The queue was full, and an unknown number of events is lost.
    Lost,
}

/// A group with marks on the watched objects.
#[derive(Debug)]
pub struct FanotifyBackend {
    group: Fanotify,
    opener: Arc<dyn Open>,
    clock: Arc<dyn Clock>,
    own: u32,
    /// Several paths may lead to one object.
    paths: HashMap<Handle, Vec<PathBuf>>,
    handles: HashMap<PathBuf, Handle>,
    /// Events that were read while the backend learnt a handle.
    backlog: Vec<FanotifyEvent>,
}

impl FanotifyBackend {
    /// A group without marks. Needs `CAP_SYS_ADMIN`.
    pub fn new(opener: Arc<impl Open + 'static>, clock: Arc<dyn Clock>) -> Result<Self, FanotifyError> {
        let handles = InitFlags::from_bits_retain(libc::FAN_REPORT_FID | libc::FAN_REPORT_DFID_NAME);
        let flags = InitFlags::FAN_CLASS_NOTIF
            | InitFlags::FAN_CLOEXEC
            | InitFlags::FAN_NONBLOCK
            | InitFlags::FAN_UNLIMITED_MARKS
            | handles;
        let group = Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC)
            .map_err(FanotifyError::Group)?;
        Ok(Self {
            group,
            opener,
            clock,
            own: std::process::id(),
            paths: HashMap::new(),
            handles: HashMap::new(),
            backlog: Vec::new(),
        })
    }

    /// Watches the directory or regular file at `path`, not the target of a link there. Call it again when the path may lead to
    /// another object. It then watches that object, and gives whether the object is another one.
    ///
    /// It may read events, which wait for the next [`Self::read`]. The descriptor does not become readable for these: call `read` if
    /// [`Self::has_waiting`] gives true.
    pub fn watch(&mut self, path: &Path) -> Result<bool, FanotifyError> {
        let error = |errno| FanotifyError::Watch { path: path.to_owned(), errno };
        let object = self.opener.open_file(path).map_err(|errno| match errno {
            Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EINVAL => {
                FanotifyError::Absent { path: path.to_owned(), errno }
            }
            _ => error(errno),
        });
        let object = match object {
            // The earlier object has left the path.
            Err(error @ FanotifyError::Absent { .. }) => {
                self.unwatch(path);
                return Err(error);
            }
            other => other?,
        };
        let stat = nix::sys::stat::fstat(&object).map_err(error)?;
        let is_directory = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
        let events = if is_directory { DIRECTORY_MASK } else { FILE_MASK } | MaskFlags::FAN_OPEN;
        self.group.mark(MarkFlags::FAN_MARK_ADD, events, &object, None::<&Path>).map_err(error)?;
        let learnt = self.learn(&object);
        let removed =
            self.group.mark(MarkFlags::FAN_MARK_REMOVE, MaskFlags::FAN_OPEN, &object, None::<&Path>);
        removed.map_err(error)?;
        let Some(handle) = learnt? else { return Err(FanotifyError::Silent { path: path.to_owned() }) };
        if self.handles.get(path) == Some(&handle) {
            return Ok(false);
        }
        self.unwatch(path);
        self.paths.entry(handle.clone()).or_default().push(path.to_owned());
        self.handles.insert(path.to_owned(), handle);
        Ok(true)
    }

    /// Ends the events for the object at `path`.
    pub fn unwatch(&mut self, path: &Path) {
        let Some(handle) = self.handles.remove(path) else { return };
        if let Some(paths) = self.paths.get_mut(&handle) {
            paths.retain(|other| other != path);
            if paths.is_empty() {
                self.paths.remove(&handle);
            }
        }
    }

    /// Whether events wait that [`Self::read`] has not given yet.
    pub fn has_waiting(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// The events since the last call; many events take several calls. It never blocks. The descriptor becomes readable for new events.
    pub fn read(&mut self) -> Result<Vec<FanotifyEvent>, FanotifyError> {
        let mut given = std::mem::take(&mut self.backlog);
        for _ in 0..READS {
            let events = self.read_once()?;
            if events.is_empty() {
                break;
            }
            for event in events {
                self.interpret(&event, &mut given);
            }
        }
        Ok(given)
    }

    /// Opens the object once more, and takes its handle from the event of this open.
    fn learn(&mut self, object: &OwnedFd) -> Result<Option<Handle>, FanotifyError> {
        let again =
            object.try_clone().map_err(|_| Errno::EMFILE).and_then(|object| self.opener.open_again(object));
        drop(again.map_err(FanotifyError::Read)?);
        let mut learnt = None;
        let mut given = Vec::new();
        loop {
            let events = self.read_once()?;
            if events.is_empty() {
                break;
            }
            for event in events {
                // Only this object is marked for opens. Its handle is in the event's directory record or in its object record.
                if event.mask & MaskFlags::FAN_OPEN.bits() != 0 && event.pid == self.own {
                    let directory = event.entry.clone().filter(|(_, name)| name.is_none());
                    learnt = directory.map(|(handle, _)| handle).or(event.object.clone());
                }
                self.interpret(&event, &mut given);
            }
        }
        self.backlog.append(&mut given);
        Ok(learnt)
    }

    fn read_once(&self) -> Result<Vec<RawEvent>, FanotifyError> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match read(&self.group, &mut buffer) {
                Ok(length) => return Ok(fanotify::parse(&buffer[..length])?),
                Err(Errno::EAGAIN) => return Ok(Vec::new()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(FanotifyError::Read(errno)),
            }
        }
    }

    /// Adds the changes of watched objects that an event means: none, one or several.
    fn interpret(&self, event: &RawEvent, given: &mut Vec<FanotifyEvent>) {
        let mask = MaskFlags::from_bits_truncate(event.mask);
        if mask.contains(MaskFlags::FAN_Q_OVERFLOW) {
            given.push(FanotifyEvent::Lost);
            return;
        }
        let on_directory = mask.contains(MaskFlags::FAN_ONDIR);
        let paths = |handle: &Handle| self.paths.get(handle).map(Vec::as_slice);
        let object = event.object.as_ref().and_then(paths);
        let entry = event.entry.as_ref().and_then(|(handle, name)| Some((paths(handle)?, name.as_ref())));
        for (bit, operation, in_directory) in OPERATIONS {
            if !mask.contains(bit) {
                continue;
            }
            let operation = match operation {
                Operation::Create if on_directory => Operation::MakeDirectory,
                Operation::Unlink if on_directory => Operation::RemoveDirectory,
                other => other,
            };
            // A change of a name is reported for its directory, a change of an object for the object itself.
            let about = match entry {
                Some((paths, Some(name))) if in_directory => Some((paths, Some(name))),
                Some((paths, None)) if !in_directory => Some((paths, None)),
                _ if !in_directory => object.map(|paths| (paths, None)),
                _ => None,
            };
            let (paths, name) = about.unwrap_or_default();
            given.extend(paths.iter().map(|path| {
                FanotifyEvent::Change(ChangeEvent {
                    path: path.clone(),
                    name: name.cloned(),
                    operation,
                    pid: Some(event.pid).filter(|pid| *pid != 0),
                    read_ns: self.clock.boot_ns(),
                })
            }));
        }
    }
}

/// Bits of an event, their operations, and whether they are about a name in a directory.
const OPERATIONS: [(MaskFlags, Operation, bool); 10] = [
    (MaskFlags::FAN_MODIFY, Operation::Write, false),
    (MaskFlags::FAN_ATTRIB, Operation::SetAttributes, false),
    (MaskFlags::FAN_CLOSE_WRITE, Operation::Release, false),
    (MaskFlags::FAN_OPEN_EXEC, Operation::Exec, false),
    (MaskFlags::FAN_DELETE_SELF, Operation::Unlink, false),
    (MaskFlags::FAN_MOVE_SELF, Operation::Rename, false),
    (MaskFlags::FAN_CREATE, Operation::Create, true),
    (MaskFlags::FAN_DELETE, Operation::Unlink, true),
    (MaskFlags::FAN_MOVED_FROM, Operation::Rename, true),
    (MaskFlags::FAN_MOVED_TO, Operation::RenameOver, true),
];

impl AsFd for FanotifyBackend {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

impl AsRawFd for FanotifyBackend {
    fn as_raw_fd(&self) -> RawFd {
        self.group.as_raw_fd()
    }
}
