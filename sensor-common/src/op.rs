//! Operation codes, roles of managed inodes, and flags.

/// An operation on a managed inode.
///
/// A hook runs before its operation takes effect, so a record reports an attempt. The verdict comes from a verification afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Operation {
    /// Opened for writing.
    OpenWrite = 1,
    /// write(2), and every operation with the same hook (`security_file_permission`): splice, sendfile, copy_file_range, fallocate,
    /// io_uring, aio.
    Write = 2,
    /// Mapped shared and writable.
    Map = 3,
    /// A shared mapping made writable.
    Protect = 4,
    /// Attributes: mode, owner, size, times (`detail` holds `ia_valid`).
    SetAttributes = 5,
    /// Extended attribute set.
    SetXattr = 6,
    /// Extended attribute removed.
    RemoveXattr = 7,
    /// Access control list set.
    SetAcl = 8,
    /// Access control list removed.
    RemoveAcl = 9,
    /// An ioctl that can change content or flags (`detail` holds the command).
    Ioctl = 10,
    /// Inode flags set through file_setattr(2).
    SetFlags = 11,
    /// A name created in a managed directory.
    Create = 12,
    /// A directory made in a managed directory.
    MakeDirectory = 13,
    /// A node made in a managed directory.
    MakeNode = 14,
    /// A symbolic link made in a managed directory.
    Symlink = 15,
    /// A hard link to a managed file, or in a managed directory.
    Link = 16,
    /// A managed file, or a name in a managed directory, removed.
    Unlink = 17,
    /// A managed directory, or a directory in one, removed.
    RemoveDirectory = 18,
    /// A managed object, or a name in a managed directory, renamed.
    Rename = 19,
    /// Another object renamed over a managed one, or into a managed directory.
    RenameOver = 20,
    /// A mount at any path; after it the daemon compares mount tables.
    Mount = 21,
    /// A file system unmounted.
    Unmount = 22,
    /// A mount moved, or a detached mount attached.
    MoveMount = 23,
    /// The root was pivoted.
    PivotRoot = 24,
    /// A managed file executed.
    Exec = 25,
    /// The last writable use of a file ended.
    Release = 26,
    /// A block device (`detail` holds its number in the kernel's encoding) or a watched tunable opened for writing.
    OpenTamper = 27,
    /// A change refused by policy (LSM only); `detail` holds the operation that was refused.
    Denied = 28,
    /// A file of an image, or one that nothing expects, mapped with `PROT_EXEC`, as a loader maps a library.
    Load = 29,
}

/// Every operation, in the order of their codes.
pub const OPERATIONS: [Operation; 29] = [
    Operation::OpenWrite,
    Operation::Write,
    Operation::Map,
    Operation::Protect,
    Operation::SetAttributes,
    Operation::SetXattr,
    Operation::RemoveXattr,
    Operation::SetAcl,
    Operation::RemoveAcl,
    Operation::Ioctl,
    Operation::SetFlags,
    Operation::Create,
    Operation::MakeDirectory,
    Operation::MakeNode,
    Operation::Symlink,
    Operation::Link,
    Operation::Unlink,
    Operation::RemoveDirectory,
    Operation::Rename,
    Operation::RenameOver,
    Operation::Mount,
    Operation::Unmount,
    Operation::MoveMount,
    Operation::PivotRoot,
    Operation::Exec,
    Operation::Release,
    Operation::OpenTamper,
    Operation::Denied,
    Operation::Load,
];

impl Operation {
    /// The operation of a code, or `None` for a code that this ABI does not have.
    pub fn from_code(code: u16) -> Option<Self> {
        let index = usize::from(code).checked_sub(1)?;
        OPERATIONS.get(index).copied()
    }

    /// Its name in records and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenWrite => "open-write",
            Self::Write => "write",
            Self::Map => "map",
            Self::Protect => "protect",
            Self::SetAttributes => "set-attributes",
            Self::SetXattr => "set-xattr",
            Self::RemoveXattr => "remove-xattr",
            Self::SetAcl => "set-acl",
            Self::RemoveAcl => "remove-acl",
            Self::Ioctl => "ioctl",
            Self::SetFlags => "set-flags",
            Self::Create => "create",
            Self::MakeDirectory => "make-directory",
            Self::MakeNode => "make-node",
            Self::Symlink => "symlink",
            Self::Link => "link",
            Self::Unlink => "unlink",
            Self::RemoveDirectory => "remove-directory",
            Self::Rename => "rename",
            Self::RenameOver => "rename-over",
            Self::Mount => "mount",
            Self::Unmount => "unmount",
            Self::MoveMount => "move-mount",
            Self::PivotRoot => "pivot-root",
            Self::Exec => "exec",
            Self::Release => "release",
            Self::OpenTamper => "open-tamper",
            Self::Denied => "denied",
            Self::Load => "load",
        }
    }
}

/// The inode's content and metadata are managed.
pub const ROLE_FILE: u32 = 1 << 0;
/// The names in the directory are managed: their creation, removal and renaming.
pub const ROLE_DIRECTORY: u32 = 1 << 1;
/// The directory is above a managed path: its own rename and removal are managed.
pub const ROLE_ANCESTOR: u32 = 1 << 2;
/// The block devices, `kernel.ftrace_enabled` and the canary. Every open for writing has a record, in a ring that no other record can
/// fill. A writer of the first two could by-pass or blind the sensor.
pub const ROLE_TAMPER: u32 = 1 << 3;
/// A deny rule protects the inode: programs refuse changes by actors that it does not allow (LSM only).
pub const ROLE_DENY: u32 = 1 << 4;

/// The mount table, or the tree of control groups. Every change has a record, since each is about another mount point or group.
pub const ROLE_MOUNTS: u32 = 1 << 5;

/// Deny rules protect something below the directory, or a link's target whose path leads through it. Programs refuse to rename it,
/// remove it or mount over it, unless each of these rules allows the actor (LSM only).
pub const ROLE_GUARD: u32 = 1 << 6;

/// A deny rule protects a name in the directory, also while nothing has the name (LSM only).
pub const ROLE_NAMES: u32 = 1 << 7;

/// First bit of the number of the policy rule for [`ROLE_DENY`] in `roles`.
pub const RULE_SHIFT: u32 = 8;
/// Mask of a rule's number, which has eleven bits.
pub const RULE_MASK: u32 = (1 << 11) - 1;

/// Executions and loads of the file are reported only while it is dirty, and for [`crate::limits::EXECUTIONS_AFTER_CHANGE_NS`] after a
/// change: it is as the image has it, and programs of the image are executed all the time.
pub const ROLE_EXECUTIONS_AFTER_CHANGE: u32 = 1 << 31;

/// Of a directory: everything that should be in it is known, and executions and loads of files in it that have no entry are reported. Of a
/// file: it is not as the image has it, and loads of it are reported.
pub const ROLE_EXECUTIONS: u32 = 1 << 19;

/// First bit of the number of the set of rules for [`ROLE_GUARD`] in `roles`, which [`RULE_MASK`] masks, too.
pub const GUARD_SHIFT: u32 = 20;

/// Flags that together mark the daemon's observation open. They have no effect on a read-only open of a regular file or directory. No
/// other program combines them, and one test of a mask finds them.
/// `O_NOCTTY | O_NONBLOCK | O_DSYNC` of x86-64 and arm64 (asm-generic/fcntl.h).
pub const OBSERVE_OPEN_FLAGS: u32 = 0o400 | 0o4000 | 0o10000;

/// `detail` of a record of a mount: it is in another mount namespace and does not propagate, so the host's table never shows it. A
/// value of zero also comes from programs that do not know the difference.
pub const PRIVATE_MOUNT: u64 = 1;

/// The name in a record was longer than its field.
pub const RECORD_NAME_CUT: u16 = 1 << 0;
/// `id` and `ino` are those of the directory; `name` is the entry that is created, removed or renamed.
pub const RECORD_IN_DIRECTORY: u16 = 1 << 1;
/// The actor is a kernel thread.
pub const RECORD_KERNEL_THREAD: u16 = 1 << 2;
/// The operation needs the inode's owner or a capability. The actor is not the owner and lacks the capability, so the kernel refuses
/// the operation after the hook.
pub const RECORD_UNPERMITTED: u16 = 1 << 3;
