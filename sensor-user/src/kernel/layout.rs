//! Which kernel fields the programs read, and the globals that hold their offsets.
//!
//! In: the running kernel's BTF. Out: a value for each global of the object, and the fields that the kernel lacks with the reasons.
//! `sensor-ebpf/src/kernel.rs` declares the globals by the same names.

use sensor_model::host::btf::{Btf, BtfError, Field};
use sensor_model::host::hierarchy::Hierarchy;
use std::collections::BTreeMap;

/// The file with the running kernel's types.
pub const VMLINUX_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The offset of a field that the kernel lacks. The programs then read zero.
pub const MISSING: u32 = u32::MAX;

/// A field of a kernel structure, the global for its offset, and the type that it must have.
#[derive(Debug, Clone, Copy)]
pub struct KernelField {
    /// Name of the global in the object.
    pub global: &'static str,
    /// The structure.
    pub structure: &'static str,
    /// The member of the structure.
    pub member: &'static str,
    /// The type that the programs load.
    pub field: Field,
}

const fn field(
    global: &'static str,
    structure: &'static str,
    member: &'static str,
    field: Field,
) -> KernelField {
    KernelField { global, structure, member, field }
}

use Field::{Nested, Pointer, Word};

/// The global for the offset of a `css_set`'s group in the hierarchy that the daemon chose.
const GROUP: &str = "OFF_CSS_SET_GROUP";

/// Every field that the programs read.
pub const FIELDS: &[KernelField] = &[
    field("OFF_FILE_F_INODE", "file", "f_inode", Pointer),
    field("OFF_FILE_F_MODE", "file", "f_mode", Word(4)),
    field("OFF_FILE_F_FLAGS", "file", "f_flags", Word(4)),
    field("OFF_FILE_F_PATH", "file", "f_path", Nested),
    field("OFF_PATH_DENTRY", "path", "dentry", Pointer),
    field("OFF_PATH_MNT", "path", "mnt", Pointer),
    field("OFF_INODE_I_INO", "inode", "i_ino", Word(8)),
    field("OFF_INODE_I_SB", "inode", "i_sb", Pointer),
    field("OFF_INODE_I_MODE", "inode", "i_mode", Word(2)),
    field("OFF_INODE_I_UID", "inode", "i_uid", Word(4)),
    field("OFF_INODE_I_RDEV", "inode", "i_rdev", Word(4)),
    field("OFF_INODE_I_GENERATION", "inode", "i_generation", Word(4)),
    field("OFF_INODE_I_NLINK", "inode", "i_nlink", Word(4)),
    field("OFF_INODE_I_WRITECOUNT", "inode", "i_writecount", Word(4)),
    field("OFF_SUPER_BLOCK_S_DEV", "super_block", "s_dev", Word(4)),
    field("OFF_SUPER_BLOCK_S_MAGIC", "super_block", "s_magic", Word(8)),
    field("OFF_VFSMOUNT_MNT_ROOT", "vfsmount", "mnt_root", Pointer),
    field("OFF_DENTRY_D_INODE", "dentry", "d_inode", Pointer),
    field("OFF_DENTRY_D_PARENT", "dentry", "d_parent", Pointer),
    field("OFF_DENTRY_D_NAME", "dentry", "d_name", Nested),
    field("OFF_QSTR_NAME", "qstr", "name", Pointer),
    field("OFF_VM_AREA_STRUCT_VM_FILE", "vm_area_struct", "vm_file", Pointer),
    field("OFF_VM_AREA_STRUCT_VM_FLAGS", "vm_area_struct", "vm_flags", Word(8)),
    field("OFF_IATTR_IA_VALID", "iattr", "ia_valid", Word(4)),
    field("OFF_LINUX_BINPRM_FILE", "linux_binprm", "file", Pointer),
    field("OFF_LINUX_BINPRM_FILENAME", "linux_binprm", "filename", Pointer),
    field("OFF_PROC_INODE_SYSCTL", "proc_inode", "sysctl", Pointer),
    field("OFF_PROC_INODE_SYSCTL_ENTRY", "proc_inode", "sysctl_entry", Pointer),
    field("OFF_PROC_INODE_SIBLING_INODES", "proc_inode", "sibling_inodes", Nested),
    field("OFF_PROC_INODE_VFS_INODE", "proc_inode", "vfs_inode", Nested),
    field("OFF_CTL_TABLE_HEADER_INODES", "ctl_table_header", "inodes", Nested),
    field("OFF_MOUNT_MNT", "mount", "mnt", Nested),
    field("OFF_MOUNT_MNT_MOUNTPOINT", "mount", "mnt_mountpoint", Pointer),
    field("OFF_MOUNT_MNT_PARENT", "mount", "mnt_parent", Pointer),
    field("OFF_MOUNT_MNT_NS", "mount", "mnt_ns", Pointer),
    field("OFF_MOUNT_MNT_GROUP_ID", "mount", "mnt_group_id", Word(4)),
    field("OFF_TASK_STRUCT_PID", "task_struct", "pid", Word(4)),
    field("OFF_TASK_STRUCT_TGID", "task_struct", "tgid", Word(4)),
    field("OFF_TASK_STRUCT_FLAGS", "task_struct", "flags", Word(4)),
    field("OFF_TASK_STRUCT_COMM", "task_struct", "comm", Nested),
    field("OFF_TASK_STRUCT_MM", "task_struct", "mm", Pointer),
    field("OFF_TASK_STRUCT_CRED", "task_struct", "cred", Pointer),
    field("OFF_TASK_STRUCT_SIGNAL", "task_struct", "signal", Pointer),
    field("OFF_TASK_STRUCT_NSPROXY", "task_struct", "nsproxy", Pointer),
    field("OFF_TASK_STRUCT_CGROUPS", "task_struct", "cgroups", Pointer),
    field("OFF_TASK_STRUCT_LOGINUID", "task_struct", "loginuid", Word(4)),
    field("OFF_TASK_STRUCT_SESSIONID", "task_struct", "sessionid", Word(4)),
    field("OFF_TASK_STRUCT_SELF_EXEC_ID", "task_struct", "self_exec_id", Word(8)),
    field("OFF_TASK_STRUCT_REAL_PARENT", "task_struct", "real_parent", Pointer),
    field("OFF_TASK_STRUCT_GROUP_LEADER", "task_struct", "group_leader", Pointer),
    field("OFF_TASK_STRUCT_START_BOOTTIME", "task_struct", "start_boottime", Word(8)),
    field("OFF_MM_STRUCT_EXE_FILE", "mm_struct", "exe_file", Pointer),
    field("OFF_MM_STRUCT_ARG_START", "mm_struct", "arg_start", Word(8)),
    field("OFF_MM_STRUCT_ARG_END", "mm_struct", "arg_end", Word(8)),
    field("OFF_CRED_FSUID", "cred", "fsuid", Word(4)),
    field("OFF_CRED_FSGID", "cred", "fsgid", Word(4)),
    field("OFF_CRED_EUID", "cred", "euid", Word(4)),
    field("OFF_CRED_EGID", "cred", "egid", Word(4)),
    field("OFF_CRED_CAP_EFFECTIVE", "cred", "cap_effective", Nested),
    field("OFF_CRED_USER_NS", "cred", "user_ns", Pointer),
    field("OFF_USER_NAMESPACE_LEVEL", "user_namespace", "level", Word(4)),
    field("OFF_SIGNAL_STRUCT_TTY", "signal_struct", "tty", Pointer),
    field("OFF_TTY_STRUCT_NAME", "tty_struct", "name", Nested),
    field("OFF_NSPROXY_MNT_NS", "nsproxy", "mnt_ns", Pointer),
    field("OFF_NSPROXY_PID_NS_FOR_CHILDREN", "nsproxy", "pid_ns_for_children", Pointer),
    field("OFF_MNT_NAMESPACE_NS", "mnt_namespace", "ns", Nested),
    field("OFF_PID_NAMESPACE_NS", "pid_namespace", "ns", Nested),
    field("OFF_NS_COMMON_INUM", "ns_common", "inum", Word(4)),
    field(GROUP, "css_set", "dfl_cgrp", Pointer),
    field("OFF_CGROUP_KN", "cgroup", "kn", Pointer),
    field("OFF_CGROUP_ROOT", "cgroup", "root", Pointer),
    field("OFF_CGROUP_ROOT_HIERARCHY_ID", "cgroup_root", "hierarchy_id", Word(4)),
    field("OFF_KERNFS_NODE_ID", "kernfs_node", "id", Word(8)),
    field("OFF_KERNFS_NODE_NAME", "kernfs_node", "name", Pointer),
    field("OFF_KERNFS_NODE_PARENT", "kernfs_node", "parent", Pointer),
];

/// Members that later kernels renamed: structure, member, later name.
const RENAMED: &[(&str, &str, &str)] = &[("kernfs_node", "parent", "__parent")];

/// The offset of a field, by any of its names.
fn offset(btf: &Btf<'_>, field: &KernelField) -> Result<u32, BtfError> {
    let by_name = |member| btf.member(field.structure, member, field.field);
    by_name(field.member).or_else(|error| {
        let mut names =
            RENAMED.iter().filter(|(of, name, _)| (*of, *name) == (field.structure, field.member));
        names.find_map(|(_, _, other)| by_name(other).ok()).ok_or(error)
    })
}

/// Values for the object's globals.
#[derive(Debug, Default)]
pub struct Layout {
    /// The values, by the name of the global.
    pub values: BTreeMap<&'static str, u32>,
    /// Fields that this kernel lacks or has with another type.
    pub missing: Vec<(KernelField, BtfError)>,
}

impl Layout {
    /// Resolves every field, and lists those that are missing. `groups` is the hierarchy of control groups that the programs read.
    pub fn resolve(btf: &Btf<'_>, groups: Hierarchy) -> Self {
        let mut layout = Self::default();
        for field in FIELDS {
            let value = match offset(btf, field) {
                Ok(offset) => offset,
                Err(error) => {
                    layout.missing.push((*field, error));
                    MISSING
                }
            };
            layout.values.insert(field.global, value);
        }
        // In the plain rw_semaphore the lowest bit of the count means locked for writing. The one of PREEMPT_RT has no count.
        let semaphore = btf.member("inode", "i_rwsem", Nested);
        let count = btf.member("rw_semaphore", "count", Nested);
        let (offset, has) = match (semaphore, count) {
            (Ok(semaphore), Ok(count)) => (semaphore + count, 1),
            _ => (0, 0),
        };
        layout.values.insert("OFF_INODE_I_RWSEM", offset);
        layout.values.insert("HAS_RWSEM", has);
        layout.values.insert("OFF_CSS_CGROUP", MISSING);
        layout.values.insert("CGROUP_HIERARCHY", groups.number);
        if let Some(controller) = groups.controller {
            match of_version_1(btf, controller) {
                Ok((set, group)) => {
                    layout.values.extend([(GROUP, set), ("OFF_CSS_CGROUP", group)]);
                }
                // Numbers of groups repeat between hierarchies, so a number of version 2 would name another group here.
                Err(error) => {
                    tracing::warn!(%error, "Records of processes that have ended lack their control group.");
                    layout.values.insert(GROUP, MISSING);
                }
            }
        }
        let has = |global: &str| u32::from(layout.values.get(global).is_some_and(|v| *v != MISSING));
        let (login, cgroup) = (has("OFF_TASK_STRUCT_LOGINUID"), has(GROUP));
        layout.values.insert("HAS_LOGINUID", login);
        layout.values.insert("HAS_CGROUP", cgroup);
        layout
    }
}

/// Offsets for a group of version 1: that of the controller's state in a `css_set`, and that of the group in this state.
///
/// # Errors
/// This kernel's types lack one of the fields.
pub fn of_version_1(btf: &Btf<'_>, controller: &str) -> Result<(u32, u32), BtfError> {
    // An array of pointers, indexed by the controllers' numbers (struct css_set, include/linux/cgroup-defs.h).
    let of_controllers = btf.member("css_set", "subsys", Nested)?;
    let number = btf.value("cgroup_subsys_id", &format!("{controller}_cgrp_id"))?;
    let set = number.checked_mul(8).and_then(|behind| of_controllers.checked_add(behind));
    let set = set.ok_or(BtfError::Malformed("too large"))?;
    Ok((set, btf.member("cgroup_subsys_state", "cgroup", Pointer)?))
}
