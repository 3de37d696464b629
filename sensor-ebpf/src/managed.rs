//! Is this inode managed, and what to note when it changes.
//!
//! A miss costs a multiplication, one inlined array look-up and a bit test; no helper is called.

use crate::deny;
use crate::kernel::{self, Pointer};
use crate::maps::{self, ALARMS, BITMAP, CHANGES, CONTROL, MANAGED, VOLUMES};
use crate::who;
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_boot_ns, bpf_probe_read_kernel_str_bytes};
use sensor_common::limits::NAME_BYTES;
use sensor_common::map::{Control, Counter, InodeKey, Managed, bitmap_bit, bitmap_place};
use sensor_common::op::{
    Operation, RECORD_IN_DIRECTORY, RECORD_NAME_CUT, RECORD_REFUSED, ROLE_MOUNTS, ROLE_TAMPER,
};
use sensor_common::record::ChangeRecord;

/// The entry of a managed inode, or `None` for all others and for null.
#[inline(always)]
pub(crate) fn lookup(inode: Pointer) -> Option<*mut Managed> {
    let ino = inode.load(kernel::inode_ino());
    let (word, of_number) = bitmap_place(ino);
    // SAFETY: the pointer comes from a map look-up; a torn read of one word is impossible.
    let bits = unsafe { *BITMAP.get_ptr(word)? };
    if bits & of_number == 0 {
        return None;
    }
    // A managed inode's number, maybe that of another device.
    let sb = inode.follow(kernel::inode_sb());
    let mut key = InodeKey { ino, dev: sb.load(kernel::super_dev()), volume: 0 };
    if bits & bitmap_bit(key) == 0 {
        return None;
    }
    key.volume = volume_in(inode, sb);
    MANAGED.get_ptr_mut(key)
}

/// Gives an inode the number and the roles of the one whose place it takes. The change is noted in the entry that it
/// inherits from; where the rename fails after all, the daemon removes what leads nowhere.
#[inline(always)]
pub(crate) fn inherit(entry: *const Managed, heir: Pointer) {
    let key = key(heir, heir.load(kernel::inode_ino()));
    // SAFETY: the entry comes from a map look-up in this program run, and was written by `note` just now.
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
    // One that is managed already keeps what it has. Without room the daemon enrols it as soon as it hears of it.
    if MANAGED.insert(key, inherited, NO_EXISTING).is_err() {
        return;
    }
    let (word, of_number) = bitmap_place(key.ino);
    if let Some(bits) = BITMAP.get_ptr_mut(word) {
        // Not atomic, as 5.10 knows no atomic OR: if another bit of the same word is set between these two instructions
        // it is lost, and the daemon's check of entries finds that.
        // SAFETY: the pointer comes from a map look-up; a word is read and written whole.
        unsafe {
            core::ptr::write_volatile(bits, core::ptr::read_volatile(bits) | of_number | bitmap_bit(key))
        };
    }
}

/// Add to a map only what is not in it (`BPF_NOEXIST`).
const NO_EXISTING: u64 = 1;

/// The kernel's name for an inode.
#[inline(always)]
pub(crate) fn key(inode: Pointer, ino: u64) -> InodeKey {
    let sb = inode.follow(kernel::inode_sb());
    InodeKey { ino, dev: sb.load(kernel::super_dev()), volume: volume_in(inode, sb) }
}

/// `BTRFS_SUPER_MAGIC` (include/uapi/linux/magic.h).
const BTRFS: u64 = 0x9123_683e;

/// The subvolume of an inode in a file system.
#[inline(always)]
fn volume_in(inode: Pointer, sb: Pointer) -> u32 {
    let magic: u64 = sb.load(kernel::super_magic());
    if magic == BTRFS { volume(inode.0 as u64) as u32 } else { 0 }
}

/// The same for an inode whose type the verifier does not know.
#[inline(always)]
pub(crate) fn volume_at(inode: u64) -> u32 {
    let sb: u64 = who::read(inode, kernel::inode_sb());
    let magic: u64 = who::read(sb, kernel::super_magic());
    if magic == BTRFS { volume(inode) as u32 } else { 0 }
}

/// The subvolume of an inode of Btrfs. A function of its own, so that no other file system's inode pays for it.
#[inline(never)]
fn volume(inode: u64) -> u64 {
    let Some(volumes) = VOLUMES.get(0) else { return 0 };
    if volumes.known == 0 {
        return 0;
    }
    /// No structure is longer. The verifier wants to know how far from a pointer an offset leads.
    const LONGEST: u32 = 0xffff;
    let own = inode.wrapping_sub(u64::from(volumes.vfs_inode & LONGEST));
    let root: u64 = who::read(own, volumes.root & LONGEST);
    who::read(root, volumes.id & LONGEST)
}

/// What the daemon has told us.
#[inline(always)]
pub(crate) fn control() -> Option<&'static Control> {
    CONTROL.get(0)
}

/// Whether the current task belongs to the daemon. Only a task of the daemon's number is asked for more.
#[inline(always)]
pub(crate) fn is_agent() -> bool {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    control().is_some_and(|control| control.agent_tgid == tgid && who::is_agent(control))
}

/// Whether the current task belongs to the daemon and the daemon asks this set of programs. Sets of different modes or
/// versions can be attached at once and share the maps.
#[inline(always)]
pub(crate) fn answers() -> bool {
    is_agent() && control().is_some_and(|control| control.set == kernel::program_set())
}

/// What changed, for [`changed`].
pub(crate) struct Change {
    pub(crate) operation: Operation,
    /// Operation-specific number for the record.
    pub(crate) detail: u64,
    /// The directory entry, or null.
    pub(crate) dentry: Pointer,
    /// The inode that the record is about, or null.
    pub(crate) inode: Pointer,
    /// The kernel refuses it after the hook, as far as owner and capabilities tell.
    pub(crate) refused: bool,
    /// Anybody can do it, as often as they like: its record leaves half of the ring to others.
    pub(crate) yields: bool,
}

impl Change {
    /// A change of the managed inode itself.
    #[inline(always)]
    pub(crate) fn of(inode: Pointer, operation: Operation, detail: u64) -> Self {
        Self { operation, detail, dentry: Pointer::NULL, inode, refused: false, yields: false }
    }
}

/// What a record says of the inode that it is about.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) key: InodeKey,
    pub(crate) generation: u32,
}

impl Subject {
    /// Of an inode, or of none where the pointer is null.
    #[inline(always)]
    pub(crate) fn of(inode: Pointer) -> Self {
        let Some(inode) = inode.known() else { return Self { key: NO_INODE, generation: 0 } };
        let key = key(inode, inode.load(kernel::inode_ino()));
        Self { key, generation: inode.load(kernel::inode_generation()) }
    }
}

/// No inode has this key.
const NO_INODE: InodeKey = InodeKey { ino: 0, dev: 0, volume: 0 };

/// Notes a change that is about to land: the counter first, then the dirty bit and the writer, then a
/// record unless the same writer's same operation was told and is still waiting to be looked at.
#[inline(always)]
pub(crate) fn changed(entry: *mut Managed, change: &Change) -> i32 {
    // A call with five words in registers; inlined, a rename would hold four copies of the body.
    let operation = change.operation as u64
        | u64::from(change.refused) << REFUSED_SHIFT
        | u64::from(change.yields) << YIELDS_SHIFT;
    note(entry, operation, change.detail, change.dentry.0, change.inode.0) as i32
}

/// Where the operation that goes to [`note`] says that it is refused.
const REFUSED_SHIFT: u32 = 32;

/// Where it says that the record leaves room to others.
const YIELDS_SHIFT: u32 = 33;

/// The body of [`changed`], one function in the object. 0, or what a refused operation gives.
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
    // SAFETY: `entry` comes from a map look-up and stays valid while the program runs (RCU); fields are
    // aligned and written whole; two writers at once leave one of the two, which the records tell apart.
    unsafe {
        let goes_on = core::ptr::read_volatile(&raw const (*entry).dirty) != 0
            && (*entry).writer_tgid == tgid
            && (*entry).writer_exec_id == exec_id;
        let told = if goes_on { (*entry).told } else { 0 };
        let waiting = told & 1 << (operation & 31) != 0
            // How long a look has to wait for it counts from its own record.
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
            push(entry, operation, detail, dentry, subject, refused, yields);
        }
    }
    0
}

/// Pushes a record, or marks the entry and counts the loss. The dirty bit stays either way. `yields`: it takes no room of the
/// second half of the ring.
///
/// # Safety
/// `entry` must come from a map look-up in this program run.
#[inline(always)]
pub(crate) unsafe fn push(
    entry: *mut Managed,
    operation: u32,
    detail: u64,
    dentry: Pointer,
    subject: Subject,
    flags: u16,
    yields: bool,
) {
    // SAFETY: the caller's.
    let alarms = unsafe { (*entry).roles } & ROLE_TAMPER != 0;
    let slot = if alarms {
        ALARMS.reserve::<ChangeRecord>(0)
    } else if yields && maps::is_crowded() {
        None
    } else {
        CHANGES.reserve::<ChangeRecord>(0)
    };
    let Some(mut slot) = slot else {
        // The mark before the count: whoever sees the count finds the mark.
        // SAFETY: the caller's; a word is written whole, and of two losses at once either will do.
        unsafe {
            let counter = core::ptr::read_volatile(&raw const (*entry).counter);
            core::ptr::write_volatile(&raw mut (*entry).lost, counter as u32);
        }
        maps::count(Counter::Lost);
        return;
    };
    let record = slot.as_mut_ptr();
    // SAFETY: the reservation is exactly one record; every field is written below, the name as far as
    // its length goes after being cleared.
    unsafe {
        (*record).time_ns = bpf_ktime_get_boot_ns();
        (*record).counter = core::ptr::read_volatile(&raw const (*entry).counter);
        (*record).detail = detail;
        (*record).id = (*entry).id;
        (*record).ino = subject.key.ino;
        (*record).dev = subject.key.dev;
        (*record).volume = subject.key.volume;
        (*record).generation = subject.generation;
        (*record).operation = operation as u16;
        (*record).padding = 0;
        let mut flags = flags | who::describe(record);
        (*record).exec_id = who::execution((*record).tgid, (*record).start_ns);
        let mut length = 0u16;
        if dentry.is_null() {
            (*record).name[0] = 0;
        } else {
            flags |= RECORD_IN_DIRECTORY;
            let name: *const u8 = dentry.load(kernel::dentry_name() + kernel::qstr_name());
            if let Ok(read) = bpf_probe_read_kernel_str_bytes(name, &mut (*record).name) {
                length = read.len() as u16;
                if read.len() >= NAME_BYTES - 1 {
                    flags |= RECORD_NAME_CUT;
                }
            }
        }
        (*record).name_length = length;
        (*record).flags = flags;
    }
    slot.submit(0);
    maps::count(Counter::Pushed);
}
