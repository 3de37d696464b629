//! Keys and values of the maps.

use crate::limits::{ARGV_BYTES, FILENAME_BYTES, GROUP_PATH_BYTES, NAME_KEY_BYTES};
use crate::op::Operation;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An inode's identity in the kernel. `dev` is the kernel's `s_dev`, which on btrfs and overlayfs differs from stat(2). The daemon
/// opens the object, and its own kernel program reports the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InodeKey {
    /// `inode.i_ino`.
    pub ino: u64,
    /// `inode.i_sb->s_dev`.
    pub dev: u32,
    /// For an inode of Btrfs, the low half of its subvolume's number: all subvolumes have one superblock, and each has its own inode
    /// numbers. Zero on other file systems, and while the programs have no [`BtrfsOffsets`].
    pub volume: u32,
}

/// Offsets to the subvolume's number of a Btrfs inode, from the BTF of this kernel's `btrfs`. The kernel may load `btrfs` after the
/// programs. One entry; all zeroes until the daemon knows the offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BtrfsOffsets {
    /// `btrfs_inode.vfs_inode`.
    pub vfs_inode: u32,
    /// `btrfs_inode.root`.
    pub root: u32,
    /// `btrfs_root.root_key.objectid`.
    pub id: u32,
    /// Not zero if the daemon has set the others.
    pub known: u32,
}

/// The state of one managed inode. The kernel programs write it. The daemon writes it only when it enrols or removes the inode, or
/// changes its number or roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Managed {
    /// Incremented by every hook of a changing operation, before the operation takes effect.
    pub counter: u64,
    /// The value of `counter` at the daemon's last observation open.
    pub observed_counter: u64,
    /// Boot-time nanoseconds of the last change.
    pub changed_ns: u64,
    /// The number of the last writer's execution at that time; 0 if unknown.
    pub writer_exec_id: u64,
    /// Thread group of the last writer.
    pub writer_tgid: u32,
    /// The daemon's number for this inode.
    pub id: u32,
    /// `ROLE_*`.
    pub roles: u32,
    /// Not zero from the first change after an observation open until the next one.
    pub dirty: u32,
    /// State of the inode at the last observation open: `OBSERVED_*`.
    pub observed: u32,
    /// The low half of `counter` when a record of this inode last found no room in the ring. An observation open does not clear it,
    /// because two things may share an inode: the verification of one of them clears `dirty` for both.
    pub lost: u32,
    /// Operations of the last writer that have a record since the last observation open, one bit for each code. A repeated operation
    /// needs no record while process and execution stay the same ([`Managed::recorded_after`]).
    pub recorded: u32,
    /// Number of observation opens. By it the daemon checks that the last one was its own.
    pub observed_sequence: u32,
}

impl Managed {
    /// The value of `recorded` after a record of an operation. A writer opens (and so truncates), writes and closes in turn, so each
    /// of these operations keeps its bit. Of all other operations only the last one has a bit.
    #[inline(always)]
    pub const fn recorded_after(recorded: u32, operation: u32) -> u32 {
        const ALTERNATING: u32 = 1 << Operation::OpenWrite as u32
            | 1 << Operation::SetAttributes as u32
            | 1 << Operation::Write as u32
            | 1 << Operation::Release as u32;
        let bit = 1 << (operation & 31);
        if bit & ALTERNATING != 0 { recorded & ALTERNATING | bit } else { bit }
    }
}

/// A file was open for writing on the inode, including shared writable mappings.
pub const OBSERVED_WRITERS: u32 = 1;
/// The inode, or its directory, was locked by a change.
pub const OBSERVED_LOCKED: u32 = 2;

/// An actor that a deny rule allows. The value is a set of bits: a task is allowed if its entries together have all bits
/// ([`ALLOWED_ALL`]). An entry of a single rule has all bits. In a set of rules each rule has one bit; the unused bits are set in
/// every entry of the set.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct Allowed {
    /// Number of the rule or set of rules; zero for all rules ([`ALLOWED_PROCESS`]).
    pub rule: u32,
    /// `ALLOWED_*`.
    pub kind: u32,
    /// Inode number, cgroup id, login uid or start time.
    pub value: u64,
    /// Device of the inode, or number of the process; zero for the other kinds.
    pub dev: u32,
    /// Generation of the inode, since file systems reuse inode numbers; zero for the other kinds.
    pub generation: u32,
    /// Subvolume of the inode, as in [`InodeKey::volume`]; zero for the other kinds.
    pub volume: u32,
    /// Zero.
    pub padding: u32,
}

/// The bits of an allowed task.
pub const ALLOWED_ALL: u64 = u64::MAX;

/// The task's executable, by its inode, while that has a name.
pub const ALLOWED_EXE: u32 = 1;
/// The control group of the task.
pub const ALLOWED_CGROUP: u32 = 2;
/// The audit login uid, if the task is in the scope of its session.
pub const ALLOWED_LOGIN: u32 = 3;
/// One process of Holdfast, by number and start. Every rule allows it.
pub const ALLOWED_PROCESS: u32 = 4;

/// A name that a deny rule protects, also while nothing has the name. The value is the number of its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NameKey {
    /// The directory.
    pub directory: InodeKey,
    /// The name, zero-padded.
    pub name: [u8; NAME_KEY_BYTES],
}

/// The kernel's identity of an object that the daemon opened for enrolment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Identity {
    /// The inode.
    pub key: InodeKey,
    /// `inode.i_generation`.
    pub generation: u32,
    /// `inode.i_mode`.
    pub mode: u32,
    /// `super_block.s_magic`.
    pub magic: u64,
    /// Incremented with every answer. By it the daemon recognises a stale one.
    pub sequence: u64,
}

/// `BTRFS_SUPER_MAGIC` (include/uapi/linux/magic.h), the [`Identity::magic`] of a Btrfs.
pub const BTRFS_MAGIC: u64 = 0x9123_683e;

/// The daemon's settings for the programs. One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Control {
    /// Thread group of the daemon, for its observation opens; zero while none runs. The number alone proves nothing: another process may
    /// get it after the daemon's death.
    pub agent_tgid: u32,
    /// [`crate::ABI_VERSION`] of the object that made the maps.
    pub abi_version: u32,
    /// Number of the host's mount namespace.
    pub mount_namespace: u32,
    /// Number of the set of programs that must answer the daemon's observation opens.
    pub set: u32,
    /// Earliest start of the daemon, boot-time nanoseconds.
    pub agent_start_ns: u64,
    /// The daemon started before this time: procfs shows the start in ticks only.
    pub agent_start_before_ns: u64,
    /// Number of the daemon's pid namespace; zero if this kernel's BTF does not have it.
    pub agent_pid_namespace: u32,
    /// Zero.
    pub padding: u32,
}

/// A process: its parent and its execution. The programs write it at fork and exec. It outlives the process, until the map evicts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Process {
    /// Start time in boot-time nanoseconds; with the thread group id (the key) it is unique in a boot.
    pub start_ns: u64,
    /// Start time of the process that forked it.
    pub parent_start_ns: u64,
    /// Key into the execution map; 0 if it started before the sensor. [`UNKNOWN_EXECUTION`] if the process inherited its program
    /// from a process whose program is unknown.
    pub exec_id: u64,
    /// The execution of the process that forked it, at that time.
    pub parent_exec_id: u64,
    /// Thread group of the process that forked it, also after another process has become its parent.
    pub parent_tgid: u32,
    /// `task_struct.self_exec_id` of `exec_id`, its low half: it rises at each execution and is inherited at a fork. A task with
    /// another value has executed a program that the programs did not store.
    pub executions: u32,
}

/// The number of an execution that no program stored: the kernel skipped the programs of that call. It has no entry in the map.
pub const UNKNOWN_EXECUTION: u64 = u64::MAX;

/// One program execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Execution {
    /// The execution's number, to distinguish it from a later one in the same slot.
    pub id: u64,
    /// Boot-time nanoseconds of the exec.
    pub at_ns: u64,
    /// Inode of the executable.
    pub file: InodeKey,
    /// Its generation.
    pub generation: u32,
    /// Zero.
    pub padding: u32,
    /// Id of its control group at the exec.
    pub cgroup: u64,
    /// Mount namespace number.
    pub mount_namespace: u32,
    /// Pid namespace number.
    pub pid_namespace: u32,
    /// Effective uid, initial user namespace.
    pub uid: u32,
    /// Effective gid, initial user namespace.
    pub gid: u32,
    /// Audit login uid; `u32::MAX` when unset.
    pub login_uid: u32,
    /// Audit session id; `u32::MAX` when unset.
    pub session: u32,
    /// Controlling terminal: `tty_struct.name`, zero-padded.
    pub tty: [u8; 16],
    /// Bytes used in `argv`.
    pub argv_length: u32,
    /// Not zero if the arguments did not fit into `argv`.
    pub argv_cut: u32,
    /// The path given to execve, zero-terminated.
    pub filename: [u8; FILENAME_BYTES],
    /// Arguments, each zero-terminated.
    pub argv: [u8; ARGV_BYTES],
}

/// Refusals of one user. The key is a file system uid of the initial user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Denials {
    /// Begin of the current second, boot-time nanoseconds.
    pub since_ns: u64,
    /// Total of refusals without a record.
    pub unrecorded: u64,
    /// Records in the current second.
    pub recorded: u32,
    /// Zero.
    pub padding: u32,
}

/// Loads of one user. The key is a file system uid of the initial user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Loads {
    /// Begin of the current second, boot-time nanoseconds.
    pub since_ns: u64,
    /// Records in the current second.
    pub recorded: u32,
    /// Zero.
    pub padding: u32,
}

/// A control group that was created while the sensor ran, in the hierarchy that the daemon chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Group {
    /// Its path below the hierarchy's root, zero-terminated.
    pub path: [u8; GROUP_PATH_BYTES],
}

/// A managed file that a task is about to execute. The program stores it before the kernel continues with the file's interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Executing {
    /// The file.
    pub key: InodeKey,
    /// Its generation.
    pub generation: u32,
    /// Zero.
    pub padding: u32,
}

/// Slot of the identity map: the last opened object.
pub const IDENTITY_OPENED: u32 = 0;
/// Slot of the identity map: the first symbolic link that was read since the daemon cleared the slot. (Overlayfs reads the link of its
/// layer after its own.)
pub const IDENTITY_LINK: u32 = 1;

/// The entry of the mount table: no inode has number 0.
pub const MOUNTS_KEY: InodeKey = InodeKey { ino: 0, dev: 0, volume: 0 };

/// The entry of all block devices.
pub const DEVICES_KEY: InodeKey = InodeKey { ino: 0, dev: 1, volume: 0 };

/// The entry of the tree of control groups. It exists only while a rule names actors by their group.
pub const GROUPS_KEY: InodeKey = InodeKey { ino: 0, dev: 2, volume: 0 };

/// The entry of `kernel.ftrace_enabled`, for every mount of procfs.
pub const FTRACE_ENABLED_KEY: InodeKey = InodeKey { ino: 0, dev: 3, volume: 0 };

/// Bits of an execution's number that hold the CPU.
const EXECUTION_CPU_BITS: u32 = 12;

/// The bit in an execution's number for the second program. Each of the two programs counts its own executions: one may run
/// while the kernel has preempted the other one on the same CPU.
const EXECUTION_SECOND: u64 = 1 << EXECUTION_CPU_BITS;

/// The number of the `sequence`-th execution that a program stored on `cpu`.
#[inline(always)]
pub const fn execution_id(sequence: u64, is_second: bool, cpu: u32) -> u64 {
    let cpu = (cpu & ((1 << EXECUTION_CPU_BITS) - 1)) as u64;
    sequence << (EXECUTION_CPU_BITS + 1) | (is_second as u64) << EXECUTION_CPU_BITS | cpu
}

/// The slot of an execution. `cpus` processors share the slots, and the two programs have none in common.
#[inline(always)]
pub const fn execution_slot(id: u64, cpus: u32) -> u32 {
    let sequence = (id >> (EXECUTION_CPU_BITS + 1)) as u32;
    let cpu = (id & ((1 << EXECUTION_CPU_BITS) - 1)) as u32;
    let number = sequence.wrapping_mul(cpus).wrapping_add(cpu);
    if id & EXECUTION_SECOND == 0 {
        number & (crate::limits::EXEC_ENTRIES - 1)
    } else {
        crate::limits::EXEC_ENTRIES + (number & (crate::limits::SECOND_EXEC_ENTRIES - 1))
    }
}

/// Counters that the programs keep, per CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Records pushed to the ring.
    Pushed = 0,
    /// Records lost because the ring was full.
    Lost = 1,
    /// Process or execution entries that could not be stored.
    ProcessLost = 2,
    /// Changes without a record, because a record of the same writer's same operation still waits for an observation.
    Coalesced = 3,
    /// Changes refused by policy.
    Denied = 4,
    /// Refused changes without a record.
    DeniedUnrecorded = 5,
}

/// Slots of the counter map.
pub const COUNTERS: u32 = 8;

const _: () = {
    assert!(size_of::<InodeKey>() == 16);
    assert!(size_of::<BtrfsOffsets>() == 16);
    assert!(size_of::<Managed>() == 64);
    assert!(size_of::<Identity>() == 40);
    assert!(size_of::<Allowed>() == 32);
    assert!(size_of::<NameKey>() == 16 + NAME_KEY_BYTES);
    assert!(size_of::<Control>() == 40);
    assert!(size_of::<Process>() == 40);
    assert!(size_of::<Executing>() == 24);
    assert!(size_of::<Denials>() == 24);
    assert!(size_of::<Execution>() == 8 + 8 + 16 + 8 + 8 + 24 + 16 + 8 + FILENAME_BYTES + ARGV_BYTES);
    assert!(core::mem::offset_of!(Managed, dirty) == 44);
    assert!(crate::limits::EXEC_ENTRIES.is_power_of_two());
    assert!(crate::limits::SECOND_EXEC_ENTRIES.is_power_of_two());
    assert!((Counter::DeniedUnrecorded as u32) < COUNTERS);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_of_the_two_programs_share_neither_a_number_nor_a_slot() {
        for sequence in [1, 2, 4095, 4096, 1 << 40] {
            for cpu in [0, 1, 4095] {
                let (first, second) = (execution_id(sequence, false, cpu), execution_id(sequence, true, cpu));
                assert_ne!(first, second);
                assert_ne!(first, execution_id(sequence + 1, false, cpu));
                assert!(execution_slot(first, 2) < crate::limits::EXEC_ENTRIES);
                let beyond = execution_slot(second, 2) - crate::limits::EXEC_ENTRIES;
                assert!(beyond < crate::limits::SECOND_EXEC_ENTRIES);
            }
        }
    }

    #[test]
    fn opening_writing_and_closing_have_one_record_each_and_another_operation_has_one_whenever_it_follows_a_different_one()
     {
        let records = |operations: &[Operation]| {
            let mut reported = 0;
            let mut count = 0;
            for operation in operations {
                count += u32::from(reported & 1 << *operation as u32 == 0);
                reported = Managed::recorded_after(reported, *operation as u32);
            }
            count
        };
        use Operation::{OpenWrite, Release, SetAttributes, SetXattr, Unlink, Write};
        assert_eq!(records(&[OpenWrite, Write, Release, OpenWrite, Write, Write, Release]), 3);
        assert_eq!(records(&[OpenWrite, SetAttributes, Release, OpenWrite, SetAttributes, Release]), 3);
        assert_eq!(records(&[Unlink, Unlink]), 1);
        assert_eq!(records(&[Unlink, SetXattr, Unlink]), 3);
        assert_eq!(records(&[OpenWrite, SetXattr, OpenWrite]), 3);
    }
}
