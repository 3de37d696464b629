//! Whether the host is what a config says: the sensor's compare over everything.
//!
//! In: expectations and the host. Out: every difference in words. The same look as the daemon's and as `check`'s.

use super::password;
use crate::{
    agent::desired,
    bounded::{self, Unreadable},
    observation::Observer,
    repair::Restorer,
};
use nix::fcntl::OFlag;
use sensor_model::{
    compare::Ids,
    expectation::{Expectation, Thing},
    merge::Rendered,
};
use std::{path::Path, sync::Arc};

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Also what is booted.
    WithOs,
    /// Only what is on the disk: nothing is run, so nothing is booted either.
    Disk,
}

impl What {
    /// By whether acts are run.
    pub(super) fn of(acts: bool) -> Self {
        if acts { Self::WithOs } else { Self::Disk }
    }
}

/// Compares a host with a config.
#[derive(Debug)]
pub(super) struct Verifier<'a> {
    observer: Arc<Observer>,
    restorer: Restorer,
    rendered: &'a Rendered,
    expectations: Vec<Expectation>,
    ids: Ids,
}

impl<'a> Verifier<'a> {
    pub(super) fn new(
        observer: &Arc<Observer>,
        root: &Path,
        rendered: &'a Rendered,
        mut expectations: Vec<Expectation>,
        what: What,
    ) -> Self {
        let of_os = |thing: &Thing| matches!(thing, Thing::KernelArguments | Thing::OsImage);
        expectations.retain(|expectation| {
            let thing = &expectation.thing;
            !of_os(thing) || (what == What::WithOs && observer.unchecked(thing).is_none())
        });
        let ids = desired::known(&mut expectations, &desired::policy_of_the_service(root), observer);
        let restorer = Restorer::new(Arc::clone(observer), root);
        Self { observer: Arc::clone(observer), restorer, rendered, expectations, ids }
    }

    /// Every difference.
    pub(super) async fn verify(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for expectation in &self.expectations {
            let (_, differences) = self.restorer.look(expectation, &self.ids).await;
            problems.extend(differences.into_iter().map(|difference| difference.text));
        }
        problems.extend(self.passwords());
        problems
    }

    fn passwords(&self) -> Option<String> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK;
        let opened = self.observer.root().open_at(Path::new(password::SHADOW), flags);
        let read =
            opened.map_err(Unreadable::from).and_then(|file| bounded::read_open(file, bounded::ACCOUNTS));
        // What cannot be read has no hash in it, which is then said.
        let shadow = read.unwrap_or_default();
        let user = password::missing(self.rendered, &shadow)?;
        Some(format!("password hash mismatch for user {user:?}"))
    }
}
