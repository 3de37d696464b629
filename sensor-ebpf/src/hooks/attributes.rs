//! Metadata: mode, owner, size and times; extended attributes; access control lists; inode flags.

use crate::kernel::{self, Arguments, Pointer};
use crate::managed::{self, Change};
use sensor_common::op::{Operation, ROLE_DIRECTORY, ROLE_FILE};

/// Notes `operation` when the entry's inode is managed.
#[inline(always)]
fn changed(dentry: Pointer, operation: Operation, detail: u64) -> i32 {
    let Some(inode) = dentry.follow(kernel::dentry_inode()).known() else { return 0 };
    let Some(entry) = managed::lookup(inode) else { return 0 };
    // SAFETY: the entry comes from a map look-up.
    if unsafe { (*entry).roles } & (ROLE_FILE | ROLE_DIRECTORY) == 0 {
        return 0;
    }
    managed::changed(entry, &Change::of(inode, operation, detail))
}

/// `inode_setattr(dentry, attr)`: chmod, chown, truncate, utimes and their relatives.
#[inline(always)]
pub(crate) fn inode_setattr(args: Arguments) -> i32 {
    let Some(attributes) = args.pointer(kernel::arg_inode_setattr_attr()) else { return 0 };
    let valid: u32 = attributes.load(kernel::iattr_valid());
    let Some(dentry) = args.pointer(kernel::arg_inode_setattr_dentry()) else { return 0 };
    changed(dentry, Operation::SetAttributes, u64::from(valid))
}

/// `inode_file_setattr(dentry, fa)`, since 6.17: flags and project ids.
#[inline(always)]
pub(crate) fn inode_file_setattr(args: Arguments) -> i32 {
    let Some(dentry) = args.pointer(kernel::arg_inode_file_setattr_dentry()) else { return 0 };
    changed(dentry, Operation::SetFlags, 0)
}

/// `inode_setxattr(dentry, name, …)`.
#[inline(always)]
pub(crate) fn inode_setxattr(args: Arguments) -> i32 {
    let Some(dentry) = args.pointer(kernel::arg_inode_setxattr_dentry()) else { return 0 };
    changed(dentry, Operation::SetXattr, 0)
}

/// `inode_removexattr(dentry, name)`.
#[inline(always)]
pub(crate) fn inode_removexattr(args: Arguments) -> i32 {
    let Some(dentry) = args.pointer(kernel::arg_inode_removexattr_dentry()) else { return 0 };
    changed(dentry, Operation::RemoveXattr, 0)
}

/// `inode_set_acl(dentry, …)`, since 6.2; before that it was an extended attribute like any other.
#[inline(always)]
pub(crate) fn inode_set_acl(args: Arguments) -> i32 {
    let Some(dentry) = args.pointer(kernel::arg_inode_set_acl_dentry()) else { return 0 };
    changed(dentry, Operation::SetAcl, 0)
}

/// `inode_remove_acl(dentry, …)`, since 6.2.
#[inline(always)]
pub(crate) fn inode_remove_acl(args: Arguments) -> i32 {
    let Some(dentry) = args.pointer(kernel::arg_inode_remove_acl_dentry()) else { return 0 };
    changed(dentry, Operation::RemoveAcl, 0)
}
