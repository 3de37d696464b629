//! One apply in progress: its parts and its limit.
//!
//! In: the parts of the engine, and the journal's first record. Out: the struct that carries out the requests of the machine.

use super::daemon_notice::DaemonNotice;
use crate::{
    apply::{error::ApplyError, interrupts::Interrupts, operator::Mco, password::ShadowLock},
    observation::Observer,
    store::{JournalFile, Store},
};
use sensor_model::{
    journal::{
        Action, ApplyEnd, Begin, Boot, Brings, Target,
        machine::{Machine, MachineAnswer},
    },
    node_state::{Milestone, Wait},
};
use std::{collections::BTreeSet, error::Error, ffi::OsString, path::PathBuf};

/// What an apply notes besides its journal.
pub(in crate::apply) trait ApplyNotes {
    /// The apply reached a milestone, after which the node may have another state.
    fn reached(&mut self, milestone: Milestone, reason: &str, waiting_for: &str);
    /// The apply waits for something; the node's state stays.
    fn waits(&mut self, wait: Wait, what: &str);
    /// Holdfast is about to write a path again that an update of the OS overwrote.
    fn note_overwritten(&mut self, target: &Target) -> Result<(), ApplyError>;
    /// The config of the host becomes the current one, and the history gets the result. May be called twice.
    fn commit(&mut self, ended: ApplyEnd, machine: &Machine) -> Result<(), ApplyError>;
}

/// Drives one apply: carries out the requests of the journal's machine.
#[derive(Debug)]
pub(in crate::apply) struct Driver<'a> {
    pub(in crate::apply) observer: &'a Observer,
    pub(in crate::apply) store: &'a Store,
    pub(in crate::apply) begin: &'a Begin,
    /// Targets that are written again after an update of the OS, numbered after the journal's targets.
    pub(in crate::apply) again: &'a [Target],
    pub(in crate::apply) machine: Machine,
    /// Absent until the first record is written.
    pub(in crate::apply) journal: Option<JournalFile>,
    /// Held from the reading of the shadow file until it is written.
    pub(in crate::apply) shadow: Option<ShadowLock>,
    /// The limit of this process.
    pub(in crate::apply) limit: ResumeLimit,
    /// The present boot.
    pub(in crate::apply) boot: &'a Boot,
    /// What a running daemon knows of it.
    pub(in crate::apply) daemon: DaemonNotice,
    /// Whether the Machine Config Operator's daemon allows it.
    pub(in crate::apply) mco: Mco<'a>,
    /// The wait that was noted last.
    pub(in crate::apply) waits: Option<(Wait, String)>,
    /// This process or a killed one may have made edits that are not durable yet.
    pub(in crate::apply) unsynced: bool,
    /// Paths that are a directory on one side of the apply and something else on the other.
    pub(in crate::apply) changing: BTreeSet<PathBuf>,
    /// It did not change the OS, because [`ResumeLimit::NoOsChange`] does not allow it.
    pub(in crate::apply) refused_os_change: bool,
    /// Signals that may stop it.
    pub(in crate::apply) interrupts: Option<&'a Interrupts>,
    /// Differences that the drift policy tolerates.
    pub(in crate::apply) tolerated: Vec<String>,
}

/// How far a process may take an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumeLimit {
    /// To its end, with the reboot that it needs.
    Unlimited,
    /// Only write paths again that an update of the OS replaced, because services read them when they start.
    BeforeServices,
    /// As far as possible without a reboot.
    NoReboot,
    /// As far as possible without a reboot and without a change of the OS. The daemon's service may not run the tools for that,
    /// which make namespaces and mount file systems.
    NoOsChange,
}

/// The end of a message after a soft reboot, which keeps the kernel and the OS.
pub(super) const NOT_BY_SOFT: &str =
    "; the soft reboot since then has not brought the new OS or its kernel arguments";

/// Why the daemon does not change the OS.
pub(super) const NO_OS: &str = "the daemon changes no OS; `holdfast apply --resume` does it";

/// The first wait of an apply.
pub(super) const WRITTEN: &str = "files to be written";

impl Driver<'_> {
    /// A target of the journal, or after those one that is written again.
    pub(in crate::apply) fn target(&self, number: usize) -> &Target {
        let targets = &self.begin.targets;
        targets.get(number).unwrap_or_else(|| &self.again[number - targets.len()])
    }

    /// The temporary name of a target.
    pub(super) fn temporary(&self, number: usize) -> OsString {
        let path = self.target(number).temporary(self.begin.id, number);
        path.file_name().map(OsString::from).unwrap_or_default()
    }

    /// Whether an act changes the OS.
    pub(super) fn is_of_os(&self, act: usize) -> bool {
        self.begin.acts[act].kind == Action::Os
    }

    /// Whether the boot in which it began is over.
    pub(super) fn booted_since(&self) -> bool {
        self.begin.boot.is_over(self.boot, Brings::Services)
    }
}

/// The answer to the machine after a failure.
pub(super) fn failed(error: impl Error) -> MachineAnswer {
    MachineAnswer::Failed(error.to_string())
}
