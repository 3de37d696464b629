//! How a node stands with its config: Done, Working, Rebooting, Degraded, Unreconcilable.
//!
//! In: what happened. Out: the next state. The table is all there is: the commands and the daemon look the next
//! state up in it, the documentation's drawing is made from it, and what is not in it cannot happen.

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
    /// The node is what its config says.
    #[default]
    Done,
    /// A config is being applied.
    Working,
    /// A config was applied; a reboot is under way, after which everything is looked at.
    Rebooting,
    /// Something went wrong, or somebody changed something; the reason says what.
    Degraded,
    /// The config that is wanted cannot be applied to a running node; nothing was changed.
    Unreconcilable,
}

impl NodeState {
    /// Every state, in the order in which metrics list them.
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
    /// Somebody else to give up a lock.
    Lock,
    /// The daemon, to watch what is about to be written.
    Daemon,
    /// Files are written, or given back.
    Files,
    /// A unit, or the tool that changes the OS.
    Act,
    /// The node goes down and comes up again.
    Reboot,
    /// Everything is compared.
    Comparison,
    /// Somebody, or the next start, has to go on with it.
    NextStart,
}

impl Wait {
    /// All of them, in the order in which metrics list them.
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

/// What happens to a node's config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeEvent {
    /// The journal of an apply was begun.
    Begun,
    /// Preflight refused: the node has drifted, there is no space, somebody else is at work.
    Refused,
    /// The wanted config cannot be reconciled.
    NotReconcilable,
    /// The reboot was asked for.
    RebootRequested,
    /// The node is up again, and everything is looked at.
    Booted,
    /// Everything is as the new config says.
    Verified,
    /// The old config is back.
    RolledBack,
    /// The apply can go neither on nor back for now.
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

    /// What is waited for from then on; `None` where nothing is under way.
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

/// From, event, to.
type Transition = (NodeState, NodeEvent, NodeState);

/// Everything that can happen.
pub const TRANSITIONS: &[Transition] = {
    use NodeEvent::{Begun, Booted, NotReconcilable, RebootRequested, Refused, RolledBack, Stuck, Verified};
    use NodeState::{Degraded, Done, Rebooting, Unreconcilable, Working};
    &[
        (Done, Begun, Working),
        (Done, Refused, Degraded),
        (Done, NotReconcilable, Unreconcilable),
        // A process that died between the journal's beginning and the note of it: the next start knows by the journal.
        (Done, RolledBack, Degraded),
        (Done, Stuck, Degraded),
        (Working, RebootRequested, Rebooting),
        (Working, Verified, Done),
        (Working, RolledBack, Degraded),
        (Working, Stuck, Degraded),
        // A reboot that was needed and not asked for by us.
        (Working, Booted, Working),
        (Rebooting, Booted, Working),
        // Asked for once more, where the first time led to none.
        (Rebooting, RebootRequested, Rebooting),
        (Rebooting, Stuck, Degraded),
        (Degraded, Begun, Working),
        (Degraded, Booted, Working),
        (Degraded, Refused, Degraded),
        (Degraded, NotReconcilable, Unreconcilable),
        (Degraded, RolledBack, Degraded),
        (Degraded, Stuck, Degraded),
        (Degraded, RebootRequested, Rebooting),
        // Going on with what was stuck, or finding that nothing has to be done any more.
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

/// How a node stands, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Standing {
    /// The state.
    pub state: NodeState,
    /// Why, in a sentence; empty for [`NodeState::Done`].
    pub reason: String,
    /// What it waits for now; empty when it waits for nothing.
    pub waiting_for: String,
    /// The same as one of few words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// Since when it is in this state, RFC 3339.
    pub since: String,
    /// The apply that this is about.
    pub apply: Option<u64>,
}

/// An event that cannot happen in a state.
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

/// The table as a drawing for the documentation.
pub fn mermaid() -> String {
    let mut text = String::from("stateDiagram-v2\n    [*] --> Done\n");
    for (from, event, to) in TRANSITIONS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {} --> {}: {}", from.name(), to.name(), event.label());
    }
    text
}
