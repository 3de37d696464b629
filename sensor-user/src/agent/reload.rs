//! Another config or policy, without an end of detection.
//!
//! In: a hang-up signal, and the files that the daemon was started with. Out: the reason for which a run of the
//! loop ends, and what the next one has to know of it. A set of files with a mistake changes nothing.

use super::Agent;
use super::budgets::Budgets;
use super::deny::DenyRules;
use super::open_drift::Drifts;
use super::episode::Noted;
use super::refusals::KernelsCounts;
use super::served::Workers;
use crate::desired::{Desired, DesiredError, apart};
use crate::report::forensic;
use sensor_model::expectation::Thing;
use sensor_model::protocol::Scope;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Entries of the forensic log are missing, and with them what they say of changes.
pub(super) const LOG_CUT: &str = "forensic-log-cut";

/// Why a run of the loop ends.
#[derive(Debug)]
pub(super) enum Ended {
    /// The daemon was told to stop.
    Stopped,
    /// An apply is over, or its process left it.
    Applied,
    /// The programs run, which they did not when the daemon started: now there are names for what is watched.
    Seeing,
    /// The programs do not answer any more. Others can be loaded only by a process that has not given up its capabilities.
    Silent,
    /// Other configs or policies were read.
    Reloaded(Box<Desired>),
}

/// What the next run has to know.
#[derive(Default)]
pub(super) struct Carried {
    /// Who changed what has no verdict yet.
    changes: HashMap<Thing, Noted>,
    /// Why nothing is seen.
    blindness: Option<String>,
    /// Drifts that are open, and those that were before and are still to be looked at.
    drifts: Drifts,
    /// Rules that the kernel knows.
    deny: DenyRules,
    /// The kernel's counts of what was lost, as they were told.
    lost: [u64; 2],
    /// What users have filled of the log.
    pub(super) budgets: Budgets,
    /// Refusals that the kernel counted, as they were told.
    pub(super) untold: KernelsCounts,
    /// The log lacks entries that the last daemon wrote.
    pub(super) log_was_cut: bool,
    /// Processes that could not be ended.
    pub(super) workers: Option<Workers>,
}

impl Carried {
    /// What a daemon begins with: drifts that were open when the last one ended.
    pub(super) fn of_log(log: &Path) -> Self {
        let open = forensic::open_drifts(log).unwrap_or_else(|error| {
            // A log that is not there yet is no error of ours; any other is told when it is opened.
            tracing::warn!(%error, "Drifts that were open are told anew.");
            BTreeMap::new()
        });
        Self { drifts: Drifts::of_log(open), ..Self::default() }
    }

    /// Nothing is seen from the beginning.
    pub(super) fn blind(&mut self, reason: &str) {
        self.blindness = Some(reason.to_owned());
    }

    /// Takes out what an agent is built with.
    pub(super) fn parts(&mut self) -> (Drifts, DenyRules, [u64; 2]) {
        (std::mem::take(&mut self.drifts), std::mem::take(&mut self.deny), self.lost)
    }
}

impl Agent {
    /// Reads configs and policies again. The loop ends if they say something else than before.
    pub(super) fn reload(&mut self) {
        if self.follow.is_at_work() {
            tracing::info!("Configs and policies are read again when the apply under way is over.");
            return;
        }
        if let Some((apply, config)) = self.follow.counts() {
            tracing::warn!(
                apply,
                config = %config.display(),
                "Policies are read again, and of configs the one that was applied last, which counts and not --config; \
                 another one comes with `holdfast apply`."
            );
        }
        let inputs = self.options.inputs.as_given();
        let is_kept = self.options.inputs.is_replaced();
        match apart::load(&inputs, &*self.looker.observer) {
            Ok(desired) if desired.nothing && !self.desired.nothing && !inputs.allow_empty => {
                let error = DesiredError::DeclaresNothing;
                tracing::error!(%error, "Configs and policies stay as they were.");
                self.telemetry.reloaded(false);
            }
            Ok(desired) if !is_kept && is_same(&desired, &self.desired) => {
                tracing::info!("Configs and policies were read again; they say what they said before.");
                self.desired.labels = desired.labels;
                self.telemetry.reloaded(true);
            }
            Ok(desired) => {
                let things = desired.expectations.len();
                tracing::info!(
                    things,
                    "Configs and policies were read again; the daemon begins anew with them."
                );
                self.telemetry.reloaded(true);
                self.ended = Some(Ended::Reloaded(Box::new(desired)));
            }
            Err(error) => {
                tracing::error!(%error, "Configs and policies stay as they were.");
                self.telemetry.reloaded(false);
            }
        }
    }

    /// What the next run has to know of this one.
    pub(super) fn carry(&mut self) -> Carried {
        let expectations = &self.desired.expectations;
        let changes = std::mem::take(&mut self.changes).into_iter();
        Carried {
            changes: changes
                .filter_map(|(id, noted)| Some((expectations.get(id as usize)?.thing.clone(), noted)))
                .collect(),
            blindness: self.blindness.take().map(|(_, reason)| reason),
            drifts: std::mem::take(&mut self.drifts).carry(),
            deny: std::mem::take(&mut self.deny),
            lost: [self.lost_records, self.lost_processes],
            budgets: std::mem::take(&mut self.budgets),
            untold: std::mem::take(&mut self.untold),
            log_was_cut: false,
            workers: None,
        }
    }

    /// Goes on where the last run ended.
    pub(super) fn take_over(&mut self, carried: Carried) {
        let mut changes = carried.changes;
        for (id, expectation) in (0..).zip(&self.desired.expectations) {
            if let Some(noted) = changes.remove(&expectation.thing) {
                self.changes.insert(id, noted);
            }
        }
        if let Some(reason) = carried.blindness {
            self.blind(&reason);
        }
        if carried.log_was_cut {
            let told = self.detector.open_gap(Scope::All, LOG_CUT, self.clock.boot_ns());
            self.tell(told, None);
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
