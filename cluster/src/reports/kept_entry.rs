//! Whether a forensic log still has the entry that a `DriftReport` keeps.
//!
//! In: the kept entry, the number of the log's newest entry, and the answer to the request for the entries from the kept one on.
//! Out: what the log has at that number. A log that was written anew has another entry there, or none.

use crate::api::ReportedLogEntry;
use sensor_model::chain::{self, EntryFault};
use sensor_model::socket::{SocketError, SocketErrorReason};
use std::fmt;

/// What a log has at the number of the kept entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptEntry {
    /// The entry.
    Same,
    /// Rotation removed it, so that nothing can be compared.
    Rotated {
        /// The number of the oldest entry that is left.
        oldest: u64,
    },
    /// The log was written anew.
    Rewritten(Rewriting),
    /// It could not be read.
    Unread(String),
}

/// How a log that was written anew shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rewriting {
    /// The log ends before the entry.
    Ends {
        /// The number of its newest entry.
        newest: u64,
    },
    /// Another entry has its number.
    Other,
    /// The entry was changed.
    Changed(EntryFault),
    /// The log's files have no entry at all.
    Removed,
}

impl fmt::Display for Rewriting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ends { newest } => write!(formatter, "the log ends at entry {newest}"),
            Self::Other => formatter.write_str("the log has another entry of that number"),
            Self::Changed(fault) => write!(formatter, "the log's entry of that number was changed: {fault}"),
            Self::Removed => formatter.write_str("the log's files have no entry"),
        }
    }
}

/// The number of a kept entry.
pub fn sequence_of(kept: &ReportedLogEntry) -> u64 {
    u64::try_from(kept.sequence).unwrap_or_default()
}

/// Compares the kept entry with the log. `newest` is the number of the log's newest entry before the request. The answer is its first
/// line, if it has one.
pub fn kept_entry(
    kept: &ReportedLogEntry,
    newest: u64,
    answer: Result<Option<&[u8]>, &SocketError>,
) -> KeptEntry {
    let sequence = sequence_of(kept);
    match answer {
        Ok(Some(line)) => match chain::open(line) {
            Ok(entry) if entry.seq == sequence && entry.hash == kept.hash => KeptEntry::Same,
            Ok(_) => KeptEntry::Rewritten(Rewriting::Other),
            // Its hash is that of its content, so a newer version of the sensor may have written it.
            Err(EntryFault::NotARecord(reason)) => KeptEntry::Unread(reason),
            Err(fault) => KeptEntry::Rewritten(Rewriting::Changed(fault)),
        },
        Ok(None) => KeptEntry::Rewritten(Rewriting::Ends { newest: newest.min(sequence.saturating_sub(1)) }),
        Err(SocketError { reason: SocketErrorReason::Gone, oldest, .. }) => match oldest {
            // Rotation never removes the newest entry.
            Some(oldest) if *oldest > sequence && *oldest > newest => {
                KeptEntry::Rewritten(Rewriting::Removed)
            }
            Some(oldest) if *oldest > sequence => KeptEntry::Rotated { oldest: *oldest },
            _ => KeptEntry::Rewritten(Rewriting::Ends { newest: newest.min(sequence.saturating_sub(1)) }),
        },
        Err(error) => KeptEntry::Unread(error.error.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::played_log::PlayedForensicLog;

    /// What a log has at the number of the newest entry of another one.
    fn compared(log: &PlayedForensicLog, kept: &ReportedLogEntry) -> KeptEntry {
        let answer = log.records(sequence_of(kept));
        let line = answer.as_ref().map(|lines| lines.first().map(String::as_bytes));
        kept_entry(kept, log.newest().map_or(0, |newest| newest.sequence), line)
    }

    #[test]
    fn only_a_log_with_the_very_entry_has_it() {
        let kept = PlayedForensicLog::new(&["/a", "/b", "/c"]).kept();
        let is = |paths: &[&str]| compared(&PlayedForensicLog::new(paths), &kept);
        assert_eq!(is(&["/a", "/b", "/c"]), KeptEntry::Same);
        assert_eq!(is(&["/a", "/b", "/c", "/d"]), KeptEntry::Same);
        assert_eq!(is(&["/x"]), KeptEntry::Rewritten(Rewriting::Ends { newest: 1 }));
        assert_eq!(is(&["/a", "/b"]), KeptEntry::Rewritten(Rewriting::Ends { newest: 2 }), "cut");
        assert_eq!(is(&[]), KeptEntry::Rewritten(Rewriting::Ends { newest: 0 }));
        for longer in [&["/x", "/b", "/c"][..], &["/x", "/b", "/c", "/d", "/e"]] {
            assert_eq!(is(longer), KeptEntry::Rewritten(Rewriting::Other));
        }
    }

    #[test]
    fn a_changed_entry_is_found_by_its_hash() {
        let log = PlayedForensicLog::new(&["/a", "/b"]);
        let changed = PlayedForensicLog {
            lines: log.lines.iter().map(|line| line.replace("/b", "/x")).collect(),
            ..log.clone()
        };
        let found = compared(&changed, &log.kept());
        assert!(
            matches!(&found, KeptEntry::Rewritten(Rewriting::Changed(EntryFault::Hash { .. }))),
            "{found:?}"
        );
    }

    #[test]
    fn an_entry_that_rotation_removed_is_no_rewriting_and_a_log_without_any_entry_is() {
        let kept = PlayedForensicLog::new(&["/a"]).kept();
        let log = PlayedForensicLog { oldest: 3, ..PlayedForensicLog::new(&["/a", "/b", "/c"]) };
        assert_eq!(compared(&log, &kept), KeptEntry::Rotated { oldest: 3 });
        let log = PlayedForensicLog { oldest: 4, ..log };
        assert_eq!(compared(&log, &kept), KeptEntry::Rewritten(Rewriting::Removed));
    }

    #[test]
    fn a_log_that_cannot_be_read_is_neither_sound_nor_rewritten() {
        let kept = PlayedForensicLog::new(&["/a"]).kept();
        let error = SocketError {
            reason: SocketErrorReason::Unreadable,
            error: "input/output error".to_owned(),
            oldest: None,
        };
        assert_eq!(kept_entry(&kept, 1, Err(&error)), KeptEntry::Unread("input/output error".to_owned()));
    }
}
