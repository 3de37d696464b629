//! All maps. The daemon pins them in its own directory of a BPF file system, so that they outlive it.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf};
use sensor_common::bitmap::Bitmap;
use sensor_common::limits;
use sensor_common::map::{
    Allowed, BtrfsOffsets, COUNTERS, Control, Counter, Denials, Executing, Execution, Group, Identity,
    InodeKey, Loads, Managed, NameKey, Process,
};

/// Allocate entries when they are inserted (`BPF_F_NO_PREALLOC`).
const NO_PREALLOC: u32 = 1;

/// The state of each managed inode. The loss of a record does not change it.
#[map]
pub(crate) static MANAGED: HashMap<InodeKey, Managed> =
    HashMap::with_max_entries(limits::MANAGED_ENTRIES, NO_PREALLOC);

/// Rejects most unmanaged inodes before the look-up in `MANAGED`. The daemon chooses the size when it loads the object.
#[map]
pub(crate) static BITMAP: Array<u64> = Array::with_max_entries(Bitmap::LARGEST.words(), 0);

/// The actors that deny rules allow.
#[map]
pub(crate) static ALLOWED: HashMap<Allowed, u64> =
    HashMap::with_max_entries(limits::ALLOWED_ENTRIES, NO_PREALLOC);

/// Names that deny rules protect, with the numbers of their rules.
#[map]
pub(crate) static NAMES: HashMap<NameKey, u32> = HashMap::with_max_entries(limits::NAME_ENTRIES, NO_PREALLOC);

/// The daemon's settings for the programs, such as its process.
#[map]
pub(crate) static CONTROL: Array<Control> = Array::with_max_entries(1, 0);

/// Offsets for the numbers of Btrfs subvolumes.
#[map]
pub(crate) static VOLUMES: Array<BtrfsOffsets> = Array::with_max_entries(1, 0);

/// The identity of the object that the daemon opened last, and of the link that it read; `IDENTITY_*`.
#[map]
pub(crate) static IDENTITY: Array<Identity> = Array::with_max_entries(2, 0);

/// Records of changes. A lost record loses details and not the fact that something changed.
#[map]
pub(crate) static CHANGES: RingBuf = RingBuf::with_byte_size(limits::RING_BYTES, 0);

/// Records of the canary and of opens that could blind the sensor. Changes of managed files cannot fill it.
#[map]
pub(crate) static ALARMS: RingBuf = RingBuf::with_byte_size(limits::ALARM_BYTES, 0);

/// Refusals of each user.
#[map]
pub(crate) static DENIALS: LruHashMap<u32, Denials> = LruHashMap::with_max_entries(limits::DENIAL_ENTRIES, 0);

/// Loads of each user.
#[map]
pub(crate) static LOADS: LruHashMap<u32, Loads> = LruHashMap::with_max_entries(limits::DENIAL_ENTRIES, 0);

/// Processes by thread group id.
#[map]
pub(crate) static PROCESSES: LruHashMap<u32, Process> =
    LruHashMap::with_max_entries(limits::PROCESS_ENTRIES, 0);

/// Executions. A new one overwrites the oldest.
#[map]
pub(crate) static EXECUTIONS: Array<Execution> =
    Array::with_max_entries(limits::EXEC_ENTRIES + limits::SECOND_EXEC_ENTRIES, 0);

/// The number of executions so far on this CPU, for each of the two programs that store them.
#[map]
pub(crate) static EXECUTION_SEQUENCE: PerCpuArray<u64> = PerCpuArray::with_max_entries(2, 0);

/// Managed files that tasks are about to execute, by the task's address.
#[map]
pub(crate) static EXECUTING: LruHashMap<u64, Executing> =
    LruHashMap::with_max_entries(limits::EXECUTING_ENTRIES, 0);

/// Not zero after the first insertion into [`EXECUTING`]. Until then executions skip the look-up.
#[map]
pub(crate) static EVER_NOTED: Array<u32> = Array::with_max_entries(1, 0);

/// Control groups created since the sensor started, by number, also removed ones.
#[map]
pub(crate) static GROUPS: LruHashMap<u64, Group> = LruHashMap::with_max_entries(limits::GROUP_ENTRIES, 0);

/// A buffer for a path, which does not fit on a program's stack.
#[map]
pub(crate) static GROUP_SCRATCH: PerCpuArray<Group> = PerCpuArray::with_max_entries(1, 0);

/// The counters, by `Counter`.
#[map]
pub(crate) static COUNTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTERS, 0);

/// Whether records fill half of the changes' ring. The second half is for operations that need rights.
#[inline(always)]
pub(crate) fn is_half_full() -> bool {
    CHANGES.query(AVAILABLE_DATA) > u64::from(limits::RING_BYTES / 2)
}

/// `BPF_RB_AVAIL_DATA` (include/uapi/linux/bpf.h).
const AVAILABLE_DATA: u64 = 0;

/// Adds one to a counter of this CPU.
#[inline(always)]
pub(crate) fn count(counter: Counter) {
    if let Some(slot) = COUNTS.get_ptr_mut(counter as u32) {
        add_one(slot);
    }
}

/// Adds one, as a single instruction: programs can be preempted by others on the same CPU.
#[inline(always)]
pub(crate) fn add_one(slot: *mut u64) {
    // SAFETY: `slot` comes from a map look-up, so it is aligned and valid while the program runs. An add without a result is
    // the only atomic that 5.10 has.
    unsafe {
        core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) slot, in(reg) 1u64, options(nostack));
    }
}
