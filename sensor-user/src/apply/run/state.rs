//! One apply in progress: its parts, and how far it may go.

use crate::{
    apply::{
        error::ApplyError, interrupts::Interrupts, password::ShadowLock, preflight::Mco, request::Options,
        tie::Tie,
    },
    observation::Observer,
    store::{JournalFile, Store},
};
use sensor_model::{
    journal::{
        ActKind, Begin, Boot, Brings, Ended, Target,
        machine::{Machine, Outcome},
    },
    node_state::{NodeEvent, Wait},
};
use std::{collections::BTreeSet, ffi::OsString, path::PathBuf};

/// Told how it goes on, one line for each step.
pub(in crate::apply) type Progress<'a> = &'a mut dyn FnMut(&str);

/// Who takes note of what happens, besides the journal.
pub(in crate::apply) trait RunNotes {
    /// The node's state changes.
    fn happened(&mut self, event: NodeEvent, reason: &str, waiting_for: &str);
    /// It waits for something, in the same state.
    fn waits(&mut self, wait: Wait, what: &str);
    /// What an update of the OS took back is about to be put again.
    fn put_again(&mut self, target: &Target) -> Result<(), ApplyError>;
    /// The config that holds now becomes the current one, and the history says so. May be called twice.
    fn commit(&mut self, ended: Ended, machine: &Machine) -> Result<(), ApplyError>;
}

/// One apply under way.
#[derive(Debug)]
pub(in crate::apply) struct Run<'a> {
    pub(in crate::apply) observer: &'a Observer,
    pub(in crate::apply) store: &'a Store,
    pub(in crate::apply) begin: &'a Begin,
    /// What is put again after an update of the OS, numbered behind the journal's targets.
    pub(in crate::apply) again: &'a [Target],
    pub(in crate::apply) machine: Machine,
    /// Absent until the first record is written.
    pub(in crate::apply) journal: Option<JournalFile>,
    /// Kept from the reading of the shadow file until it is written.
    pub(in crate::apply) shadow: Option<ShadowLock>,
    /// How far it may go now.
    pub(in crate::apply) reach: ResumeLimit,
    /// The boot that runs.
    pub(in crate::apply) boot: &'a Boot,
    /// How it stands with the daemon.
    pub(in crate::apply) tie: Tying,
    /// And with the Machine Config Operator's.
    pub(in crate::apply) mco: Mco<'a>,
    /// What was told last that it waits for.
    pub(in crate::apply) waits: Option<(Wait, String)>,
    /// Steps may have been taken since the disks were last made durable; also by a process that is dead.
    pub(in crate::apply) unsynced: bool,
    /// Paths that are a directory before or after it, and something else on the other side.
    pub(in crate::apply) changing: BTreeSet<PathBuf>,
    /// It did not change the OS because [`ResumeLimit::NoOsChange`] forbids that.
    pub(in crate::apply) refused_os_change: bool,
    /// Signals that ask it to stop.
    pub(in crate::apply) interrupts: Option<&'a Interrupts>,
    /// What the drift policy left alone in the comparison.
    pub(in crate::apply) tolerated: Vec<String>,
}

/// How far an apply may go now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumeLimit {
    /// To its end, with the reboot that it needs.
    None,
    /// Only paths that an update of the OS replaced are written again: what starts next reads them.
    BeforeServices,
    /// As far as possible without a reboot.
    NoReboot,
    /// As far as possible without a reboot and without a change of the OS. The daemon's service has no right to what the
    /// tools for that do: they make namespaces and mount.
    NoOsChange,
}

/// What waits for a reboot after a soft one says so: that left the kernel running, or was not what was to come.
pub(super) const NOT_BY_SOFT: &str =
    "; the soft reboot since then has not brought the new OS or its kernel arguments";

/// What leaves the OS as it is says so.
pub(super) const NO_OS: &str = "the daemon changes no OS; `holdfast apply --resume` does it";

/// The daemon beside us.
#[derive(Debug)]
pub(in crate::apply) enum Tying {
    /// It is to be told before anything is written; this is the state directory.
    Due(PathBuf),
    /// It was told, where there is one, and learns of our end by the end of this.
    Told { _tie: Option<Tie> },
    /// We are the daemon.
    Never,
}

impl Tying {
    /// As the options want it.
    pub(in crate::apply) fn of(options: &Options) -> Self {
        if options.asks_daemon { Self::Due(options.state.clone()) } else { Self::Never }
    }
}

/// What is waited for at first.
pub(super) const WRITTEN: &str = "files to be written";

impl Run<'_> {
    /// A target of the journal, or behind those one that is put again.
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
        self.begin.acts[act].kind == ActKind::Os
    }

    /// Whether the boot in which it began is over.
    pub(super) fn booted_since(&self) -> bool {
        self.begin.boot.is_over(self.boot, Brings::Services)
    }
}

/// The answer to the machine where something failed.
pub(super) fn failed(error: impl Into<ApplyError>) -> Outcome {
    Outcome::Failed(error.into().to_string())
}
