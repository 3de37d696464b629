//! Keys and values of the maps.

use crate::limits::{ARGV_BYTES, FILENAME_BYTES, GROUP_PATH_BYTES, NAME_KEY_BYTES};
use crate::op::Operation;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An inode as the kernel names it. `dev` is the kernel's `s_dev`, which on btrfs and overlayfs is not
/// what stat(2) shows; the daemon learns it by opening the object and asking its own program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InodeKey {
    /// `inode.i_ino`.
    pub ino: u64,
    /// `inode.i_sb->s_dev`.
    pub dev: u32,
    /// Of an inode of Btrfs, the low half of its subvolume's number: each subvolume numbers its inodes anew, and all have one
    /// superblock. Zero elsewhere, and where [`Volumes`] are not known.
    pub volume: u32,
}

/// Where an inode of Btrfs has the number of its subvolume: offsets from the types of this kernel's `btrfs`, which may be
/// loaded after the programs. One entry; all zeroes where they are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Volumes {
    /// `btrfs_inode.vfs_inode`.
    pub vfs_inode: u32,
    /// `btrfs_inode.root`.
    pub root: u32,
    /// `btrfs_root.root_key.objectid`.
    pub id: u32,
    /// Not zero where the others are known.
    pub known: u32,
}

/// The truth about one managed inode. Written by the kernel programs; the daemon writes it only when
/// it enrols or removes the inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Managed {
    /// Raised by every hook on a changing operation, before the operation lands.
    pub counter: u64,
    /// `counter` as the daemon's last observation open saw it.
    pub observed_counter: u64,
    /// Boot-time nanoseconds of the last change.
    pub changed_ns: u64,
    /// What the last writer ran when it wrote: its execution's number, 0 where that is not known.
    pub writer_exec_id: u64,
    /// Thread group of the last writer.
    pub writer_tgid: u32,
    /// The daemon's number for this inode.
    pub id: u32,
    /// `ROLE_*`.
    pub roles: u32,
    /// Not zero from the first change after an observation open until the next one.
    pub dirty: u32,
    /// What was under way on the inode at the last observation open: `OBSERVED_*`.
    pub observed: u32,
    /// The low half of `counter` when a record of this inode last found no room in the ring. It says what an
    /// observation open cannot take away: two things may share an inode, and a look at one clears `dirty`.
    pub lost: u32,
    /// What the last writer's records told since the last observation open: a bit for each operation's code. What is in
    /// it need not be told again ([`Managed::told_after`]) of the same process as long as it runs the same.
    pub told: u32,
    /// Observation opens seen, so that the daemon knows that the last one was its own.
    pub observed_sequence: u32,
}

impl Managed {
    /// What counts as told once an operation of this code was, beside what was `told` by the same writer. Opening (which may
    /// cut the file), writing and closing come by turns, and are told once each; of all others only the very last.
    #[inline(always)]
    pub const fn told_after(told: u32, operation: u32) -> u32 {
        const BY_TURNS: u32 = 1 << Operation::OpenWrite as u32
            | 1 << Operation::SetAttributes as u32
            | 1 << Operation::Write as u32
            | 1 << Operation::Release as u32;
        let bit = 1 << (operation & 31);
        if bit & BY_TURNS != 0 { told & BY_TURNS | bit } else { bit }
    }
}

/// Some file was open for writing on the inode, shared writable mappings included.
pub const OBSERVED_WRITERS: u32 = 1;
/// The inode, or its directory, was locked by a change.
pub const OBSERVED_LOCKED: u32 = 2;

/// Whom a rule allows to change what it denies to all others. The value is a set of bits: the current task is allowed when
/// the entries by which it is known have all of them together ([`ALLOWED_ALL`]). A rule's own entries have all bits each;
/// where several rules count together, each has a bit, and bits that no rule has are set everywhere.
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
    /// Number of the rule; zero for every rule ([`ALLOWED_PROCESS`]).
    pub rule: u32,
    /// `ALLOWED_*`.
    pub kind: u32,
    /// Inode number, cgroup id, login uid or start time.
    pub value: u64,
    /// Device of the inode, or number of the process; zero for the other kinds.
    pub dev: u32,
    /// Generation of the inode, since file systems use numbers again; zero for the other kinds.
    pub generation: u32,
    /// Subvolume of the inode, as in [`InodeKey::volume`]; zero for the other kinds.
    pub volume: u32,
    /// Zero.
    pub padding: u32,
}

/// What it takes to be allowed.
pub const ALLOWED_ALL: u64 = u64::MAX;

/// The executable's inode, while it has a name.
pub const ALLOWED_EXE: u32 = 1;
/// The control group that the process is in.
pub const ALLOWED_CGROUP: u32 = 2;
/// The audit login uid, where the process is in the scope of its session.
pub const ALLOWED_LOGIN: u32 = 3;
/// One process, by number and start: Holdfast's own, to which no rule applies.
pub const ALLOWED_PROCESS: u32 = 4;

/// A name that a deny rule protects, whether anything is there or not. The value is the number of its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NameKey {
    /// The directory.
    pub directory: InodeKey,
    /// The name, and zeroes behind it.
    pub name: [u8; NAME_KEY_BYTES],
}

/// What the kernel tells of an object that the daemon opened for enrolment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Identity {
    /// The kernel's own name for it.
    pub key: InodeKey,
    /// `inode.i_generation`.
    pub generation: u32,
    /// `inode.i_mode`.
    pub mode: u32,
    /// `super_block.s_magic`.
    pub magic: u64,
    /// Raised with every answer, so that a stale one is known.
    pub sequence: u64,
}

/// What the daemon tells the programs. One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Control {
    /// Thread group of the daemon, whose observation opens are recognised; zero while none runs. The number alone proves
    /// nothing: another process gets it when the daemon is dead.
    pub agent_tgid: u32,
    /// [`crate::ABI_VERSION`] of the object that made the maps.
    pub abi_version: u32,
    /// Number of the host's mount namespace: what is mounted in another one is nothing that the host sees.
    pub mount_namespace: u32,
    /// Number of the set of programs that the daemon asks: for the daemon's observations only this set answers.
    pub set: u32,
    /// The daemon started at this boot-time nanosecond or later,
    pub agent_start_ns: u64,
    /// and before this one: procfs shows the start in ticks.
    pub agent_start_before_ns: u64,
    /// Number of the daemon's pid namespace; zero where this kernel does not show it.
    pub agent_pid_namespace: u32,
    /// Zero.
    pub padding: u32,
}

/// A process: where it came from and what it runs. Written at fork and exec, kept after exit until it
/// is the least recently used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Process {
    /// Start time in boot-time nanoseconds; with the thread group id (the key) it is unique in a boot.
    pub start_ns: u64,
    /// Start time of the process that forked it.
    pub parent_start_ns: u64,
    /// Key into the execution map; 0 when it started before the sensor.
    pub exec_id: u64,
    /// What the process that forked it ran then.
    pub parent_exec_id: u64,
    /// Thread group of the process that forked it (not of the one that adopted it later).
    pub parent_tgid: u32,
    /// Zero.
    pub padding: u32,
}

/// One program execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Execution {
    /// The execution's number, to tell it from a later one that took its slot.
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
    /// Not zero when there were more arguments than fit.
    pub argv_cut: u32,
    /// The path given to execve, zero-terminated.
    pub filename: [u8; FILENAME_BYTES],
    /// Arguments, each zero-terminated.
    pub argv: [u8; ARGV_BYTES],
}

/// Refusals of one user, who is the key: a file system uid of the initial user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Denials {
    /// Boot-time nanoseconds at which the present second began.
    pub since_ns: u64,
    /// Refusals without a record, in all.
    pub untold: u64,
    /// Records in the present second.
    pub told: u32,
    /// Zero.
    pub padding: u32,
}

/// A control group of version 2 that was made while the sensor ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Group {
    /// Its path below the hierarchy's root, zero-terminated.
    pub path: [u8; GROUP_PATH_BYTES],
}

/// A managed file that a task is about to execute, noted before the kernel goes on to its interpreter.
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

/// Slots of the identity map: what was opened last.
pub const IDENTITY_OPENED: u32 = 0;
/// The first symbolic link that was read since the daemon cleared this slot. (An overlay reads the link of
/// its layer after its own.)
pub const IDENTITY_LINK: u32 = 1;

/// The entry that stands for the mount table: no inode has number 0.
pub const MOUNTS_KEY: InodeKey = InodeKey { ino: 0, dev: 0, volume: 0 };

/// The entry that stands for all block devices.
pub const DEVICES_KEY: InodeKey = InodeKey { ino: 0, dev: 1, volume: 0 };

/// The entry that stands for the tree of control groups, there only while a rule names actors by their group.
pub const GROUPS_KEY: InodeKey = InodeKey { ino: 0, dev: 2, volume: 0 };

/// The entry that stands for `kernel.ftrace_enabled`, through whatever mount of procfs it is opened.
pub const SWITCH_KEY: InodeKey = InodeKey { ino: 0, dev: 3, volume: 0 };

/// Bits of an execution's number that hold the CPU.
const EXECUTION_CPU_BITS: u32 = 12;

/// The number of the `sequence`-th execution on `cpu`.
#[inline(always)]
pub const fn execution_id(sequence: u64, cpu: u32) -> u64 {
    sequence << EXECUTION_CPU_BITS | (cpu & ((1 << EXECUTION_CPU_BITS) - 1)) as u64
}

/// The slot of an execution when `cpus` processors share the slots.
#[inline(always)]
pub const fn execution_slot(id: u64, cpus: u32) -> u32 {
    let sequence = (id >> EXECUTION_CPU_BITS) as u32;
    let cpu = (id & ((1 << EXECUTION_CPU_BITS) - 1)) as u32;
    sequence.wrapping_mul(cpus).wrapping_add(cpu) & (crate::limits::EXEC_ENTRIES - 1)
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
    /// Changes counted without a record because the entry was dirty by the same writer already.
    Coalesced = 3,
    /// Changes refused by policy.
    Denied = 4,
    /// Those of them that have no record.
    DeniedUntold = 5,
}

/// Slots of the counter map.
pub const COUNTERS: u32 = 8;

const _: () = {
    assert!(size_of::<InodeKey>() == 16);
    assert!(size_of::<Volumes>() == 16);
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
    assert!((Counter::DeniedUntold as u32) < COUNTERS);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_is_told_once_for_each_of_its_parts_and_anything_else_is_told_again_after_another() {
        let told = |operations: &[Operation]| {
            let mut told = 0;
            let mut records = 0;
            for operation in operations {
                records += u32::from(told & 1 << *operation as u32 == 0);
                told = Managed::told_after(told, *operation as u32);
            }
            records
        };
        use Operation::{OpenWrite, Release, SetAttributes, SetXattr, Unlink, Write};
        assert_eq!(told(&[OpenWrite, Write, Release, OpenWrite, Write, Write, Release]), 3);
        assert_eq!(told(&[OpenWrite, SetAttributes, Release, OpenWrite, SetAttributes, Release]), 3);
        assert_eq!(told(&[Unlink, Unlink]), 1);
        assert_eq!(told(&[Unlink, SetXattr, Unlink]), 3);
        assert_eq!(told(&[OpenWrite, SetXattr, OpenWrite]), 3);
    }
}
