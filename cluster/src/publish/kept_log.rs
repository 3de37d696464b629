//! The entry of the node's forensic log that the report keeps.
//!
//! In: the entry in the report, and the log on the sensor's socket. Out: the entry for the next report. The kept entry is given up only
//! for a newer one of a log that still has the kept one. A log that does not have it was written anew, and the report says so from
//! then on.

use crate::api::{DriftReportStatus, ReportedLogEntry, ReportedRewriting};
use crate::reports::{KeptEntry, entry, kept_entry, sequence_of};
use crate::socket::{SensorError, SensorSocket};
use jiff::{Timestamp, Unit};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;

/// How long a report waits for the log. Without an answer it keeps the last entry.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);

/// What a report has about the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogFields {
    /// The entry that it keeps.
    pub(super) entry: Option<ReportedLogEntry>,
    /// The log was written anew, now or earlier.
    pub(super) rewritten: Option<ReportedRewriting>,
    /// It was found now, so that no Event has it yet.
    pub(super) is_found_now: bool,
}

/// The entry that the report keeps.
#[derive(Debug, Default)]
pub(super) struct KeptLog {
    /// The sensor's socket; `None`: the log is not compared.
    socket: Option<PathBuf>,
    kept: Option<ReportedLogEntry>,
    rewritten: Option<ReportedRewriting>,
    /// The finding's entry at the last comparison.
    compared: Option<ReportedLogEntry>,
    /// It is logged that the log was written anew.
    is_logged: bool,
}

impl KeptLog {
    /// The log of the sensor at this socket.
    pub(super) fn of(socket: PathBuf) -> Self {
        Self { socket: Some(socket), ..Self::default() }
    }

    /// The report that an earlier reporter left.
    pub(super) fn learn(&mut self, last: &DriftReportStatus) {
        self.kept = self.kept.take().or_else(|| last.log.clone());
        self.rewritten = self.rewritten.take().or_else(|| last.log_rewritten.clone());
    }

    /// The report is a new one. An admin deletes the old one after reading it.
    pub(super) fn forget_rewriting(&mut self) {
        self.rewritten = None;
    }

    /// That the log was written anew, if it is known.
    pub(super) const fn rewritten(&self) -> Option<&ReportedRewriting> {
        self.rewritten.as_ref()
    }

    /// Whether the entry of a finding cannot come after the kept one, and was not compared yet.
    pub(super) fn is_contradicted_by(&self, found: Option<&ReportedLogEntry>) -> bool {
        let (Some(kept), Some(found)) = (&self.kept, found) else { return false };
        let is_older = found.sequence < kept.sequence;
        let is_other = found.sequence == kept.sequence && found.hash != kept.hash;
        (is_older || is_other) && self.compared.as_ref() != Some(found)
    }

    /// What the next report has about the log. `found` is the entry of the newest finding.
    pub(super) async fn fields(&mut self, found: Option<&ReportedLogEntry>) -> LogFields {
        self.compared = found.cloned();
        let known = |entry: Option<&ReportedLogEntry>| LogFields {
            entry: entry.cloned(),
            rewritten: self.rewritten.clone(),
            is_found_now: false,
        };
        let (Some(kept), Some(socket)) = (&self.kept, &self.socket) else {
            return known(found.or(self.kept.as_ref()));
        };
        let compared = match timeout(LOG_TIMEOUT, compare(socket, kept)).await {
            Ok(Ok(Some(compared))) => compared,
            // An empty log has no entry yet, as the sensor writes one when it starts.
            Ok(Ok(None)) | Err(_) => return known(Some(kept)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the log is not compared with the report");
                return known(Some(kept));
            }
        };
        match compared {
            (newest, KeptEntry::Same) => known(Some(&newest)),
            (newest, KeptEntry::Rotated { oldest }) => {
                tracing::info!(
                    sequence = kept.sequence,
                    oldest,
                    "Rotation removed the entry of the forensic log that the report keeps, so the log is not compared with it."
                );
                known(Some(&newest))
            }
            (newest, KeptEntry::Rewritten(rewriting)) => {
                let found = rewriting.to_string();
                // The report may be refused, and each attempt finds it again.
                if !std::mem::replace(&mut self.is_logged, true) {
                    tracing::error!(
                        sequence = kept.sequence,
                        found,
                        "The node's forensic log was written anew."
                    );
                }
                let now = Timestamp::now();
                let rewriting = ReportedRewriting {
                    at: now.round(Unit::Second).unwrap_or(now).to_string(),
                    sequence: kept.sequence,
                    hash: kept.hash.clone(),
                    found,
                };
                LogFields { entry: Some(newest), rewritten: Some(rewriting), is_found_now: true }
            }
            (_, KeptEntry::Unread(reason)) => {
                tracing::warn!(reason, "The forensic log cannot be compared with the report.");
                known(Some(kept))
            }
        }
    }

    /// The report has these fields.
    pub(super) fn written(&mut self, fields: LogFields) {
        self.is_logged = false;
        self.kept = fields.entry;
        self.rewritten = fields.rewritten;
    }
}

/// The log's newest entry, and what the log has in place of the kept one; `None` if the log has no entry.
async fn compare(
    socket: &Path,
    kept: &ReportedLogEntry,
) -> Result<Option<(ReportedLogEntry, KeptEntry)>, SensorError> {
    // The sensor has few connections, and this one is needed seldom.
    let mut socket = SensorSocket::new(socket);
    let Some(newest) = socket.log().await? else { return Ok(None) };
    let sequence = sequence_of(kept);
    let standing = if newest.sequence == sequence && newest.hash == kept.hash {
        KeptEntry::Same
    } else {
        match socket.records(sequence, Duration::ZERO).await {
            Ok(lines) => kept_entry(kept, newest.sequence, Ok(lines.first().map(String::as_bytes))),
            Err(SensorError::Refused { error, .. }) => kept_entry(kept, newest.sequence, Err(&error)),
            Err(error) => return Err(error),
        }
    };
    Ok(Some((entry(&newest), standing)))
}
