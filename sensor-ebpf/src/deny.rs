//! Deny rules: which operations they refuse, and which actors they allow.
//!
//! Only LSM programs can refuse. With fentry programs no entry has a role for deny rules.

use crate::inode::{self, RecordInode};
use crate::kernel::{self, Pointer};
use crate::log;
use crate::maps::{self, DENIALS, NAMES};
use crate::ring;
use crate::who;
use aya_ebpf::helpers::{bpf_ktime_get_boot_ns, bpf_probe_read_kernel_str_bytes};
use core::mem::MaybeUninit;
use sensor_common::limits::DENIALS_A_SECOND;
use sensor_common::map::{Counter, Denials, Managed, NameKey};
use sensor_common::op::{GUARD_SHIFT, Operation, ROLE_DENY, ROLE_GUARD, RULE_MASK, RULE_SHIFT};

/// `-EPERM`, the result of a refused operation.
pub(crate) const REFUSED: i32 = -1;

/// The number of no rule.
pub(crate) const NO_RULE: u32 = 0;

/// Operations that take an object from its path or hide it, and with it everything below.
const DISPLACING: u32 = 1 << Operation::Unlink as u32
    | 1 << Operation::RemoveDirectory as u32
    | 1 << Operation::Rename as u32
    | 1 << Operation::RenameOver as u32
    | 1 << Operation::Mount as u32
    | 1 << Operation::Unmount as u32
    | 1 << Operation::MoveMount as u32;

/// The number of the rule, or of a set of rules, that has to allow an operation on an inode; [`NO_RULE`] for none.
/// `of_name`: the operation is on a name in the directory and not on the object itself.
#[inline(always)]
pub(crate) fn rule(roles: u32, operation: u32, of_name: bool) -> u32 {
    if roles & (ROLE_DENY | ROLE_GUARD) == 0 || operation == Operation::Release as u32 {
        return NO_RULE;
    }
    if roles & ROLE_GUARD != 0 && !of_name && DISPLACING & 1 << (operation & 31) != 0 {
        // The set contains the inode's own rule.
        return roles >> GUARD_SHIFT & RULE_MASK;
    }
    if roles & ROLE_DENY != 0 { roles >> RULE_SHIFT & RULE_MASK } else { NO_RULE }
}

/// Refuses an operation unless the rule allows the current task, or the task is the daemon's. It counts a refusal, and reports
/// it with the entry's number while the user's limit allows that. It marks nothing as changed. It gives 0, or the hook's result.
#[inline(never)]
pub(crate) fn refuse(
    entry: *mut Managed,
    rule: u64,
    operation: u64,
    dentry: *const u8,
    inode: *const u8,
) -> i64 {
    if who::is_allowed_by(rule) != 0 || who::is_agent() {
        return 0;
    }
    maps::count(Counter::Denied);
    // SAFETY: the callers have the entry from a map look-up in this program run.
    log::log_refusal(u64::from(unsafe { (*entry).id }), rule, operation);
    if gets_record() {
        let recorded_inode = RecordInode::of(Pointer(inode));
        // SAFETY: the callers have the entry from a map look-up in this program run.
        unsafe {
            ring::push(entry, Operation::Denied as u32, operation, Pointer(dentry), recorded_inode, 0, false)
        };
    } else {
        maps::count(Counter::DeniedUnrecorded);
    }
    // The hook returns this very constant. The verifier tracks a constant, but not the compiler's negation of one.
    i64::from(REFUSED)
}

/// A second in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// Whether this refusal of the current task gets a record. A refused task can try again without end, and must not fill the
/// ring. A refusal without a record is counted for its user.
#[inline(always)]
fn gets_record() -> bool {
    let half_full = maps::is_half_full();
    let uid = who::user();
    // SAFETY: the helper has no preconditions.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let Some(denials) = DENIALS.get_ptr_mut(uid) else {
        let first = Denials { since_ns: now, unrecorded: u64::from(half_full), recorded: 1, padding: 0 };
        // If the insertion fails, the user has no limit. Even so refusals cannot use the second half of the ring.
        let _ = DENIALS.insert(uid, first, 0);
        return !half_full;
    };
    // SAFETY: the pointer comes from a map look-up; words are read and written whole. If two tasks of one user are refused at
    // once, they may count one refusal.
    unsafe {
        if now.wrapping_sub((*denials).since_ns) >= SECOND {
            (*denials).since_ns = now;
            (*denials).recorded = 0;
        }
        // Root has no limit: it could do worse than fill half of a ring.
        if half_full || (uid != 0 && (*denials).recorded >= DENIALS_A_SECOND) {
            maps::add_one(&raw mut (*denials).unrecorded);
            return false;
        }
        (*denials).recorded += 1;
    }
    true
}

/// A device and a subvolume in one word, for [`rules_of_name`].
#[inline(always)]
pub(crate) fn place(dev: u32, volume: u32) -> u64 {
    u64::from(dev) | u64::from(volume) << 32
}

/// The number of the rules that protect a name in a directory; [`NO_RULE`] for none. `name` is the kernel's address of the
/// name. The function is not inlined, because its key takes half of the stack.
#[inline(never)]
pub(crate) fn rules_of_name(ino: u64, place: u64, name: *const u8) -> u64 {
    let mut key = MaybeUninit::<NameKey>::uninit();
    let at = key.as_mut_ptr();
    // SAFETY: the loop writes the whole key before its use, and the key is aligned for words. The loop writes word by word,
    // because the compiler makes a function call of one large write.
    unsafe {
        let words = at.cast::<u64>();
        for word in 0..size_of::<NameKey>() / size_of::<u64>() {
            core::ptr::write_volatile(words.add(word), 0);
        }
        (*at).directory.ino = ino;
        (*at).directory.dev = place as u32;
        (*at).directory.volume = (place >> 32) as u32;
        if bpf_probe_read_kernel_str_bytes(name, &mut (*at).name).is_err() {
            return u64::from(NO_RULE);
        }
        let at: &NameKey = &*at;
        match NAMES.get_ptr(at) {
            Some(rules) => u64::from(*rules),
            None => u64::from(NO_RULE),
        }
    }
}

/// Refuses to create, remove or replace a protected name in the directory of an entry. It gives 0, or the hook's result.
#[inline(always)]
pub(crate) fn named(entry: *mut Managed, dir: Pointer, dentry: Pointer, operation: Operation) -> i32 {
    let key = inode::read_key(dir);
    let name: *const u8 = dentry.load(kernel::dentry_name() + kernel::qstr_name());
    let rules = rules_of_name(key.ino, place(key.dev, key.volume), name);
    if rules == u64::from(NO_RULE) {
        return 0;
    }
    refuse(entry, rules, operation as u64, dentry.0, dir.0) as i32
}
