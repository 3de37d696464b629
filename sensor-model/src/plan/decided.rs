//! A change with the decision of the policy.
//!
//! In: a change and its decision. Out: the same together, for the steps and the plan.

use crate::{changes::Change, node_disruption::EntryAction};

/// Seconds that a step may take if no policy has a limit.
pub const ACT_SECONDS: u64 = 90;

/// A change with the actions that it needs.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) change: Change,
    pub(super) actions: Vec<EntryAction>,
    pub(super) policy: String,
    pub(super) explanation: Vec<String>,
}
