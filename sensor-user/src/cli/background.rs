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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::parent_process_death_signal;
    use std::{fs, thread};

    #[test]
    fn who_gives_way_is_in_the_idle_class_and_ends_with_its_parent() {
        /// `SCHED_IDLE` of `sched(7)`.
        const IDLE: &str = "5";
        let (policy, signal) = thread::spawn(|| {
            give_way();
            let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
            // The policy is the 41st field of `proc(5)`, and the first one after the name is the third.
            let (_, fields) = stat.rsplit_once(") ").unwrap();
            let policy = fields.split(' ').nth(41 - 3).unwrap().to_owned();
            (policy, parent_process_death_signal().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((policy.as_str(), signal), (IDLE, Some(Signal::TERM)));
    }
}
