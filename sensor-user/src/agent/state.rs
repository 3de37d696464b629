//! The loop's state: its parts.
//!
//! In: the parts of one run. Out: what several files of the loop do with them. It owns the parts, the options and the reason to
//! end. A part calls only the parts that its methods take. The loop does what needs more of them.

use super::apply_tracker::ApplyTracker;
use super::blindness::Blindness;
use super::denials::DenialRecorder;
use super::evaluation::Evaluation;
use super::expected_digests::ExpectedDigests;
use super::holdfast_writers::HoldfastWriters;
use super::hooks::Hooks;
use super::image_scan::{ImageIndexing, ImageScan};
use super::intake::Intake;
use super::mounts::MountTracker;
use super::options::AgentOptions;
use super::ordered_reverts::RevertOrders;
use super::run_end::RunEnd;
use super::verdicts::Verdicts;
use super::verifications::Verifications;
use super::write_back::WriteBack;

/// One run of the loop, from one config to the next.
pub(super) struct Agent {
    pub(super) options: AgentOptions,
    /// Actors of changes, and lost records.
    pub(super) intake: Intake,
    /// The mount table.
    pub(super) mounts: MountTracker,
    /// Whether changes arrive at all.
    pub(super) blindness: Blindness,
    /// Observations of things, with the kernel's evidence.
    pub(super) verifications: Verifications,
    /// The attached programs.
    pub(super) hooks: Hooks,
    /// Deny rules, and what they refused.
    pub(super) denials: DenialRecorder,
    /// The verdict of each thing, and the records of this turn.
    pub(super) verdicts: Verdicts,
    /// Other processes of Holdfast that write managed paths.
    pub(super) holdfast_writers: HoldfastWriters,
    /// The digests of what this run expects.
    pub(super) expected_digests: ExpectedDigests,
    /// The applies of configs on this host.
    pub(super) apply_tracker: ApplyTracker,
    /// The process that makes the index of the booted commit.
    pub(super) image_indexing: ImageIndexing,
    /// The process that compares what the image has and the daemon does not watch.
    pub(super) image_scan: ImageScan,
    /// Writes declared state back.
    pub(super) write_back: Box<dyn WriteBack>,
    /// Has another process write it back, if the daemon itself may not.
    pub(super) revert_orders: Option<Box<dyn RevertOrders>>,
    /// When the globs of closed directories and the sealed trees are evaluated again.
    pub(super) evaluation: Evaluation,
    /// The reason to end this run, once there is one.
    pub(super) run_end: Option<RunEnd>,
}

impl Agent {
    /// Updates the kernel's list of the actors that deny rules allow.
    pub(super) fn refresh_allowed(&mut self) {
        self.denials.refresh(
            &self.options.inputs.root,
            &mut self.verifications.verifier,
            self.holdfast_writers.processes(),
        );
    }

    /// Reports the records of this turn, and the counts after it.
    pub(super) fn end_turn(&mut self) {
        let counts = self.verdicts.count(self.intake.lost_records(), self.verifications.is_verifying());
        let Verdicts { reports, records, .. } = &mut self.verdicts;
        reports.end_turn(records, &counts);
    }

    /// Reports that the loop works, and records the counts of windows that ended.
    pub(super) fn heartbeat(&mut self) {
        let counts = self.verdicts.count(self.intake.lost_records(), self.verifications.is_verifying());
        self.verdicts.reports.beat(&counts);
        let now = self.verdicts.now();
        self.record_counts(now);
    }

    /// Records the counts of windows that ended by a time; `u64::MAX` ends all windows.
    pub(super) fn record_counts(&mut self, by: u64) {
        self.denials.record_counts(by, &mut self.verifications.verifier, &mut self.verdicts);
    }
}
