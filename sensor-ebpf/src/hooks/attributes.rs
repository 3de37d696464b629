//! Metadata: mode, owner, size and times; extended attributes; access control lists; inode flags.

use crate::kernel::{self, Arguments, Pointer, read};
use crate::managed::{self, Attempt};
use crate::who;
use sensor_common::op::{Operation, ROLE_DIRECTORY, ROLE_FILE};

/// Attributes that only the owner or a task with a capability may set: mode, owner, group, and times other than now (`ATTR_*`,
/// include/linux/fs.h).
const OWNERS: u32 = 1 | 1 << 1 | 1 << 2 | 1 << 7 | 1 << 8 | 1 << 16;

/// `ATTR_FORCE`: the change is part of another operation, which the kernel has permitted already.
const FORCE: u32 = 1 << 9;

/// Counts `operation` if the inode is managed. `owners`: after the hook, the kernel requires the owner or a capability.
#[inline(always)]
fn attempt_on(dentry: Pointer, operation: Operation, detail: u64, owners: bool) -> i32 {
    let Some(inode) = dentry.follow(kernel::dentry_inode()).non_null() else { return 0 };
    let Some(entry) = managed::lookup(inode) else { return 0 };
    // SAFETY: the entry comes from a map look-up.
    if unsafe { (*entry).roles } & (ROLE_FILE | ROLE_DIRECTORY) == 0 {
        return 0;
    }
    let unpermitted = owners && who::has_no_right(inode);
    managed::record_attempt(entry, &Attempt { unpermitted, ..Attempt::of(inode, operation, detail) })
}

/// Whether the kernel has checked before the hook that the current task may set an extended attribute of this name
/// (`xattr_permission`).
#[inline(always)]
fn is_permitted(name: u64) -> bool {
    let start: u64 = read(name, 0);
    start == u64::from_le_bytes(*b"trusted.") || start << 24 == u64::from_le_bytes(*b"user.\0\0\0") << 24
}

/// `inode_setattr(dentry, attr)`: chmod, chown, truncate, utimes and their relatives.
#[inline(always)]
pub(crate) fn inode_setattr(args: Arguments) -> i32 {
    let Some(attributes) = args.pointer(kernel::arg_inode_setattr_attr()) else { return 0 };
    let valid: u32 = attributes.load(kernel::iattr_valid());
    let Some(dentry) = args.pointer(kernel::arg_inode_setattr_dentry()) else { return 0 };
    let owners = valid & OWNERS != 0 && valid & FORCE == 0;
    attempt_on(dentry, Operation::SetAttributes, u64::from(valid), owners)
}

/// `inode_file_setattr(dentry, fa)`, since 6.17: flags and project ids.
#[inline(always)]
pub(crate) fn inode_file_setattr(args: Arguments) -> i32 {
    let Some(dentry) = args.pointer(kernel::arg_inode_file_setattr_dentry()) else { return 0 };
    attempt_on(dentry, Operation::SetFlags, 0, true)
}

/// `inode_setxattr(dentry, name, …)`.
#[inline(always)]
pub(crate) fn inode_setxattr(args: Arguments) -> i32 {
    let Some(dentry) = args.pointer(kernel::arg_inode_setxattr_dentry()) else { return 0 };
    let owners = !is_permitted(args.get(kernel::arg_inode_setxattr_name()));
    attempt_on(dentry, Operation::SetXattr, 0, owners)
}

/// `inode_removexattr(dentry, name)`.
#[inline(always)]
pub(crate) fn inode_removexattr(args: Arguments) -> i32 {
    let Some(dentry) = args.pointer(kernel::arg_inode_removexattr_dentry()) else { return 0 };
    let owners = !is_permitted(args.get(kernel::arg_inode_removexattr_name()));
    attempt_on(dentry, Operation::RemoveXattr, 0, owners)
}

/// `inode_set_acl(dentry, …)`, since 6.2; older kernels set an access control list as an extended attribute.
#[inline(always)]
pub(crate) fn inode_set_acl(args: Arguments) -> i32 {
    let Some(dentry) = args.pointer(kernel::arg_inode_set_acl_dentry()) else { return 0 };
    attempt_on(dentry, Operation::SetAcl, 0, true)
}

/// `inode_remove_acl(dentry, …)`, since 6.2.
#[inline(always)]
pub(crate) fn inode_remove_acl(args: Arguments) -> i32 {
    let Some(dentry) = args.pointer(kernel::arg_inode_remove_acl_dentry()) else { return 0 };
    attempt_on(dentry, Operation::RemoveAcl, 0, true)
}
