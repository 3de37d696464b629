//! Reading kernel structures without compile-time offsets.
//!
//! Every offset and argument index is a frozen global. The daemon sets it by name from the running kernel's BTF before it loads
//! the programs. So the verifier sees a constant, checks each load as an access to a typed field, and refuses a wrong offset.

use aya_ebpf::helpers::bpf_get_current_task;
use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use sensor_common::bitmap::Bitmap;

/// Declares globals that the daemon sets, with a reader each.
macro_rules! globals {
    ($($(#[$doc:meta])* $name:ident => $reader:ident;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        static $name: u32 = 0;

        #[inline(always)]
        pub(crate) fn $reader() -> u32 {
            // SAFETY: the global is a plain u32. Without the volatile read the compiler would use the zero of the declaration.
            unsafe { core::ptr::read_volatile(&raw const $name) }
        }
    )*};
}

globals! {
    OFF_FILE_F_INODE => file_inode;
    OFF_FILE_F_MODE => file_mode;
    OFF_FILE_F_FLAGS => file_flags;
    OFF_FILE_F_PATH => file_path;
    OFF_PATH_DENTRY => path_dentry;
    OFF_PATH_MNT => path_mount;
    OFF_INODE_I_INO => inode_ino;
    OFF_INODE_I_SB => inode_sb;
    OFF_INODE_I_MODE => inode_mode;
    OFF_INODE_I_UID => inode_uid;
    OFF_INODE_I_RDEV => inode_device;
    OFF_INODE_I_GENERATION => inode_generation;
    OFF_INODE_I_NLINK => inode_nlink;
    OFF_INODE_I_WRITECOUNT => inode_writecount;
    OFF_INODE_I_RWSEM => inode_rwsem;
    OFF_SUPER_BLOCK_S_DEV => super_dev;
    OFF_SUPER_BLOCK_S_MAGIC => super_magic;
    OFF_PROC_INODE_SYSCTL => proc_sysctl;
    OFF_PROC_INODE_SYSCTL_ENTRY => proc_sysctl_entry;
    OFF_PROC_INODE_SIBLING_INODES => proc_siblings;
    OFF_PROC_INODE_VFS_INODE => proc_vfs_inode;
    OFF_CTL_TABLE_HEADER_INODES => sysctl_inodes;
    OFF_VFSMOUNT_MNT_ROOT => vfsmount_root;
    OFF_MOUNT_MNT => mount_vfsmount;
    OFF_MOUNT_MNT_MOUNTPOINT => mount_point;
    OFF_MOUNT_MNT_PARENT => mount_parent;
    OFF_MOUNT_MNT_NS => mount_namespace;
    OFF_MOUNT_MNT_GROUP_ID => mount_group;
    OFF_DENTRY_D_INODE => dentry_inode;
    OFF_DENTRY_D_PARENT => dentry_parent;
    OFF_DENTRY_D_NAME => dentry_name;
    OFF_QSTR_NAME => qstr_name;
    OFF_VM_AREA_STRUCT_VM_FILE => vma_file;
    OFF_VM_AREA_STRUCT_VM_FLAGS => vma_flags;
    OFF_IATTR_IA_VALID => iattr_valid;
    OFF_LINUX_BINPRM_FILE => binprm_file;
    OFF_LINUX_BINPRM_FILENAME => binprm_filename;
    OFF_TASK_STRUCT_PID => task_pid;
    OFF_TASK_STRUCT_TGID => task_tgid;
    OFF_TASK_STRUCT_FLAGS => task_flags;
    OFF_TASK_STRUCT_COMM => task_comm;
    OFF_TASK_STRUCT_MM => task_mm;
    OFF_TASK_STRUCT_CRED => task_cred;
    OFF_TASK_STRUCT_SIGNAL => task_signal;
    OFF_TASK_STRUCT_NSPROXY => task_nsproxy;
    OFF_TASK_STRUCT_CGROUPS => task_cgroups;
    OFF_TASK_STRUCT_LOGINUID => task_loginuid;
    OFF_TASK_STRUCT_SESSIONID => task_sessionid;
    OFF_TASK_STRUCT_SELF_EXEC_ID => task_executions;
    OFF_TASK_STRUCT_REAL_PARENT => task_real_parent;
    OFF_TASK_STRUCT_GROUP_LEADER => task_group_leader;
    OFF_TASK_STRUCT_START_BOOTTIME => task_start;
    OFF_MM_STRUCT_EXE_FILE => mm_exe_file;
    OFF_MM_STRUCT_ARG_START => mm_arg_start;
    OFF_MM_STRUCT_ARG_END => mm_arg_end;
    OFF_CRED_FSUID => cred_fsuid;
    OFF_CRED_FSGID => cred_fsgid;
    OFF_CRED_EUID => cred_euid;
    OFF_CRED_EGID => cred_egid;
    OFF_CRED_CAP_EFFECTIVE => cred_capabilities;
    OFF_CRED_USER_NS => cred_user_namespace;
    OFF_USER_NAMESPACE_LEVEL => user_namespace_level;
    OFF_SIGNAL_STRUCT_TTY => signal_tty;
    OFF_TTY_STRUCT_NAME => tty_name;
    OFF_NSPROXY_MNT_NS => nsproxy_mnt;
    OFF_NSPROXY_PID_NS_FOR_CHILDREN => nsproxy_pid;
    OFF_MNT_NAMESPACE_NS => mnt_namespace_ns;
    OFF_PID_NAMESPACE_NS => pid_namespace_ns;
    OFF_NS_COMMON_INUM => ns_inum;
    OFF_CSS_SET_GROUP => css_set_group;
    /// The group in the `cgroup_subsys_state` of its controller, for version 1; [`MISSING`] for version 2.
    OFF_CSS_CGROUP => css_cgroup;
    OFF_CGROUP_KN => cgroup_kn;
    OFF_CGROUP_ROOT => cgroup_root;
    OFF_CGROUP_ROOT_HIERARCHY_ID => cgroup_root_hierarchy;
    OFF_KERNFS_NODE_ID => kernfs_id;
    OFF_KERNFS_NODE_NAME => kernfs_name;
    OFF_KERNFS_NODE_PARENT => kernfs_parent;
    /// Not zero when `i_rwsem` begins with an atomic count whose lowest bit means locked for writing.
    HAS_RWSEM => has_rwsem;
    /// Not zero when the kernel has audit login uids.
    HAS_LOGINUID => has_loginuid;
    /// Not zero when the kernel has the fields for a task's group in [`CGROUP_HIERARCHY`].
    HAS_CGROUP => has_cgroup;
    /// The number of the hierarchy of control groups that the daemon chose; 0 is version 2.
    CGROUP_HIERARCHY => cgroup_hierarchy;
    /// Processors that may ever be present; see `sensor_common::map::execution_slot`.
    POSSIBLE_CPUS => possible_cpus;
    /// The size of the bitmap; see [`bitmap`].
    BITMAP_SHIFT => bitmap_shift;
    /// The number of this set of programs; see `Control::set`.
    PROGRAM_SET => program_set;
    ARG_FILE_OPEN_FILE => arg_file_open_file;
    ARG_FILE_PERMISSION_FILE => arg_file_permission_file;
    ARG_FILE_PERMISSION_MASK => arg_file_permission_mask;
    ARG_FILE_RELEASE_FILE => arg_file_release_file;
    ARG_MMAP_FILE_FILE => arg_mmap_file_file;
    ARG_MMAP_FILE_PROT => arg_mmap_file_prot;
    ARG_MMAP_FILE_FLAGS => arg_mmap_file_flags;
    ARG_FILE_MPROTECT_VMA => arg_file_mprotect_vma;
    ARG_FILE_MPROTECT_PROT => arg_file_mprotect_prot;
    ARG_FILE_IOCTL_FILE => arg_file_ioctl_file;
    ARG_FILE_IOCTL_CMD => arg_file_ioctl_cmd;
    ARG_FILE_IOCTL_COMPAT_FILE => arg_file_ioctl_compat_file;
    ARG_FILE_IOCTL_COMPAT_CMD => arg_file_ioctl_compat_cmd;
    ARG_INODE_SETATTR_DENTRY => arg_inode_setattr_dentry;
    ARG_INODE_SETATTR_ATTR => arg_inode_setattr_attr;
    ARG_INODE_FILE_SETATTR_DENTRY => arg_inode_file_setattr_dentry;
    ARG_INODE_SETXATTR_DENTRY => arg_inode_setxattr_dentry;
    ARG_INODE_SETXATTR_NAME => arg_inode_setxattr_name;
    ARG_INODE_REMOVEXATTR_NAME => arg_inode_removexattr_name;
    ARG_INODE_REMOVEXATTR_DENTRY => arg_inode_removexattr_dentry;
    ARG_INODE_SET_ACL_DENTRY => arg_inode_set_acl_dentry;
    ARG_INODE_REMOVE_ACL_DENTRY => arg_inode_remove_acl_dentry;
    ARG_INODE_CREATE_DIR => arg_inode_create_dir;
    ARG_INODE_CREATE_DENTRY => arg_inode_create_dentry;
    ARG_INODE_MKDIR_DIR => arg_inode_mkdir_dir;
    ARG_INODE_MKDIR_DENTRY => arg_inode_mkdir_dentry;
    ARG_INODE_MKNOD_DIR => arg_inode_mknod_dir;
    ARG_INODE_MKNOD_DENTRY => arg_inode_mknod_dentry;
    ARG_INODE_SYMLINK_DIR => arg_inode_symlink_dir;
    ARG_INODE_SYMLINK_DENTRY => arg_inode_symlink_dentry;
    ARG_INODE_LINK_OLD_DENTRY => arg_inode_link_old_dentry;
    ARG_INODE_LINK_DIR => arg_inode_link_dir;
    ARG_INODE_LINK_NEW_DENTRY => arg_inode_link_new_dentry;
    ARG_INODE_UNLINK_DIR => arg_inode_unlink_dir;
    ARG_INODE_UNLINK_DENTRY => arg_inode_unlink_dentry;
    ARG_INODE_RMDIR_DIR => arg_inode_rmdir_dir;
    ARG_INODE_RMDIR_DENTRY => arg_inode_rmdir_dentry;
    ARG_INODE_READLINK_DENTRY => arg_inode_readlink_dentry;
    ARG_BPRM_CREDS_FOR_EXEC_BPRM => arg_bprm_creds_for_exec_bprm;
    ARG_BLKDEV_OPEN_FILP => arg_blkdev_open_filp;
    ARG_PROC_SYS_OPEN_FILP => arg_proc_sys_open_filp;
    ARG_SB_MOUNT_PATH => arg_sb_mount_path;
    ARG_SB_MOUNT_FLAGS => arg_sb_mount_flags;
    ARG_SB_UMOUNT_MNT => arg_sb_umount_mnt;
    ARG_MOVE_MOUNT_FROM_PATH => arg_move_mount_from_path;
    ARG_MOVE_MOUNT_TO_PATH => arg_move_mount_to_path;
    ARG_INODE_RENAME_OLD_DIR => arg_inode_rename_old_dir;
    ARG_INODE_RENAME_OLD_DENTRY => arg_inode_rename_old_dentry;
    ARG_INODE_RENAME_NEW_DIR => arg_inode_rename_new_dir;
    ARG_INODE_RENAME_NEW_DENTRY => arg_inode_rename_new_dentry;
}

/// The size of the bitmap.
#[inline(always)]
pub(crate) fn bitmap() -> Bitmap {
    let shift = bitmap_shift();
    // SAFETY: the daemon sets the shift of a `Bitmap`. Without this hint the compiler adds an instruction to each look-up.
    unsafe { core::hint::assert_unchecked(shift < u64::BITS) };
    Bitmap::of_shift(shift)
}

/// Offset of a field that the running kernel lacks.
pub(crate) const MISSING: u32 = u32::MAX;

/// The offset of a field of an inner structure.
#[inline(always)]
pub(crate) fn within(outer: u32, inner: u32) -> u32 {
    if outer == MISSING || inner == MISSING { MISSING } else { outer + inner }
}

/// The arguments of a hook.
#[derive(Clone, Copy)]
pub(crate) struct Arguments(pub(crate) *mut c_void);

/// One context slot, read by an instruction of its own. For a computed index the compiler would add an offset to the context
/// pointer, and the verifier refuses that.
#[inline(always)]
fn slot<const OFFSET: i32>(ctx: *mut c_void) -> u64 {
    let value: u64;
    // SAFETY: reads one 8-byte context slot; the verifier checks that the hook has that many arguments.
    unsafe {
        core::arch::asm!("{0} = *(u64 *)({1} + {2})", out(reg) value, in(reg) ctx, const OFFSET, options(nostack, readonly));
    }
    value
}

impl Arguments {
    /// The argument at `index`. The index comes from a frozen global, so the verifier skips all arms but one.
    #[inline(always)]
    pub(crate) fn get(self, index: u32) -> u64 {
        match index {
            0 => slot::<0>(self.0),
            1 => slot::<8>(self.0),
            2 => slot::<16>(self.0),
            3 => slot::<24>(self.0),
            _ => slot::<32>(self.0),
        }
    }

    /// The same as a pointer to a kernel structure, or `None` for null. Without the test, a null argument of `mmap_file` panics
    /// 6.12 and 6.18.
    #[inline(always)]
    pub(crate) fn pointer(self, index: u32) -> Option<Pointer> {
        Pointer(self.get(index) as *const u8).non_null()
    }
}

/// A pointer to a kernel structure whose type the verifier knows, for direct loads.
#[derive(Clone, Copy)]
pub(crate) struct Pointer(pub(crate) *const u8);

impl Pointer {
    /// No pointer.
    pub(crate) const NULL: Self = Self(core::ptr::null());

    /// Whether it is null. Only a hook's arguments need the test: a load through a pointer that the program has loaded itself
    /// gives zero if it faults.
    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The pointer, tested in a way that the verifier understands; `None` for null.
    #[inline(always)]
    pub(crate) fn non_null(self) -> Option<Self> {
        if self.is_null() {
            return None;
        }
        let pointer: *const u8;
        // SAFETY: a copy from one register to another. Without it the compiler may add an offset before the test above, which the
        // verifier refuses for a pointer that may be null. The copy is an instruction, because the kernel refuses line
        // information in which two lines share one instruction.
        unsafe { core::arch::asm!("{0} = {1}", out(reg) pointer, in(reg) self.0, options(nostack)) };
        Some(Self(pointer))
    }

    /// The field of type `T` at `offset`.
    #[inline(always)]
    pub(crate) fn load<T: Copy>(self, offset: u32) -> T {
        // SAFETY: the verifier admits the load only if the structure has a field of this size there.
        unsafe { core::ptr::read_volatile(self.0.add(offset as usize).cast::<T>()) }
    }

    /// A field that describes an actor; zero if this kernel lacks it, and then the verifier sees no load.
    #[inline(always)]
    pub(crate) fn field<T: Copy + Default>(self, offset: u32) -> T {
        if offset == MISSING { T::default() } else { self.load(offset) }
    }

    /// A pointer field that describes an actor; `None` if this kernel lacks it, or it is null.
    #[inline(always)]
    pub(crate) fn to(self, offset: u32) -> Option<Self> {
        if offset == MISSING {
            return None;
        }
        self.follow(offset).non_null()
    }

    /// The pointer field at `offset`.
    #[inline(always)]
    pub(crate) fn follow(self, offset: u32) -> Self {
        Self(self.load::<*const u8>(offset))
    }
}

/// A field of any kernel structure, by the structure's address; zero when it cannot be read.
#[inline(always)]
pub(crate) fn read<T: Copy + Default>(base: u64, offset: u32) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the helper checks the address itself. On failure it fills the destination with zeroes
    // (`bpf_probe_read_kernel_common`). The program does not test its result: each test doubles the paths that the verifier
    // walks. Callers read only numbers and arrays of numbers.
    unsafe {
        let from = (base + u64::from(offset)) as *const c_void;
        bpf_probe_read_kernel(value.as_mut_ptr().cast(), size_of::<T>() as u32, from);
        value.assume_init()
    }
}

/// The current task's address, for [`read`].
#[inline(always)]
pub(crate) fn current() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_get_current_task() }
}
