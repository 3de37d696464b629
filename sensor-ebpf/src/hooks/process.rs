//! Processes: the parent of each, and what each executes. The programs store this in maps and send no records, so an execution does
//! not wake the daemon. The maps outlive a process, so the daemon can name an actor that has ended.
//!
//! After kernel 6.12 two programs are attached to each of these two tracepoints. The kernel skips a program while a preempted task
//! waits inside it on the same CPU (`__bpf_trace_run`), and newer kernels (seen on 7.3) preempt programs. The second program stores what
//! the first one was not asked to store.

use crate::inode::{self, RecordInode};
use crate::kernel::{self, Arguments, Pointer, current, read, within};
use crate::managed::{self, Attempt};
use crate::maps::{
    self, EVER_NOTED, EXECUTING, EXECUTION_SEQUENCE, EXECUTIONS, GROUP_SCRATCH, GROUPS, LOADS, MANAGED,
    PROCESSES,
};
use crate::ring;
use crate::who::{self, group_id};
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use aya_ebpf::helpers::{bpf_get_smp_processor_id, bpf_ktime_get_boot_ns, bpf_probe_read_kernel_str_bytes};
use sensor_common::limits::{ARGV_BYTES, EXECUTIONS_AFTER_CHANGE_NS, LOADS_A_SECOND};
use sensor_common::map::{
    Counter, Executing, Execution, GROUPS_KEY, Loads, Managed, Process, execution_id, execution_slot,
};
use sensor_common::op::{Operation, ROLE_EXECUTIONS, ROLE_EXECUTIONS_AFTER_CHANGE, ROLE_FILE};

/// Start time of a task's process (its group leader), boot-time nanoseconds. Like `who::process_start`, for a task whose type
/// the verifier knows: each field costs an instruction or two and no helper call.
#[inline(always)]
fn start_of(task: Pointer) -> u64 {
    task.to(kernel::task_group_leader()).map_or(0, |leader| leader.field(kernel::task_start()))
}

/// `sched_process_fork(parent, child)`.
#[inline(always)]
pub(crate) fn fork(args: Arguments) -> i32 {
    let Some(parent) = args.pointer(0) else { return 0 };
    let Some(child) = args.pointer(1) else { return 0 };
    let tgid: u32 = child.field(kernel::task_tgid());
    let parent_tgid: u32 = parent.field(kernel::task_tgid());
    if tgid == parent_tgid {
        // A thread, not a process.
        return 0;
    }
    let (start_ns, parent_start_ns) = (child.field(kernel::task_start()), start_of(parent));
    let executions = child.field(kernel::task_executions());
    let exec_id = who::execution(parent_tgid, parent_start_ns, executions);
    let process =
        Process { start_ns, parent_start_ns, exec_id, parent_exec_id: exec_id, parent_tgid, executions };
    if PROCESSES.insert(tgid, process, 0).is_err() {
        maps::count(Counter::ProcessLost);
    }
    0
}

/// The same, unless the first program has stored the child.
#[inline(always)]
pub(crate) fn fork_again(args: Arguments) -> i32 {
    let Some(child) = args.pointer(1) else { return 0 };
    let tgid: u32 = child.field(kernel::task_tgid());
    let start_ns: u64 = child.field(kernel::task_start());
    // SAFETY: the field is read whole.
    if unsafe { PROCESSES.get(tgid) }.is_some_and(|process| process.start_ns == start_ns) {
        return 0;
    }
    fork(args)
}

/// `sched_process_exec(task, old_pid, bprm)`. It does nothing if the other program has stored the execution.
#[inline(always)]
pub(crate) fn exec(args: Arguments, is_second: bool) -> i32 {
    let Some(task) = args.pointer(0) else { return 0 };
    let Some(binprm) = args.pointer(2) else { return 0 };
    let Some(file) = binprm.follow(kernel::binprm_file()).non_null() else { return 0 };
    let Some(inode) = file.follow(kernel::file_inode()).non_null() else { return 0 };
    let tgid: u32 = task.field(kernel::task_tgid());
    let start_ns = start_of(task);
    let executions: u32 = task.field(kernel::task_executions());
    let known = PROCESSES.get_ptr_mut(tgid);
    // SAFETY: the pointer comes from a map look-up.
    let known = known.filter(|process| unsafe { (**process).start_ns } == start_ns);
    // SAFETY: as above.
    if known.is_some_and(|process| unsafe { (*process).executions } == executions) {
        return 0;
    }

    // The kernel does not run this program twice on one CPU, so no task adds to this counter between the two lines.
    let Some(sequence) = EXECUTION_SEQUENCE.get_ptr_mut(u32::from(is_second)) else { return 0 };
    maps::add_one(sequence);
    // SAFETY: the helper has no preconditions; the counter comes from a map look-up.
    let id = unsafe { execution_id(*sequence, is_second, bpf_get_smp_processor_id() as u32) };
    if let Some(execution) = EXECUTIONS.get_ptr_mut(execution_slot(id, kernel::possible_cpus())) {
        // SAFETY: the pointer comes from a map look-up; the slot is this CPU's until its sequence wraps.
        unsafe { fill(execution, task, id) };
        let filename: *const u8 = binprm.load(kernel::binprm_filename());
        let ino: u64 = inode.load(kernel::inode_ino());
        // SAFETY: as above; the helper reads at most the field's length and terminates it.
        unsafe {
            (*execution).file = inode::key(inode, ino);
            (*execution).generation = inode.load(kernel::inode_generation());
            let _ = bpf_probe_read_kernel_str_bytes(filename, &mut (*execution).filename);
        }
    }

    match known {
        // SAFETY: the pointer comes from a map look-up; aligned words are written whole. Between the two, the count differs from the
        // task's, so the execution of a record is unknown.
        Some(process) => unsafe {
            core::ptr::write_volatile(&raw mut (*process).exec_id, id);
            core::ptr::write_volatile(&raw mut (*process).executions, executions);
        },
        None => {
            let mut process = Process {
                start_ns,
                parent_start_ns: 0,
                exec_id: id,
                parent_exec_id: 0,
                parent_tgid: 0,
                executions,
            };
            if let Some(parent) = task.to(kernel::task_real_parent()) {
                process.parent_start_ns = start_of(parent);
                process.parent_tgid = parent.field(kernel::task_tgid());
                let executions = parent.field(kernel::task_executions());
                process.parent_exec_id =
                    who::execution(process.parent_tgid, process.parent_start_ns, executions);
            }
            if PROCESSES.insert(tgid, process, 0).is_err() {
                maps::count(Counter::ProcessLost);
            }
        }
    }

    let noted = executing(current(), id);
    if let Some(entry) = managed::lookup(inode)
        && entry != noted
    {
        executed(entry, id, || RecordInode::of(inode));
    }
    0
}

/// `bprm_creds_for_exec(bprm)`: the file given to execve, before the kernel continues with the interpreter of a script. The
/// execution may still fail, so this only stores it.
#[inline(always)]
pub(crate) fn about_to_execute(args: Arguments) -> i32 {
    let Some(binprm) = args.pointer(kernel::arg_bprm_creds_for_exec_bprm()) else { return 0 };
    let Some(file) = binprm.follow(kernel::binprm_file()).non_null() else { return 0 };
    let Some(inode) = file.follow(kernel::file_inode()).non_null() else { return 0 };
    let task = current();
    let known = managed::lookup(inode);
    if known.is_some_and(|entry| is_reported(entry)) {
        let recorded_inode = RecordInode::of(inode);
        let noted = Executing { key: recorded_inode.key, generation: recorded_inode.generation, padding: 0 };
        if let Some(ever) = EVER_NOTED.get_ptr_mut(0) {
            // SAFETY: the pointer comes from a map look-up; all CPUs write the same value.
            unsafe { core::ptr::write_volatile(ever, 1) };
        }
        // If the insertion fails, `exec` still reports the file unless it is a script.
        let _ = EXECUTING.insert(task, noted, 0);
        return 0;
    }
    if was_ever_noted() {
        // An execution that failed has left its entry.
        let _ = EXECUTING.remove(task);
    }
    if known.is_none() {
        about_to_execute_unwatched(file);
    }
    0
}

/// Reports the execution of a file without an entry, if its directory has [`ROLE_EXECUTIONS`]. The execution may still fail. The record
/// is about the name in the directory, and its actor runs the program from before the execution.
#[inline(always)]
fn about_to_execute_unwatched(file: Pointer) {
    let Some((entry, dentry, directory)) = reported_directory(file) else { return };
    // Any user can execute a file without limit.
    // SAFETY: the entry comes from a map look-up in this run.
    unsafe { ring::push(entry, Operation::Exec as u32, 0, dentry, RecordInode::of(directory), 0, true) };
}

/// The directory of a file, if it has [`ROLE_EXECUTIONS`]: its entry, the file's name in it, and its inode.
#[inline(always)]
fn reported_directory(file: Pointer) -> Option<(*mut Managed, Pointer, Pointer)> {
    let dentry = file.follow(kernel::file_path() + kernel::path_dentry()).non_null()?;
    let parent = dentry.follow(kernel::dentry_parent()).non_null()?;
    let directory = parent.follow(kernel::dentry_inode()).non_null()?;
    let entry = managed::lookup(directory)?;
    // SAFETY: the entry comes from a map look-up in this run.
    let is_reported = unsafe { (*entry).roles } & ROLE_EXECUTIONS != 0;
    is_reported.then_some((entry, dentry, directory))
}

/// Whether any task was ever stored in `EXECUTING`. A task that reads false has no entry there.
#[inline(always)]
fn was_ever_noted() -> bool {
    // SAFETY: the pointer comes from a map look-up.
    EVER_NOTED.get_ptr(0).is_some_and(|ever| unsafe { core::ptr::read_volatile(ever) } != 0)
}

/// Reports the execution that [`about_to_execute`] stored; gives its file's entry, or null.
#[inline(always)]
fn executing(task: u64, id: u64) -> *mut Managed {
    if !was_ever_noted() {
        return core::ptr::null_mut();
    }
    // SAFETY: the value is copied before the map is written.
    let Some(noted) = (unsafe { EXECUTING.get(task) }).copied() else { return core::ptr::null_mut() };
    let _ = EXECUTING.remove(task);
    let Some(entry) = MANAGED.get_ptr_mut(noted.key) else { return core::ptr::null_mut() };
    executed(entry, id, || RecordInode { key: noted.key, generation: noted.generation });
    entry
}

/// `mmap_file` with `PROT_EXEC`: a task maps a file to run code of it. A loader does so with a library. Reported are files of an image that
/// differ, or changed a short time ago, and files without an entry in a directory with [`ROLE_EXECUTIONS`]. Most mappings are of files
/// without an entry in other directories, so nothing precedes the two look-ups.
#[inline(always)]
pub(crate) fn loaded(file: Pointer) {
    let Some(inode) = file.follow(kernel::file_inode()).non_null() else { return };
    let (entry, name, about) = if let Some(entry) = managed::lookup(inode) {
        // SAFETY: the entry comes from a map look-up in this run.
        let is_of_image = unsafe { (*entry).roles } & (ROLE_EXECUTIONS | ROLE_EXECUTIONS_AFTER_CHANGE) != 0;
        if !is_of_image || !is_reported(entry) {
            return;
        }
        (entry, Pointer::NULL, RecordInode::of(inode))
    } else {
        let Some((entry, dentry, directory)) = reported_directory(file) else { return };
        (entry, dentry, RecordInode::of(directory))
    };
    if !is_program(inode) && may_report_load() {
        // SAFETY: as above.
        unsafe { ring::push(entry, Operation::Load as u32, 0, name, about, 0, true) };
    }
}

/// Whether the current task runs an inode as its program. The kernel maps the program of each execution before the task runs it, and the
/// execution has its own record.
#[inline(always)]
fn is_program(inode: Pointer) -> bool {
    let mm: u64 = read(current(), kernel::task_mm());
    let file: u64 = read(mm, kernel::mm_exe_file());
    let program: u64 = read(file, kernel::file_inode());
    program == inode.0 as u64
}

/// Whether a load has room in the ring and in the limit of its user. A mapping costs a task a few hundred nanoseconds, so without a limit
/// any user could fill half of the ring. A load is no change, so one that is left out is no loss.
#[inline(always)]
fn may_report_load() -> bool {
    if maps::is_half_full() {
        return false;
    }
    let uid = who::user();
    // SAFETY: the helper has no preconditions.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let Some(loads) = LOADS.get_ptr_mut(uid) else {
        return LOADS.insert(uid, Loads { since_ns: now, recorded: 1, padding: 0 }, 0).is_ok();
    };
    // SAFETY: the pointer comes from a map look-up; words are read and written whole. Two tasks of one user at once may count as one.
    unsafe {
        if now.wrapping_sub((*loads).since_ns) >= SECOND {
            (*loads).since_ns = now;
            (*loads).recorded = 0;
        }
        if (*loads).recorded >= LOADS_A_SECOND {
            return false;
        }
        (*loads).recorded += 1;
    }
    true
}

/// A second in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// Reports the execution of a managed file. `inode` gives the inode that the record is about. Most executions have none.
#[inline(always)]
fn executed(entry: *mut Managed, id: u64, inode: impl FnOnce() -> RecordInode) {
    if is_reported(entry) {
        // Any user can execute a file without limit.
        // SAFETY: the entry comes from a map look-up in this run.
        unsafe { ring::push(entry, Operation::Exec as u32, id, Pointer::NULL, inode(), 0, true) };
    }
}

/// Whether executions of a managed file are reported: of each one, unless it is as the image has it and nothing has changed it.
#[inline(always)]
fn is_reported(entry: *const Managed) -> bool {
    // SAFETY: the entry comes from a map look-up in this run.
    unsafe {
        let roles = (*entry).roles;
        roles & ROLE_FILE != 0
            && (roles & ROLE_EXECUTIONS_AFTER_CHANGE == 0
                || core::ptr::read_volatile(&raw const (*entry).dirty) != 0
                || bpf_ktime_get_boot_ns().saturating_sub((*entry).changed_ns) <= EXECUTIONS_AFTER_CHANGE_NS)
    }
}

/// `cgroup_mkdir(cgrp, path)`. It stores only groups of the hierarchy that the daemon chose, since ids repeat between hierarchies.
#[inline(always)]
pub(crate) fn group_made(args: Arguments) -> i32 {
    let group = args.get(0);
    let root: u64 = read(group, kernel::cgroup_root());
    let hierarchy: u32 = read(root, kernel::cgroup_root_hierarchy());
    if root == 0 || hierarchy != kernel::cgroup_hierarchy() {
        return 0;
    }
    let node: u64 = read(group, kernel::cgroup_kn());
    let id: u64 = read(node, kernel::kernfs_id());
    // The kernel holds `cgroup_mutex` (`cgroup_mkdir`), so no other task runs this program and uses the buffer.
    let Some(scratch) = GROUP_SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: the pointer comes from a map look-up and is this CPU's own; the helper checks the address that it
    // reads from, and terminates what it wrote.
    unsafe {
        if bpf_probe_read_kernel_str_bytes(args.get(1) as *const u8, &mut (*scratch).path).is_ok() {
            // A reference, because a copy does not fit on the stack.
            let path = &*scratch;
            let _ = GROUPS.insert(id, path, 0);
        }
    }
    if let Some(entry) = MANAGED.get_ptr_mut(GROUPS_KEY) {
        // A tracepoint cannot refuse, so the result has no meaning.
        let attempt =
            Attempt { half_ring_only: true, ..Attempt::of(Pointer::NULL, Operation::MakeDirectory, id) };
        let _ = managed::record_attempt(entry, &attempt);
    }
    0
}

/// Writes those fields of an execution that come from the task.
///
/// # Safety
/// `execution` must come from a map look-up in this program run.
#[inline(always)]
unsafe fn fill(execution: *mut Execution, task: Pointer, id: u64) {
    let cred = task.to(kernel::task_cred());
    let proxy = task.to(kernel::task_nsproxy());
    let tty = task.to(kernel::task_signal()).and_then(|signal| signal.to(kernel::signal_tty()));
    let mm = task.to(kernel::task_mm());
    let start: u64 = mm.map_or(0, |mm| mm.field(kernel::mm_arg_start()));
    let end: u64 = mm.map_or(0, |mm| mm.field(kernel::mm_arg_end()));
    let length = end.saturating_sub(start);
    let take = if length > ARGV_BYTES as u64 { ARGV_BYTES as u64 } else { length } as u32;
    // SAFETY: the caller hands over a whole map value; the helpers check the addresses they read from.
    unsafe {
        (*execution).id = id;
        (*execution).at_ns = bpf_ktime_get_boot_ns();
        (*execution).cgroup = cgroup(task);
        (*execution).mount_namespace = proxy
            .and_then(|proxy| proxy.to(kernel::nsproxy_mnt()))
            .map_or(0, |namespace| namespace.field(within(kernel::mnt_namespace_ns(), kernel::ns_inum())));
        (*execution).pid_namespace = proxy
            .and_then(|proxy| proxy.to(kernel::nsproxy_pid()))
            .map_or(0, |namespace| namespace.field(within(kernel::pid_namespace_ns(), kernel::ns_inum())));
        (*execution).uid = cred.map_or(0, |cred| cred.field(kernel::cred_euid()));
        (*execution).gid = cred.map_or(0, |cred| cred.field(kernel::cred_egid()));
        if kernel::has_loginuid() == 0 {
            (*execution).login_uid = u32::MAX;
            (*execution).session = u32::MAX;
        } else {
            (*execution).login_uid = task.load(kernel::task_loginuid());
            (*execution).session = task.field(kernel::task_sessionid());
        }
        (*execution).tty = [0; 16];
        if let Some(tty) = tty {
            // Direct loads would read one character at a time; the helper reads all of them.
            (*execution).tty = read(tty.0 as u64, kernel::tty_name());
        }
        (*execution).argv_cut = u32::from(length > ARGV_BYTES as u64);
        (*execution).argv_length = take;
        let read = bpf_probe_read_user((&raw mut (*execution).argv).cast(), take, start as *const _);
        if read != 0 {
            (*execution).argv_length = 0;
        }
    }
}

/// Id of the control group of a task whose type the verifier knows; 0 without one.
#[inline(always)]
fn cgroup(task: Pointer) -> u64 {
    if kernel::has_cgroup() == 0 {
        return 0;
    }
    let set = task.to(kernel::task_cgroups());
    if kernel::css_cgroup() != kernel::MISSING {
        // Some verifiers do not know the type of an array's element that is a pointer. The helper needs no type.
        return set.map_or(0, |set| group_id(set.0 as u64));
    }
    set.and_then(|set| set.to(kernel::css_set_group()))
        .and_then(|group| group.to(kernel::cgroup_kn()))
        .map_or(0, |node| node.field(kernel::kernfs_id()))
}
