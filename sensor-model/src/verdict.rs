//! What is said of one thing, and of a node.

use crate::difference::Difference;
use serde::{Deserialize, Serialize};

/// What is said of one managed thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// It is what it should be.
    Compliant,
    /// It is not.
    Drifted {
        /// Every difference.
        differences: Vec<Difference>,
    },
    /// It was changed and is what it should be again.
    Touched,
    /// Evidence was lost and it has not been verified since.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// The one-word form, for records, metrics and a whole node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// See [`Verdict::Compliant`].
    Compliant,
    /// See [`Verdict::Touched`].
    Touched,
    /// See [`Verdict::Unknown`].
    Unknown,
    /// See [`Verdict::Drifted`].
    Drifted,
}

impl Verdict {
    /// The one-word form.
    pub fn kind(&self) -> VerdictKind {
        match self {
            Self::Compliant => VerdictKind::Compliant,
            Self::Drifted { .. } => VerdictKind::Drifted,
            Self::Touched => VerdictKind::Touched,
            Self::Unknown { .. } => VerdictKind::Unknown,
        }
    }
}
