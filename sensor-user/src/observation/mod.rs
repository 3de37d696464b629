//! What managed things are on the disk.
//!
//! In: an expectation. Out: the observation of its thing, and the objects that it opened for this, so that the caller can enrol them
//! with the kernel programs. It opens first the parent directory and then the object, each once, with the flags that mark an
//! observation to those programs. It follows links inside the host root, but never a link that is the thing itself. It never writes,
//! opens no device but the control device of mapped ones, and never blocks on a FIFO.

mod accounts;
mod booted;
mod commit;
pub(crate) mod device_mapper;
mod file_system;
mod for_other_rooms;
mod hierarchy;
mod host_mounts;
pub mod host_observer;
mod names;
pub mod node;
mod object;
mod opened;
mod os;
mod pristine;
pub(crate) mod resolve;
pub(crate) mod sealed;
mod sealed_mounts;
pub(crate) mod seals;
pub(crate) mod served;
mod unit;
pub mod worker;

#[cfg(test)]
mod tests;

use accounts::AccountNames;
pub(crate) use commit::{REPOSITORY, checksum_of, object_place};
pub(crate) use names::is_unexpected;
use names::{Listed, list_closed};
use nix::{errno::Errno, fcntl::OFlag};
use object::{FailedOperation, Found, KEYS_BYTES, Reader, Want, device, stat_handle, without_access_time};
use opened::open_directory;
pub(crate) use pristine::Pristine;
use pristine::RootImage;
use resolve::{HANDLE, Root};
use rustix::fs::StatxFlags;
use sealed_mounts::MountPoints;
pub(crate) use seals::{OF_THE_HOST, is_of_host};
use sensor_model::{
    authorized_keys::MAXIMUM_ENTRIES,
    escape::name_text,
    expectation::{ClosedDirectoryExpectation, Expectation, Expected, Owner, Thing},
    observation::{FileType, ObjectObservation, Observation},
};
use served::NEEDS_WORKER;
use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

pub use opened::{OpenedKind, OpenedObject};
pub use served::Served;
pub use unit::UnitFileState;

/// Most undeclared files of one closed directory in which it looks for keys.
const KEY_FILES: usize = 64;

/// The file that exists only while the kernel runs SELinux.
const ENFORCE: &str = "/sys/fs/selinux/enforce";

/// The mount table of the daemon's own namespace, which is the host's.
const MOUNTS: &str = "/proc/self/mountinfo";

/// Attempts to observe an object that others replace or change meanwhile.
const ATTEMPTS: usize = 4;

/// The host root could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the host root {}: {source}", root.display())]
pub struct RootError {
    /// The directory that should be the root.
    pub root: PathBuf,
    /// Why not.
    pub source: io::Error,
}

/// An observation and what was opened for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// The observation.
    pub observation: Observation,
    /// The opened objects, parents first.
    pub opened: Vec<OpenedObject>,
    /// The file system at which the observation stopped, because a server answers for it; then nothing was observed.
    pub served: Option<Served>,
}

/// How a path leads through the host root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Route {
    /// The directories in which a name of the path was looked up, without links, from the root down. For a link in the path these are
    /// the directories that lead to the link, and those that lead to its target.
    pub directories: Vec<PathBuf>,
    /// The path of the parent directory without links; `None` if the route ends before it.
    pub parent: Option<PathBuf>,
    /// The directory, without links, and the first name that does not exist in it, if the route ends there.
    pub missing: Option<(PathBuf, OsString)>,
}

/// Reads managed things below one host root.
#[derive(Debug)]
pub struct Observer {
    root: Root,
    /// The path of the root, as the caller named it.
    root_path: PathBuf,
    reader: Reader,
    account_names: Mutex<AccountNames>,
    /// What was mounted at declared directories at their first observation.
    mounts: Mutex<HashMap<PathBuf, Option<MountRoot>>>,
    /// What was mounted in sealed trees at their first observation: the points, with the numbers of the mounts.
    tree_mounts: Mutex<HashMap<PathBuf, MountPoints>>,
    /// Whether sealed trees are found.
    finds_trees: bool,
    /// The image that is the host's root, once it was looked for.
    root_image: OnceLock<RootImage>,
}

/// A mount, and the object that is its root: mount, device and inode number.
type MountRoot = (u64, u64, u64);

impl Observer {
    /// An observer of the file system below `root`: `/`, or where the host is mounted in a container. It waits for file systems with a
    /// server.
    pub fn new(root: &Path) -> Result<Self, RootError> {
        Self::over(root, Root::open(root))
    }

    /// An observer that touches nothing on a file system that a server answers for. It sets [`Observed::served`] instead.
    pub fn guarded(root: &Path) -> Result<Self, RootError> {
        Self::guarded_by(root, Path::new(MOUNTS))
    }

    /// The same with another mount table.
    pub(crate) fn guarded_by(root: &Path, mounts: &Path) -> Result<Self, RootError> {
        Self::over(root, Root::open_guarded(root, mounts))
    }

    fn over(root: &Path, opened: io::Result<Root>) -> Result<Self, RootError> {
        let opened = opened.map_err(|source| RootError { root: root.to_owned(), source })?;
        let has_selinux = opened.open_at(Path::new(ENFORCE), HANDLE).is_ok();
        Ok(Self {
            reader: Reader::new(has_selinux, opened.guard().cloned()),
            root: opened,
            root_path: root.to_owned(),
            account_names: Mutex::default(),
            mounts: Mutex::default(),
            tree_mounts: Mutex::default(),
            finds_trees: false,
            root_image: OnceLock::new(),
        })
    }

    /// The same observer, which runs `after_part` after each part of a content: with the bytes of the file before that part, and the bytes
    /// of the part. So a long file can be read at a pace.
    #[must_use]
    pub fn with_pauses(mut self, after_part: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.reader.after_part = Some(Box::new(after_part));
        self
    }

    /// The same observer, which reads a file again that changed meanwhile. A file that changes each time is unreadable. It is for a reader without
    /// the kernel programs, which count the changes of watched files.
    #[must_use]
    pub fn with_settled_contents(mut self) -> Self {
        self.reader.is_settled = true;
        self
    }

    /// Observes the expectation's thing.
    pub fn observe(&self, expectation: &Expectation) -> Observed {
        let mut opened = Vec::new();
        let observation = self.observe_with(expectation, &mut |object| opened.push(object.clone()));
        Observed { observation, opened, served: self.take_left_to_worker() }
    }

    /// Observes the expectation's thing. It calls `on_open` right after each marked open, while the kernel programs' answer to that
    /// open is the newest.
    pub fn observe_with(
        &self,
        expectation: &Expectation,
        on_open: &mut dyn FnMut(&OpenedObject),
    ) -> Observation {
        let path = expectation.thing.path();
        self.take_left_to_worker();
        let observed = match (&expectation.thing, &expectation.expected) {
            (Thing::Unit { name }, _) => unit::observe(&self.root, name, on_open).map(Observation::Unit),
            (Thing::ClosedDirectory { path }, Expected::ClosedDirectory(closed)) => {
                self.names(path, closed, on_open)
            }
            (Thing::Tree { .. }, Expected::Unindexed) => Ok(Observation::Unreadable {
                error: format!(
                    "{}: no index says what the image has there; `holdfast image index` makes it",
                    path.display()
                ),
            }),
            (Thing::Tree { path }, _) => self.tree(path),
            (Thing::Hierarchy { path }, _) => hierarchy::observe(&self.root, path),
            (Thing::KernelArguments, _) => os::kernel_arguments(&self.root),
            (Thing::OsImage, _) => os::booted(&self.root),
            _ => self.object(&path, expectation, on_open),
        };
        observed.unwrap_or_else(|failed| Observation::Unreadable {
            error: match failed.errno {
                NEEDS_WORKER => format!("{}: a server answers for its file system", path.display()),
                errno => format!("{} {}: {}", failed.operation, path.display(), errno.desc()),
            },
        })
    }

    /// Whether the host runs SELinux. Without it objects have no labels.
    pub(crate) fn has_selinux(&self) -> bool {
        self.reader.selinux
    }

    /// Why this host cannot observe a thing, so that Holdfast expects nothing of it; `None` if it can.
    pub fn unchecked(&self, thing: &Thing) -> Option<String> {
        os::unchecked(&self.root, thing)
    }

    /// Opens a directory or regular file with the observation flags, for enrolment, and closes it. It does not follow the last
    /// component, but reads a symbolic link. `EINVAL` for objects of other types.
    pub fn open(&self, path: &Path) -> Result<OpenedObject, Errno> {
        let handle = self.root.open_at(path, HANDLE | OFlag::O_NOFOLLOW)?;
        let by_name = || without_access_time(|flags| self.root.open_at(path, flags | OFlag::O_NOFOLLOW));
        let found = self.reader.find_handle(handle, by_name).map_err(|failed| failed.errno)?;
        found.is_marked().then(|| opened_object(&found, OpenedKind::Object, path)).ok_or(Errno::EINVAL)
    }

    /// The path of the host's root, for messages.
    pub(crate) fn root_path(&self) -> &Path {
        &self.root_path
    }

    /// The root of the host. By it other rooms write to the very paths that this one observes.
    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// Opens a directory or regular file without following the last component, for fanotify marks.
    pub(crate) fn open_file(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let handle = self.root.open_at(path, HANDLE | OFlag::O_NOFOLLOW)?;
        self.open_again(handle)
    }

    /// Opens the object of a handle once more.
    pub(crate) fn open_again(&self, handle: OwnedFd) -> Result<OwnedFd, Errno> {
        let found = self.reader.find_handle(handle, || Err(Errno::ENOSYS)).map_err(|failed| failed.errno)?;
        found.file.ok_or(Errno::EINVAL)
    }

    /// Whether a path leads to this inode (`st_dev`, `st_ino`); the last component is not followed. Call it after all reads, because
    /// others may have replaced the object between look-up and open.
    pub fn leads_to(&self, path: &Path, device_and_inode: (u64, u64)) -> bool {
        self.root
            .open_at(path, HANDLE | OFlag::O_NOFOLLOW)
            .ok()
            .and_then(|handle| stat_handle(handle.as_fd(), StatxFlags::INO).ok())
            .is_some_and(|stat| (device(&stat), stat.stx_ino) == device_and_inode)
    }

    /// The directories through which `path` leads, for enrolment as ancestors.
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

    /// The directories below `/etc/systemd/system` in which a unit's own file on the host asks for links.
    pub fn install_directories(&self, unit: &str) -> Vec<String> {
        unit::directories(&self.root, unit)
    }

    /// Number of a user of the host.
    pub fn uid(&self, name: &str) -> Option<u32> {
        self.account_names().uid(&self.root, name)
    }

    /// Number of a group of the host.
    pub fn gid(&self, name: &str) -> Option<u32> {
        self.account_names().gid(&self.root, name)
    }

    /// Name of a user of the host.
    pub fn user(&self, uid: u32) -> Option<String> {
        self.account_names().user(&self.root, uid)
    }

    /// Name of a group of the host.
    pub fn group(&self, gid: u32) -> Option<String> {
        self.account_names().group(&self.root, gid)
    }

    fn account_names(&self) -> MutexGuard<'_, AccountNames> {
        // A panic during a read leaves at worst an incomplete cache, which the next call reads again.
        self.account_names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the parent directory of `path`, and then the name in it.
    fn find(
        &self,
        path: &Path,
        on_open: &mut dyn FnMut(&OpenedObject),
    ) -> Result<Option<Found>, FailedOperation> {
        if let Some(guard) = self.root.guard() {
            // The name itself may be a mount point.
            guard.crossings(path).map_err(|errno| FailedOperation { operation: "open", errno })?;
        }
        let found = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => {
                let directory = match open_directory(&self.root, parent, on_open) {
                    Err(FailedOperation { errno: Errno::ENOENT | Errno::ENOTDIR, .. }) => return Ok(None),
                    other => other?,
                };
                again(|| self.reader.find(&directory, name))?
            }
            // The root has no parent; it is its own object.
            _ => again(|| self.reader.find(self.root.directory(), OsStr::new(".")))?,
        };
        if let Some(found) = found.as_ref().filter(|found| found.is_marked()) {
            on_open(&opened_object(found, OpenedKind::Object, path));
        }
        Ok(found)
    }

    fn object(
        &self,
        path: &Path,
        expectation: &Expectation,
        on_open: &mut dyn FnMut(&OpenedObject),
    ) -> Result<Observation, FailedOperation> {
        let declared = match &expectation.expected {
            Expected::File(file) => file.content,
            _ => None,
        };
        let (size, sha256) = (declared.map(|content| content.size), declared.map(|content| content.sha256));
        // The owner of a file of keys may give it any length.
        let most = matches!(expectation.expected, Expected::AuthorizedKeys(_)).then_some(KEYS_BYTES as u64);
        let ostree = match &expectation.expected {
            Expected::OstreeObject(object) => Some(object.checksum),
            _ => None,
        };
        let want = Want { size, sha256, keys: expectation.ssh_keys, most, ostree };
        let read = again(|| {
            let Some(found) = self.find(path, on_open)? else { return Ok(None) };
            Ok(Some((self.reader.read(&found, want)?, found)))
        });
        let Some((mut object, found)) = read? else { return Ok(Observation::Missing) };
        self.name_owners(&mut object, &expectation.expected);
        if matches!(expectation.expected, Expected::Directory(_)) {
            if !hierarchy::is_never_mount_point(expectation) {
                object.mounted_over &= !self.is_mount_point(&found, path, object.mounted_over);
            }
            if object.mounted_over && hierarchy::is_of_image(expectation) {
                // An overlay there is a difference of the hierarchy, which is a thing of its own. Another mount is one of the directory.
                object.mounted_over = !hierarchy::has_cover(&self.root, path);
            }
        }
        if let Expected::Link(link) = &expectation.expected
            && link.hard
        {
            object.same_inode_as_target = Some(self.is_same_inode(&found, path, &link.target));
        }
        Ok(Observation::Object(Box::new(object)))
    }

    /// Whether a declared directory is a mount point by design: the mount of the first observation is still there. Its mode and owner
    /// are then those of the mounted root.
    fn is_mount_point(&self, found: &Found, path: &Path, mounted: bool) -> bool {
        let now = mounted.then_some((found.stat.stx_mnt_id, found.device(), found.stat.stx_ino));
        // Each lock covers one map operation, so a panic elsewhere leaves the map intact.
        let mut mounts = self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        let first = *mounts.entry(path.to_owned()).or_insert(now);
        mounted && first == now
    }

    fn name_owners(&self, object: &mut ObjectObservation, expected: &Expected) {
        let mut names_of = self.account_names();
        let mut names = (names_of.user(&self.root, object.uid), names_of.group(&self.root, object.gid));
        let declared = match expected {
            Expected::File(file) => Some((&file.user, &file.group)),
            Expected::Directory(directory) => Some((&directory.user, &directory.group)),
            Expected::Link(link) => Some((&link.user, &link.group)),
            _ => None,
        };
        let other = |owner: &Owner, name: &Option<String>| matches!(owner, Owner::Name(declared) if Some(declared) != name.as_ref());
        if declared.is_some_and(|(user, group)| other(user, &names.0) || other(group, &names.1)) {
            // The databases are read again before an owner counts as wrong, whatever the age of the cache.
            names_of.refresh(&self.root);
            names = (names_of.user(&self.root, object.uid), names_of.group(&self.root, object.gid));
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

    /// The names in a closed directory, or the object of another type at its path. The owner may fill the directory, so it keeps a
    /// limited number of undeclared names and reads a limited number of keys.
    fn names(
        &self,
        path: &Path,
        closed: &ClosedDirectoryExpectation,
        on_open: &mut dyn FnMut(&OpenedObject),
    ) -> Result<Observation, FailedOperation> {
        let Some(found) = self.find(path, on_open)? else { return Ok(Observation::Missing) };
        let (FileType::Directory, Some(directory)) = (found.file_type, &found.file) else {
            let object = self.reader.read(&found, Want { most: Some(0), ..Want::default() })?;
            return Ok(Observation::Object(Box::new(object)));
        };
        let list =
            directory.try_clone().map_err(|_| FailedOperation { operation: "dup", errno: Errno::EMFILE })?;
        let Listed { declared, unexpected, more } = list_closed(list, directory.as_fd(), closed)?;
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
                    let object = self.reader.read(&file, Want { keys: true, most, ..Want::default() })?;
                    let Some(found) = object.ssh_keys else { continue };
                    bytes += object.size;
                    entries += found.keys.len() + found.invalid.len();
                    ssh_keys.insert(name_text(name).into_owned(), found);
                }
            }
        }
        let mut names: Vec<String> =
            declared.iter().chain(&unexpected).map(|name| name_text(name).into_owned()).collect();
        names.sort_unstable();
        Ok(Observation::Names { names, more, ssh_keys })
    }
}

/// The part of an observation that the log keeps, for a record's `before` and `after`: type, size, mode, owner and digest, never
/// content. `None` if the thing did not exist.
pub fn snapshot(observation: &Observation) -> Option<serde_json::Value> {
    if !observation.is_something() {
        return None;
    }
    let mut value = serde_json::to_value(observation).ok()?;
    let map = value.as_object_mut()?;
    map.retain(|_, value| !value.is_null() && !value.as_array().is_some_and(Vec::is_empty));
    Some(value)
}

/// Attempts an operation again while other processes change its object meanwhile.
fn again<T>(mut attempt: impl FnMut() -> Result<T, FailedOperation>) -> Result<T, FailedOperation> {
    let mut result = attempt();
    for _ in 1..ATTEMPTS {
        match result {
            Err(FailedOperation { errno: Errno::EAGAIN, .. }) => result = attempt(),
            _ => break,
        }
    }
    result
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
