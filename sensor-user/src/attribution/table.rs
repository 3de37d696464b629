//! The table of processes that attribution reads. `agent::intake` implements it for the kernel's maps.

use sensor_common::map::{Execution, Process};

/// Processes and executions that the kernel programs have stored, also ended ones.
pub trait ProcessTable {
    /// The newest process of that number.
    fn process(&self, tgid: u32) -> Option<Process>;
    /// An execution by its number; `None` if a later one has its slot.
    fn execution(&self, exec_id: u64) -> Option<Execution>;
    /// The path of a control group by its number, if it was created while the sensor ran. It may have been removed since.
    fn group(&self, id: u64) -> Option<String>;
}

/// An empty table, for the fanotify backend, which knows processes only from procfs.
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
