//! The table of processes that attribution reads.

use sensor_common::map::{Execution, Process};

/// What the kernel programs know of processes, exited ones included.
pub trait ProcessTable {
    /// The newest process of that number.
    fn process(&self, tgid: u32) -> Option<Process>;
    /// An execution by its number; `None` when its slot went to a later one.
    fn execution(&self, exec_id: u64) -> Option<Execution>;
    /// Path of a control group by its number, if it was made while the sensor ran; it may be gone.
    fn group(&self, id: u64) -> Option<String>;
}

/// A table that knows nothing: for the fanotify backend, where only procfs can tell.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTable;

impl ProcessTable for NoTable {
    fn process(&self, _tgid: u32) -> Option<Process> {
        None
    }

    fn execution(&self, _exec_id: u64) -> Option<Execution> {
        None
    }

    fn group(&self, _id: u64) -> Option<String> {
        None
    }
}
