//! One object of the file system, read through handles.
//!
//! In: a handle to the directory and a name in it. Out: type, metadata, digest, extended attributes.
//! The final component is never followed, nothing but regular files and directories is ever opened,
//! and no FIFO can block it. Metadata is read after the marked open, so that a change before that
//! open is in what is read and a change after it raises the inode's counter.

use super::{
    resolve::{HANDLE, link_target},
    served::Guard,
};
use nix::{
    errno::Errno,
    fcntl::{OFlag, openat},
    sys::stat::Mode,
    unistd::read,
};
use rustix::fs::{
    AtFlags, FileType as StatType, Statx, StatxAttributes, StatxFlags, fgetxattr, flistxattr, getxattr,
    listxattr, statx,
};
use sensor_common::op::OBSERVE_OPEN_FLAGS;
use sensor_model::{
    authorized_keys::{self, AuthorizedKeys},
    observation::{FileType, ObjectObservation},
    selinux::ATTRIBUTE,
};
use sha2::{Digest as _, Sha256};
use std::{
    cell::RefCell,
    ffi::OsStr,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

/// Bytes read at once.
const CHUNK: usize = 64 << 10;

/// Largest content that is hashed although it need not be: its size alone shows that it is not the declared one,
/// or none is declared.
const HASH_WHEN_SIZE_DIFFERS: u64 = 64 << 20;

/// Bytes that are looked at for ssh keys; whatever lies behind them may be one.
pub(super) const KEYS_BYTES: usize = 4 << 20;

thread_local! {
    /// One buffer for each thread that observes, for contents and attribute values alike.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// The kernel refused an operation on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {}", errno.desc())]
pub(crate) struct Refused {
    /// What was tried.
    pub(crate) operation: &'static str,
    /// Why it failed.
    pub(crate) errno: Errno,
}

impl Refused {
    pub(crate) fn at<E: Into<Errno>>(operation: &'static str) -> impl Fn(E) -> Self {
        move |errno| Self { operation, errno: errno.into() }
    }
}

fn rustix_errno(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

/// Reads one object after another; holds what all of them need.
#[derive(Debug)]
pub(crate) struct Reader {
    /// `/proc/self/fd`, through which a handle is opened for reading without a second look-up.
    descriptors: Option<OwnedFd>,
    /// The host has labels.
    pub(super) selinux: bool,
    /// Objects that it refuses are not touched.
    guard: Option<Arc<Guard>>,
}

/// An object that was found, and opened where its type allows that.
#[derive(Debug)]
pub(crate) struct Found {
    handle: OwnedFd,
    pub(crate) file: Option<OwnedFd>,
    pub(crate) file_type: FileType,
    pub(crate) stat: Statx,
}

/// What is wanted to know of a regular file's content.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Want {
    /// The declared size, where there is one.
    pub(crate) size: Option<u64>,
    /// Read its ssh keys too.
    pub(crate) keys: bool,
    /// No more of it than this is read, where its owner is not to be trusted with our time.
    pub(crate) most: Option<u64>,
}

impl Found {
    /// Whether the kernel programs saw that a look begins: by an open, or by reading a link.
    pub(crate) fn is_marked(&self) -> bool {
        self.file.is_some() || self.file_type == FileType::Symlink
    }

    /// Device number as `stat` shows it.
    pub(crate) fn device(&self) -> u64 {
        device(&self.stat)
    }
}

/// The `st_dev` that `statx` gave.
pub(crate) fn device(stat: &Statx) -> u64 {
    rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

impl Reader {
    pub(crate) fn new(selinux: bool, guard: Option<Arc<Guard>>) -> Self {
        let descriptors = nix::fcntl::open("/proc/self/fd", HANDLE | OFlag::O_DIRECTORY, Mode::empty()).ok();
        Self { descriptors, selinux, guard }
    }

    /// Finds `name` in `parent` without following it and opens it, with the flags that mark the open
    /// to the kernel programs, when it is a regular file or a directory; of a symbolic link the target is read. `None`: nothing of that name.
    pub(crate) fn find(&self, parent: impl AsFd, name: &OsStr) -> Result<Option<Found>, Refused> {
        let handle = match openat(parent.as_fd(), name, HANDLE | OFlag::O_NOFOLLOW, Mode::empty()) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            other => other.map_err(Refused::at("open"))?,
        };
        let by_name = || {
            without_access_time(|flags| {
                openat(parent.as_fd(), name, flags | OFlag::O_NOFOLLOW, Mode::empty())
            })
        };
        self.find_handle(handle, by_name).map(Some)
    }

    /// The same for a handle that is there already; `by_name` opens it where procfs is not mounted.
    pub(crate) fn find_handle(
        &self,
        handle: OwnedFd,
        by_name: impl Fn() -> Result<OwnedFd, Errno>,
    ) -> Result<Found, Refused> {
        let stat = self.first_stat(handle.as_fd())?;
        let file_type = file_type(&stat);
        if file_type == FileType::Symlink {
            // The kernel programs take this for the beginning of a look, so all else is read after it.
            link_target(handle.as_fd()).map_err(Refused::at("readlink"))?;
            let stat = stat_handle(handle.as_fd(), StatxFlags::BASIC_STATS)?;
            return Ok(Found { handle, file: None, file_type, stat });
        }
        if !matches!(file_type, FileType::Regular | FileType::Directory) {
            return Ok(Found { handle, file: None, file_type, stat });
        }
        let file = match &self.descriptors {
            Some(descriptors) => open_descriptor(descriptors.as_fd(), handle.as_fd()),
            None => by_name(),
        };
        let file = file.map_err(Refused::at("open"))?;
        let opened = stat_handle(file.as_fd(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
        if (device(&opened), opened.stx_ino) != (device(&stat), stat.stx_ino) {
            return Err(Refused { operation: "open (replaced meanwhile)", errno: Errno::EAGAIN });
        }
        Ok(Found { handle, file: Some(file), file_type, stat: opened })
    }

    /// `statx` of a handle of which nothing is known yet: no server is asked before it is known that there is none.
    fn first_stat(&self, handle: BorrowedFd<'_>) -> Result<Statx, Refused> {
        let Some(guard) = &self.guard else { return stat_handle(handle, StatxFlags::BASIC_STATS) };
        let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let stat = statx(handle, "", flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID);
        let Ok(stat) = stat else {
            // Only a server refuses to say.
            guard.check(handle).map_err(Refused::at("open"))?;
            return stat_handle(handle, StatxFlags::BASIC_STATS);
        };
        guard.check_mount(stat.stx_mnt_id, device(&stat)).map_err(Refused::at("open"))?;
        Ok(stat)
    }

    /// Everything that is to be known of an object, but the names of its owners.
    pub(crate) fn read(&self, found: &Found, want: Want) -> Result<ObjectObservation, Refused> {
        let stat = &found.stat;
        let mut object = ObjectObservation::new(
            found.file_type,
            u32::from(stat.stx_mode) & 0o7777,
            stat.stx_uid,
            stat.stx_gid,
        );
        object.size = stat.stx_size;
        object.changed_ns =
            i128::from(stat.stx_ctime.tv_sec) * 1_000_000_000 + i128::from(stat.stx_ctime.tv_nsec);
        for (flag, name) in
            [(StatxAttributes::IMMUTABLE, "immutable"), (StatxAttributes::APPEND, "append-only")]
        {
            if stat.stx_attributes.contains(flag) {
                object.attributes.push(name.to_owned());
            }
        }
        object.mounted_over = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        if found.file_type == FileType::Symlink {
            object.target =
                link_target(found.handle.as_fd()).map_err(Refused::at("readlink"))?.map(PathBuf::from);
        }
        self.attributes(found, &mut object)?;
        if let (FileType::Regular, Some(file)) = (found.file_type, &found.file) {
            // Only a declared size makes a file worth to be read to its end, however long it is.
            let hopeless = want.size != Some(stat.stx_size) && want.most.is_none();
            if !(hopeless && stat.stx_size > HASH_WHEN_SIZE_DIFFERS) {
                let content = content(file.as_fd(), stat.stx_size, want)?;
                object.size = content.size;
                object.sha256 = content.sha256;
                object.ssh_keys = content.keys;
            }
        }
        Ok(object)
    }

    /// Label and extended attributes. A file system without any has none; that is no error.
    fn attributes(&self, found: &Found, object: &mut ObjectObservation) -> Result<(), Refused> {
        // Objects that cannot be opened are reached through their descriptor's name: following that
        // magic link ends at the object itself, also when it is a symbolic link.
        let path = match (&found.file, &self.descriptors) {
            (Some(_), _) => String::new(),
            (None, Some(_)) => format!("/proc/self/fd/{}", found.handle.as_raw_fd()),
            (None, None) => return Ok(()),
        };
        SCRATCH.with_borrow_mut(|scratch| {
            let listed = match &found.file {
                Some(file) => flistxattr(file, scratch.as_mut_slice()),
                None => listxattr(&path, scratch.as_mut_slice()),
            };
            let names = match listed {
                Ok(length) => scratch[..length].to_vec(),
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => return Ok(()),
                Err(errno) => return Err(Refused { operation: "listxattr", errno: rustix_errno(errno) }),
            };
            for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
                let value = match &found.file {
                    Some(file) => fgetxattr(file, name, scratch.as_mut_slice()),
                    None => getxattr(&path, name, scratch.as_mut_slice()),
                };
                let length = match value {
                    Ok(length) => length,
                    // Removed since it was listed, or one that only its own kernel module may read.
                    Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => continue,
                    Err(errno) => return Err(Refused { operation: "getxattr", errno: rustix_errno(errno) }),
                };
                let name = String::from_utf8_lossy(name).into_owned();
                let value = &scratch[..length];
                if name == ATTRIBUTE {
                    object.label = self.selinux.then(|| label(value));
                } else {
                    let description = sensor_model::xattr::describe(&name, value);
                    object.xattrs.push((name, description));
                }
            }
            object.xattrs.sort_unstable();
            if self.selinux && object.label.is_none() {
                // Some file systems keep a label and do not list it.
                let value = match &found.file {
                    Some(file) => fgetxattr(file, ATTRIBUTE, scratch.as_mut_slice()),
                    None => getxattr(&path, ATTRIBUTE, scratch.as_mut_slice()),
                };
                object.label = value.ok().map(|length| label(&scratch[..length]));
            }
            Ok(())
        })
    }
}

/// A label as the kernel gives it, with or without the zero byte at its end.
fn label(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(b"\0").unwrap_or(value)).into_owned()
}

/// Flags of an observation open, `O_NOATIME` to be tried first.
pub(crate) fn observe_flags() -> OFlag {
    #[expect(clippy::cast_possible_wrap, reason = "three low bits of the flag word")]
    OFlag::from_bits_retain(OBSERVE_OPEN_FLAGS as i32).union(OFlag::O_RDONLY).union(OFlag::O_CLOEXEC)
}

/// Runs an observation open with `O_NOATIME`, and without where only the owner may ask for that. The
/// kernel refuses the flag before its open hook, so there is still only one open that hooks see.
pub(crate) fn without_access_time(open: impl Fn(OFlag) -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    match open(observe_flags() | OFlag::O_NOATIME) {
        Err(Errno::EPERM) => open(observe_flags()),
        other => other,
    }
}

fn open_descriptor(descriptors: BorrowedFd<'_>, handle: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let number = handle.as_raw_fd().to_string();
    without_access_time(|flags| openat(descriptors, number.as_str(), flags, Mode::empty()))
}

/// `statx` of a handle. Changes of a remote file system are not waited for.
pub(crate) fn stat_handle(handle: BorrowedFd<'_>, mask: StatxFlags) -> Result<Statx, Refused> {
    statx(handle, "", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, mask)
        .map_err(|errno| Refused { operation: "statx", errno: rustix_errno(errno) })
}

pub(super) fn file_type(stat: &Statx) -> FileType {
    match StatType::from_raw_mode(u32::from(stat.stx_mode)) {
        StatType::Directory => FileType::Directory,
        StatType::Symlink => FileType::Symlink,
        StatType::CharacterDevice => FileType::CharacterDevice,
        StatType::BlockDevice => FileType::BlockDevice,
        StatType::Fifo => FileType::Fifo,
        StatType::Socket => FileType::Socket,
        _ => FileType::Regular,
    }
}

/// What was read of a content.
#[derive(Debug)]
struct Content {
    size: u64,
    /// Of all of it; `None` where more was there than was to be read.
    sha256: Option<[u8; 32]>,
    keys: Option<AuthorizedKeys>,
}

/// Size and digest of what can be read, and the keys in it. It stops a little behind the size that
/// the file had when it was opened, so that a writer who never stops cannot hold it; the size that is
/// told is then not the declared one either way.
fn content(file: BorrowedFd<'_>, size: u64, want: Want) -> Result<Content, Refused> {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut digest = Sha256::new();
        let mut kept = Vec::new();
        let mut total = 0_u64;
        loop {
            let length = match read(file, scratch) {
                Err(Errno::EINTR) => continue,
                other => other.map_err(Refused::at("read"))?,
            };
            let chunk = &scratch[..length];
            digest.update(chunk);
            if want.keys {
                kept.extend_from_slice(&chunk[..length.min(KEYS_BYTES.saturating_sub(kept.len()))]);
            }
            total += length as u64;
            if want.most.is_some_and(|most| total > most) {
                let keys = want.keys.then(|| keys_in(&kept, true));
                return Ok(Content { size: size.max(total), sha256: None, keys });
            }
            // A short read of a regular file is its end, so most files cost one read. Files that show
            // no size (procfs, sysfs) are read until nothing comes.
            if length == 0
                || (length < CHUNK && size > 0 && total >= size)
                || total > size.saturating_add(1 << 20)
            {
                break;
            }
        }
        let keys = want.keys.then(|| keys_in(&kept, total > kept.len() as u64));
        Ok(Content { size: total, sha256: Some(digest.finalize().into()), keys })
    })
}

/// The keys in the beginning of a file. What lies behind it is not known to be none, whatever its digest.
fn keys_in(beginning: &[u8], is_cut: bool) -> AuthorizedKeys {
    let mut keys = authorized_keys::parse(beginning);
    keys.truncated |= is_cut;
    keys
}
