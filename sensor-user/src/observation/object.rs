//! One object of the file system, read through handles.
//!
//! In: a handle of the directory and a name in it. Out: type, metadata, digest, extended attributes. It never follows the name, opens
//! only regular files and directories, and no FIFO can block it. It reads metadata after the marked open. So it reads the effect of
//! a change before that open, and a change after the open raises the inode's counter.

use super::{
    resolve::{HANDLE, link_target},
    sealed::SealedContents,
    served::MountGuard,
};
use crate::sys;
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
    ostree::{Checksum, FileHeader, sorted_xattrs},
    selinux::ATTRIBUTE,
    xattr,
};
use sha2::{Digest as _, Sha256};
use std::{
    cell::RefCell,
    ffi::OsStr,
    fmt,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::PathBuf,
    sync::Arc,
};

/// Bytes read at once.
const CHUNK: usize = 64 << 10;

/// The largest content that it hashes without need: the size already differs from the declared one, or no content is declared.
const HASH_WHEN_SIZE_DIFFERS: u64 = 64 << 20;

/// Bytes in which it looks for ssh keys. The bytes after them may hold one.
pub(super) const KEYS_BYTES: usize = 4 << 20;

thread_local! {
    /// One buffer for each thread that observes, for contents and attribute values alike.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// The kernel refused an operation on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {}", errno.desc())]
pub(crate) struct FailedOperation {
    /// What was tried.
    pub(crate) operation: &'static str,
    /// Why it failed.
    pub(crate) errno: Errno,
}

impl FailedOperation {
    pub(crate) fn at<E: Into<Errno>>(operation: &'static str) -> impl Fn(E) -> Self {
        move |errno| Self { operation, errno: errno.into() }
    }
}

fn rustix_errno(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

/// What runs after each part of a content: with the bytes of the file before that part, and the bytes of the part.
pub(super) type AfterPart = Box<dyn Fn(u64, u64) + Send + Sync>;

/// Reads objects, one after another.
pub(crate) struct Reader {
    /// `/proc/self/fd`, through which it opens a handle for reading without a second look-up.
    descriptors: Option<OwnedFd>,
    /// Whether the host has labels.
    pub(super) selinux: bool,
    /// Decides which objects may be touched; without it, all.
    guard: Option<Arc<MountGuard>>,
    /// Runs after each part of a content, for a reader that keeps a pace.
    pub(super) after_part: Option<AfterPart>,
    /// Whether a content counts only if the file did not change while it was read. The daemon needs it not, because the kernel programs
    /// count the changes of what it watches.
    pub(super) is_settled: bool,
    /// The contents of sealed files that need not be read again; without it, all files are read.
    pub(super) sealed: Option<Box<SealedContents>>,
}

impl fmt::Debug for Reader {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Reader").field("selinux", &self.selinux).finish_non_exhaustive()
    }
}

/// An object at a path. It is open if its type allows that.
#[derive(Debug)]
pub(crate) struct Found {
    handle: OwnedFd,
    pub(crate) file: Option<OwnedFd>,
    pub(crate) file_type: FileType,
    pub(crate) stat: Statx,
}

/// What to read of a regular file's content.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Want {
    /// The declared size; `None` if no content is declared.
    pub(crate) size: Option<u64>,
    /// The declared SHA-256; `None` if no content is declared.
    pub(crate) sha256: Option<[u8; 32]>,
    /// Whether to read the ssh keys, too.
    pub(crate) keys: bool,
    /// The most bytes to read of a file whose owner is not trusted; `None` for no limit.
    pub(crate) most: Option<u64>,
    /// The expected checksum of an ostree object; `None` if none is expected.
    pub(crate) ostree: Option<Checksum>,
}

impl Found {
    /// Whether the kernel programs have seen the begin of the observation: an open, or the reading of a link.
    pub(crate) fn is_marked(&self) -> bool {
        self.file.is_some() || self.file_type == FileType::Symlink
    }

    /// The device number as `stat` shows it.
    pub(crate) fn device(&self) -> u64 {
        device(&self.stat)
    }
}

/// The `st_dev` of a `statx`.
pub(crate) fn device(stat: &Statx) -> u64 {
    rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

impl Reader {
    pub(crate) fn new(selinux: bool, guard: Option<Arc<MountGuard>>) -> Self {
        let descriptors = nix::fcntl::open("/proc/self/fd", HANDLE | OFlag::O_DIRECTORY, Mode::empty()).ok();
        Self { descriptors, selinux, guard, after_part: None, is_settled: false, sealed: None }
    }

    /// Finds `name` in `parent` without following it. It opens a regular file or directory with the flags of an observation, and reads
    /// the target of a symbolic link. `None` if the name does not exist.
    pub(crate) fn find(&self, parent: impl AsFd, name: &OsStr) -> Result<Option<Found>, FailedOperation> {
        let handle = match openat(parent.as_fd(), name, HANDLE | OFlag::O_NOFOLLOW, Mode::empty()) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            other => other.map_err(FailedOperation::at("open"))?,
        };
        let by_name = || {
            without_access_time(|flags| {
                openat(parent.as_fd(), name, flags | OFlag::O_NOFOLLOW, Mode::empty())
            })
        };
        self.find_handle(handle, by_name).map(Some)
    }

    /// The same for an existing handle. Without procfs it uses `by_name` to open the object.
    pub(crate) fn find_handle(
        &self,
        handle: OwnedFd,
        by_name: impl Fn() -> Result<OwnedFd, Errno>,
    ) -> Result<Found, FailedOperation> {
        let stat = self.first_stat(handle.as_fd())?;
        let file_type = file_type(&stat);
        if file_type == FileType::Symlink {
            // For the kernel programs this begins the observation, so everything else is read after it.
            link_target(handle.as_fd()).map_err(FailedOperation::at("readlink"))?;
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
        let file = file.map_err(FailedOperation::at("open"))?;
        let opened = stat_handle(file.as_fd(), StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
        if (device(&opened), opened.stx_ino) != (device(&stat), stat.stx_ino) {
            return Err(FailedOperation { operation: "open (replaced meanwhile)", errno: Errno::EAGAIN });
        }
        Ok(Found { handle, file: Some(file), file_type, stat: opened })
    }

    /// `statx` of a new handle. With a guard it asks no server: the guard first checks the handle's mount.
    fn first_stat(&self, handle: BorrowedFd<'_>) -> Result<Statx, FailedOperation> {
        let Some(guard) = &self.guard else { return stat_handle(handle, StatxFlags::BASIC_STATS) };
        let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let stat = statx(handle, "", flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID);
        let Ok(stat) = stat else {
            // Only a file system with a server refuses this call.
            guard.check(handle).map_err(FailedOperation::at("open"))?;
            return stat_handle(handle, StatxFlags::BASIC_STATS);
        };
        guard.check_mount(stat.stx_mnt_id, device(&stat)).map_err(FailedOperation::at("open"))?;
        Ok(stat)
    }

    /// The observation of an object, without the names of its owner and group. `EAGAIN`: the file changed while it was read, and must not.
    pub(crate) fn read(&self, found: &Found, want: Want) -> Result<ObjectObservation, FailedOperation> {
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
            object.target = link_target(found.handle.as_fd())
                .map_err(FailedOperation::at("readlink"))?
                .map(PathBuf::from);
        }
        self.attributes(found, &mut object)?;
        let begun = if want.ostree.is_some() { begin_checksum(found, &object)? } else { None };
        let mut checksum = begun.clone().map(|begun| begun.finalize().into());
        if let (FileType::Regular, Some(file)) = (found.file_type, &found.file) {
            // A file of the declared size is read to its end, however long it is. Any other size shows the difference already.
            let differs = want.size != Some(stat.stx_size) && want.most.is_none() && want.ostree.is_none();
            if !(differs && stat.stx_size > HASH_WHEN_SIZE_DIFFERS) {
                checksum = self.add_content(file.as_fd(), stat, (want, begun), &mut object)?;
                if self.is_settled
                    && version(&stat_handle(file.as_fd(), StatxFlags::BASIC_STATS)?) != version(stat)
                {
                    return Err(FailedOperation {
                        operation: "read (changed meanwhile)",
                        errno: Errno::EAGAIN,
                    });
                }
            }
        }
        object.has_ostree_checksum = want.ostree.map(|wanted| checksum == Some(wanted));
        Ok(object)
    }

    /// Adds the content of a file. A file that the kernel proves to have the declared content is not read. Gives ostree's checksum, if it was
    /// begun.
    fn add_content(
        &self,
        file: BorrowedFd<'_>,
        stat: &Statx,
        (want, begun): (Want, Option<Sha256>),
        object: &mut ObjectObservation,
    ) -> Result<Option<Checksum>, FailedOperation> {
        let contents = self.sealed.as_ref().filter(|_| !want.keys);
        let sealed = contents.and_then(|contents| Some((contents, contents.seal(file, stat)?)));
        if let (Some((contents, seal)), Some(sha256)) = (&sealed, want.sha256)
            && contents.proves(seal, &sha256)
        {
            object.sha256 = Some(sha256);
            object.sealed = Some(seal.kind());
            return Ok(None);
        }
        let content = self.content(file, stat.stx_size, (want, begun))?;
        // `proves` is called with the expected content only. The owner of a file can write any other content, whose pair would only use memory.
        if let (Some((contents, seal)), Some(sha256)) = (&sealed, content.sha256)
            && want.sha256 == Some(sha256)
        {
            contents.learn(seal, &sha256);
        }
        object.size = content.size;
        object.sha256 = content.sha256;
        object.ssh_keys = content.keys;
        Ok(content.checksum)
    }

    /// Reads label and extended attributes. A file system without them is no error.
    fn attributes(&self, found: &Found, object: &mut ObjectObservation) -> Result<(), FailedOperation> {
        // The name of its descriptor reaches an object that cannot be opened. That magic link leads to the object itself, also
        // if the object is a symbolic link.
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
                Err(rustix::io::Errno::TOOBIG) => {
                    let (name, description) = xattr::UNLISTED;
                    object.xattrs.push((name.to_owned(), description.to_owned()));
                    Vec::new()
                }
                Err(errno) => {
                    return Err(FailedOperation { operation: "listxattr", errno: rustix_errno(errno) });
                }
            };
            let mut bytes = 0;
            for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
                if bytes > sys::ATTRIBUTE_BYTES && name != ATTRIBUTE.as_bytes() {
                    let name = String::from_utf8_lossy(name).into_owned();
                    object.xattrs.push((name, xattr::UNREAD.to_owned()));
                    continue;
                }
                let value = match &found.file {
                    Some(file) => fgetxattr(file, name, scratch.as_mut_slice()),
                    None => getxattr(&path, name, scratch.as_mut_slice()),
                };
                let length = match value {
                    Ok(length) => length,
                    // The attribute was removed since the listing, or only its own kernel module may read it.
                    Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => continue,
                    Err(errno) => {
                        return Err(FailedOperation { operation: "getxattr", errno: rustix_errno(errno) });
                    }
                };
                let name = String::from_utf8_lossy(name).into_owned();
                let value = &scratch[..length];
                bytes += length;
                if name == ATTRIBUTE {
                    object.label = self.selinux.then(|| label(value));
                } else {
                    let description = xattr::describe(&name, value);
                    object.xattrs.push((name, description));
                }
            }
            object.xattrs.sort_unstable();
            if self.selinux && object.label.is_none() {
                // Some file systems keep a label and do not list its attribute.
                let value = match &found.file {
                    Some(file) => fgetxattr(file, ATTRIBUTE, scratch.as_mut_slice()),
                    None => getxattr(&path, ATTRIBUTE, scratch.as_mut_slice()),
                };
                object.label = value.ok().map(|length| label(&scratch[..length]));
            }
            Ok(())
        })
    }

    /// Reads size, digest and keys of a content. It stops a MiB after the size that the file had at the open, so that a writer without end
    /// cannot hold it. The reported size then differs from the declared one in any case.
    fn content(
        &self,
        file: BorrowedFd<'_>,
        size: u64,
        (want, mut begun): (Want, Option<Sha256>),
    ) -> Result<ReadContent, FailedOperation> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut digest = Sha256::new();
            let mut kept = Vec::new();
            let mut total = 0_u64;
            loop {
                let length = match read(file, scratch) {
                    Err(Errno::EINTR) => continue,
                    other => other.map_err(FailedOperation::at("read"))?,
                };
                let chunk = &scratch[..length];
                digest.update(chunk);
                if let Some(begun) = &mut begun {
                    begun.update(chunk);
                }
                if want.keys {
                    kept.extend_from_slice(&chunk[..length.min(KEYS_BYTES.saturating_sub(kept.len()))]);
                }
                if let Some(after_part) = &self.after_part {
                    after_part(total, length as u64);
                }
                total += length as u64;
                if want.most.is_some_and(|most| total > most) {
                    let keys = want.keys.then(|| keys_in(&kept, true));
                    return Ok(ReadContent { size: size.max(total), sha256: None, checksum: None, keys });
                }
                // A short read of a regular file is its end, so most files cost one read. A file that shows no size (procfs, sysfs) ends
                // with an empty read.
                if length == 0
                    || (length < CHUNK && size > 0 && total >= size)
                    || total > size.saturating_add(1 << 20)
                {
                    break;
                }
            }
            let keys = want.keys.then(|| keys_in(&kept, total > kept.len() as u64));
            let checksum = begun.take().map(|begun| begun.finalize().into());
            Ok(ReadContent { size: total, sha256: Some(digest.finalize().into()), checksum, keys })
        })
    }
}

/// Begins ostree's checksum of a file, which needs its content, or makes that of a symbolic link; `None` for another object.
fn begin_checksum(found: &Found, object: &ObjectObservation) -> Result<Option<Sha256>, FailedOperation> {
    let attributes = match (&found.file, found.file_type) {
        (Some(file), FileType::Regular) => sys::attributes(file),
        (None, FileType::Symlink) => sys::attributes_by_handle(&found.handle),
        _ => return Ok(None),
    };
    let attributes = match attributes {
        // No commit has a file with so many.
        Err(Errno::E2BIG) => return Ok(None),
        read => read.map_err(FailedOperation::at("getxattr"))?,
    };
    let xattrs = sorted_xattrs(attributes);
    let target = object.target.as_ref().map_or(&b""[..], |target| target.as_os_str().as_bytes());
    let Statx { stx_uid: uid, stx_gid: gid, stx_mode: mode, .. } = found.stat;
    Ok(Some(FileHeader { uid, gid, mode: mode.into(), target, xattrs: &xattrs }.begin()))
}

/// A label from the kernel's bytes, which may end with a zero.
fn label(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(b"\0").unwrap_or(value)).into_owned()
}

/// The flags of an observation open, without `O_NOATIME`.
pub(crate) fn observe_flags() -> OFlag {
    #[expect(clippy::cast_possible_wrap, reason = "three low bits of the flag word")]
    OFlag::from_bits_retain(OBSERVE_OPEN_FLAGS as i32).union(OFlag::O_RDONLY).union(OFlag::O_CLOEXEC)
}

/// Runs an observation open with `O_NOATIME`, and again without it if only the owner may set that flag. The kernel refuses the flag
/// before its open hook, so the hook sees one open.
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

/// `statx` of a handle.
pub(crate) fn stat_handle(handle: BorrowedFd<'_>, mask: StatxFlags) -> Result<Statx, FailedOperation> {
    statx(handle, "", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, mask)
        .map_err(|errno| FailedOperation { operation: "statx", errno: rustix_errno(errno) })
}

/// What a change of a file changes: its size, or a time. A write within a tick of the clock, a few milliseconds, after another one changes no
/// time before Linux 6.13. A replaced file loses a name, which changes `ctime`.
fn version(stat: &Statx) -> (u64, [(i64, u32); 2]) {
    let times = [stat.stx_mtime, stat.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec));
    (stat.stx_size, times)
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

/// The result of reading a content.
#[derive(Debug)]
struct ReadContent {
    size: u64,
    /// The digest of the whole content; `None` if it is longer than the limit.
    sha256: Option<[u8; 32]>,
    /// Ostree's checksum, if it was begun.
    checksum: Option<Checksum>,
    keys: Option<AuthorizedKeys>,
}

/// The keys in the first bytes of a file. `is_cut`: the file has more bytes, which may hold keys.
fn keys_in(beginning: &[u8], is_cut: bool) -> AuthorizedKeys {
    let mut keys = authorized_keys::parse(beginning);
    keys.truncated |= is_cut;
    keys
}
