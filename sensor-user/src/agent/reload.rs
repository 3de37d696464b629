//! Another config or policy, without an end of detection.
//!
//! In: a hang-up signal, and the files that the daemon was started with. Out: the reason for which a run of the loop ends, and
//! what the next run has to know of it. A set of files with a mistake changes nothing.

use super::budgets::Budgets;
use super::denials::KernelCounts;
use super::deny_rules::DenyRules;
use super::episode::Episode;
use super::reasons::LOG_CUT;
use super::reports::AgentEvent;
use super::run_end::Ended;
use super::state::Agent;
use super::workers::Workers;
use crate::desired::{Desired, DesiredError, apart};
use sensor_model::expectation::Thing;
use sensor_model::protocol::Scope;
use std::collections::HashMap;

/// What the next run has to know.
#[derive(Default)]
pub(super) struct Carried {
    /// Who changed each thing that has no verdict yet.
    episodes: HashMap<Thing, Episode>,
    /// Why changes are not seen.
    blindness: Option<String>,
    /// Rules that the kernel knows.
    pub(super) rules: DenyRules,
    /// The kernel's counts of losses that were reported.
    pub(super) losses: [u64; 2],
    /// What users have filled of the log.
    pub(super) budgets: Budgets,
    /// Refusals that the kernel counted and that were reported.
    pub(super) in_kernel: KernelCounts,
    /// The log lacks entries that an earlier daemon wrote.
    pub(super) log_is_cut: bool,
    /// Processes that could not be ended.
    pub(super) workers: Option<Workers>,
}

impl Carried {
    /// What a daemon starts with.
    pub(super) fn at_start(log_is_cut: bool) -> Self {
        Self { log_is_cut, ..Self::default() }
    }

    /// Changes are not seen from the beginning.
    pub(super) fn blind(&mut self, reason: &str) {
        self.blindness = Some(reason.to_owned());
    }
}

impl Agent {
    /// Reads configs and policies again. The loop ends if they differ from before.
    pub(super) fn reload(&mut self) {
        if self.follow.is_at_work() {
            tracing::info!("An apply goes on: configs and policies are read again when it is over.");
            return;
        }
        if let Some((apply, config)) = self.follow.applied() {
            tracing::warn!(
                apply,
                config = %config.display(),
                "Reading the policies again, and the config that was applied last. `--config` is ignored; use `holdfast apply` \
                 for another config."
            );
        }
        let inputs = self.options.inputs.as_given();
        let is_kept = self.options.inputs.is_replaced();
        let read = apart::load(&inputs, &*self.looks.looker.observer);
        let (desired, reports) = (&mut self.verdicts.desired, &mut self.verdicts.reports);
        match read {
            Ok(new) if new.nothing && !desired.nothing && !inputs.allow_empty => {
                let error = DesiredError::DeclaresNothing;
                tracing::error!(%error, "Configs and policies stay as they were.");
                reports.report(AgentEvent::ConfigsRead(false));
            }
            Ok(new) if !is_kept && is_same(&new, desired) => {
                tracing::info!("Read configs and policies again: nothing changed.");
                desired.labels = new.labels;
                reports.report(AgentEvent::ConfigsRead(true));
            }
            Ok(new) => {
                let things = new.expectations.len();
                tracing::info!(
                    things,
                    "Read configs and policies again: the daemon begins a new run with them."
                );
                reports.report(AgentEvent::ConfigsRead(true));
                self.ended = Some(Ended::Reloaded(Box::new(new)));
            }
            Err(error) => {
                tracing::error!(%error, "Configs and policies stay as they were.");
                reports.report(AgentEvent::ConfigsRead(false));
            }
        }
    }

    /// What the next run has to know of this one.
    pub(super) fn carry(&mut self) -> Carried {
        let expectations = &self.verdicts.desired.expectations;
        let episodes = std::mem::take(&mut self.verdicts.episodes).into_iter();
        let episodes = episodes
            .filter_map(|(id, noted)| Some((expectations.get(id as usize)?.thing.clone(), noted)))
            .collect();
        let (rules, budgets, in_kernel) = self.denials.carry();
        Carried {
            episodes,
            blindness: self.blindness.take_reason(),
            rules,
            losses: self.intake.losses(),
            budgets,
            in_kernel,
            log_is_cut: false,
            workers: None,
        }
    }

    /// Goes on where the last run ended.
    pub(super) fn take_over(&mut self, mut carried: Carried) {
        let Self { verdicts, blindness, .. } = self;
        for (id, expectation) in (0..).zip(&verdicts.desired.expectations) {
            if let Some(noted) = carried.episodes.remove(&expectation.thing) {
                verdicts.episodes.insert(id, noted);
            }
        }
        if let Some(reason) = carried.blindness {
            blindness.blind(&reason, verdicts);
        }
        if carried.log_is_cut {
            verdicts.open_gap(Scope::All, LOG_CUT);
        }
    }
}

fn is_same(one: &Desired, other: &Desired) -> bool {
    one.expectations == other.expectations
        && one.policy == other.policy
        && one.ids == other.ids
        && one.sources == other.sources
        && one.waiting == other.waiting
}
