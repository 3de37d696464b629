//! Opens: the first record of a writer, and the daemon's own observations.
//!
//! It runs for every open on the node, so the open of an unmanaged file must cost next to nothing.

use crate::inode;
use crate::kernel::{self, Arguments, Pointer};
use crate::log;
use crate::managed::{self, Attempt};
use crate::maps::IDENTITY;
use crate::who;
use sensor_common::map::{
    IDENTITY_LINK, IDENTITY_OPENED, Identity, Managed, OBSERVED_LOCKED, OBSERVED_WRITERS,
};
use sensor_common::op::{OBSERVE_OPEN_FLAGS, Operation, ROLE_FILE, ROLE_TAMPER};

/// `FMODE_WRITE` (include/linux/fs.h).
pub(crate) const MODE_WRITE: u32 = 2;

/// `file_open(file)`.
#[inline(always)]
pub(crate) fn file_open(args: Arguments) -> i32 {
    let Some(file) = args.pointer(kernel::arg_file_open_file()) else { return 0 };
    let flags: u32 = file.load(kernel::file_flags());
    // Most opens are read-only, the daemon's observations included. The flags are tested before anything else is loaded, as
    // in the kernel's OPEN_FMODE.
    if flags.wrapping_add(1) & MODE_WRITE == 0 {
        if flags & OBSERVE_OPEN_FLAGS == OBSERVE_OPEN_FLAGS {
            answer_if_asked(file.0);
        }
        return 0;
    }
    // An open file has an inode.
    let inode = file.follow(kernel::file_inode());
    let Some(entry) = managed::lookup(inode) else { return 0 };
    // SAFETY: the entry comes from a map look-up.
    let roles = unsafe { (*entry).roles };
    // The canary has both roles.
    let operation = if roles & ROLE_FILE != 0 {
        Operation::OpenWrite
    } else if roles & ROLE_TAMPER != 0 {
        Operation::OpenTamper
    } else {
        return 0;
    };
    if roles & ROLE_TAMPER != 0 {
        // SAFETY: as above.
        log::log_canary(u64::from(unsafe { (*entry).id }));
    }
    managed::record_attempt(entry, &Attempt::of(inode, operation, u64::from(flags)))
}

/// Answers the open if it is the daemon's observation. It gives 0, since a function of the object must return a number. It is not
/// inlined, so that the program saves no registers for all other opens.
#[inline(never)]
fn answer_if_asked(file: *const u8) -> u64 {
    if who::must_answer() {
        answer(Pointer(file));
    }
    0
}

/// Answers an observation: it gives the daemon the object's identity, and samples which changes may be incomplete. The daemon
/// has not read a byte yet.
#[inline(always)]
fn answer(file: Pointer) {
    let Some(inode) = file.follow(kernel::file_inode()).non_null() else { return };
    if let Some(identity) = IDENTITY.get_ptr_mut(IDENTITY_OPENED) {
        identify(identity, inode);
    }
    let Some(entry) = managed::lookup(inode) else { return };
    let Some(dentry) = file.follow(kernel::file_path() + kernel::path_dentry()).non_null() else { return };
    sample(entry, dentry, inode);
}

/// `inode_readlink(dentry)`: the daemon's observation of a symbolic link, which cannot be opened. Attached only while a managed
/// thing is a link.
#[inline(always)]
pub(crate) fn inode_readlink(args: Arguments) -> i32 {
    if !who::must_answer() {
        return 0;
    }
    let Some(dentry) = args.pointer(kernel::arg_inode_readlink_dentry()) else { return 0 };
    let Some(inode) = dentry.follow(kernel::dentry_inode()).non_null() else { return 0 };
    if let Some(identity) = IDENTITY.get_ptr_mut(IDENTITY_LINK) {
        // SAFETY: the pointer comes from a map look-up.
        if unsafe { (*identity).sequence } == 0 {
            identify(identity, inode);
        }
    }
    let Some(entry) = managed::lookup(inode) else { return 0 };
    sample(entry, dentry, inode);
    0
}

/// Gives the daemon the identity of an inode.
#[inline(always)]
fn identify(identity: *mut Identity, inode: Pointer) {
    let key = inode::key(inode, inode.load(kernel::inode_ino()));
    // SAFETY: the pointer comes from a map look-up; only the daemon's observer thread gets here.
    unsafe {
        (*identity).key = key;
        (*identity).generation = inode.load(kernel::inode_generation());
        (*identity).mode = u32::from(inode.load::<u16>(kernel::inode_mode()));
        (*identity).magic = inode.follow(kernel::inode_sb()).load(kernel::super_magic());
        (*identity).sequence += 1;
        log::log_observation(key.ino, u64::from(key.dev), u64::from((*identity).generation));
    }
}

/// Samples the kernel's part of the evidence for an observation that begins now.
#[inline(always)]
fn sample(entry: *mut Managed, dentry: Pointer, inode: Pointer) {
    write_evidence(entry, || writers(inode) | locked(dentry, inode));
}

/// Writes the evidence to the entry. `incomplete` gives which changes may be incomplete, as `OBSERVED_*`.
#[inline(always)]
pub(super) fn write_evidence(entry: *mut Managed, incomplete: impl FnOnce() -> u32) {
    // The order matters: clear the bit, read the counter, read the locks. A change that is not counted yet raises the counter
    // later, and the daemon finds that when it reads the counter again. A counted change that is not complete still holds its
    // lock, or its file open.
    // SAFETY: the entry comes from a map look-up; volatile keeps the order.
    unsafe {
        core::ptr::write_volatile(&raw mut (*entry).dirty, 0);
        let counter = core::ptr::read_volatile(&raw const (*entry).counter);
        core::ptr::write_volatile(&raw mut (*entry).observed_counter, counter);
        core::ptr::write_volatile(&raw mut (*entry).observed, incomplete());
        (*entry).observed_sequence += 1;
    }
}

/// [`OBSERVED_WRITERS`] if a task has the inode open for writing, or a shared writable mapping of it.
#[inline(always)]
pub(super) fn writers(inode: Pointer) -> u32 {
    let count: i32 = inode.load(kernel::inode_writecount());
    if count > 0 { OBSERVED_WRITERS } else { 0 }
}

/// [`OBSERVED_LOCKED`] if a change holds the lock of the inode or of its parent directory.
#[inline(always)]
fn locked(dentry: Pointer, inode: Pointer) -> u32 {
    if kernel::has_rwsem() == 0 {
        return 0;
    }
    // RWSEM_WRITER_LOCKED is bit 0 of the count (kernel/locking/rwsem.c, since 5.3).
    let own = inode.load::<u64>(kernel::inode_rwsem()) & 1;
    let Some(parent) = dentry.follow(kernel::dentry_parent()).non_null() else { return OBSERVED_LOCKED };
    let Some(directory) = parent.follow(kernel::dentry_inode()).non_null() else { return OBSERVED_LOCKED };
    let above = directory.load::<u64>(kernel::inode_rwsem()) & 1;
    if own | above != 0 { OBSERVED_LOCKED } else { 0 }
}
