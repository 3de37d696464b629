//! What became of an apply, kept beside its config.

use super::files::Store;
use crate::apply::ApplyError;
use sensor_model::{journal::Ended, plan::Plan};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

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
    /// Paths that the update of the OS took back, and that were put again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub put_again: Vec<TakenBack>,
    /// Nothing but files was written: what it says of the OS is still to be done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_acts: bool,
}

/// A path that an update of the OS took back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenBack {
    /// Which.
    pub path: PathBuf,
    /// When it was put again, RFC 3339.
    pub time: String,
    /// What the update left there: `absent`, `file`, `directory` or `link`.
    pub found: String,
    /// The daemon's log has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_recorded: bool,
}

impl Store {
    /// What an update took back in an apply and is in no record yet; from here on it is taken for recorded.
    ///
    /// # Errors
    /// A history that cannot be read or written.
    pub fn take_unrecorded(&self, id: u64) -> Result<Vec<TakenBack>, ApplyError> {
        let Some(mut entry) = self.history::<Entry>(id)? else { return Ok(Vec::new()) };
        let new: Vec<&mut TakenBack> =
            entry.put_again.iter_mut().filter(|taken| !taken.is_recorded).collect();
        let mut taken = Vec::new();
        for one in new {
            one.is_recorded = true;
            taken.push(one.clone());
        }
        if !taken.is_empty() {
            self.set_history(id, &entry)?;
        }
        Ok(taken)
    }
}

impl Entry {
    /// Seconds from begin to end, reboots included.
    pub fn seconds(&self) -> Option<i64> {
        let began: jiff::Timestamp = self.began.parse().ok()?;
        let ended: jiff::Timestamp = self.ended.as_deref()?.parse().ok()?;
        Some(ended.as_second() - began.as_second())
    }
}
