//! Finds the entry of a managed inode, and counts, marks and reports its changes.
//!
//! For an unmanaged inode it costs a multiplication, one inlined array look-up and a bit test; it calls no helper.

use crate::deny;
use crate::inode::{self, Subject};
use crate::kernel::{self, Pointer};
use crate::log;
use crate::maps::{self, BITMAP, MANAGED};
use crate::ring;
use crate::who;
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_boot_ns};
use sensor_common::bitmap::Bitmap;
use sensor_common::map::{Counter, InodeKey, Managed};
use sensor_common::op::{Operation, RECORD_REFUSED, ROLE_MOUNTS, ROLE_TAMPER};

/// The entry of a managed inode, or `None` for all others and for null.
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

/// Gives an inode the number and the roles of the managed inode that it replaces. `note` has counted the change in that
/// inode's entry. If the rename fails later, the daemon removes the new entry.
#[inline(always)]
pub(crate) fn inherit(entry: *const Managed, heir: Pointer) {
    let key = inode::key(heir, heir.load(kernel::inode_ino()));
    // SAFETY: the entry comes from a map look-up in this program run; `note` has just written it.
    let inherited = unsafe {
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
            told: Managed::told_after(0, Operation::RenameOver as u32),
            observed_sequence: 0,
        }
    };
    // An inode that is managed already keeps its entry. If the map is full, the daemon enrols the inode after the record.
    if MANAGED.insert(key, inherited, NO_EXISTING).is_err() {
        return;
    }
    // SAFETY: as above.
    log::log_enrolment(u64::from(unsafe { (*entry).id }), key.ino);
    let (word, of_number) = kernel::bitmap().place(key.ino);
    if let Some(bits) = BITMAP.get_ptr_mut(word) {
        // 5.10 has no atomic OR. A bit that another CPU sets between the read and the write is lost; the daemon's check of
        // entries finds that.
        // SAFETY: the pointer comes from a map look-up; a word is read and written whole.
        unsafe {
            core::ptr::write_volatile(bits, core::ptr::read_volatile(bits) | of_number | Bitmap::own_bit(key))
        };
    }
}

/// Insert only if the key is absent (`BPF_NOEXIST`).
const NO_EXISTING: u64 = 1;

/// What changed, for [`changed`].
pub(crate) struct Change {
    pub(crate) operation: Operation,
    /// Operation-specific number for the record.
    pub(crate) detail: u64,
    /// The directory entry, or null.
    pub(crate) dentry: Pointer,
    /// The inode that the record is about, or null.
    pub(crate) inode: Pointer,
    /// By owner and capabilities, the kernel refuses the operation after the hook.
    pub(crate) refused: bool,
    /// Any user can do it without limit, so its record may not use the second half of the ring.
    pub(crate) yields: bool,
}

impl Change {
    /// A change of the managed inode itself.
    #[inline(always)]
    pub(crate) fn of(inode: Pointer, operation: Operation, detail: u64) -> Self {
        Self { operation, detail, dentry: Pointer::NULL, inode, refused: false, yields: false }
    }
}

/// Counts a change that is about to happen: it raises the counter, then sets the dirty bit and the writer, then sends a
/// record. It sends none if a record of the same writer's same operation still waits for an observation.
#[inline(always)]
pub(crate) fn changed(entry: *mut Managed, change: &Change) -> i32 {
    // `note` takes five words in registers. Inlined, it would be in a rename's program four times.
    let operation = change.operation as u64
        | u64::from(change.refused) << REFUSED_SHIFT
        | u64::from(change.yields) << YIELDS_SHIFT;
    note(entry, operation, change.detail, change.dentry.0, change.inode.0) as i32
}

/// The bit in [`note`]'s `operation` for [`Change::refused`].
const REFUSED_SHIFT: u32 = 32;

/// The bit in it for [`Change::yields`].
const YIELDS_SHIFT: u32 = 33;

/// The body of [`changed`], one function in the object. It gives 0, or the result of a refused operation.
#[inline(never)]
fn note(entry: *mut Managed, operation: u64, detail: u64, dentry: *const u8, inode: *const u8) -> i64 {
    let dentry = Pointer(dentry);
    let refused = if operation >> REFUSED_SHIFT & 1 != 0 { RECORD_REFUSED } else { 0 };
    let yields = operation >> REFUSED_SHIFT != 0;
    let operation = operation as u32;
    let subject = Subject::of(Pointer(inode));
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
    // whole. Of two writers at once the entry keeps one; each has its own record.
    unsafe {
        let goes_on = core::ptr::read_volatile(&raw const (*entry).dirty) != 0
            && (*entry).writer_tgid == tgid
            && (*entry).writer_exec_id == exec_id;
        let told = if goes_on { (*entry).told } else { 0 };
        let waiting = told & 1 << (operation & 31) != 0
            // The daemon waits after an ioctl, counted from that ioctl's own record.
            && operation != Operation::Ioctl as u32
            && (*entry).roles & (ROLE_MOUNTS | ROLE_TAMPER) == 0
            && dentry.is_null();
        let now = bpf_ktime_get_boot_ns();
        (*entry).changed_ns = now;
        (*entry).writer_tgid = tgid;
        (*entry).writer_exec_id = exec_id;
        (*entry).told = Managed::told_after(told, operation);
        core::ptr::write_volatile(&raw mut (*entry).dirty, 1);
        if waiting {
            maps::count(Counter::Coalesced);
        } else {
            ring::push(entry, operation, detail, dentry, subject, refused, yields);
        }
    }
    0
}
