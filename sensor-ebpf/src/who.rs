//! Who the current task is, and whether it is the daemon or an actor that a rule allows.
//!
//! It runs only for managed inodes, so it can afford `bpf_probe_read_kernel`. That helper needs no typed pointer to the task,
//! which 5.10 has no helper for.

use crate::inode;
use crate::kernel::{self, Pointer, current, read};
use crate::maps::{ALLOWED, CONTROL, PROCESSES};
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use sensor_common::digits::{MOST_DIGITS, is_number};
use sensor_common::map::{
    ALLOWED_ALL, ALLOWED_CGROUP, ALLOWED_EXE, ALLOWED_LOGIN, ALLOWED_PROCESS, Allowed, Control,
    UNKNOWN_EXECUTION,
};
use sensor_common::op::RECORD_KERNEL_THREAD;
use sensor_common::record::ChangeRecord;

/// `PF_KTHREAD` (include/linux/sched.h).
const KERNEL_THREAD: u32 = 0x0020_0000;

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

/// Id of the task's control group in the hierarchy that the daemon chose; 0 without one.
#[inline(always)]
pub(crate) fn cgroup(task: u64) -> u64 {
    if kernel::has_cgroup() == 0 {
        return 0;
    }
    group_id(read(task, kernel::task_cgroups()))
}

/// The same for a `css_set`, by its address.
#[inline(always)]
pub(crate) fn group_id(set: u64) -> u64 {
    read(group_node(set), kernel::kernfs_id())
}

/// The address of the `kernfs_node` of its control group.
#[inline(always)]
fn group_node(set: u64) -> u64 {
    let mut group: u64 = read(set, kernel::css_set_group());
    if kernel::css_cgroup() != kernel::MISSING {
        group = read(group, kernel::css_cgroup());
    }
    read(group, kernel::cgroup_kn())
}

/// Not zero if the task runs in the scope that logind made for its login: `/user.slice/user-UID.slice/session-ID.scope`,
/// with the task's own login uid and audit session. The login uid alone proves nothing: the kernel lets any process without
/// one set it. Such a process gets a session without a scope, and only root creates groups in these slices. The function is not
/// inlined, because it needs a stack frame of its own.
#[inline(never)]
fn is_in_its_session(task: u64, login: u64, session: u64) -> u64 {
    if kernel::has_cgroup() == 0
        || kernel::kernfs_name() == kernel::MISSING
        || kernel::kernfs_parent() == kernel::MISSING
    {
        return 0;
    }
    let scope = group_node(read(task, kernel::task_cgroups()));
    let slice: u64 = read(scope, kernel::kernfs_parent());
    let users: u64 = read(slice, kernel::kernfs_parent());
    let root: u64 = read(users, kernel::kernfs_parent());
    let above: u64 = read(root, kernel::kernfs_parent());
    let is_session = root != 0
        && above == 0
        && is_numbered(scope, *b"session-", *b".scope\0\0", session)
        && is_numbered(slice, *b"user-\0\0\0", *b".slice\0\0", login)
        && is_users(users);
    u64::from(is_session)
}

/// Bytes for the longest of these names with its zero. A longer name is none of them.
const GROUP_NAME_BYTES: usize = 32;

/// Letters of `.scope` and `.slice`.
const SUFFIX_LETTERS: u64 = 6;

/// Whether a node's name is the prefix, this number and the suffix. Prefix and suffix are padded with zeroes. It compares words:
/// a loop over letters would have a branch at each letter, and the verifier would walk all of them.
#[inline(always)]
fn is_numbered(node: u64, prefix: [u8; 8], suffix: [u8; 8], wanted: u64) -> bool {
    let mut name = MaybeUninit::<[u8; GROUP_NAME_BYTES]>::uninit();
    let from: u64 = read(node, kernel::kernfs_name());
    // SAFETY: the helper checks the address that it reads from. It gives the length with the zero, or a negative error, for which
    // the test of `digits` fails. The copy itself has no use.
    let length = unsafe {
        bpf_probe_read_kernel_str(name.as_mut_ptr().cast(), GROUP_NAME_BYTES as u32, from as *const c_void)
    };
    let (prefix, suffix) = (u64::from_le_bytes(prefix), u64::from_le_bytes(suffix));
    let letters = u64::from(8 - prefix.leading_zeros() / 8);
    let digits = (length as u64).wrapping_sub(letters + SUFFIX_LETTERS + 1);
    if digits.wrapping_sub(1) >= u64::from(MOST_DIGITS) {
        return false;
    }
    let first = read::<u64>(from, 0) & u64::MAX >> (64 - 8 * letters);
    // These words may begin with bytes before the number, which `is_number` ignores.
    let end = from + letters + digits;
    let (high, low) = (read(end - 16, 0), read(end - 8, 0));
    // The suffix with its zero; the first of the eight bytes is the last digit.
    let last = read::<u64>(end - 1, 0) >> 8;
    first == prefix && last == suffix && is_number(high, low, digits, wanted)
}

/// Whether a node's name is `user.slice`.
#[inline(always)]
fn is_users(node: u64) -> bool {
    let name: u64 = read(node, kernel::kernfs_name());
    // With the zero, and without the byte after it.
    let end = read::<u32>(name, 8) & 0x00ff_ffff;
    read::<u64>(name, 0) == u64::from_le_bytes(*b"user.sli") && end == u32::from_le_bytes(*b"ce\0\0")
}

/// The number of a process's newest execution, from the map of processes; 0 if the map has no such process. `executions` is
/// the task's own count: with another count, the entry is older than the task's program.
#[inline(always)]
pub(crate) fn execution(tgid: u32, start_ns: u64, executions: u32) -> u64 {
    // SAFETY: the fields are read whole. The entry stays when a process ends.
    unsafe { PROCESSES.get(tgid) }.map_or(0, |process| {
        if process.start_ns != start_ns {
            0
        } else if process.executions == executions {
            process.exec_id
        } else {
            UNKNOWN_EXECUTION
        }
    })
}

/// The same for the current task, which has this thread group id, whatever its start.
#[inline(always)]
pub(crate) fn runs(tgid: u32) -> u64 {
    let executions: u32 = read(current(), kernel::task_executions());
    // SAFETY: the fields are read whole.
    unsafe { PROCESSES.get(tgid) }.map_or(0, |process| {
        if process.executions == executions { process.exec_id } else { UNKNOWN_EXECUTION }
    })
}

/// The daemon's settings for the programs.
#[inline(always)]
pub(crate) fn control() -> Option<&'static Control> {
    CONTROL.get(0)
}

/// Whether the current task belongs to the daemon. It compares the thread group id first, which excludes most tasks.
#[inline(always)]
pub(crate) fn is_agent() -> bool {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    control().is_some_and(|control| control.agent_tgid == tgid && started_as_agent(control))
}

/// Whether the current task belongs to the daemon, and the daemon wants this set of programs to answer. Sets of different modes
/// or versions can be attached at once and share the maps.
#[inline(always)]
pub(crate) fn must_answer() -> bool {
    is_agent() && control().is_some_and(|control| control.set == kernel::program_set())
}

/// Whether the current task, which has the daemon's thread group id, has the daemon's start and pid namespace too.
#[inline(always)]
fn started_as_agent(control: &Control) -> bool {
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

/// Writes the identity of the current task to a record. It gives the flags for that identity.
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
pub(crate) enum MountRights {
    /// Nowhere: the kernel refuses a mount before or after the hook.
    Nowhere,
    /// In mount namespaces of its own user namespace, which any user can create, and not in the host's.
    OwnNamespace,
    /// Everywhere, or unknown because the kernel's types lack a field.
    Everywhere,
}

/// Where the current task may mount, by its capabilities.
#[inline(always)]
pub(crate) fn mount_rights() -> MountRights {
    let fields = [kernel::cred_capabilities(), kernel::cred_user_namespace(), kernel::user_namespace_level()];
    let cred: u64 = read(current(), kernel::task_cred());
    if cred == 0 || fields.contains(&kernel::MISSING) {
        return MountRights::Everywhere;
    }
    let capabilities: u64 = read(cred, kernel::cred_capabilities());
    if capabilities & ADMINISTER == 0 {
        return MountRights::Nowhere;
    }
    let namespace: u64 = read(cred, kernel::cred_user_namespace());
    if read::<u32>(namespace, kernel::user_namespace_level()) == 0 {
        MountRights::Everywhere
    } else {
        MountRights::OwnNamespace
    }
}

/// Capabilities each of which replaces ownership for some operation: `CAP_CHOWN`, `CAP_DAC_OVERRIDE`, `CAP_FOWNER`,
/// `CAP_LINUX_IMMUTABLE`, `CAP_SYS_ADMIN`, `CAP_SETFCAP`, `CAP_MAC_ADMIN` (include/uapi/linux/capability.h).
const RIGHTS: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 9 | 1 << 21 | 1 << 31 | 1 << 33;

/// Whether the current task neither owns an inode nor has a capability that replaces ownership. The kernel checks that after
/// the security hooks. Capabilities in a user namespace, which any user can create, do not apply to the host's files.
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

/// Whether a rule, or each rule of a set, allows the current task: by its executable, its cgroup, or its login in that login's
/// session. It always allows Holdfast's own processes. 0 for no.
///
/// It is a global function, which the verifier checks once for each program and not again on each path that leads to it.
/// Verifiers before 6.4 would need minutes for all combinations of its look-ups.
// SAFETY: no other symbol of the object has this name.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn is_allowed_by(rule: u64) -> u64 {
    let rule = rule as u32;
    let task = current();
    let (login, session) = login(task);
    let mut by_login = listed(by_number(rule, ALLOWED_LOGIN, u64::from(login)));
    if by_login != 0 && is_in_its_session(task, u64::from(login), u64::from(session)) == 0 {
        by_login = 0;
    }
    let by_group = listed(by_number(rule, ALLOWED_CGROUP, cgroup(task)));
    if by_login | by_group | by_executable(rule, task) == ALLOWED_ALL {
        return 1;
    }
    let process = by_number(0, ALLOWED_PROCESS, process_start(task));
    u64::from(listed(Allowed { dev: read(task, kernel::task_tgid()), ..process }) == ALLOWED_ALL)
}

/// The bits that a rule gives to the task's executable. A file without a name gets none: the path has another file or none by
/// now, and the daemon may not have seen that yet.
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
        volume: inode::volume_at(inode, sb),
        ..by_number(rule, ALLOWED_EXE, read(inode, kernel::inode_ino()))
    })
}

/// The key of an actor that a rule identifies by a number alone.
#[inline(always)]
fn by_number(rule: u32, kind: u32, value: u64) -> Allowed {
    Allowed { rule, kind, value, dev: 0, generation: 0, volume: 0, padding: 0 }
}

/// The bits of an actor in the map of allowed actors; 0 for an actor without an entry.
#[inline(always)]
fn listed(actor: Allowed) -> u64 {
    match ALLOWED.get_ptr(actor) {
        // SAFETY: the pointer comes from a map look-up; a word is read whole.
        Some(bits) => unsafe { *bits },
        None => 0,
    }
}
