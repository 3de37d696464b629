//! One apply in progress: its parts, and how far it may go.

use crate::{
    apply::{
        error::ApplyError, interrupts::Interrupts, password::ShadowLock, preflight::Mco, request::Options,
        writer_protocol::WriterConnection,
    },
    observation::Observer,
    store::{JournalFile, Store},
};
use sensor_model::{
    journal::{
        Action, ApplyEnd, Begin, Boot, Brings, Target,
        machine::{Machine, MachineAnswer},
    },
    node_state::{NodeEvent, Wait},
};
use std::{collections::BTreeSet, ffi::OsString, path::PathBuf};

/// Receives one line for each step.
pub(in crate::apply) type Progress<'a> = &'a mut dyn FnMut(&str);

/// What an apply notes besides its journal.
pub(in crate::apply) trait RunNotes {
    /// The node's state changes.
    fn happened(&mut self, event: NodeEvent, reason: &str, waiting_for: &str);
    /// The apply waits for something; the node's state stays.
    fn waits(&mut self, wait: Wait, what: &str);
    /// A path that an update of the OS replaced is about to be written again.
    fn put_again(&mut self, target: &Target) -> Result<(), ApplyError>;
    /// The config of the host becomes the current one, and the history gets the result. May be called twice.
    fn commit(&mut self, ended: ApplyEnd, machine: &Machine) -> Result<(), ApplyError>;
}

/// One apply in progress.
#[derive(Debug)]
pub(in crate::apply) struct Run<'a> {
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
    /// How far it may go now.
    pub(in crate::apply) reach: ResumeLimit,
    /// The boot that runs.
    pub(in crate::apply) boot: &'a Boot,
    /// Whether the daemon knows of the apply.
    pub(in crate::apply) daemon: DaemonNotice,
    /// Whether the Machine Config Operator's daemon allows it.
    pub(in crate::apply) mco: Mco<'a>,
    /// The wait that was noted last.
    pub(in crate::apply) waits: Option<(Wait, String)>,
    /// Steps may have been taken since the disks were last made durable, also by a process that died.
    pub(in crate::apply) unsynced: bool,
    /// Paths that are a directory on one side of the apply and something else on the other.
    pub(in crate::apply) changing: BTreeSet<PathBuf>,
    /// It did not change the OS because [`ResumeLimit::NoOsChange`] forbids that.
    pub(in crate::apply) refused_os_change: bool,
    /// Signals that ask it to stop.
    pub(in crate::apply) interrupts: Option<&'a Interrupts>,
    /// Differences that the drift policy tolerates.
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

/// Added where a soft reboot happened: it left the kernel running, or did not boot the new OS.
pub(super) const NOT_BY_SOFT: &str =
    "; the soft reboot since then has not brought the new OS or its kernel arguments";

/// Why the OS is not changed.
pub(super) const NO_OS: &str = "the daemon changes no OS; `holdfast apply --resume` does it";

/// Whether the daemon knows of the apply.
#[derive(Debug)]
pub(in crate::apply) enum DaemonNotice {
    /// It is to be notified before anything is written; this is the state directory.
    Due(PathBuf),
    /// It was notified, if one runs. The end of the connection tells it that the apply has ended.
    Sent { _connection: Option<WriterConnection> },
    /// The daemon itself applies.
    Own,
}

impl DaemonNotice {
    /// As the options say.
    pub(in crate::apply) fn of(options: &Options) -> Self {
        if options.asks_daemon { Self::Due(options.state.clone()) } else { Self::Own }
    }
}

/// The first wait of an apply.
pub(super) const WRITTEN: &str = "files to be written";

impl Run<'_> {
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

/// The answer to the machine where something failed.
pub(super) fn failed(error: impl Into<ApplyError>) -> MachineAnswer {
    MachineAnswer::Failed(error.into().to_string())
}
