//! Processes: who forked whom, and what each runs. Kept in maps, never pushed: nobody is woken by an
//! exec, and an actor that is gone can still be named.

use crate::kernel::{self, Arguments, Pointer};
use crate::managed;
use crate::maps::{self, EXECUTION_SEQUENCE, EXECUTIONS, PROCESSES};
use crate::who::{self, read};
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use aya_ebpf::helpers::{bpf_get_smp_processor_id, bpf_ktime_get_boot_ns, bpf_probe_read_kernel_str_bytes};
use sensor_common::limits::ARGV_BYTES;
use sensor_common::map::{Counter, Execution, Process, execution_id, execution_slot};
use sensor_common::op::{Operation, ROLE_FILE};

/// `sched_process_fork(parent, child)`.
#[inline(always)]
pub(crate) fn fork(args: Arguments) -> i32 {
    let parent = args.get(0);
    let child = args.get(1);
    let tgid: u32 = read(child, kernel::task_tgid());
    let parent_tgid: u32 = read(parent, kernel::task_tgid());
    if tgid == parent_tgid {
        // A thread, not a process.
        return 0;
    }
    // SAFETY: the reference is copied from before the map is written.
    let exec_id = unsafe { PROCESSES.get(parent_tgid) }.map_or(0, |process| process.exec_id);
    let process = Process {
        start_ns: read(child, kernel::task_start()),
        parent_start_ns: who::process_start(parent),
        exec_id,
        parent_tgid,
        padding: 0,
    };
    if PROCESSES.insert(tgid, process, 0).is_err() {
        maps::count(Counter::ProcessLost);
    }
    0
}

/// `sched_process_exec(task, old_pid, bprm)`.
#[inline(always)]
pub(crate) fn exec(args: Arguments) -> i32 {
    let task = who::current();
    let Some(binprm) = args.pointer(2) else { return 0 };
    let Some(file) = binprm.follow(kernel::binprm_file()).known() else { return 0 };
    let Some(inode) = file.follow(kernel::file_inode()).known() else { return 0 };
    let tgid: u32 = read(task, kernel::task_tgid());

    let Some(sequence) = EXECUTION_SEQUENCE.get_ptr_mut(0) else { return 0 };
    maps::add_one(sequence);
    // SAFETY: the helper has no preconditions; the counter comes from a map look-up.
    let id = unsafe { execution_id(*sequence, bpf_get_smp_processor_id() as u32) };
    if let Some(execution) = EXECUTIONS.get_ptr_mut(execution_slot(id, kernel::possible_cpus())) {
        // SAFETY: the pointer comes from a map look-up; the slot is this CPU's until its sequence wraps.
        unsafe { fill(execution, task, id) };
        let filename: *const u8 = binprm.load(kernel::binprm_filename());
        let ino: u64 = inode.load(kernel::inode_ino());
        // SAFETY: as above; the helper reads at most the field's length and terminates it.
        unsafe {
            (*execution).file = managed::key(inode, ino);
            let _ = bpf_probe_read_kernel_str_bytes(filename, &mut (*execution).filename);
        }
    }

    let start_ns = who::process_start(task);
    match PROCESSES.get_ptr_mut(tgid) {
        // SAFETY: the pointer comes from a map look-up; an aligned word is written whole.
        Some(process) if unsafe { (*process).start_ns } == start_ns => unsafe { (*process).exec_id = id },
        _ => {
            let parent: u64 = read(task, kernel::task_real_parent());
            let process = Process {
                start_ns,
                parent_start_ns: who::process_start(parent),
                exec_id: id,
                parent_tgid: read(parent, kernel::task_tgid()),
                padding: 0,
            };
            if PROCESSES.insert(tgid, process, 0).is_err() {
                maps::count(Counter::ProcessLost);
            }
        }
    }

    if let Some(entry) = managed::lookup(inode) {
        // SAFETY: the entry comes from a map look-up in this run.
        unsafe {
            if (*entry).roles & ROLE_FILE != 0 {
                managed::push(entry, Operation::Exec as u32, id, Pointer::NULL);
            }
        }
    }
    0
}

/// Everything of an execution that comes from the task.
///
/// # Safety
/// `execution` must come from a map look-up in this program run.
#[inline(always)]
unsafe fn fill(execution: *mut Execution, task: u64, id: u64) {
    let cred: u64 = read(task, kernel::task_cred());
    let proxy: u64 = read(task, kernel::task_nsproxy());
    let (login_uid, session) = who::login(task);
    let signal: u64 = read(task, kernel::task_signal());
    let tty: u64 = read(signal, kernel::signal_tty());
    let mm: u64 = read(task, kernel::task_mm());
    let start: u64 = read(mm, kernel::mm_arg_start());
    let end: u64 = read(mm, kernel::mm_arg_end());
    let length = end.saturating_sub(start);
    let take = if length > ARGV_BYTES as u64 { ARGV_BYTES as u64 } else { length } as u32;
    // SAFETY: the caller hands over a whole map value; the helpers check the addresses they read from.
    unsafe {
        (*execution).id = id;
        (*execution).at_ns = bpf_ktime_get_boot_ns();
        (*execution).cgroup = who::cgroup(task);
        (*execution).mount_namespace = who::mount_namespace(proxy);
        let pid_namespace: u64 = read(proxy, kernel::nsproxy_pid());
        (*execution).pid_namespace = read(pid_namespace, kernel::pid_namespace_ns() + kernel::ns_inum());
        (*execution).uid = read(cred, kernel::cred_euid());
        (*execution).gid = read(cred, kernel::cred_egid());
        (*execution).login_uid = login_uid;
        (*execution).session = session;
        (*execution).tty = [0; 16];
        if tty != 0 {
            (*execution).tty = read(tty, kernel::tty_name());
        }
        (*execution).argv_cut = u32::from(length > ARGV_BYTES as u64);
        (*execution).argv_length = take;
        let read = bpf_probe_read_user((&raw mut (*execution).argv).cast(), take, start as *const _);
        if read != 0 {
            (*execution).argv_length = 0;
        }
    }
}
