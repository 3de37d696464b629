//! The comparison of the host with a config.
//!
//! In: expectations, the drift policy and the host. Out: every difference as text; tolerated ones are listed apart. The daemon and
//! `check` observe and compare in the same way.

use super::password;
use crate::{
    bounded::{self, Unreadable},
    desired,
    observation::Observer,
    repair::Restorer,
};
use nix::fcntl::OFlag;
use sensor_model::{
    compare::Ids,
    drift_policy::{DriftAction, DriftPolicy},
    expectation::Expectation,
    merge::Rendered,
};
use std::{path::Path, sync::Arc};

/// The things that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ComparedThings {
    /// Also the booted OS and the kernel arguments.
    WithOs,
    /// Only things on the disk, for a root that is not booted.
    Disk,
}

impl ComparedThings {
    /// By whether acts are run.
    pub(super) fn of(acts: bool) -> Self {
        if acts { Self::WithOs } else { Self::Disk }
    }
}

/// How a host differs from a config.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differences {
    /// Drift.
    pub problems: Vec<String>,
    /// Differences that the drift policy ignores or only observes, with the rule.
    pub tolerated: Vec<String>,
}

/// The rule by which drift of a path neither stops an apply nor causes a rollback; `None` without such a rule.
fn tolerance(policy: &DriftPolicy, path: &Path) -> Option<String> {
    let decision = policy.decide(path, None);
    let action = match decision.action {
        DriftAction::Ignore => "ignore",
        DriftAction::Observe => "observe",
        DriftAction::Degrade | DriftAction::Revert | DriftAction::Deny => return None,
    };
    let (_, origin) = decision.rule?;
    Some(format!("`{action}` in the drift policy {origin}"))
}

/// Compares a host with a config.
#[derive(Debug)]
pub(super) struct HostComparer<'a> {
    observer: Arc<Observer>,
    restorer: Restorer,
    rendered: &'a Rendered,
    policy: &'a DriftPolicy,
    os_counts: bool,
    expectations: Vec<Expectation>,
    ids: Ids,
}

impl<'a> HostComparer<'a> {
    pub(super) fn new(
        observer: &Arc<Observer>,
        root: &Path,
        rendered: &'a Rendered,
        policy: &'a DriftPolicy,
        mut expectations: Vec<Expectation>,
        scope: ComparedThings,
    ) -> Self {
        expectations.retain(|expectation| {
            let thing = &expectation.thing;
            !thing.changes_with_a_boot()
                || (scope == ComparedThings::WithOs && observer.unchecked(thing).is_none())
        });
        let ids = desired::complete(&mut expectations, policy, &**observer);
        let restorer = Restorer::new(Arc::clone(observer), root);
        let observer = Arc::clone(observer);
        Self { observer, restorer, rendered, policy, os_counts: false, expectations, ids }
    }

    /// Whether a difference of the booted OS is drift under every drift policy, because the apply changes the OS.
    pub(super) fn with_os_counted(self, os_counts: bool) -> Self {
        Self { os_counts, ..self }
    }

    /// Every difference.
    pub(super) async fn compare(&mut self) -> Differences {
        let mut found = Differences::default();
        for expectation in &self.expectations {
            let (_, differences) = self.restorer.observe_and_compare(expectation, &self.ids).await;
            let differences = differences.into_iter().map(|difference| difference.text);
            if self.os_counts && expectation.thing.changes_with_a_boot() {
                found.problems.extend(differences);
            } else {
                sort(self.policy, &expectation.thing.path(), differences, &mut found);
            }
        }
        sort(self.policy, Path::new(password::SHADOW), self.passwords(), &mut found);
        found
    }

    fn passwords(&self) -> Option<String> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK;
        let opened = self.observer.root().open_at(Path::new(password::SHADOW), flags);
        let read =
            opened.map_err(Unreadable::from).and_then(|file| bounded::read_open(file, bounded::ACCOUNTS));
        // A file that cannot be read counts as one without hashes, and the missing hash is reported.
        let shadow = read.unwrap_or_default();
        let user = password::missing(self.rendered, &shadow)?;
        Some(format!("password hash mismatch for user {user:?}"))
    }
}

/// Adds differences of a path to the drift, or to the tolerated ones.
pub(super) fn sort(
    policy: &DriftPolicy,
    path: &Path,
    differences: impl IntoIterator<Item = String>,
    found: &mut Differences,
) {
    match tolerance(policy, path) {
        None => found.problems.extend(differences),
        Some(why) => {
            found.tolerated.extend(differences.into_iter().map(|difference| format!("{difference} ({why})")));
        }
    }
}
