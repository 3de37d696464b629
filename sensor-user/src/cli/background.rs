//! What the processes share that work for the daemon in the background.

use rustix::process::{Signal, set_parent_process_death_signal};
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

/// Ends with the daemon, and runs only when nothing else wants the processor. The kernel gives such a process idle I/O, too.
pub(super) fn give_way() {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        tracing::warn!(%error, "This process may outlive the daemon until its work is done.");
    }
    let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    if let Err(error) = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle) {
        tracing::warn!(?error, "This process runs with the usual priority.");
    }
}
