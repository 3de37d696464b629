//! What became of an apply, kept beside its config.

use sensor_model::{journal::Ended, plan::Plan};
use serde::{Deserialize, Serialize};

/// One apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number, also that of its generation.
    pub id: u64,
    /// The generation before it.
    pub previous: Option<u64>,
    /// The generation whose config it brought back.
    pub rollback_to: Option<u64>,
    /// When it began, RFC 3339.
    pub began: String,
    /// When it was over; null while it is not.
    pub ended: Option<String>,
    /// How it ended; null while it has not.
    pub result: Option<Ended>,
    /// Why it went back; empty when it did not.
    pub reason: String,
    /// What was left as somebody else wrote it, and what failed on the way back.
    pub problems: Vec<String>,
    /// Digest of the config.
    pub config: String,
    /// The plan that it followed.
    pub plan: Plan,
    /// Paths that it changed.
    pub paths: usize,
    /// Nothing but files was written: what it says of the OS is still to be done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_acts: bool,
}

impl Entry {
    /// Seconds from begin to end, reboots included.
    pub fn seconds(&self) -> Option<i64> {
        let began: jiff::Timestamp = self.began.parse().ok()?;
        let ended: jiff::Timestamp = self.ended.as_deref()?.parse().ok()?;
        Some(ended.as_second() - began.as_second())
    }
}
