//! Mounts. They are rare, and the mount table tells best what they do to a managed path. So each mount is one record, after
//! which the daemon compares mount tables. The record names the object mounted over, or the root of what is unmounted, so that
//! the daemon finds the actor of each mount. A task whose mounts the host cannot see causes no record: any user can mount so
//! without limit.

use crate::deny;
use crate::inode;
use crate::kernel::{self, Arguments, Pointer, current, read};
use crate::managed::{self, Change};
use crate::maps::MANAGED;
use crate::who::{self, Mounts};
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use sensor_common::map::MOUNTS_KEY;
use sensor_common::op::Operation;

/// Counts a change of the mount table, which has an entry of its own like a file. `mount`: the mount that the operation is on.
#[inline(always)]
fn changed(dentry: Pointer, mount: Pointer, operation: Operation) -> i32 {
    let yields = match who::mounts() {
        Mounts::Everywhere => false,
        // A container runtime may have given it a mount of the host that propagates changes.
        Mounts::InItsOwn if hands_on(mount) && !is_in_hosts_namespace() => true,
        _ => return 0,
    };
    let Some(inode) = dentry.follow(kernel::dentry_inode()).known() else { return 0 };
    let Some(entry) = MANAGED.get_ptr_mut(MOUNTS_KEY) else { return 0 };
    managed::changed(entry, &Change { yields, ..Change::of(inode, operation, 0) })
}

/// `MS_REMOUNT`, `MS_BIND` and `MS_UNBINDABLE | MS_PRIVATE | MS_SLAVE | MS_SHARED` (include/uapi/linux/mount.h).
const REMOUNT: u64 = 1 << 5;
const BIND: u64 = 1 << 12;
const PROPAGATION: u64 = 0xf << 17;

/// Whether mount(2) with these flags mounts over the path, and does not only change a mount there. It tests flags in the order
/// of the kernel (`path_mount`).
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
fn is_hosts(mount: Pointer) -> bool {
    is_in_hosts_namespace() || hands_on(mount)
}

/// Whether the current task is in the host's mount namespace.
#[inline(always)]
fn is_in_hosts_namespace() -> bool {
    let namespaces = read(current(), kernel::task_nsproxy());
    let own = who::mount_namespace(namespaces);
    who::control().is_some_and(|control| control.mount_namespace == own)
}

/// Whether a mount propagates to others what is mounted on it: it is in a peer group.
#[inline(always)]
fn hands_on(mount: Pointer) -> bool {
    field::<u32>(mount, kernel::mount_group()) != 0
}

/// Whether a mount is at a protected name, and is not a copy of such a mount elsewhere. A mount on top of another mount has no
/// name to test, and counts as protected.
#[inline(always)]
fn is_on_the_way(mount: Pointer) -> bool {
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
    let place = deny::place(dev, inode::volume_at(directory));
    deny::rules_of_name(ino, place, name as *const u8) != u64::from(deny::NO_RULE)
}

/// Refuses to unmount or move a mount that holds something protected. `root`: the root of the mount.
#[inline(always)]
fn uncovered(mount: Pointer, root: Pointer, operation: Operation) -> i32 {
    let Some(inode) = root.follow(kernel::dentry_inode()).known() else { return 0 };
    let Some(entry) = managed::lookup(inode) else { return 0 };
    // SAFETY: the entry comes from a map look-up.
    let rule = deny::rule(unsafe { (*entry).roles }, operation as u32, false);
    if rule == deny::NO_RULE || !is_hosts(mount) || !is_on_the_way(mount) {
        return 0;
    }
    deny::refuse(entry, u64::from(rule), operation as u64, core::ptr::null(), inode.0) as i32
}

/// Refuses to mount over an object that a deny rule protects, or over a directory above it.
#[inline(always)]
fn covered(path: Pointer, dentry: Pointer, operation: Operation) -> i32 {
    let Some(inode) = dentry.follow(kernel::dentry_inode()).known() else { return 0 };
    let Some(entry) = managed::lookup(inode) else { return 0 };
    // SAFETY: the entry comes from a map look-up.
    let rule = deny::rule(unsafe { (*entry).roles }, operation as u32, false);
    if rule == deny::NO_RULE || !is_hosts(path.follow(kernel::path_mount())) {
        return 0;
    }
    deny::refuse(entry, u64::from(rule), operation as u64, core::ptr::null(), inode.0) as i32
}

/// `sb_mount(…, path, …, flags, …)`: mount(2), bind mounts and remounts.
#[inline(always)]
pub(crate) fn sb_mount(args: Arguments) -> i32 {
    let flags = args.get(kernel::arg_sb_mount_flags());
    let Some(path) = args.pointer(kernel::arg_sb_mount_path()) else { return 0 };
    let Some(dentry) = path.follow(kernel::path_dentry()).known() else { return 0 };
    if covers(flags) {
        let refused = covered(path, dentry, Operation::Mount);
        if refused != 0 {
            return refused;
        }
    }
    changed(dentry, path.follow(kernel::path_mount()), Operation::Mount)
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
    let Some(root) = mount.follow(kernel::vfsmount_root()).known() else { return 0 };
    if !is_init() {
        let refused = uncovered(mount, root, Operation::Unmount);
        if refused != 0 {
            return refused;
        }
    }
    changed(root, mount, Operation::Unmount)
}

/// `move_mount(from_path, to_path)`: attaches a mount that fsmount(2) or open_tree(2) made, or moves one.
#[inline(always)]
pub(crate) fn move_mount(args: Arguments) -> i32 {
    let Some(path) = args.pointer(kernel::arg_move_mount_to_path()) else { return 0 };
    let Some(dentry) = path.follow(kernel::path_dentry()).known() else { return 0 };
    let refused = covered(path, dentry, Operation::MoveMount);
    if refused != 0 {
        return refused;
    }
    let refused = taken(args);
    if refused != 0 {
        return refused;
    }
    changed(dentry, path.follow(kernel::path_mount()), Operation::MoveMount)
}

/// Refuses to move a mount that holds something protected. A copy that was never attached holds nothing at any path.
#[inline(always)]
fn taken(args: Arguments) -> i32 {
    let Some(path) = args.pointer(kernel::arg_move_mount_from_path()) else { return 0 };
    let Some(dentry) = path.follow(kernel::path_dentry()).known() else { return 0 };
    let mount = path.follow(kernel::path_mount());
    let here: u64 = read(read(current(), kernel::task_nsproxy()), kernel::nsproxy_mnt());
    if field::<u64>(mount, kernel::mount_namespace()) != here {
        return 0;
    }
    uncovered(mount, dentry, Operation::MoveMount)
}

/// `sb_pivotroot(…)`: it changes every path, so the record names none.
#[inline(always)]
pub(crate) fn sb_pivotroot(_: Arguments) -> i32 {
    // A task pivots only the root of its own namespace.
    if who::mounts() != Mounts::Everywhere {
        return 0;
    }
    let Some(entry) = MANAGED.get_ptr_mut(MOUNTS_KEY) else { return 0 };
    managed::changed(entry, &Change::of(Pointer::NULL, Operation::PivotRoot, 0))
}
