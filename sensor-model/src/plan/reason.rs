//! Why a node cannot take a config, as a plan holds it.
//!
//! In: a reason that the planning found, or its text in a kept plan. Out: its text, which is also its JSON.

use crate::reconcile::Irreconcilable;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Why a node cannot take a config. Its JSON is its text, so a plan that was read back has no [`PlanReason::Found`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum PlanReason {
    /// The planning found it.
    Found(Irreconcilable),
    /// The text of a reason in a kept plan.
    Kept(String),
}

impl fmt::Display for PlanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found(reason) => reason.fmt(f),
            Self::Kept(text) => f.write_str(text),
        }
    }
}

impl From<String> for PlanReason {
    fn from(text: String) -> Self {
        Self::Kept(text)
    }
}

impl From<PlanReason> for String {
    fn from(reason: PlanReason) -> Self {
        reason.to_string()
    }
}
