//! Mounts. They are rare, and what they do to a managed path is best read from the mount table, so each is
//! one record that makes the daemon compare tables; it names the object mounted over (or the root of what
//! is taken away), so that of several mounts each finds its own actor. What a task does or tries that may mount nothing that
//! the host sees is no record: anybody can do so without end.

use crate::deny;
use crate::inode;
use crate::kernel::{self, Arguments, Pointer, current, read};
use crate::managed::{self, Change};
use crate::maps::MANAGED;
use crate::who::{self, Mounts};
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use sensor_common::map::MOUNTS_KEY;
use sensor_common::op::Operation;

/// The mount table has an entry of its own, so that its changes are counted, marked dirty and swept
/// like those of a file. `mount`: the one that the operation is on.
#[inline(always)]
fn changed(dentry: Pointer, mount: Pointer, operation: Operation) -> i32 {
    let yields = match who::mounts() {
        Mounts::Everywhere => false,
        // A runtime may have handed it a mount of the host's that hands on what happens to it.
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

/// Whether mount(2) with these flags puts something over the path: it may as well change what is there. In the order in
/// which the kernel asks.
#[inline(always)]
fn covers(flags: u64) -> bool {
    flags & REMOUNT == 0 && (flags & BIND != 0 || flags & PROPAGATION == 0)
}

/// A field of `struct mount`, by the `struct vfsmount` in it; zero where this kernel has none.
#[inline(always)]
fn field<T: Copy + Default>(mount: Pointer, offset: u32) -> T {
    if offset == kernel::MISSING || kernel::mount_vfsmount() == kernel::MISSING {
        return T::default();
    }
    read((mount.0 as u64).wrapping_sub(u64::from(kernel::mount_vfsmount())), offset)
}

/// Whether what the current task does to a mount may be seen on the host: the task is in the host's mount namespace, or
/// the mount hands on what happens to it. What services and containers do in a namespace of their own hides nothing.
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

/// Whether a mount hands on to others what is mounted on it.
#[inline(always)]
fn hands_on(mount: Pointer) -> bool {
    field::<u32>(mount, kernel::mount_group()) != 0
}

/// Whether a mount stands at a protected name, and is not a copy elsewhere of what does. One that stands on another mount
/// shows no name.
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

/// Refuses to take a mount away on which something protected lies. `root`: its root.
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

/// Refuses to put something over what a deny rule protects, or over a directory above it.
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

/// Whether it is the first process: it takes everything down when the node goes down.
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

/// `move_mount(from_path, to_path)`: what attaches a mount made with the new calls, or moves one.
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

/// Refuses to move a mount away on which something protected lies. A copy that was never attached is nobody's place.
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

/// `sb_pivotroot(…)`: it concerns every path, so that none is named.
#[inline(always)]
pub(crate) fn sb_pivotroot(_: Arguments) -> i32 {
    // No other namespace than the task's own is pivoted.
    if who::mounts() != Mounts::Everywhere {
        return 0;
    }
    let Some(entry) = MANAGED.get_ptr_mut(MOUNTS_KEY) else { return 0 };
    managed::changed(entry, &Change::of(Pointer::NULL, Operation::PivotRoot, 0))
}
