//! Who the current task is. Runs only on a hit, so it reads through `bpf_probe_read_kernel`, which
//! needs no typed task pointer (5.10 has no helper that gives one).

use crate::kernel::{self, Pointer};
use crate::managed;
use crate::maps::{ALLOWED, PROCESSES};
use aya_ebpf::helpers::{bpf_get_current_task, bpf_probe_read_kernel, bpf_probe_read_kernel_str_bytes};
use sensor_common::map::{
    ALLOWED_ALL, ALLOWED_CGROUP, ALLOWED_EXE, ALLOWED_LOGIN, ALLOWED_PROCESS, Allowed, Control,
};
use sensor_common::op::RECORD_KERNEL_THREAD;
use sensor_common::record::ChangeRecord;

/// `PF_KTHREAD` (include/linux/sched.h).
const KERNEL_THREAD: u32 = 0x0020_0000;

/// A field of any kernel structure; zero when it cannot be read.
#[inline(always)]
pub(crate) fn read<T: Copy + Default>(base: u64, offset: u32) -> T {
    // SAFETY: the helper checks the address itself and fails instead of faulting.
    unsafe { bpf_probe_read_kernel((base + u64::from(offset)) as *const T) }.unwrap_or_default()
}

/// The current task's address, for [`read`].
#[inline(always)]
pub(crate) fn current() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_get_current_task() }
}

/// Start time of the task's process (its group leader), boot-time nanoseconds.
#[inline(always)]
pub(crate) fn process_start(task: u64) -> u64 {
    let leader: u64 = read(task, kernel::task_group_leader());
    read(leader, kernel::task_start())
}

/// Audit login uid and session id; `u32::MAX` where the kernel has none.
#[inline(always)]
pub(crate) fn login(task: u64) -> (u32, u32) {
    if kernel::has_loginuid() == 0 {
        return (u32::MAX, u32::MAX);
    }
    (read(task, kernel::task_loginuid()), read(task, kernel::task_sessionid()))
}

/// Id of the task's control group in the hierarchy that counts; 0 where there is none.
#[inline(always)]
pub(crate) fn cgroup(task: u64) -> u64 {
    if kernel::has_cgroup() == 0 {
        return 0;
    }
    group_id(read(task, kernel::task_cgroups()))
}

/// The same of a `css_set`, by its address.
#[inline(always)]
pub(crate) fn group_id(set: u64) -> u64 {
    read(group_node(set), kernel::kernfs_id())
}

/// The address of its control group's node in the hierarchy that counts.
#[inline(always)]
fn group_node(set: u64) -> u64 {
    let mut group: u64 = read(set, kernel::css_set_group());
    if kernel::css_cgroup() != kernel::MISSING {
        group = read(group, kernel::css_cgroup());
    }
    read(group, kernel::cgroup_kn())
}

/// Whether the task runs in the scope that logind made for its login: `/user.slice/user-UID.slice/session-ID.scope`, with
/// the task's own login uid and audit session. The login uid alone proves nothing: the kernel lets any process set it that
/// has none yet, and gives it a session that no scope has. Only root makes groups in these slices.
#[inline(always)]
fn is_in_its_session(task: u64, login: u32, session: u32) -> bool {
    if kernel::has_cgroup() == 0
        || kernel::kernfs_name() == kernel::MISSING
        || kernel::kernfs_parent() == kernel::MISSING
    {
        return false;
    }
    let scope = group_node(read(task, kernel::task_cgroups()));
    let slice: u64 = read(scope, kernel::kernfs_parent());
    let users: u64 = read(slice, kernel::kernfs_parent());
    let root: u64 = read(users, kernel::kernfs_parent());
    let above: u64 = read(root, kernel::kernfs_parent());
    root != 0
        && above == 0
        && is_numbered(scope, u64::from_le_bytes(*b"session-"), SCOPE, u64::from(session)) != 0
        && is_numbered(slice, u64::from_le_bytes(*b"user-\0\0\0"), SLICE, u64::from(login)) != 0
        && is_users(users)
}

/// What the names of scopes and slices end with, and a zero.
const SCOPE: u64 = u64::from_le_bytes(*b".scope\0\0");
const SLICE: u64 = u64::from_le_bytes(*b".slice\0\0");

/// Longer than the names looked for, with a zero.
const GROUP_NAME_BYTES: usize = 32;

/// Digits of the largest number.
const DIGITS: usize = 10;

/// 1 where a node's name is the prefix, this number and the suffix, else 0. A function of its own, which the verifier walks
/// through for itself. Texts come as words, their first letter lowest.
#[inline(never)]
fn is_numbered(node: u64, prefix: u64, suffix: u64, wanted: u64) -> u64 {
    let mut name = [0_u8; GROUP_NAME_BYTES];
    let from: u64 = read(node, kernel::kernfs_name());
    // SAFETY: the helper checks the address that it reads from, and terminates what it wrote.
    if unsafe { bpf_probe_read_kernel_str_bytes(from as *const u8, &mut name) }.is_err() {
        return 0;
    }
    // SAFETY: the mask keeps the index within the array. Volatile, so that each letter is a load of its own at an offset
    // that the verifier knows: 5.10 takes no other from the stack.
    let letter =
        |at: usize| unsafe { core::ptr::read_volatile(name.as_ptr().add(at & (GROUP_NAME_BYTES - 1))) };
    let mut at = 0;
    while at < size_of::<u64>() {
        let expected = (prefix >> (8 * at)) as u8;
        if expected == 0 {
            break;
        }
        if letter(at) != expected {
            return 0;
        }
        at += 1;
    }
    let mut number = 0_u64;
    let mut digits = 0;
    while digits < DIGITS {
        let digit = letter(at).wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        number = number * 10 + u64::from(digit);
        at += 1;
        digits += 1;
    }
    if digits == 0 || number != wanted {
        return 0;
    }
    let mut behind = 0;
    while behind < size_of::<u64>() {
        let expected = (suffix >> (8 * behind)) as u8;
        if letter(at) != expected {
            return 0;
        }
        if expected == 0 {
            break;
        }
        at += 1;
        behind += 1;
    }
    1
}

/// Whether a node's name is `user.slice`.
#[inline(always)]
fn is_users(node: u64) -> bool {
    let mut name = [0_u8; 16];
    let from: u64 = read(node, kernel::kernfs_name());
    // SAFETY: the helper checks the address that it reads from, and terminates what it wrote.
    let is_read = unsafe { bpf_probe_read_kernel_str_bytes(from as *const u8, &mut name) }.is_ok();
    is_read && u128::from_le_bytes(name) == u128::from_le_bytes(*b"user.slice\0\0\0\0\0\0")
}

/// What a process runs: its newest execution, as the process cache has it; 0 where it has none.
#[inline(always)]
pub(crate) fn execution(tgid: u32, start_ns: u64) -> u64 {
    // SAFETY: the fields are read whole; a process that ended meanwhile leaves its entry as it was.
    unsafe { PROCESSES.get(tgid) }
        .map_or(0, |process| if process.start_ns == start_ns { process.exec_id } else { 0 })
}

/// What the process that has this number now runs; 0 where that is not known.
#[inline(always)]
pub(crate) fn runs(tgid: u32) -> u64 {
    // SAFETY: the field is read whole.
    unsafe { PROCESSES.get(tgid) }.map_or(0, |process| process.exec_id)
}

/// Whether the current task, which has the daemon's number, started when the daemon did, in its pid namespace.
#[inline(always)]
pub(crate) fn is_agent(control: &Control) -> bool {
    let task = current();
    let start = process_start(task);
    if start < control.agent_start_ns || start >= control.agent_start_before_ns {
        return false;
    }
    if control.agent_pid_namespace == 0 {
        return true;
    }
    let proxy: u64 = read(task, kernel::task_nsproxy());
    let namespace: u64 = read(proxy, kernel::nsproxy_pid());
    let number: u32 = read(namespace, kernel::within(kernel::pid_namespace_ns(), kernel::ns_inum()));
    number == control.agent_pid_namespace
}

/// Mount namespace number.
#[inline(always)]
pub(crate) fn mount_namespace(proxy: u64) -> u32 {
    let namespace: u64 = read(proxy, kernel::nsproxy_mnt());
    read(namespace, kernel::mnt_namespace_ns() + kernel::ns_inum())
}

/// Fills in the identity fields of a record; gives the flags that belong to it.
///
/// # Safety
/// `record` must be a whole ring reservation.
#[inline(always)]
pub(crate) unsafe fn describe(record: *mut ChangeRecord) -> u16 {
    let task = current();
    let cred: u64 = read(task, kernel::task_cred());
    let (login_uid, session) = login(task);
    // SAFETY: the caller hands over a whole record.
    unsafe {
        (*record).start_ns = process_start(task);
        (*record).tgid = read(task, kernel::task_tgid());
        (*record).tid = read(task, kernel::task_pid());
        (*record).uid = read(cred, kernel::cred_fsuid());
        (*record).gid = read(cred, kernel::cred_fsgid());
        (*record).login_uid = login_uid;
        (*record).session = session;
        (*record).cgroup = cgroup(task);
        (*record).mount_namespace = mount_namespace(read(task, kernel::task_nsproxy()));
        (*record).comm = read(task, kernel::task_comm());
    }
    let flags: u32 = read(task, kernel::task_flags());
    if flags & KERNEL_THREAD != 0 { RECORD_KERNEL_THREAD } else { 0 }
}

/// File system uid of the current task, in the initial user namespace.
#[inline(always)]
pub(crate) fn user() -> u32 {
    let cred: u64 = read(current(), kernel::task_cred());
    read(cred, kernel::cred_fsuid())
}

/// `CAP_SYS_ADMIN` (include/uapi/linux/capability.h).
const ADMINISTER: u64 = 1 << 21;

/// Where the current task may mount.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mounts {
    /// Nowhere: the kernel refuses it, after a hook or before.
    Nowhere,
    /// In mount namespaces of a user namespace, which anybody can make, and not in the host's.
    InItsOwn,
    /// Everywhere; also where the kernel does not show what it takes to tell.
    Everywhere,
}

/// Where the current task may mount, as far as its capabilities tell.
#[inline(always)]
pub(crate) fn mounts() -> Mounts {
    let fields = [kernel::cred_capabilities(), kernel::cred_user_namespace(), kernel::user_namespace_level()];
    let cred: u64 = read(current(), kernel::task_cred());
    if cred == 0 || fields.contains(&kernel::MISSING) {
        return Mounts::Everywhere;
    }
    let capabilities: u64 = read(cred, kernel::cred_capabilities());
    if capabilities & ADMINISTER == 0 {
        return Mounts::Nowhere;
    }
    let namespace: u64 = read(cred, kernel::cred_user_namespace());
    if read::<u32>(namespace, kernel::user_namespace_level()) == 0 {
        Mounts::Everywhere
    } else {
        Mounts::InItsOwn
    }
}

/// Any of these makes up for not being the owner, in one hook or another: `CAP_CHOWN`, `CAP_DAC_OVERRIDE`, `CAP_FOWNER`,
/// `CAP_LINUX_IMMUTABLE`, `CAP_SYS_ADMIN`, `CAP_SETFCAP`, `CAP_MAC_ADMIN` (include/uapi/linux/capability.h).
const RIGHTS: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 9 | 1 << 21 | 1 << 31 | 1 << 33;

/// Whether the kernel refuses to the current task what only the owner of an inode, or a capability, may do. The security
/// hooks run before it asks. Capabilities in a user namespace, which anybody can make, are none over the host's files.
#[inline(always)]
pub(crate) fn has_no_right(inode: Pointer) -> bool {
    let fields = [kernel::cred_capabilities(), kernel::cred_user_namespace(), kernel::user_namespace_level()];
    let cred: u64 = read(current(), kernel::task_cred());
    if cred == 0 || fields.contains(&kernel::MISSING) {
        return false;
    }
    let owner: u32 = inode.load(kernel::inode_uid());
    if read::<u32>(cred, kernel::cred_fsuid()) == owner {
        return false;
    }
    let capabilities: u64 = read(cred, kernel::cred_capabilities());
    let namespace: u64 = read(cred, kernel::cred_user_namespace());
    capabilities & RIGHTS == 0 || read::<u32>(namespace, kernel::user_namespace_level()) != 0
}

/// Whether a rule, or each of several that count together, allows the current task: by its executable, its cgroup or its
/// login in that login's session; or whether it is Holdfast's own.
#[inline(always)]
pub(crate) fn is_allowed(rule: u32) -> bool {
    let task = current();
    let (login, session) = login(task);
    let mut by_login = listed(by_number(rule, ALLOWED_LOGIN, u64::from(login)));
    if by_login != 0 && !is_in_its_session(task, login, session) {
        by_login = 0;
    }
    let by_group = listed(by_number(rule, ALLOWED_CGROUP, cgroup(task)));
    if by_login | by_group | by_executable(rule, task) == ALLOWED_ALL {
        return true;
    }
    let process = by_number(0, ALLOWED_PROCESS, process_start(task));
    listed(Allowed { dev: read(task, kernel::task_tgid()), ..process }) == ALLOWED_ALL
}

/// The bits that a rule gives to what the task runs. A file that lost its last name is none that a rule allows: another
/// one is at the path, or none is, and the daemon may not have seen it yet.
#[inline(always)]
fn by_executable(rule: u32, task: u64) -> u64 {
    let mm: u64 = read(task, kernel::task_mm());
    let file: u64 = read(mm, kernel::mm_exe_file());
    let inode: u64 = read(file, kernel::file_inode());
    let links: u32 = read(inode, kernel::inode_nlink());
    if links == 0 {
        return 0;
    }
    let sb: u64 = read(inode, kernel::inode_sb());
    listed(Allowed {
        dev: read(sb, kernel::super_dev()),
        generation: read(inode, kernel::inode_generation()),
        volume: managed::volume_at(inode),
        ..by_number(rule, ALLOWED_EXE, read(inode, kernel::inode_ino()))
    })
}

/// An actor that a rule knows by a number alone.
#[inline(always)]
fn by_number(rule: u32, kind: u32, value: u64) -> Allowed {
    Allowed { rule, kind, value, dev: 0, generation: 0, volume: 0, padding: 0 }
}

/// The bits that an actor has.
#[inline(always)]
fn listed(actor: Allowed) -> u64 {
    match ALLOWED.get_ptr(actor) {
        // SAFETY: the pointer comes from a map look-up; a word is read whole.
        Some(bits) => unsafe { *bits },
        None => 0,
    }
}
