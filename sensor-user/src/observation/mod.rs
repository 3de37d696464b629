//! What managed things are on the disk.
//!
//! In: an expectation. Out: the observation of its thing, and which objects were opened for it, so
//! that the caller can enrol them with the kernel programs. Every open of a directory or file carries
//! the flags that mark it as an observation to those programs: first the parent directory, once, then
//! the object, once. Links on the way are followed inside the host root; the thing itself never is.
//! It never writes, never opens a device, never blocks on a FIFO.

mod accounts;
mod file_system;
mod for_other_rooms;
pub mod host;
mod names;
pub mod node;
mod object;
mod opened;
mod os;
pub(crate) mod resolve;
pub(crate) mod served;
mod unit;
pub mod worker;

#[cfg(test)]
mod tests;

use accounts::Identities;
use names::{Listed, list_closed};
use nix::{errno::Errno, fcntl::OFlag};
use object::{Found, KEYS_BYTES, Reader, Refused, Want, device, stat_handle, without_access_time};
use opened::open_directory;
use resolve::{HANDLE, Root};
use rustix::fs::StatxFlags;
use sensor_model::{
    authorized_keys::MAXIMUM_ENTRIES,
    expectation::{ClosedDirectoryExpectation, Expectation, Expected, Owner, Thing},
    observation::{FileType, ObjectObservation, Observation},
};
use served::REFUSED;
use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

pub use opened::{OpenedKind, OpenedObject};
pub use served::Served;
pub use unit::UnitFileState;

/// Undeclared files of one closed directory that are read for keys.
const KEY_FILES: usize = 64;

/// Where the kernel's side of SELinux shows itself.
const ENFORCE: &str = "/sys/fs/selinux/enforce";

/// The mounts of the daemon's own namespace, which sees the host's.
const MOUNTS: &str = "/proc/self/mountinfo";

/// How often an object that was replaced between two looks is looked at again.
const ATTEMPTS: usize = 4;

/// The host root could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the host root {}: {source}", root.display())]
pub struct RootError {
    /// The directory that was to be the root.
    pub root: PathBuf,
    /// Why not.
    pub source: io::Error,
}

/// An observation and what was opened for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// What was seen.
    pub observation: Observation,
    /// What was opened, in order: parents first.
    pub opened: Vec<OpenedObject>,
    /// Where the look was not gone on with, so that nothing was seen.
    pub served: Option<Served>,
}

/// The route of a path: the directories of the host that it resolves through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Route {
    /// Directories in which a name on the way was looked up, without links, from the root down. With a
    /// link on the way there are those that lead to the link and those that lead to where it points.
    pub directories: Vec<PathBuf>,
    /// The path of the parent directory with every link followed; `None` when the way ends early.
    pub parent: Option<PathBuf>,
    /// Where the way ends early because there is nothing: the directory, without links, and the name.
    pub missing: Option<(PathBuf, OsString)>,
}

/// Reads managed things below one host root.
#[derive(Debug)]
pub struct Observer {
    root: Root,
    reader: Reader,
    identities: Mutex<Identities>,
    /// What was mounted at declared directories when they were first looked at.
    mounts: Mutex<HashMap<PathBuf, Option<MountRoot>>>,
}

/// A mount, and the object that is its root: mount, device and inode number.
type MountRoot = (u64, u64, u64);

impl Observer {
    /// An observer of the file system below `root`: `/`, or where the host is mounted in a container. It waits for
    /// whatever it looks at.
    pub fn new(root: &Path) -> Result<Self, RootError> {
        Self::over(root, Root::open(root))
    }

    /// One that touches nothing on a file system that a server answers for: it says [`Observed::served`] instead.
    pub fn guarded(root: &Path) -> Result<Self, RootError> {
        Self::guarded_by(root, Path::new(MOUNTS))
    }

    /// The same with another table of mounts.
    pub(crate) fn guarded_by(root: &Path, mounts: &Path) -> Result<Self, RootError> {
        Self::over(root, Root::open_guarded(root, mounts))
    }

    fn over(root: &Path, opened: io::Result<Root>) -> Result<Self, RootError> {
        let opened = opened.map_err(|source| RootError { root: root.to_owned(), source })?;
        let has_selinux = opened.open_at(Path::new(ENFORCE), HANDLE).is_ok();
        Ok(Self {
            reader: Reader::new(has_selinux, opened.guard().cloned()),
            root: opened,
            identities: Mutex::default(),
            mounts: Mutex::default(),
        })
    }

    /// Looks at the expectation's thing.
    pub fn observe(&self, expectation: &Expectation) -> Observed {
        let mut opened = Vec::new();
        let observation = self.observe_with(expectation, &mut |object| opened.push(object.clone()));
        Observed { observation, opened, served: self.refused() }
    }

    /// Looks at the expectation's thing and calls `on_open` right after each marked open, while what
    /// the kernel programs wrote about that open is still the newest.
    pub fn observe_with(
        &self,
        expectation: &Expectation,
        on_open: &mut dyn FnMut(&OpenedObject),
    ) -> Observation {
        let path = expectation.thing.path();
        self.refused();
        let seen = match (&expectation.thing, &expectation.expected) {
            (Thing::Unit { name }, _) => unit::observe(&self.root, name, on_open).map(Observation::Unit),
            (Thing::ClosedDirectory { path }, Expected::ClosedDirectory(closed)) => {
                self.names(path, closed, on_open)
            }
            (Thing::Tree { .. }, _) => Ok(Observation::Unreadable {
                error: format!("{}: this version cannot verify a sealed tree", path.display()),
            }),
            (Thing::KernelArguments, _) => os::kernel_arguments(&self.root),
            (Thing::OsImage, _) => os::booted(&self.root),
            _ => self.object(&path, expectation, on_open),
        };
        seen.unwrap_or_else(|refused| Observation::Unreadable {
            error: match refused.errno {
                REFUSED => format!("{}: a server answers for its file system", path.display()),
                errno => format!("{} {}: {}", refused.operation, path.display(), errno.desc()),
            },
        })
    }

    /// Whether the host runs SELinux: only then has it labels.
    pub(crate) fn has_selinux(&self) -> bool {
        self.reader.selinux
    }

    /// Why a thing cannot be looked at on this host, so that nothing is expected of it here; `None` when it can.
    pub fn unchecked(&self, thing: &Thing) -> Option<String> {
        os::unchecked(&self.root, thing)
    }

    /// Opens a directory or regular file with the observation flags, for enrolment, and closes it. The
    /// last component is not followed; a symbolic link is read. `EINVAL` for objects of other types.
    pub fn open(&self, path: &Path) -> Result<OpenedObject, Errno> {
        let handle = self.root.open_at(path, HANDLE | OFlag::O_NOFOLLOW)?;
        let by_name = || without_access_time(|flags| self.root.open_at(path, flags | OFlag::O_NOFOLLOW));
        let found = self.reader.find_handle(handle, by_name).map_err(|refused| refused.errno)?;
        found.is_marked().then(|| opened_object(&found, OpenedKind::Object, path)).ok_or(Errno::EINVAL)
    }

    /// The root of the host, for writing expected state back by the same paths that are looked at.
    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// A directory or regular file, opened without following its last component, for marks on it.
    pub(crate) fn open_file(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let handle = self.root.open_at(path, HANDLE | OFlag::O_NOFOLLOW)?;
        self.open_again(handle)
    }

    /// The same object once more, by a handle of it.
    pub(crate) fn open_again(&self, handle: OwnedFd) -> Result<OwnedFd, Errno> {
        let found =
            self.reader.find_handle(handle, || Err(Errno::ENOSYS)).map_err(|refused| refused.errno)?;
        found.file.ok_or(Errno::EINVAL)
    }

    /// Whether a path leads to this inode (`st_dev`, `st_ino`), its last component not followed. Asked after
    /// everything was read: what was opened may have been replaced between look-up and open.
    pub fn leads_to(&self, path: &Path, device_and_inode: (u64, u64)) -> bool {
        self.root
            .open_at(path, HANDLE | OFlag::O_NOFOLLOW)
            .ok()
            .and_then(|handle| stat_handle(handle.as_fd(), StatxFlags::INO).ok())
            .is_some_and(|stat| (device(&stat), stat.stx_ino) == device_and_inode)
    }

    /// The directories that lie on the way to `path`, for enrolment as ancestors.
    pub fn route(&self, path: &Path) -> Route {
        let Some(parent) = path.parent() else {
            return Route::default();
        };
        let mut walk = self.root.walk(parent);
        let parent = walk.end.ok().map(|(_, real)| real);
        if let Some(parent) = &parent
            && walk.directories.last() != Some(parent)
        {
            walk.directories.push(parent.clone());
        }
        walk.directories.sort();
        walk.directories.dedup();
        Route { directories: walk.directories, parent, missing: walk.missing }
    }

    /// The directories below `/etc/systemd/system` that a unit is enabled in, as its own file on the host says.
    pub fn install_directories(&self, unit: &str) -> Vec<String> {
        unit::directories(&self.root, unit)
    }

    /// Number of a user of the host.
    pub fn uid(&self, name: &str) -> Option<u32> {
        self.identities().uid(&self.root, name)
    }

    /// Number of a group of the host.
    pub fn gid(&self, name: &str) -> Option<u32> {
        self.identities().gid(&self.root, name)
    }

    /// Name of a user of the host.
    pub fn user(&self, uid: u32) -> Option<String> {
        self.identities().user(&self.root, uid)
    }

    /// Name of a group of the host.
    pub fn group(&self, gid: u32) -> Option<String> {
        self.identities().group(&self.root, gid)
    }

    fn identities(&self) -> MutexGuard<'_, Identities> {
        // A panic while names were read leaves at worst an incomplete cache, which is read again.
        self.identities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the parent directory of `path`, then looks at the name in it.
    fn find(&self, path: &Path, on_open: &mut dyn FnMut(&OpenedObject)) -> Result<Option<Found>, Refused> {
        if let Some(guard) = self.root.guard() {
            // The name itself may be a mount point.
            guard.way(path).map_err(|errno| Refused { operation: "open", errno })?;
        }
        let found = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => {
                let directory = match open_directory(&self.root, parent, on_open) {
                    Err(Refused { errno: Errno::ENOENT | Errno::ENOTDIR, .. }) => return Ok(None),
                    other => other?,
                };
                Self::find_again(|| self.reader.find(&directory, name))?
            }
            // The root has no parent; it is its own object.
            _ => Self::find_again(|| self.reader.find(self.root.directory(), OsStr::new(".")))?,
        };
        if let Some(found) = found.as_ref().filter(|found| found.is_marked()) {
            on_open(&opened_object(found, OpenedKind::Object, path));
        }
        Ok(found)
    }

    fn find_again(look: impl Fn() -> Result<Option<Found>, Refused>) -> Result<Option<Found>, Refused> {
        let mut found = look();
        for _ in 1..ATTEMPTS {
            match found {
                Err(Refused { errno: Errno::EAGAIN, .. }) => found = look(),
                _ => break,
            }
        }
        found
    }

    fn object(
        &self,
        path: &Path,
        expectation: &Expectation,
        on_open: &mut dyn FnMut(&OpenedObject),
    ) -> Result<Observation, Refused> {
        let Some(found) = self.find(path, on_open)? else { return Ok(Observation::Missing) };
        let size = match &expectation.expected {
            Expected::File(file) => file.content.map(|content| content.size),
            _ => None,
        };
        // The owner of a file of keys may make it of any length.
        let most = matches!(expectation.expected, Expected::AuthorizedKeys(_)).then_some(KEYS_BYTES as u64);
        let mut object = self.reader.read(&found, Want { size, keys: expectation.ssh_keys, most })?;
        self.name_owners(&mut object, &expectation.expected);
        if matches!(expectation.expected, Expected::Directory(_)) {
            object.mounted_over &= !self.is_mount_point(&found, path, object.mounted_over);
        }
        if let Expected::Link(link) = &expectation.expected
            && link.hard
        {
            object.same_inode_as_target = Some(self.is_same_inode(&found, path, &link.target));
        }
        Ok(Observation::Object(Box::new(object)))
    }

    /// Whether a declared directory is one on which a file system is mounted by design: what was mounted there
    /// at the first look still is. Its mode and owner are those of the mounted root, as they are meant to be.
    fn is_mount_point(&self, found: &Found, path: &Path, mounted: bool) -> bool {
        let now = mounted.then_some((found.stat.stx_mnt_id, found.device(), found.stat.stx_ino));
        // One map operation at a time: a panic elsewhere cannot leave it broken.
        let mut mounts = self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        let first = *mounts.entry(path.to_owned()).or_insert(now);
        mounted && first == now
    }

    fn name_owners(&self, object: &mut ObjectObservation, expected: &Expected) {
        let mut identities = self.identities();
        let mut names = (identities.user(&self.root, object.uid), identities.group(&self.root, object.gid));
        let declared = match expected {
            Expected::File(file) => Some((&file.user, &file.group)),
            Expected::Directory(directory) => Some((&directory.user, &directory.group)),
            Expected::Link(link) => Some((&link.user, &link.group)),
            _ => None,
        };
        let other = |owner: &Owner, name: &Option<String>| matches!(owner, Owner::Name(declared) if Some(declared) != name.as_ref());
        if declared.is_some_and(|(user, group)| other(user, &names.0) || other(group, &names.1)) {
            // Before an owner is called wrong the databases are looked at again, however fresh.
            identities.refresh(&self.root);
            names = (identities.user(&self.root, object.uid), identities.group(&self.root, object.gid));
        }
        (object.user, object.group) = names;
    }

    /// Whether the target of a hard link is the same inode. A relative target starts at the link's directory.
    fn is_same_inode(&self, found: &Found, path: &Path, target: &Path) -> bool {
        let target = path.parent().unwrap_or(Path::new("/")).join(target);
        self.root
            .open_at(&target, HANDLE | OFlag::O_NOFOLLOW)
            .ok()
            .and_then(|handle| stat_handle(handle.as_fd(), StatxFlags::INO).ok())
            .is_some_and(|stat| (device(&stat), stat.stx_ino) == (found.device(), found.stat.stx_ino))
    }

    /// Names in a closed directory; an object of another type is reported as what it is. Its owner may fill it,
    /// so there is a limit to what is kept of what must not be there, and to the keys that are read in it.
    fn names(
        &self,
        path: &Path,
        closed: &ClosedDirectoryExpectation,
        on_open: &mut dyn FnMut(&OpenedObject),
    ) -> Result<Observation, Refused> {
        let Some(found) = self.find(path, on_open)? else { return Ok(Observation::Missing) };
        let (FileType::Directory, Some(directory)) = (found.file_type, &found.file) else {
            let object = self.reader.read(&found, Want { most: Some(0), ..Want::default() })?;
            return Ok(Observation::Object(Box::new(object)));
        };
        let list = directory.try_clone().map_err(|_| Refused { operation: "dup", errno: Errno::EMFILE })?;
        let Listed { declared, unexpected, more } = list_closed(list, closed)?;
        let mut ssh_keys = BTreeMap::new();
        if closed.ssh_keys {
            let (mut bytes, mut entries) = (0, 0);
            for name in &unexpected {
                if bytes >= KEYS_BYTES as u64 || entries >= MAXIMUM_ENTRIES || ssh_keys.len() >= KEY_FILES {
                    break;
                }
                let Ok(Some(file)) = self.reader.find(directory, name) else { continue };
                if file.file_type == FileType::Regular {
                    let most = Some(KEYS_BYTES as u64 - bytes);
                    let object = self.reader.read(&file, Want { size: None, keys: true, most })?;
                    let Some(found) = object.ssh_keys else { continue };
                    bytes += object.size;
                    entries += found.keys.len() + found.invalid.len();
                    ssh_keys.insert(lossy(name), found);
                }
            }
        }
        let mut names: Vec<String> = declared.iter().chain(&unexpected).map(|name| lossy(name)).collect();
        names.sort_unstable();
        Ok(Observation::Names { names, more, ssh_keys })
    }
}

/// What the log keeps of an observation, for a record's `before` and `after`: type, size, mode, owner
/// and digest, never content. `None` where nothing was there to be described.
pub fn snapshot(observation: &Observation) -> Option<serde_json::Value> {
    if !observation.is_something() {
        return None;
    }
    let mut value = serde_json::to_value(observation).ok()?;
    let map = value.as_object_mut()?;
    map.retain(|_, value| !value.is_null() && !value.as_array().is_some_and(Vec::is_empty));
    Some(value)
}

fn opened_object(found: &Found, kind: OpenedKind, path: &Path) -> OpenedObject {
    OpenedObject {
        kind,
        path: path.to_owned(),
        file_type: found.file_type,
        device: found.device(),
        inode: found.stat.stx_ino,
    }
}

fn lossy(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}
