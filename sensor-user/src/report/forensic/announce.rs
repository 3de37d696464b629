//! Announces the newest entry of the log to other threads, which serve it.
//!
//! In: the end of the chain after each write. Out: the newest entry that is on the disk, in a watch channel. Without a channel it
//! does nothing.

use super::ForensicLog;
use super::by_sequence::newest_entry;
use sensor_model::socket::{LOG_CHECKPOINT_SCHEMA, LogCheckpoint};
use serde::Deserialize;
use tokio::sync::watch;

/// The newest entry of a log; `None` before the first.
pub type NewestEntry = Option<LogCheckpoint>;

impl ForensicLog {
    /// From now on the log announces its newest entry here. It begins with the present one.
    pub fn announce_to(&mut self, newest: watch::Sender<NewestEntry>) {
        match newest_entry(&self.path) {
            Ok(found) => drop(newest.send_replace(found)),
            // A log that the disk refuses has no entry before its first write.
            Err(error) => tracing::warn!(%error, "Cannot read the newest entry of the forensic log."),
        }
        self.newest = Some(newest);
    }

    /// Announces the last of the lines that were written.
    pub(super) fn announce(&self, lines: &str) {
        #[derive(Deserialize)]
        struct Timed {
            time: String,
        }
        let (Some(newest), Some(place)) = (&self.newest, &self.place) else { return };
        let Some(Ok(Timed { time })) = lines.lines().next_back().map(serde_json::from_str) else { return };
        newest.send_replace(Some(LogCheckpoint {
            schema: LOG_CHECKPOINT_SCHEMA.to_owned(),
            sequence: place.seq.saturating_sub(1),
            hash: place.previous_hash.clone(),
            time,
        }));
    }
}
