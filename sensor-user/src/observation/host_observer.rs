//! Complete observations of the host's things, for commands and applies.
//!
//! In: an expectation. Out: the observation of its thing. The state of a unit comes from the running systemd if it answers, else from
//! the links on the disk. Another process observes what is on file systems whose server may not answer.

#[cfg(test)]
mod tests;

use super::{Observed, Observer, Served, worker};
use crate::systemd::UnitStates;
use sensor_model::{
    expectation::{Expectation, Thing},
    observation::Observation,
};
use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The source of a unit's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitSource {
    /// The manager, over its socket or the bus.
    Manager,
    /// The links on the disk.
    Links,
}

/// Observes the things of one host.
#[derive(Debug)]
pub struct HostObserver {
    observer: Arc<Observer>,
    root: PathBuf,
    units: UnitStates,
    /// File systems whose server did not answer. With `None` it does not wait for servers.
    hung: Option<HashSet<Served>>,
}

impl HostObserver {
    /// The host at `root`.
    pub fn new(observer: Arc<Observer>, root: &Path) -> Self {
        Self { observer, units: UnitStates::new(root), root: root.to_owned(), hung: None }
    }

    /// From now on an observation waits a few seconds for a file system with a server.
    pub fn wait_for_servers(&mut self) {
        self.hung.get_or_insert_default();
    }

    /// The running systemd.
    pub(crate) fn units(&mut self) -> &mut UnitStates {
        &mut self.units
    }

    /// Lets another process observe a thing that the observer may not touch.
    fn ask(&mut self, served: Served, expectation: &Expectation) -> Observation {
        let hung = self.hung.get_or_insert_default();
        let path = expectation.thing.path();
        let asked = if hung.contains(&served) {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            worker::ask(&self.root, expectation, worker::patience(expectation))
        };
        asked.unwrap_or_else(|error| {
            hung.insert(served);
            let reason = match error.kind() {
                io::ErrorKind::TimedOut => "its file system does not answer".to_owned(),
                _ => format!("the process that observes it failed: {error}"),
            };
            Observation::Unreadable { error: format!("{}: {reason}", path.display()) }
        })
    }

    /// Observes a thing. The state of a unit comes from the manager if it answers.
    pub async fn observe(&mut self, expectation: &Expectation) -> (Observed, UnitSource) {
        let mut observed = self.observer.observe(expectation);
        if let (Some(served), Some(_)) = (observed.served, &self.hung) {
            observed.observation = self.ask(served, expectation);
        }
        let mut source = UnitSource::Links;
        if let (Thing::Unit { name }, Observation::Unit(unit)) =
            (&expectation.thing, &mut observed.observation)
            && let Some(state) = self.units.state(name).await
        {
            unit.file_state = state;
            source = UnitSource::Manager;
        }
        (observed, source)
    }
}
