//! The history entry of each apply, beside its config.
//!
//! In: what an apply did. Out: the same for `holdfast history`, `holdfast plan` and the daemon's records.

use super::{error::StoreError, files::Store};
use sensor_model::{journal::ApplyEnd, plan::Plan};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

const HISTORY: &str = "history.json";

/// The history of one apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HistoryEntry {
    /// Its number, also that of its generation.
    pub id: u64,
    /// The generation before it.
    pub previous: Option<u64>,
    /// The generation whose config it brought back.
    pub rollback_to: Option<u64>,
    /// When it began, RFC 3339.
    pub began: String,
    /// When it ended; null while it is in progress.
    pub ended: Option<String>,
    /// How it ended; null while it is in progress.
    pub result: Option<ApplyEnd>,
    /// Why it was rolled back; empty when it was not.
    pub reason: String,
    /// What was left as another process wrote it, and what failed in the rollback.
    pub problems: Vec<String>,
    /// The digest of the config.
    pub config: String,
    /// The plan that it followed.
    pub plan: Plan,
    /// How many paths it changed.
    pub paths: usize,
    /// Paths that the update of the OS overwrote, and that Holdfast wrote again.
    #[serde(rename = "put_again", default, skip_serializing_if = "Vec::is_empty")]
    pub overwritten: Vec<OverwrittenEntry>,
    /// Only files were written: units and the OS are still to be changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_acts: bool,
}

/// A path that an update of the OS overwrote, and that Holdfast wrote again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "PutAgainEntry")]
pub struct OverwrittenEntry {
    /// The path.
    pub path: PathBuf,
    /// When it was written again, RFC 3339.
    pub time: String,
    /// What the update left at the path: `absent`, `file`, `directory` or `link`.
    #[schemars(extend("enum" = ["absent", "file", "directory", "link"]))]
    pub found: String,
    /// The daemon has recorded it in its log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_recorded: bool,
}

impl Store {
    /// The history entry of an apply.
    ///
    /// # Errors
    /// The file cannot be read, or Holdfast did not write it.
    pub fn history(&self, id: u64) -> Result<Option<HistoryEntry>, StoreError> {
        self.json(&self.generation(id).join(HISTORY))
    }

    /// Writes the history entry of an apply.
    pub(crate) fn set_history(&self, id: u64, entry: &HistoryEntry) -> Result<(), StoreError> {
        self.write_json(&self.generation(id), HISTORY, entry)
    }

    /// The paths that were written again and have no record yet. From now on they are marked as recorded.
    ///
    /// # Errors
    /// The history cannot be read or written.
    pub fn take_unrecorded(&self, id: u64) -> Result<Vec<OverwrittenEntry>, StoreError> {
        let Some(mut entry) = self.history(id)? else { return Ok(Vec::new()) };
        let new: Vec<&mut OverwrittenEntry> =
            entry.overwritten.iter_mut().filter(|taken| !taken.is_recorded).collect();
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

impl HistoryEntry {
    /// Seconds from its beginning to its end, reboots included.
    pub fn seconds(&self) -> Option<i64> {
        let began: jiff::Timestamp = self.began.parse().ok()?;
        let ended: jiff::Timestamp = self.ended.as_deref()?.parse().ok()?;
        Some(ended.as_second() - began.as_second())
    }
}
