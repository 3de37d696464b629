//! The reports of the loop, and the trait that takes them. The room `report` implements it.
//!
//! In: nothing. Out: the reports of a run, the counts of a turn, and the trait. No state: the loop writes no log, no metric and no
//! status file itself. It reads back only the open drifts, which the picture of the node owns.

use super::open_drift::{OpenDrift, OpenDrifts};
use crate::kernel::hooks::{Attachment, ProgramSet};
use sensor_common::op::Operation;
use sensor_model::drift_policy::DriftAction;
use sensor_model::image::ScanProgress;
use sensor_model::node_state::Standing;
use sensor_model::protocol::Gap;
use sensor_model::record::{Actor, Record, RecordKind, ThingName};
use sensor_model::status::{BootedImage, ExpectedConfig};
use sensor_model::verdict::VerdictKind;
use sensor_model::waiting::WaitingArgument;
use serde::Serialize;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A backend, by its name in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BackendName {
    /// BPF LSM programs.
    Lsm,
    /// fentry programs.
    Fentry,
    /// Fanotify, without kernel programs.
    Fanotify,
}

impl BackendName {
    /// The name in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lsm => "lsm",
            Self::Fentry => "fentry",
            Self::Fanotify => "fanotify",
        }
    }
}

impl From<ProgramSet> for BackendName {
    fn from(set: ProgramSet) -> Self {
        match set {
            ProgramSet::Lsm => Self::Lsm,
            ProgramSet::Fentry => Self::Fentry,
        }
    }
}

/// Where an event was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LossStage {
    /// The kernel's change ring.
    Ring,
    /// The kernel's process and execution maps.
    Process,
    /// Decoding of a record.
    Decode,
    /// The fanotify queue.
    Fanotify,
}

impl LossStage {
    /// Its word in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Process => "process",
            Self::Decode => "decode",
            Self::Fanotify => "fanotify",
        }
    }
}

/// Why an event was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LossReason {
    /// A ring or a map of the kernel programs was full.
    Full,
    /// A ring record does not have the form that the daemon knows.
    Malformed,
    /// The fanotify queue was full.
    Overflow,
    /// The kernel skipped a kernel program.
    Skipped,
}

impl LossReason {
    /// Its word in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Malformed => "malformed",
            Self::Overflow => "overflow",
            Self::Skipped => "skipped",
        }
    }
}

/// Where events are lost, and why: every pair that a report of lost changes has.
pub const LOSSES: [(LossStage, LossReason); 5] = [
    (LossStage::Ring, LossReason::Full),
    (LossStage::Decode, LossReason::Malformed),
    (LossStage::Process, LossReason::Full),
    (LossStage::Process, LossReason::Skipped),
    (LossStage::Fanotify, LossReason::Overflow),
];

/// A condition of readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReadinessSubject {
    /// The canary's change arrives.
    Canary,
    /// The configs and policies that the daemon was given are in force.
    Config,
    /// The first full verification is finished.
    Verification,
}

impl ReadinessSubject {
    /// Its word on the readiness page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Canary => "canary",
            Self::Config => crate::desired::CONFIG,
            Self::Verification => "verification",
        }
    }
}

/// The facts that stay the same while the daemon runs.
#[derive(Debug, Clone, Default)]
pub struct DaemonFacts {
    /// The id of the boot.
    pub boot_id: String,
    /// Names of the capabilities that the daemon kept.
    pub capabilities: Vec<String>,
    /// Pause between canary writes.
    pub beat: Duration,
}

/// The facts that stay the same during one run of the loop.
#[derive(Debug, Clone)]
pub struct RunFacts {
    /// The backend that detects changes.
    pub backend: BackendName,
    /// MachineConfigs in the order of the merge.
    pub sources: Vec<String>,
    /// The config of these.
    pub config: Option<ExpectedConfig>,
    /// Kernel arguments that wait for the next boot.
    pub waiting: Vec<WaitingArgument>,
    /// Why the configs that the daemon was given are refused; `None` if they are in force.
    pub refused: Option<String>,
    /// The booted image; `None` on a host that boots no images.
    pub booted_image: Option<BootedImage>,
}

/// The result of [`Reports::open`].
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenedReports {
    /// The log lacks entries that an earlier daemon wrote.
    pub log_is_cut: bool,
}

/// One report of the loop.
#[derive(Debug)]
pub enum AgentReport<'a> {
    /// A run of the loop begins. Gaps of the run before are void.
    RunBegan(RunFacts),
    /// A run of the loop ended.
    RunEnded,
    /// The backend detects changes. The number: kinds of changes that it does not see at once.
    BackendRuns(BackendName, usize),
    /// A hook was attached or detached.
    Hook {
        /// Its name.
        name: &'static str,
        /// How its program is attached.
        attachment: Attachment,
        /// Whether it is attached now.
        attached: bool,
    },
    /// The daemon read configs and policies again. `false`: it could not use them.
    ConfigsRead(bool),
    /// A change arrived from the kernel.
    ChangeReceived(Operation),
    /// This number of changes, or of entries of the kernel programs' table of processes, was lost.
    ChangesLost(LossStage, LossReason, u64),
    /// The canary's change arrived.
    CanarySeen,
    /// The condition does not hold, for this reason.
    NotReady(ReadinessSubject, String),
    /// The condition holds.
    Ready(ReadinessSubject),
    /// One thing was verified, in this time.
    ThingVerified(Duration),
    /// This number of things, which is all, was verified in this time.
    AllVerified(usize, Duration),
    /// A verdict was reached. The time: since the change, if one is known.
    Verdict(VerdictKind, Option<Duration>),
    /// A thing drifted, or has other differences than before.
    Drifted(ThingName, Box<OpenDrift>),
    /// A verification found the drift that an earlier run reported. The present policy asks for this action. The flag: it allows the actors.
    DriftConfirmed(&'a ThingName, DriftAction, bool),
    /// A thing was changed and matches its expectation again.
    Touched(&'a str, Option<&'a Actor>),
    /// A drifted thing matches its expectation again, or nothing declares it any more.
    Recovered(&'a ThingName),
    /// A gap opened. The name: its thing, if it is about one.
    GapOpened(&'a Gap, Option<ThingName>),
    /// A gap is closed.
    GapClosed(&'a Gap),
    /// The declared state of a path was written back, or could not be.
    Reverted(&'a str, Result<(), &'a dyn Error>),
    /// A process executed or loaded a file that no config, image, package or baseline has. The operation says which.
    UnknownExecution(Operation),
    /// This number of denials or executions has no record of its own.
    WithoutRecord(RecordKind, u64),
    /// The progress of the scan of what the image has, and the time from which on it gets stale, in seconds since 1970.
    ImageScan(ScanProgress, i64),
    /// The state of the node's config.
    NodeState(Option<Standing>),
}

/// The counts of all things at the end of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCounts {
    /// The worst verdict of all things.
    pub verdict: VerdictKind,
    /// Managed things.
    pub managed: usize,
    /// Things that match their expectations.
    pub compliant: usize,
    /// Things that do not.
    pub drifted: usize,
    /// Things without a verdict.
    pub unknown: usize,
    /// Lost ring records, in all.
    pub records_lost: u64,
    /// A full verification is in progress.
    pub is_verifying: bool,
}

/// Reports cannot be stored or shown.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ReportError(Box<dyn Error + Send + Sync>);

impl ReportError {
    /// With the error of an implementation of [`Reports`].
    pub fn new(source: impl Error + Send + Sync + 'static) -> Self {
        Self(Box::new(source))
    }
}

/// Takes what the loop reports.
pub trait Reports {
    /// Acquires what needs capabilities that the daemon gives up, such as a listening socket.
    ///
    /// # Errors
    /// Something cannot be acquired.
    fn prepare(&mut self) -> Result<(), ReportError>;

    /// Begins to store and show reports. Called once, before the first report.
    ///
    /// # Errors
    /// No report can be stored.
    fn open(&mut self, facts: DaemonFacts) -> Result<OpenedReports, ReportError>;

    /// Takes one report.
    fn report(&mut self, report: AgentReport<'_>);

    /// The open drifts.
    fn drifts(&self) -> &OpenDrifts;

    /// Takes the records so far, writes them as one group, and updates the status. Called at least once in each turn.
    fn end_turn(&mut self, records: &mut Vec<Record>, counts: &NodeCounts);

    /// The loop works: called at each canary write.
    fn beat(&mut self, counts: &NodeCounts);

    /// Whether too many records wait, so that the loop waits for [`Reports::poll_progress`] before the next turn.
    fn is_full(&self) -> bool;

    /// Ready when a write has ended or was tried again. The loop also polls it while no write is in progress.
    ///
    /// # Errors
    /// No report can be written any more.
    fn poll_progress(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ReportError>>;

    /// Writes all waiting reports, and ends. Called once, after the last report.
    ///
    /// # Errors
    /// The end of the writes cannot be awaited.
    fn close(&mut self) -> Pin<Box<dyn Future<Output = Result<(), ReportError>> + '_>>;
}
