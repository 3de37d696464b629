//! Names: objects created, linked, removed and renamed in managed directories, and changes of the names of managed objects
//! anywhere.

use crate::deny;
use crate::kernel::{self, Arguments, Pointer};
use crate::managed::{self, Attempt};
use sensor_common::op::{Operation, ROLE_ANCESTOR, ROLE_DIRECTORY, ROLE_FILE, ROLE_NAMES};

/// Counts a change of the name `dentry` in the directory `dir`, if names in it are managed.
#[inline(always)]
fn in_directory(dir: Pointer, dentry: Pointer, operation: Operation) -> i32 {
    let Some(entry) = managed::lookup(dir) else { return 0 };
    // SAFETY: the entry comes from a map look-up.
    let roles = unsafe { (*entry).roles };
    if roles & ROLE_NAMES != 0 {
        let refused = deny::named(entry, dir, dentry, operation);
        if refused != 0 {
            return refused;
        }
    }
    if roles & ROLE_DIRECTORY == 0 {
        return 0;
    }
    let attempt = Attempt { dentry, ..Attempt::of(dir, operation, 0) };
    managed::record_attempt(entry, &attempt)
}

/// Counts a change of the object's own names: it loses, changes or gets one.
#[inline(always)]
fn of_object(dentry: Pointer, operation: Operation) -> i32 {
    // Null for a name that does not exist yet.
    let Some(inode) = dentry.follow(kernel::dentry_inode()).non_null() else { return 0 };
    let Some(entry) = managed::lookup(inode) else { return 0 };
    // SAFETY: the entry comes from a map look-up.
    if unsafe { (*entry).roles } & (ROLE_FILE | ROLE_DIRECTORY | ROLE_ANCESTOR) == 0 {
        return 0;
    }
    managed::record_attempt(entry, &Attempt::of(inode, operation, 0))
}

/// A new name in a directory.
#[inline(always)]
fn created(dir: Pointer, dentry: Pointer, operation: Operation) -> i32 {
    in_directory(dir, dentry, operation)
}

/// A removed name, and perhaps the object with it.
#[inline(always)]
fn removed(dir: Pointer, dentry: Pointer, operation: Operation) -> i32 {
    let refused = of_object(dentry, operation);
    if refused != 0 {
        return refused;
    }
    in_directory(dir, dentry, operation)
}

/// `inode_create(dir, dentry, mode)`.
#[inline(always)]
pub(crate) fn inode_create(args: Arguments) -> i32 {
    let Some(dir) = args.pointer(kernel::arg_inode_create_dir()) else { return 0 };
    let Some(dentry) = args.pointer(kernel::arg_inode_create_dentry()) else { return 0 };
    created(dir, dentry, Operation::Create)
}

/// `inode_mkdir(dir, dentry, mode)`.
#[inline(always)]
pub(crate) fn inode_mkdir(args: Arguments) -> i32 {
    let Some(dir) = args.pointer(kernel::arg_inode_mkdir_dir()) else { return 0 };
    let Some(dentry) = args.pointer(kernel::arg_inode_mkdir_dentry()) else { return 0 };
    created(dir, dentry, Operation::MakeDirectory)
}

/// `inode_mknod(dir, dentry, mode, dev)`.
#[inline(always)]
pub(crate) fn inode_mknod(args: Arguments) -> i32 {
    let Some(dir) = args.pointer(kernel::arg_inode_mknod_dir()) else { return 0 };
    let Some(dentry) = args.pointer(kernel::arg_inode_mknod_dentry()) else { return 0 };
    created(dir, dentry, Operation::MakeNode)
}

/// `inode_symlink(dir, dentry, name)`.
#[inline(always)]
pub(crate) fn inode_symlink(args: Arguments) -> i32 {
    let Some(dir) = args.pointer(kernel::arg_inode_symlink_dir()) else { return 0 };
    let Some(dentry) = args.pointer(kernel::arg_inode_symlink_dentry()) else { return 0 };
    created(dir, dentry, Operation::Symlink)
}

/// `inode_link(old_dentry, dir, new_dentry)`.
#[inline(always)]
pub(crate) fn inode_link(args: Arguments) -> i32 {
    let Some(old) = args.pointer(kernel::arg_inode_link_old_dentry()) else { return 0 };
    let refused = of_object(old, Operation::Link);
    if refused != 0 {
        return refused;
    }
    let Some(dir) = args.pointer(kernel::arg_inode_link_dir()) else { return 0 };
    let Some(dentry) = args.pointer(kernel::arg_inode_link_new_dentry()) else { return 0 };
    created(dir, dentry, Operation::Link)
}

/// `inode_unlink(dir, dentry)`.
#[inline(always)]
pub(crate) fn inode_unlink(args: Arguments) -> i32 {
    let Some(dir) = args.pointer(kernel::arg_inode_unlink_dir()) else { return 0 };
    let Some(dentry) = args.pointer(kernel::arg_inode_unlink_dentry()) else { return 0 };
    removed(dir, dentry, Operation::Unlink)
}

/// `inode_rmdir(dir, dentry)`.
#[inline(always)]
pub(crate) fn inode_rmdir(args: Arguments) -> i32 {
    let Some(dir) = args.pointer(kernel::arg_inode_rmdir_dir()) else { return 0 };
    let Some(dentry) = args.pointer(kernel::arg_inode_rmdir_dentry()) else { return 0 };
    removed(dir, dentry, Operation::RemoveDirectory)
}

/// `inode_rename(old_dir, old_dentry, new_dir, new_dentry)`; twice for an exchange.
#[inline(always)]
pub(crate) fn inode_rename(args: Arguments) -> i32 {
    let Some(old_dir) = args.pointer(kernel::arg_inode_rename_old_dir()) else { return 0 };
    let Some(old) = args.pointer(kernel::arg_inode_rename_old_dentry()) else { return 0 };
    let Some(new_dir) = args.pointer(kernel::arg_inode_rename_new_dir()) else { return 0 };
    let Some(new) = args.pointer(kernel::arg_inode_rename_new_dentry()) else { return 0 };
    // The first refusal ends the operation, so that a refusal has one record. Counts before it cost an observation each, and have
    // no other effect.
    let from = of_object(old, Operation::Rename);
    if from != 0 {
        return from;
    }
    let over = of_object(new, Operation::RenameOver);
    if over != 0 {
        return over;
    }
    let out = in_directory(old_dir, old, Operation::Rename);
    if out != 0 {
        return out;
    }
    let into = in_directory(new_dir, new, Operation::RenameOver);
    if into != 0 {
        return into;
    }
    replaced(old, new);
    0
}

/// Enrols the object that replaces a managed file at once, before the daemon has seen it. So a deny rule still protects the path,
/// and a change of the new file before the daemon sees it has its own record.
#[inline(always)]
fn replaced(old: Pointer, new: Pointer) {
    // Null for a name that does not exist yet.
    let Some(inode) = new.follow(kernel::dentry_inode()).non_null() else { return };
    let Some(entry) = managed::lookup(inode) else { return };
    // SAFETY: the entry comes from a map look-up.
    if unsafe { (*entry).roles } & ROLE_FILE == 0 {
        return;
    }
    let Some(replacement) = old.follow(kernel::dentry_inode()).non_null() else { return };
    managed::enrol_replacement(entry, replacement);
}
