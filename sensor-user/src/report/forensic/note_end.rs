//! When the log writes the note of its last entry.
//!
//! In: the end of the chain, the state directory. Out: the note, and a record of what the log lacks by the last note.

use super::end_note::{EndNoteError, EndNoteWriter, NOTED, NotedEnd, Shortfall, mark};
use super::segment::CURRENT;
use super::{ForensicLog, detail};
use crate::clock::rfc3339;
use sensor_model::record::{Record, RecordKind};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

impl ForensicLog {
    /// From now on the log notes its last entry in the state directory. Gives what the log lacks by the last note, and adds a
    /// record of it.
    pub fn note_end(&mut self, state: &Path) -> Option<Shortfall> {
        let last = self.place.as_ref().map_or(0, |place| place.seq.saturating_sub(1));
        let found = NotedEnd::read(state, &self.path).compare(last);
        self.end = Some(EndNoteWriter::new(state));
        let shortfall = match found {
            Ok(shortfall) => shortfall,
            Err(EndNoteError::Note { file, source }) => {
                let reason = format!("the note of the log's end cannot be read: {source}");
                Some(Shortfall { missing: 1, reason, file, note: None })
            }
            Err(EndNoteError::Log(error)) => {
                tracing::error!(%error, "Cannot compare the forensic log with the note of its end.");
                None
            }
        };
        if let Some(shortfall) = &shortfall {
            self.record_shortfall(shortfall);
        }
        let time = rfc3339(self.clock.now());
        if let (Some(end), Some(place)) = (&mut self.end, &self.place) {
            end.begin(&self.path, place, time);
        }
        shortfall
    }

    fn record_shortfall(&mut self, shortfall: &Shortfall) {
        tracing::error!(reason = shortfall.reason, "Entries of the forensic log are missing.");
        self.metrics.forensic_missing(shortfall.missing);
        let mut record = self.record(RecordKind::Tamper);
        record.detail = detail(match &shortfall.note {
            Some(note) => json!({
                "file": CURRENT,
                "reason": shortfall.reason,
                "missing": shortfall.missing,
                "noted_seq": note.seq,
                "noted_hash": note.hash,
                "noted_at": note.time,
            }),
            None => json!({ "file": shortfall.file, "reason": shortfall.reason }),
        });
        self.append(&[record]);
    }

    /// A record as it is appended: a start and a checkpoint name the note, once there is one.
    pub(super) fn marked(&self, mut record: Record) -> Record {
        if let (RecordKind::Start | RecordKind::Checkpoint, Some(end)) = (record.kind, &self.end)
            && end.is_kept
        {
            record.detail.insert(NOTED.to_owned(), mark(&end.state, &self.path));
        }
        record
    }

    /// Notes the last entry at once, because the daemon stops.
    pub fn close(&mut self) {
        if self.end_due_in().is_some() {
            self.write_end();
        }
    }

    /// How long after now a note is due, if one is.
    pub(super) fn end_due_in(&self) -> Option<Duration> {
        self.end.as_ref()?.due_in(self.place.as_ref()?, self.clock.boot_ns())
    }

    pub(super) fn write_end(&mut self) {
        let (now, time) = (self.clock.boot_ns(), rfc3339(self.clock.now()));
        if let (Some(end), Some(place)) = (&mut self.end, &self.place) {
            end.write(&self.path, place, now, time);
        }
    }
}
