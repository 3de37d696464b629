//! Metadata: mode, owner, times, extended attributes, access control lists, inode flags.
//!
//! In: a managed thing. Out: the same thing with the same content and other metadata.

use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, fchown, lchown};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use rustix::fs::{IFlags, XattrFlags};

use super::narrow;
use super::vector::{Does, ExpectedReport, StartState, Vector};
use crate::guest::disks::FileSystem;

const SETATTR: &[&str] = &["inode_setattr"];
const ACL: &[&str] = &["inode_set_acl", "inode_setxattr"];
const MODE: ExpectedReport = ExpectedReport::Drift("mode");
const OWNER: ExpectedReport = ExpectedReport::Drift("owner");
const XATTR: ExpectedReport = ExpectedReport::Drift("xattr");
/// File systems on a disk. tmpfs has no `user.` attributes before 6.6.
const ON_DISK: &[FileSystem] = &[FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs];

/// Name of the extended attribute of [`StartState::FileWithXattr`].
pub(crate) const UNDECLARED: &str = "security.undeclared";
/// Name of the extended attribute that holds an access control list.
pub(crate) const ACL_NAME: &str = "system.posix_acl_access";

/// The vectors of this family.
pub(super) const VECTORS: &[Vector] = &[
    Vector::file("V41a", "chmod(2)", SETATTR, Does::Call(|path| chmod(path, 0o600))).expecting(MODE),
    Vector::file("V41b", "fchmod(2)", SETATTR, Does::Call(fchmod)).expecting(MODE),
    Vector::file("V41c", "setuid bit", SETATTR, Does::Call(|path| chmod(path, 0o4644))).expecting(MODE),
    Vector::file("V41d", "chmod of a managed directory", SETATTR, Does::Call(|path| chmod(path, 0o700)))
        .on(StartState::Directory)
        .expecting(MODE),
    Vector::file("V42a", "chown(2)", SETATTR, Does::Call(|path| Ok(chown(path, Some(1000), None)?)))
        .expecting(OWNER),
    Vector::file(
        "V42b",
        "fchown(2)",
        SETATTR,
        Does::Call(|path| Ok(fchown(File::open(path)?, None, Some(1000))?)),
    )
    .expecting(OWNER),
    Vector::file(
        "V42c",
        "lchown(2) of a managed link",
        SETATTR,
        Does::Call(|path| Ok(lchown(path, Some(1000), None)?)),
    )
    .on(StartState::Link)
    .expecting(OWNER),
    Vector::file("V43", "utimensat(2)", SETATTR, Does::Call(back_date)).expecting(ExpectedReport::Touched),
    Vector::file("V43b", "utimensat(2) of a managed link", SETATTR, Does::Call(back_date_link))
        .on(StartState::Link)
        .expecting(ExpectedReport::Touched),
    Vector::file("V44a", "user attribute", &["inode_setxattr"], Does::Call(|path| set(path, "user.x", b"1")))
        .expecting(XATTR)
        .only(ON_DISK),
    Vector::file(
        "V44b",
        "trusted attribute",
        &["inode_setxattr"],
        Does::Call(|path| set(path, "trusted.x", b"1")),
    )
    .expecting(ExpectedReport::Touched)
    // tmpfs has no time for it before 6.1. Without one nothing shows that the file was touched.
    .only(ON_DISK),
    Vector::file(
        "V44e",
        "security attribute",
        &["inode_setxattr"],
        Does::Call(|path| set(path, "security.x", b"1")),
    )
    .expecting(XATTR),
    Vector::file("V44d", "attribute of a managed link", &["inode_setxattr"], Does::Call(set_on_link))
        .on(StartState::Link)
        .expecting(XATTR),
    Vector::file("V44c", "file capabilities", &["inode_setxattr"], Does::Call(capabilities)).expecting(XATTR),
    Vector::file("V45a", "access control list set", ACL, Does::Call(|path| set(path, ACL_NAME, &acl())))
        .expecting(XATTR),
    Vector::file(
        "V45b",
        "access control list removed",
        &["inode_remove_acl", "inode_removexattr"],
        Does::Call(|path| Ok(rustix::fs::removexattr(path, ACL_NAME)?)),
    )
    .on(StartState::FileWithAcl)
    .expecting(ExpectedReport::Recovered),
    Vector::file(
        "V47",
        "attribute removed",
        &["inode_removexattr"],
        Does::Call(|path| Ok(rustix::fs::removexattr(path, UNDECLARED)?)),
    )
    .on(StartState::FileWithXattr)
    .expecting(ExpectedReport::Recovered),
    Vector::file("V49", "chattr +i", &["file_ioctl", "inode_file_setattr"], Does::Call(immutable))
        .expecting(ExpectedReport::Drift("attribute"))
        .only(ON_DISK),
    Vector::file(
        "V49d",
        "chattr +i by a 32-bit process",
        &["file_ioctl_compat", "file_ioctl", "inode_file_setattr"],
        Does::Call(narrow::immutable),
    )
    .expecting(ExpectedReport::Drift("attribute"))
    .only(ON_DISK),
    Vector::not_performed(
        "V49c",
        "FS_IOC_SETVERSION",
        &["file_ioctl"],
        "the guests' file systems refuse it (ext4 with checksums, XFS, Btrfs, tmpfs). It sets an inode's \
         generation, which no config declares, and makes the daemon resolve the path again",
    ),
];

fn chmod(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
}

fn fchmod(path: &Path) -> Result<()> {
    Ok(File::open(path)?.set_permissions(Permissions::from_mode(0o666))?)
}

fn back_date(path: &Path) -> Result<()> {
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    Ok(File::open(path)?.set_times(FileTimes::new().set_accessed(then).set_modified(then))?)
}

fn back_date_link(path: &Path) -> Result<()> {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let then = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = Timestamps { last_access: then, last_modification: then };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn set_on_link(path: &Path) -> Result<()> {
    Ok(rustix::fs::lsetxattr(path, "security.x", b"1", XattrFlags::empty())?)
}

pub(crate) fn set(path: &Path, name: &str, value: &[u8]) -> Result<()> {
    Ok(rustix::fs::setxattr(path, name, value, XattrFlags::empty())?)
}

/// `cap_net_raw+ep` (include/uapi/linux/capability.h, version 2).
fn capabilities(path: &Path) -> Result<()> {
    let words: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
    let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    set(path, "security.capability", &value)
}

/// `u::rw-,u:1000:rw-,g::r--,m::r--,o::r--` (`posix_acl_xattr.h`). The mask is the group's mode bits, so the mode does
/// not change.
pub(crate) fn acl() -> Vec<u8> {
    /// The id of entries for no certain user or group (`ACL_UNDEFINED_ID`).
    const UNDEFINED: u32 = u32::MAX;
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, UNDEFINED), (2, 6, 1000), (4, 4, UNDEFINED), (0x10, 4, UNDEFINED), (0x20, 4, UNDEFINED)];
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn immutable(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    let flags = rustix::fs::ioctl_getflags(&file)?;
    Ok(rustix::fs::ioctl_setflags(&file, flags | IFlags::IMMUTABLE)?)
}
