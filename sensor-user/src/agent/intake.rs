//! What the loop needs to read changes: who a process is, and how many changes were lost.
//!
//! In: records of the ring, the kernel's loss counters. Out: actors, and the losses since the last call.

use super::lost_entries::{Entry, LostEntries};
use super::reports::{AgentEvent, LossStage, Reports};
use super::verifier::Witness;
use crate::attribution::{Attributor, ProcessTable};
use crate::event::Change;
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

/// What changes are read with.
pub(super) struct Intake {
    pub(super) processes: Box<dyn ProcessTable>,
    pub(super) attributor: Attributor,
    /// The kernel's loss counters when they were last read.
    lost_records: u64,
    lost_processes: u64,
    lost_entries: LostEntries,
}

impl Intake {
    /// With the losses that were reported before.
    pub(super) fn new(
        processes: Box<dyn ProcessTable>,
        attributor: Attributor,
        [lost_records, lost_processes]: [u64; 2],
    ) -> Self {
        Self { processes, attributor, lost_records, lost_processes, lost_entries: LostEntries::default() }
    }

    /// Who made a change.
    pub(super) fn actor(&mut self, change: &Change) -> Actor {
        self.attributor.attribute(&change.record, &*self.processes)
    }

    /// The losses that were reported, for the next run of the loop.
    pub(super) fn losses(&self) -> [u64; 2] {
        [self.lost_records, self.lost_processes]
    }

    /// Changes whose record was lost, in all.
    pub(super) fn lost_records(&self) -> u64 {
        self.lost_records
    }

    /// Reads the loss counters after the ring was drained. Gives the kernel's count of lost records, and how many are new.
    pub(super) fn count_losses(
        &mut self,
        witness: &mut Witness,
        reports: &mut dyn Reports,
    ) -> Result<(u64, u64), MapsError> {
        let lost = witness.maps().count(Counter::Lost)?;
        let processes = witness.maps().count(Counter::ProcessLost)?;
        let missing = processes.saturating_sub(self.lost_processes);
        reports.report(AgentEvent::ChangesLost(LossStage::Process, "full", missing));
        self.lost_processes = processes;
        let before = std::mem::replace(&mut self.lost_records, lost);
        Ok((lost, lost.saturating_sub(before)))
    }

    /// Inodes that changed since they were last looked at, or lost a record.
    pub(super) fn changed_entries(&mut self, witness: &mut Witness) -> Vec<Entry> {
        self.lost_entries.take(witness.maps().entries())
    }
}
