//! Ring records: one fixed-size record for each change.

use crate::limits::{NAME_BYTES, RECORD_BYTES};
use crate::map::InodeKey;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One change of a managed inode, with the identity of the task that made it. Under that identity the process maps have its arguments
/// and ancestors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChangeRecord {
    /// Boot-time nanoseconds.
    pub time_ns: u64,
    /// The inode's counter after this change was added.
    pub counter: u64,
    /// Start time of the acting process, boot-time nanoseconds.
    pub start_ns: u64,
    /// Id of the control group, in the hierarchy that the daemon chose (`CGROUP_HIERARCHY` of the kernel programs).
    pub cgroup: u64,
    /// A number that depends on the operation. SetAttributes: `ia_valid`. Ioctl: the command. OpenWrite: the flags. Map and Protect:
    /// `prot`. Exec: the execution's number. MakeDirectory of a control group: the group's number. OpenTamper: the device, or the flags
    /// for a tunable. Denied: the refused operation. Operations on mounts: [`crate::op::PRIVATE_MOUNT`] or zero.
    pub detail: u64,
    /// `inode.i_ino` of the inode that the record is about. For a mount it is the object mounted over, for an unmount the root of the
    /// unmounted mount. Zero if the record is about no inode.
    pub ino: u64,
    /// The process's execution at that time: the key into the execution map; 0 for a process that started before the sensor.
    pub exec_id: u64,
    /// The daemon's number for the managed inode.
    pub id: u32,
    /// Thread group id.
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
    /// File system uid, initial user namespace.
    pub uid: u32,
    /// File system gid, initial user namespace.
    pub gid: u32,
    /// Audit login uid; `u32::MAX` when unset.
    pub login_uid: u32,
    /// Audit session id; `u32::MAX` when unset.
    pub session: u32,
    /// Mount namespace number.
    pub mount_namespace: u32,
    /// `inode.i_sb->s_dev` of that inode.
    pub dev: u32,
    /// The subvolume of that inode; see [`InodeKey`].
    pub volume: u32,
    /// `inode.i_generation` of that inode, which distinguishes it from an earlier one of the same number.
    pub generation: u32,
    /// [`crate::op::Operation`] as its code.
    pub operation: u16,
    /// `RECORD_*`.
    pub flags: u16,
    /// Bytes used in `name`.
    pub name_length: u16,
    /// Zero.
    pub padding: u16,
    /// `task_struct.comm`, zero-padded.
    pub comm: [u8; 16],
    /// The directory entry's name.
    pub name: [u8; NAME_BYTES],
}

const _: () = {
    assert!(size_of::<ChangeRecord>() <= RECORD_BYTES);
    assert!(size_of::<ChangeRecord>() == 248);
    assert!(core::mem::offset_of!(ChangeRecord, id) == 56);
    assert!(core::mem::offset_of!(ChangeRecord, operation) == 100);
    assert!(core::mem::offset_of!(ChangeRecord, name) == 124);
};

impl ChangeRecord {
    /// The inode that the record is about.
    pub const fn key(&self) -> InodeKey {
        InodeKey { ino: self.ino, dev: self.dev, volume: self.volume }
    }
}
