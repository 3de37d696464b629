//! The loop's state: the parts that it runs over.
//!
//! In: the parts of one run. Out: what several files of the loop do with them. A part knows only the parts that its methods
//! take; what needs more of them is done by the loop.

use super::apply_tracker::Follow;
use super::blindness::Blindness;
use super::denials::Denials;
use super::holdfast_writers::Writers;
use super::hooks::Hooks;
use super::intake::Intake;
use super::mounts::Mounts;
use super::options::Options;
use super::run_end::Ended;
use super::verdicts::Verdicts;
use super::verifications::Looks;
use super::write_back::WriteBack;

/// One run of the loop, from one config to the next.
pub(super) struct Agent {
    pub(super) options: Options,
    /// Changes as they arrive.
    pub(super) intake: Intake,
    pub(super) mounts: Mounts,
    pub(super) blindness: Blindness,
    pub(super) looks: Looks,
    pub(super) hooks: Hooks,
    pub(super) denials: Denials,
    /// What follows from changes and looks.
    pub(super) verdicts: Verdicts,
    /// Processes of Holdfast that write.
    pub(super) writers: Writers,
    /// Applies of configs.
    pub(super) follow: Follow,
    pub(super) write_back: Box<dyn WriteBack>,
    /// Why the loop ends, once it does.
    pub(super) ended: Option<Ended>,
}

impl Agent {
    /// Updates the kernel's list of the actors that deny rules allow.
    pub(super) fn refresh_allowed(&mut self) {
        self.denials.refresh(&self.options.inputs.root, &mut self.looks.looker, self.writers.processes());
    }

    /// Reports the records of this turn, and the numbers after it.
    pub(super) fn write(&mut self) {
        let tally = self.verdicts.tally(self.intake.lost_records(), self.looks.is_verifying());
        let Verdicts { reports, records, .. } = &mut self.verdicts;
        reports.end_turn(records, &tally);
    }

    /// Reports that the loop works, and records what was counted over a time.
    pub(super) fn beat(&mut self) {
        let tally = self.verdicts.tally(self.intake.lost_records(), self.looks.is_verifying());
        self.verdicts.reports.beat(&tally);
        let now = self.verdicts.now();
        self.record_counts(now);
    }

    /// Records what was only counted in windows that ended by a time; with `u64::MAX` in all of them.
    pub(super) fn record_counts(&mut self, by: u64) {
        self.denials.record_counts(by, &mut self.looks.looker, &mut self.verdicts);
    }
}
