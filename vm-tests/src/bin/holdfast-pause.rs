//! The first process of each pod in the tests. It keeps the pod's namespaces until a signal ends it, and takes the exit
//! status of the pod's processes whose parents have ended.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

fn main() -> nix::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD] {
        signals.add(signal);
    }
    // A blocked signal waits for `wait`, also one that the first process of a namespace would otherwise never get.
    signals.thread_block()?;
    while signals.wait()? == Signal::SIGCHLD {
        // One signal may be for several processes.
        while let Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) =
            waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG))
        {}
    }
    Ok(())
}
