//! The state of a node with its config: Done, Working, Rebooting, Degraded, Unreconcilable.
//!
//! In: a state and an event. Out: the next state. One table holds all transitions. The commands and the daemon look the next
//! state up in it, and the drawing in the documentation is made from it.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// The Machine Config Operator's states of a node, by its names.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
pub enum NodeState {
    /// The node matches its config.
    #[default]
    Done,
    /// A config is being applied.
    Working,
    /// A config is written and a reboot is in progress. The daemon compares everything after it.
    Rebooting,
    /// An apply failed or the node drifted; the reason says which.
    Degraded,
    /// A running node cannot take the wanted config; nothing was changed.
    Unreconcilable,
}

impl NodeState {
    /// Every state, in the order of the metrics.
    pub const ALL: [Self; 5] =
        [Self::Done, Self::Working, Self::Rebooting, Self::Degraded, Self::Unreconcilable];

    /// Its name in annotations, output and, in small letters, in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "Done",
            Self::Working => "Working",
            Self::Rebooting => "Rebooting",
            Self::Degraded => "Degraded",
            Self::Unreconcilable => "Unreconcilable",
        }
    }
}

/// What a node waits for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// For another process to release a lock.
    Lock,
    /// For the daemon to watch the paths that will be written.
    Daemon,
    /// For files to be written or restored.
    Files,
    /// For a unit, or for the tool that changes the OS.
    Act,
    /// For the reboot.
    Reboot,
    /// For the comparison of the node with its config.
    Comparison,
    /// For an administrator or the next start to resume the apply.
    NextStart,
}

impl Wait {
    /// Every wait, in the order of the metrics.
    pub const ALL: [Self; 7] =
        [Self::Lock, Self::Daemon, Self::Files, Self::Act, Self::Reboot, Self::Comparison, Self::NextStart];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Daemon => "daemon",
            Self::Files => "files",
            Self::Act => "act",
            Self::Reboot => "reboot",
            Self::Comparison => "comparison",
            Self::NextStart => "next-start",
        }
    }
}

/// An event of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeEvent {
    /// An apply wrote the first record of its journal.
    Begun,
    /// Preflight refused the apply: the node has drifted, space is short, or another apply is in progress.
    Refused,
    /// The wanted config cannot be reconciled.
    NotReconcilable,
    /// The apply requested a reboot.
    RebootRequested,
    /// The node has booted, and the comparison begins.
    Booted,
    /// The node matches the new config.
    Verified,
    /// The old config is restored.
    RolledBack,
    /// The apply can neither finish nor be undone for now.
    Stuck,
}

impl NodeEvent {
    /// Every event.
    pub const ALL: [Self; 8] = [
        Self::Begun,
        Self::Refused,
        Self::NotReconcilable,
        Self::RebootRequested,
        Self::Booted,
        Self::Verified,
        Self::RolledBack,
        Self::Stuck,
    ];

    /// What the node waits for after the event; `None` if no apply is in progress.
    pub fn wait(self) -> Option<Wait> {
        match self {
            Self::Begun => Some(Wait::Files),
            Self::RebootRequested => Some(Wait::Reboot),
            Self::Booted => Some(Wait::Comparison),
            Self::Stuck => Some(Wait::NextStart),
            Self::Refused | Self::NotReconcilable | Self::Verified | Self::RolledBack => None,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Begun => "apply begins",
            Self::Refused => "preflight refuses",
            Self::NotReconcilable => "config not reconcilable",
            Self::RebootRequested => "reboot asked for",
            Self::Booted => "node is up again",
            Self::Verified => "everything is as declared",
            Self::RolledBack => "old config is back",
            Self::Stuck => "can go neither on nor back",
        }
    }
}

/// State, event, next state.
type NodeTransition = (NodeState, NodeEvent, NodeState);

/// Every transition.
pub const TRANSITIONS: &[NodeTransition] = {
    use NodeEvent::{Begun, Booted, NotReconcilable, RebootRequested, Refused, RolledBack, Stuck, Verified};
    use NodeState::{Degraded, Done, Rebooting, Unreconcilable, Working};
    &[
        (Done, Begun, Working),
        (Done, Refused, Degraded),
        (Done, NotReconcilable, Unreconcilable),
        // The process died after it began the journal and before it wrote the state. The next start reads the journal.
        (Done, RolledBack, Degraded),
        (Done, Stuck, Degraded),
        (Working, RebootRequested, Rebooting),
        (Working, Verified, Done),
        (Working, RolledBack, Degraded),
        (Working, Stuck, Degraded),
        // A boot that the apply did not request.
        (Working, Booted, Working),
        (Rebooting, Booted, Working),
        // The first request led to no reboot.
        (Rebooting, RebootRequested, Rebooting),
        (Rebooting, Stuck, Degraded),
        (Degraded, Begun, Working),
        (Degraded, Booted, Working),
        (Degraded, Refused, Degraded),
        (Degraded, NotReconcilable, Unreconcilable),
        (Degraded, RolledBack, Degraded),
        (Degraded, Stuck, Degraded),
        (Degraded, RebootRequested, Rebooting),
        // A stuck apply is resumed, or nothing is left to do.
        (Degraded, Verified, Done),
        (Unreconcilable, Begun, Working),
        (Unreconcilable, Refused, Degraded),
        (Unreconcilable, NotReconcilable, Unreconcilable),
        (Unreconcilable, RolledBack, Degraded),
        (Unreconcilable, Stuck, Degraded),
        (Unreconcilable, Verified, Done),
        (Done, Verified, Done),
    ]
};

/// The state of a node, with its reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Standing {
    /// The state.
    pub state: NodeState,
    /// Why, in a sentence; empty in state Done.
    pub reason: String,
    /// What the node waits for now; empty if it waits for nothing.
    pub waiting_for: String,
    /// The same, as one of a few words; absent if it waits for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// When it entered this state, RFC 3339.
    pub since: String,
    /// The number of the apply that led to it.
    pub apply: Option<u64>,
}

/// An event that a state has no transition for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("node state {}: {} cannot happen in it", state.name(), event.label())]
pub struct Impossible {
    /// The state.
    pub state: NodeState,
    /// The event.
    pub event: NodeEvent,
}

/// The next state.
///
/// # Errors
/// The table has no such transition.
pub fn next(state: NodeState, event: NodeEvent) -> Result<NodeState, Impossible> {
    TRANSITIONS
        .iter()
        .find(|(from, on, _)| (*from, *on) == (state, event))
        .map(|(_, _, to)| *to)
        .ok_or(Impossible { state, event })
}

/// The table as a drawing in Mermaid, for the documentation.
pub fn mermaid() -> String {
    let mut text = String::from("stateDiagram-v2\n    [*] --> Done\n");
    for (from, event, to) in TRANSITIONS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {} --> {}: {}", from.name(), to.name(), event.label());
    }
    text
}
