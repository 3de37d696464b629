//! Reads configs and policies again without a pause of detection, and passes state from one run to the next.
//!
//! In: a hang-up signal, and the files of the command line. Out: the reason to end this run, and the state for the next one. It owns
//! nothing. Files with an error change nothing.

use super::budgets::Budgets;
use super::denials::KernelDenialCounts;
use super::deny_rules::DenyRules;
use super::episode::Episode;
use super::evaluation::Evaluation;
use super::image_scan::{ImageIndexing, ImageScan};
use super::new_root;
use super::reports::AgentReport;
use super::run_end::RunEnd;
use super::state::Agent;
use super::workers::Workers;
use crate::desired::{Desired, DesiredError, HostFacts as _, reader_process};
use sensor_model::expectation::Thing;
use sensor_model::protocol::{GapReason, Scope, ThingId};
use std::collections::HashMap;

/// The state of the parts that one run passes to the next.
#[derive(Default)]
pub(super) struct CarriedState {
    /// The open episodes: the actors of changes without a verdict yet.
    episodes: HashMap<Thing, Episode>,
    /// Why changes do not arrive.
    blindness: Option<GapReason>,
    /// The deny rules in the kernel's maps.
    pub(super) rules: DenyRules,
    /// The kernel's loss counters, as last reported.
    pub(super) losses: [u64; 2],
    /// Each user's budget in the log.
    pub(super) budgets: Budgets,
    /// The kernel's counts of denials, as last reported.
    pub(super) kernel_counts: KernelDenialCounts,
    /// The log lacks entries that an earlier daemon wrote.
    pub(super) log_is_cut: bool,
    /// Only at the start: the root directory is another one than that of the daemon before.
    pub(super) is_new_root: bool,
    /// When the globs of closed directories and the sealed trees are evaluated again.
    pub(super) evaluation: Evaluation,
    /// The process that makes the index of the booted commit, if it still runs.
    pub(super) image_indexing: ImageIndexing,
    /// The process of the scan of the image that still exists.
    pub(super) image_scan: ImageScan,
    /// The worker processes that still exist.
    pub(super) workers: Option<Workers>,
}

impl CarriedState {
    /// The state at the start of the daemon.
    pub(super) fn at_start(log_is_cut: bool, is_new_root: bool) -> Self {
        Self { log_is_cut, is_new_root, ..Self::default() }
    }

    /// Notes that changes do not arrive from the beginning.
    pub(super) fn begin_blind(&mut self, reason: GapReason) {
        self.blindness = Some(reason);
    }
}

impl Agent {
    /// Reads configs and policies again. The loop ends if they differ from before.
    pub(super) fn reload(&mut self) {
        if self.apply_tracker.has_open_apply() {
            tracing::info!("An apply is open: the daemon reads configs and policies again after it.");
            return;
        }
        if let Some((apply, config)) = self.apply_tracker.applied() {
            tracing::warn!(
                apply,
                config = %config.display(),
                "Reading the policies and the config that was applied last. The daemon ignores `--config`; use `holdfast apply` for \
                 another config."
            );
        }
        let inputs = self.options.inputs.as_given();
        let is_kept = self.options.inputs.is_replaced();
        let read = reader_process::load(&inputs, &*self.verifications.verifier.observer);
        let (desired, reports) = (&mut self.verdicts.desired, &mut self.verdicts.reports);
        match read {
            Ok(new) if new.nothing && !desired.nothing && !inputs.allow_empty => {
                let error = DesiredError::DeclaresNothing;
                tracing::error!(%error, "Configs and policies stay as they were.");
                reports.report(AgentReport::ConfigsRead(false));
            }
            Ok(new) if !is_kept && is_same(&new, desired) => {
                tracing::info!("Read configs and policies again: nothing changed.");
                desired.labels = new.labels;
                desired.directories = new.directories;
                reports.report(AgentReport::ConfigsRead(true));
                self.watch_searched();
            }
            Ok(new) => {
                let things = new.expectations.len();
                tracing::info!(
                    things,
                    "Read configs and policies again: the daemon begins a new run with them."
                );
                reports.report(AgentReport::ConfigsRead(true));
                self.run_end = Some(RunEnd::Reloaded(Box::new(new)));
            }
            Err(error) => {
                tracing::error!(%error, "Configs and policies stay as they were.");
                reports.report(AgentReport::ConfigsRead(false));
            }
        }
    }

    /// Reads configs and policies again after the Machine Config Operator's daemon has stored another config, or the reporter has
    /// handed in other policies.
    pub(super) fn follow_files(&mut self) {
        if self.apply_tracker.has_new_files(&self.options.inputs) {
            tracing::info!(
                "The config of the Machine Config Operator's daemon or the policies of the cluster changed."
            );
            self.reload();
        }
    }

    /// Reads configs and policies again after a directory has begun or ceased to match the glob of a closed rule, or packages or indexes of
    /// images have changed.
    pub(super) fn follow_directories(&mut self) {
        let desired = &mut self.verdicts.desired;
        let observer = &self.verifications.verifier.observer;
        let now = observer.directories_version(&desired.policy, &self.options.inputs.state);
        if now == desired.directories {
            return;
        }
        // Configs with an error are not read again for the same change.
        desired.directories = now;
        tracing::info!(
            "Packages changed, or indexes of images, or findings of their scan, or directories that a glob closes."
        );
        self.reload();
    }

    /// The same after a change of a name in a directory in which a glob looks for names, or a mount at a path of the image, once it is due.
    pub(super) fn evaluate_when_due(&mut self) {
        if self.evaluation.take_due(self.verdicts.now()) {
            self.watch_searched();
            self.follow_directories();
            self.evaluation.ended(self.verdicts.now(), self.options.canary_every);
        }
    }

    /// Watches the directories in which the globs of closed directories look for names.
    fn watch_searched(&mut self) {
        let searched = &self.verdicts.desired.directories.searched;
        if let Err(error) = self.verifications.verifier.watch_searched(searched) {
            tracing::warn!(
                %error,
                "Cannot watch for new closed directories; the daemon looks for them every few seconds."
            );
        }
    }

    /// Takes the state for the next run out of the parts.
    pub(super) fn carry(&mut self) -> CarriedState {
        let expectations = &self.verdicts.desired.expectations;
        let episodes = std::mem::take(&mut self.verdicts.episodes).into_iter();
        let episodes = episodes
            .filter_map(|(thing, noted)| Some((expectations.get(thing.index())?.thing.clone(), noted)))
            .collect();
        let (rules, budgets, kernel_counts) = self.denials.carry();
        CarriedState {
            episodes,
            blindness: self.blindness.take_reason(),
            rules,
            losses: self.intake.losses(),
            budgets,
            kernel_counts,
            log_is_cut: false,
            is_new_root: false,
            evaluation: self.evaluation,
            image_indexing: std::mem::take(&mut self.image_indexing).carry(),
            image_scan: std::mem::take(&mut self.image_scan).end(),
            workers: None,
        }
    }

    /// Continues with the state of the last run.
    pub(super) fn take_over(&mut self, mut carried: CarriedState) {
        let Self { verdicts, blindness, options, .. } = self;
        for (thing, expectation) in (0..).map(ThingId).zip(&verdicts.desired.expectations) {
            if let Some(noted) = carried.episodes.remove(&expectation.thing) {
                verdicts.episodes.insert(thing, noted);
            }
        }
        if let Some(reason) = carried.blindness {
            blindness.begin(reason, verdicts);
        }
        if carried.is_new_root {
            verdicts.open_gap(Scope::All, GapReason::NewRoot);
            new_root::remove_mark(&options.run);
        }
        if carried.log_is_cut {
            verdicts.open_gap(Scope::All, GapReason::ForensicLogCut);
        }
    }
}

fn is_same(one: &Desired, other: &Desired) -> bool {
    one.expectations == other.expectations
        && one.policy == other.policy
        && one.ids == other.ids
        && one.sources == other.sources
        && one.digest == other.digest
        && one.built_from == other.built_from
        && one.waiting == other.waiting
}
