//! The actors of changes, and the number of lost changes.
//!
//! In: ring records, the kernel's loss counters. Out: an actor for each record, and the losses since the last call. It owns the
//! table of processes, the attributor, and the counters as it last read them.

use super::kernel_programs::KernelPrograms;
use super::lost_entries::{ChangedEntry, LostEntries};
use super::reports::{AgentReport, LossReason, LossStage, Reports};
use crate::attribution::{Attributor, ProcessTable};
use crate::event::CheckedRecord;
use crate::kernel::maps::{MapsError, ProcessMaps};
use sensor_common::map::{Counter, Execution, Process};
use sensor_model::record::Actor;

impl ProcessTable for ProcessMaps {
    fn process(&self, tgid: u32) -> Option<Process> {
        Self::process(self, tgid)
    }

    fn execution(&self, exec_id: u64) -> Option<Execution> {
        Self::execution(self, exec_id)
    }

    fn group(&self, id: u64) -> Option<String> {
        Self::group(self, id)
    }
}

/// Names actors and counts losses.
pub(super) struct Intake {
    /// The kernel programs' table of processes.
    pub(super) processes: Box<dyn ProcessTable>,
    /// Names the actor of a record.
    pub(super) attributor: Attributor,
    /// The kernel's loss counters, as last read.
    lost_records: u64,
    lost_processes: u64,
    lost_entries: LostEntries,
}

impl Intake {
    /// Begins with the losses that an earlier run reported.
    pub(super) fn new(
        processes: Box<dyn ProcessTable>,
        attributor: Attributor,
        [lost_records, lost_processes]: [u64; 2],
    ) -> Self {
        Self { processes, attributor, lost_records, lost_processes, lost_entries: LostEntries::default() }
    }

    /// The actor of a change.
    pub(super) fn actor(&mut self, change: &CheckedRecord) -> Actor {
        self.attributor.attribute(&change.record, &*self.processes)
    }

    /// The reported losses, for the next run of the loop.
    pub(super) fn losses(&self) -> [u64; 2] {
        [self.lost_records, self.lost_processes]
    }

    /// How many changes lost their record, in all.
    pub(super) fn lost_records(&self) -> u64 {
        self.lost_records
    }

    /// Reads the loss counters; the caller drains the ring first. Gives the kernel's count of lost records, and how many are new.
    pub(super) fn count_losses(
        &mut self,
        kernel: &mut KernelPrograms,
        reports: &mut dyn Reports,
    ) -> Result<(u64, u64), MapsError> {
        let lost = kernel.maps().count(Counter::Lost)?;
        let processes = kernel.maps().count(Counter::ProcessLost)?;
        let missing = processes.saturating_sub(self.lost_processes);
        reports.report(AgentReport::ChangesLost(LossStage::Process, LossReason::Full, missing));
        self.lost_processes = processes;
        let before = std::mem::replace(&mut self.lost_records, lost);
        Ok((lost, lost.saturating_sub(before)))
    }

    /// The inodes that changed since their last verification, or lost a record.
    pub(super) fn changed_entries(&mut self, kernel: &mut KernelPrograms) -> Vec<ChangedEntry> {
        self.lost_entries.take(kernel.maps().entries())
    }
}
