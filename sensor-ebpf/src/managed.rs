//! Finds the entry of a managed inode. Counts each attempt to change the inode, marks the entry, and sends a record.
//!
//! A look-up of an unmanaged inode costs a multiplication, one inlined array look-up and a bit test. It calls no helper.

use crate::deny;
use crate::inode::{self, RecordInode};
use crate::kernel::{self, Pointer};
use crate::log;
use crate::maps::{self, BITMAP, MANAGED};
use crate::ring;
use crate::who;
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_boot_ns};
use sensor_common::bitmap::Bitmap;
use sensor_common::map::{Counter, InodeKey, Managed, UNKNOWN_EXECUTION};
use sensor_common::op::{Operation, RECORD_UNPERMITTED, ROLE_MOUNTS, ROLE_TAMPER};

/// The entry of a managed inode; `None` for an unmanaged inode.
#[inline(always)]
pub(crate) fn lookup(inode: Pointer) -> Option<*mut Managed> {
    let ino = inode.load(kernel::inode_ino());
    let (word, of_number) = kernel::bitmap().place(ino);
    // SAFETY: the pointer comes from a map look-up; a torn read of one word is impossible.
    let bits = unsafe { *BITMAP.get_ptr(word)? };
    if bits & of_number == 0 {
        return None;
    }
    // A managed inode has this number, perhaps on another device.
    let sb = inode.follow(kernel::inode_sb());
    let mut key = InodeKey { ino, dev: sb.load(kernel::super_dev()), volume: 0 };
    if bits & Bitmap::own_bit(key) == 0 {
        return None;
    }
    key.volume = inode::volume_in(inode, sb);
    MANAGED.get_ptr_mut(key)
}

/// Enrols the inode that a rename puts in the place of a managed one, with the number and roles of that one. [`record_attempt`] has
/// counted the rename in the managed inode's entry. If the rename fails later, the daemon removes the new entry.
#[inline(always)]
pub(crate) fn enrol_replacement(entry: *const Managed, replacement: Pointer) {
    let key = inode::read_key(replacement);
    // SAFETY: the entry comes from a map look-up in this program run; `count_and_send` has just written it.
    let copy = unsafe {
        Managed {
            counter: 1,
            observed_counter: 0,
            changed_ns: (*entry).changed_ns,
            writer_exec_id: (*entry).writer_exec_id,
            writer_tgid: (*entry).writer_tgid,
            id: (*entry).id,
            roles: (*entry).roles,
            dirty: 1,
            observed: 0,
            lost: 0,
            recorded: Managed::recorded_after(0, Operation::RenameOver as u32),
            observed_sequence: 0,
        }
    };
    // An inode that is managed already keeps its entry. If the map is full, the daemon enrols the inode after the record.
    if MANAGED.insert(key, copy, NO_EXISTING).is_err() {
        return;
    }
    // SAFETY: as above.
    log::log_enrolment(u64::from(unsafe { (*entry).id }), key.ino);
    let (word, of_number) = kernel::bitmap().place(key.ino);
    if let Some(bits) = BITMAP.get_ptr_mut(word) {
        // 5.10 has no atomic OR. A bit that another CPU sets between the read and the write is lost. The daemon's check of
        // entries restores it.
        // SAFETY: the pointer comes from a map look-up; a word is read and written whole.
        unsafe {
            core::ptr::write_volatile(bits, core::ptr::read_volatile(bits) | of_number | Bitmap::own_bit(key))
        };
    }
}

/// Insert only if the key is absent (`BPF_NOEXIST`).
const NO_EXISTING: u64 = 1;

/// An operation on a managed inode that is about to take effect, for [`record_attempt`].
pub(crate) struct Attempt {
    pub(crate) operation: Operation,
    /// Operation-specific number for the record.
    pub(crate) detail: u64,
    /// The directory entry, or null.
    pub(crate) dentry: Pointer,
    /// The inode that the record is about, or null.
    pub(crate) inode: Pointer,
    /// The task is not the inode's owner and lacks the capability, so the kernel refuses the operation after the hook.
    pub(crate) unpermitted: bool,
    /// Any user can cause it without limit, so its record may not use the second half of the ring.
    pub(crate) half_ring_only: bool,
}

impl Attempt {
    /// An operation on the managed inode itself.
    #[inline(always)]
    pub(crate) fn of(inode: Pointer, operation: Operation, detail: u64) -> Self {
        Self { operation, detail, dentry: Pointer::NULL, inode, unpermitted: false, half_ring_only: false }
    }
}

/// Counts a change before it takes effect: it raises the counter, sets the writer and the dirty bit, and sends a record. It
/// sends none if a record of the same writer's same operation still waits for an observation.
#[inline(always)]
pub(crate) fn record_attempt(entry: *mut Managed, attempt: &Attempt) -> i32 {
    // `count_and_send` takes five words in registers. Inlined, a rename's program would contain it four times.
    let operation = attempt.operation as u64
        | u64::from(attempt.unpermitted) << UNPERMITTED_SHIFT
        | u64::from(attempt.half_ring_only) << HALF_RING_SHIFT;
    count_and_send(entry, operation, attempt.detail, attempt.dentry.0, attempt.inode.0) as i32
}

/// The bit in [`count_and_send`]'s `operation` for [`Attempt::unpermitted`].
const UNPERMITTED_SHIFT: u32 = 32;

/// The bit in [`count_and_send`]'s `operation` for [`Attempt::half_ring_only`].
const HALF_RING_SHIFT: u32 = 33;

/// The body of [`record_attempt`], one function in the object. It gives 0, or the result of a refused operation.
#[inline(never)]
fn count_and_send(
    entry: *mut Managed,
    operation: u64,
    detail: u64,
    dentry: *const u8,
    inode: *const u8,
) -> i64 {
    let dentry = Pointer(dentry);
    let unpermitted = if operation >> UNPERMITTED_SHIFT & 1 != 0 { RECORD_UNPERMITTED } else { 0 };
    // Also for an unpermitted operation: any user can attempt it without limit.
    let half_ring_only = operation >> UNPERMITTED_SHIFT != 0;
    let operation = operation as u32;
    let recorded_inode = RecordInode::of(Pointer(inode));
    // SAFETY: the entry comes from a map look-up in this program run.
    let rule = deny::rule(unsafe { (*entry).roles }, operation, !dentry.is_null());
    if rule != deny::NO_RULE
        && deny::refuse(entry, u64::from(rule), u64::from(operation), dentry.0, inode) != 0
    {
        return i64::from(deny::REFUSED);
    }
    maps::add_one(entry.cast::<u64>());
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let exec_id = who::runs(tgid);
    // SAFETY: `entry` comes from a map look-up and stays valid while the program runs (RCU). Fields are aligned and written
    // whole. If two tasks write at once, the entry keeps one of them, and each has its own record.
    unsafe {
        let same_writer = core::ptr::read_volatile(&raw const (*entry).dirty) != 0
            && (*entry).writer_tgid == tgid
            && (*entry).writer_exec_id == exec_id
            // Two unknown executions may be of two programs.
            && exec_id != UNKNOWN_EXECUTION;
        let recorded = if same_writer { (*entry).recorded } else { 0 };
        let is_repeated = recorded & 1 << (operation & 31) != 0
            // The daemon waits for a time after each ioctl, counted from its record.
            && operation != Operation::Ioctl as u32
            && (*entry).roles & (ROLE_MOUNTS | ROLE_TAMPER) == 0
            && dentry.is_null();
        let now = bpf_ktime_get_boot_ns();
        (*entry).changed_ns = now;
        (*entry).writer_tgid = tgid;
        (*entry).writer_exec_id = exec_id;
        (*entry).recorded = Managed::recorded_after(recorded, operation);
        core::ptr::write_volatile(&raw mut (*entry).dirty, 1);
        if is_repeated {
            maps::count(Counter::Coalesced);
        } else {
            ring::push(entry, operation, detail, dentry, recorded_inode, unpermitted, half_ring_only);
        }
    }
    0
}
