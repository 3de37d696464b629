//! What the loop reports, and to whom: a trait that the room `report` implements.
//!
//! In: nothing. Out: the events of a run, the numbers of a turn, and the trait that takes them. The loop knows no log, no
//! metric and no status file. It reads back only the open drifts, which the picture of the node owns.

use super::open_drift::{OpenDrift, OpenDrifts};
use sensor_common::op::Operation;
use sensor_model::drift_policy::DriftAction;
use sensor_model::node_state::Standing;
use sensor_model::protocol::Gap;
use sensor_model::record::{Actor, Record, RecordKind, ThingName};
use sensor_model::verdict::VerdictKind;
use sensor_model::waiting::WaitingArgument;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// How a hook is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HookMode {
    /// As a BPF LSM program.
    Lsm,
    /// As an fentry program on a `security_*` function.
    Fentry,
    /// As a tracepoint program.
    Tracepoint,
    /// As a fanotify group.
    Fanotify,
}

impl HookMode {
    /// The word for it in metrics and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lsm => "lsm",
            Self::Fentry => "fentry",
            Self::Tracepoint => "tracepoint",
            Self::Fanotify => "fanotify",
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
    /// The word for it in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Process => "process",
            Self::Decode => "decode",
            Self::Fanotify => "fanotify",
        }
    }
}

/// Why the node is not ready, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// The canary's change does not come back.
    Canary,
    /// The configs or policies that the daemon was given are not in force.
    Config,
    /// The first full verification is not finished.
    Verification,
}

impl Subject {
    /// The word for it on the page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Canary => "canary",
            Self::Config => crate::desired::CONFIG,
            Self::Verification => "verification",
        }
    }
}

/// What stays the same as long as the daemon runs.
#[derive(Debug, Clone, Default)]
pub struct DaemonFacts {
    /// The boot in which it runs.
    pub boot_id: String,
    /// Names of the capabilities that it kept.
    pub capabilities: Vec<String>,
    /// Pause between canaries.
    pub beat: Duration,
}

/// What stays the same during one run of the loop.
#[derive(Debug, Clone)]
pub struct RunFacts {
    /// The backend that detects changes.
    pub mode: HookMode,
    /// MachineConfigs in the order of the merge.
    pub sources: Vec<String>,
    /// Kernel arguments that wait for the next boot.
    pub waiting: Vec<WaitingArgument>,
    /// Why the configs that the daemon was given are not in force.
    pub refused: Option<String>,
}

/// What `Reports::open` found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opened {
    /// The log lacks entries that an earlier daemon wrote.
    pub log_is_cut: bool,
}

/// One event of a run.
#[derive(Debug)]
pub enum AgentEvent<'a> {
    /// A run of the loop begins. Gaps of the run before are void.
    RunBegan(RunFacts),
    /// A run of the loop ended.
    RunEnded,
    /// The backend detects changes; so many kinds of changes it does not see at once.
    BackendRuns(HookMode, usize),
    /// A hook was attached or detached.
    Hook {
        /// Its name.
        name: &'static str,
        /// How it is attached.
        mode: HookMode,
        /// Whether it is attached now.
        attached: bool,
    },
    /// Configs and policies were read again, or could not be used.
    ConfigsRead(bool),
    /// A change arrived from the kernel.
    ChangeReceived(Operation),
    /// Changes were lost. The reason is a word from a closed list: `full`, `malformed`, `overflow`.
    ChangesLost(LossStage, &'static str, u64),
    /// The canary's change came back.
    CanarySeen,
    /// Why the node is not ready.
    NotReady(Subject, String),
    /// The subject no longer keeps the node from being ready.
    Ready(Subject),
    /// One thing was looked at and compared.
    ThingVerified(Duration),
    /// All things were looked at and compared.
    AllVerified(usize, Duration),
    /// A verdict was reached, this long after the change where one is known.
    Verdict(VerdictKind, Option<Duration>),
    /// A thing drifted, or in another way than before.
    Drifted(ThingName, Box<OpenDrift>),
    /// A look found the drift that an earlier run reported; the present policy asks for this action.
    DriftConfirmed(&'a ThingName, DriftAction),
    /// A thing was changed and matches its expectation again.
    Touched(&'a str, Option<&'a Actor>),
    /// A drifted thing matches its expectation again, or nothing declares it any more.
    Recovered(&'a ThingName),
    /// A gap opened, about one thing or about several.
    GapOpened(&'a Gap, Option<ThingName>),
    /// A gap is closed.
    GapClosed(&'a Gap),
    /// Declared state was written back, or could not be.
    Reverted(&'a str, Result<(), &'a dyn Error>),
    /// So many denials or executions have no record of their own.
    Counted(RecordKind, u64),
    /// How the node stands with the config that was applied.
    NodeState(Option<Standing>),
}

/// The node in numbers, at the end of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// The worst verdict of all things.
    pub verdict: VerdictKind,
    /// How many things are managed.
    pub managed: usize,
    /// How many match their expectations.
    pub compliant: usize,
    /// How many do not.
    pub drifted: usize,
    /// How many have no verdict.
    pub unknown: usize,
    /// Changes whose record was lost, in all.
    pub records_lost: u64,
    /// A full verification goes on.
    pub is_verifying: bool,
}

/// What was reported cannot be kept or shown.
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
    /// It cannot be acquired.
    fn prepare(&mut self) -> Result<(), ReportError>;

    /// Begins to keep and show reports. Called once, before the first event.
    ///
    /// # Errors
    /// Nothing could be kept.
    fn open(&mut self, facts: DaemonFacts) -> Result<Opened, ReportError>;

    /// Takes one event.
    fn report(&mut self, event: AgentEvent<'_>);

    /// The open drifts.
    fn drifts(&self) -> &OpenDrifts;

    /// A turn is over: takes its records, which it writes as one group, and updates what it shows.
    fn end_turn(&mut self, records: &mut Vec<Record>, tally: &Tally);

    /// The loop works: called at each beat of the canary.
    fn beat(&mut self, tally: &Tally);

    /// Whether the loop has to wait for [`Reports::poll_progress`] before the next turn, since too many records wait.
    fn is_full(&self) -> bool;

    /// Ready when a write has ended or was tried again. The loop polls it also while nothing is written.
    ///
    /// # Errors
    /// Nothing can be written any more.
    fn poll_progress(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ReportError>>;

    /// Writes what waits, and ends. Called once, after the last event.
    ///
    /// # Errors
    /// The end could not be awaited.
    fn close(&mut self) -> Pin<Box<dyn Future<Output = Result<(), ReportError>> + '_>>;
}
