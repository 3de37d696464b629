//! The state of a node with its config: Done, Working, Rebooting, Degraded, Unreconcilable.
//!
//! In: a state and a milestone. Out: the next state. One table holds all transitions. The commands and the daemon look the next
//! state up in it, and the drawing in the documentation is made from it.

#[cfg(test)]
mod tests;

use sensor_protocol::names;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

names! {
    /// The Machine Config Operator's states of a node, by its names. Metrics have the names in small letters.
    #[derive(Default)]
    pub enum NodeState {
        /// The node matches its config.
        #[default]
        Done = "Done",
        /// A config is being applied.
        Working = "Working",
        /// A config is written and a reboot is in progress. The daemon compares everything after it.
        Rebooting = "Rebooting",
        /// An apply failed or the node drifted; the reason says which.
        Degraded = "Degraded",
        /// A running node cannot take the wanted config; nothing was changed.
        Unreconcilable = "Unreconcilable",
    }
}

names! {
    /// What a node waits for.
    pub enum Wait {
        /// For another process to release a lock.
        Lock = "lock",
        /// For the daemon to watch the paths that will be written.
        Daemon = "daemon",
        /// For files to be written or restored.
        Files = "files",
        /// For a unit, or for the tool that changes the OS.
        Act = "act",
        /// For the reboot.
        Reboot = "reboot",
        /// For the comparison of the node with its config.
        Comparison = "comparison",
        /// For an administrator or the next start to resume the apply.
        NextStart = "next-start",
    }
}

/// A point that an apply reaches, at which the node may enter another state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Milestone {
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

impl Milestone {
    /// Every milestone.
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

    /// What the node waits for after the milestone; `None` if no apply is in progress.
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
            Self::RebootRequested => "reboot requested",
            Self::Booted => "node has booted",
            Self::Verified => "everything matches",
            Self::RolledBack => "old config is restored",
            Self::Stuck => "can neither finish nor roll back",
        }
    }
}

/// State, milestone, next state.
type NodeTransition = (NodeState, Milestone, NodeState);

/// Every transition.
pub const TRANSITIONS: &[NodeTransition] = {
    use Milestone::{Begun, Booted, NotReconcilable, RebootRequested, Refused, RolledBack, Stuck, Verified};
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

/// A milestone that a state has no transition for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("node state {}: {} cannot happen in it", state.as_str(), milestone.label())]
pub struct Impossible {
    /// The state.
    pub state: NodeState,
    /// The milestone.
    pub milestone: Milestone,
}

/// The next state.
///
/// # Errors
/// The table has no such transition.
pub fn next(state: NodeState, milestone: Milestone) -> Result<NodeState, Impossible> {
    TRANSITIONS
        .iter()
        .find(|(from, on, _)| (*from, *on) == (state, milestone))
        .map(|(_, _, to)| *to)
        .ok_or(Impossible { state, milestone })
}

/// The table as a drawing in Mermaid, for the documentation.
pub fn mermaid() -> String {
    let mut text = String::from("stateDiagram-v2\n    [*] --> Done\n");
    for (from, milestone, to) in TRANSITIONS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {} --> {}: {}", from.as_str(), to.as_str(), milestone.label());
    }
    text
}
