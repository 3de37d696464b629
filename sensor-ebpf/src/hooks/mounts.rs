//! Mounts. They are rare, so each has a record, after which the daemon compares mount tables. The mount table shows best what a
//! mount does to a managed path. The record names the object mounted over, or the root of the unmounted mount, so that the daemon
//! finds the actor. It says if the host's table never shows the mount: then its actor made no other change of that table. A task whose
//! mounts the host cannot see causes no record, since any user can make such mounts without limit.

use crate::deny;
use crate::inode;
use crate::kernel::{self, Arguments, Pointer, current, read};
use crate::managed::{self, Attempt};
use crate::maps::MANAGED;
use crate::who::{self, MountRights};
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use sensor_common::map::MOUNTS_KEY;
use sensor_common::op::{Operation, PRIVATE_MOUNT};

/// Counts a change of the mount table, which has its own entry like a file. `mount` is the mount that the operation changes.
/// `is_seen`: the host's table shows the change.
#[inline(always)]
fn attempt_on_table(dentry: Pointer, mount: Pointer, operation: Operation, is_seen: bool) -> i32 {
    let half_ring_only = match who::mount_rights() {
        MountRights::Everywhere => false,
        // A container runtime may have given the task a mount of the host that propagates changes.
        MountRights::OwnNamespace if propagates(mount) && !is_in_hosts_namespace() => true,
        _ => return 0,
    };
    let Some(inode) = dentry.follow(kernel::dentry_inode()).non_null() else { return 0 };
    let Some(entry) = MANAGED.get_ptr_mut(MOUNTS_KEY) else { return 0 };
    managed::record_attempt(
        entry,
        &Attempt { half_ring_only, ..Attempt::of(inode, operation, detail(is_seen)) },
    )
}

/// The detail of a mount's record.
#[inline(always)]
fn detail(is_seen: bool) -> u64 {
    if is_seen { 0 } else { PRIVATE_MOUNT }
}

/// `MS_REMOUNT`, `MS_BIND` and `MS_UNBINDABLE | MS_PRIVATE | MS_SLAVE | MS_SHARED` (include/uapi/linux/mount.h).
const REMOUNT: u64 = 1 << 5;
const BIND: u64 = 1 << 12;
const PROPAGATION: u64 = 0xf << 17;

/// Whether mount(2) with these flags mounts over the path. Otherwise it changes an existing mount. The order of the tests is the
/// kernel's (`path_mount`).
#[inline(always)]
fn covers(flags: u64) -> bool {
    flags & REMOUNT == 0 && (flags & BIND != 0 || flags & PROPAGATION == 0)
}

/// A field of `struct mount`, by the `struct vfsmount` in it; zero if this kernel lacks it.
#[inline(always)]
fn field<T: Copy + Default>(mount: Pointer, offset: u32) -> T {
    if offset == kernel::MISSING || kernel::mount_vfsmount() == kernel::MISSING {
        return T::default();
    }
    read((mount.0 as u64).wrapping_sub(u64::from(kernel::mount_vfsmount())), offset)
}

/// Whether the host may see what the current task does to a mount: the task is in the host's mount namespace, or the mount
/// propagates changes. Mounts of services and containers in their own namespaces hide nothing on the host.
#[inline(always)]
fn affects_host(mount: Pointer) -> bool {
    is_in_hosts_namespace() || propagates(mount)
}

/// Whether the current task is in the host's mount namespace.
#[inline(always)]
fn is_in_hosts_namespace() -> bool {
    let namespaces = read(current(), kernel::task_nsproxy());
    let own = who::mount_namespace(namespaces);
    who::control().is_some_and(|control| control.mount_namespace == own)
}

/// Whether the kernel propagates mounts on this mount to other mounts: it does for a mount in a peer group.
#[inline(always)]
fn propagates(mount: Pointer) -> bool {
    field::<u32>(mount, kernel::mount_group()) != 0
}

/// Whether the host may see that the current task unmounts a mount. The kernel propagates that from the mount below it
/// (`propagate_umount`), also if the mount itself has left its peer group.
#[inline(always)]
fn unmount_affects_host(mount: Pointer) -> bool {
    let parent: u64 = field(mount, kernel::mount_parent());
    affects_host(mount) || read::<u32>(parent, kernel::mount_group()) != 0
}

/// Whether a mount's mount point has a protected name. A copy of such a mount elsewhere has another name. A mount on top of
/// another mount has no name to test, and counts as protected.
#[inline(always)]
fn has_protected_name(mount: Pointer) -> bool {
    let point: u64 = field(mount, kernel::mount_point());
    let above: u64 = read(point, kernel::dentry_parent());
    if above == point {
        return true;
    }
    let directory: u64 = read(above, kernel::dentry_inode());
    let sb: u64 = read(directory, kernel::inode_sb());
    let dev: u32 = read(sb, kernel::super_dev());
    let name: u64 = read(point, kernel::dentry_name() + kernel::qstr_name());
    let ino = read(directory, kernel::inode_ino());
    let place = deny::place(dev, inode::volume_at(directory, sb));
    deny::rules_of_name(ino, place, name as *const u8) != u64::from(deny::NO_RULE)
}

/// Refuses to unmount or move a mount on which a protected object is. `root` is the root of the mount.
#[inline(always)]
fn refuse_uncovering(mount: Pointer, root: Pointer, operation: Operation) -> i32 {
    let Some(inode) = root.follow(kernel::dentry_inode()).non_null() else { return 0 };
    let Some(entry) = managed::lookup(inode) else { return 0 };
    // SAFETY: the entry comes from a map look-up.
    let rule = deny::rule(unsafe { (*entry).roles }, operation as u32, false);
    if rule == deny::NO_RULE || !unmount_affects_host(mount) || !has_protected_name(mount) {
        return 0;
    }
    deny::refuse(entry, u64::from(rule), operation as u64, core::ptr::null(), inode.0) as i32
}

/// Refuses to mount over an object that a deny rule protects, or over a directory above it.
#[inline(always)]
fn refuse_covering(path: Pointer, dentry: Pointer, operation: Operation) -> i32 {
    let Some(inode) = dentry.follow(kernel::dentry_inode()).non_null() else { return 0 };
    let Some(entry) = managed::lookup(inode) else { return 0 };
    // SAFETY: the entry comes from a map look-up.
    let rule = deny::rule(unsafe { (*entry).roles }, operation as u32, false);
    if rule == deny::NO_RULE || !affects_host(path.follow(kernel::path_mount())) {
        return 0;
    }
    deny::refuse(entry, u64::from(rule), operation as u64, core::ptr::null(), inode.0) as i32
}

/// `sb_mount(…, path, …, flags, …)`: mount(2), bind mounts and remounts.
#[inline(always)]
pub(crate) fn sb_mount(args: Arguments) -> i32 {
    let flags = args.get(kernel::arg_sb_mount_flags());
    let Some(path) = args.pointer(kernel::arg_sb_mount_path()) else { return 0 };
    let Some(dentry) = path.follow(kernel::path_dentry()).non_null() else { return 0 };
    if covers(flags) {
        let refused = refuse_covering(path, dentry, Operation::Mount);
        if refused != 0 {
            return refused;
        }
    }
    let mount = path.follow(kernel::path_mount());
    // Neither a remount nor a change of propagation is propagated.
    let is_seen = if covers(flags) { affects_host(mount) } else { is_in_hosts_namespace() };
    attempt_on_table(dentry, mount, Operation::Mount, is_seen)
}

/// Whether the current task is the first process, which unmounts everything at shutdown.
#[inline(always)]
fn is_init() -> bool {
    bpf_get_current_pid_tgid() >> 32 == 1
}

/// `sb_umount(mnt, flags)`.
#[inline(always)]
pub(crate) fn sb_umount(args: Arguments) -> i32 {
    let Some(mount) = args.pointer(kernel::arg_sb_umount_mnt()) else { return 0 };
    let Some(root) = mount.follow(kernel::vfsmount_root()).non_null() else { return 0 };
    if !is_init() {
        let refused = refuse_uncovering(mount, root, Operation::Unmount);
        if refused != 0 {
            return refused;
        }
    }
    attempt_on_table(root, mount, Operation::Unmount, unmount_affects_host(mount))
}

/// `move_mount(from_path, to_path)`: attaches a mount that fsmount(2) or open_tree(2) made, or moves one.
#[inline(always)]
pub(crate) fn move_mount(args: Arguments) -> i32 {
    let Some(path) = args.pointer(kernel::arg_move_mount_to_path()) else { return 0 };
    let Some(dentry) = path.follow(kernel::path_dentry()).non_null() else { return 0 };
    let refused = refuse_covering(path, dentry, Operation::MoveMount);
    if refused != 0 {
        return refused;
    }
    let refused = refuse_moving(args);
    if refused != 0 {
        return refused;
    }
    let mount = path.follow(kernel::path_mount());
    attempt_on_table(dentry, mount, Operation::MoveMount, affects_host(mount))
}

/// Refuses to move a mount on which a protected object is. A copy that was never attached has no path, so its move is allowed.
#[inline(always)]
fn refuse_moving(args: Arguments) -> i32 {
    let Some(path) = args.pointer(kernel::arg_move_mount_from_path()) else { return 0 };
    let Some(dentry) = path.follow(kernel::path_dentry()).non_null() else { return 0 };
    let mount = path.follow(kernel::path_mount());
    let here: u64 = read(read(current(), kernel::task_nsproxy()), kernel::nsproxy_mnt());
    if field::<u64>(mount, kernel::mount_namespace()) != here {
        return 0;
    }
    refuse_uncovering(mount, dentry, Operation::MoveMount)
}

/// `sb_pivotroot(…)`: it changes every path, so the record names no object.
#[inline(always)]
pub(crate) fn sb_pivotroot(_: Arguments) -> i32 {
    // pivot_root(2) changes only the root of the task's own mount namespace.
    if who::mount_rights() != MountRights::Everywhere {
        return 0;
    }
    let Some(entry) = MANAGED.get_ptr_mut(MOUNTS_KEY) else { return 0 };
    let detail = detail(is_in_hosts_namespace());
    managed::record_attempt(entry, &Attempt::of(Pointer::NULL, Operation::PivotRoot, detail))
}
