//! When the log writes the note of its last entry.
//!
//! In: the end of the chain, the state directory. Out: the note, and a record of what the log lacks by the last note.

use super::by_sequence::newest_entry;
use super::end_note::{EndNoteError, EndNoteWriter, NOTED, NotedEnd, Shortfall, mark};
use super::read::ReadError;
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
        let shortfall = self.shortfall(state);
        let mut end = EndNoteWriter::new(state);
        end.is_compared = self.place.is_some() || shortfall.is_some();
        self.end = Some(end);
        if let Some(shortfall) = &shortfall {
            let record = self.shortfall_record(shortfall);
            self.append(&[record]);
        }
        let time = rfc3339(self.clock.now());
        if let (Some(end), Some(place)) = (&mut self.end, &self.place) {
            end.begin(&self.path, place, time);
        }
        shortfall
    }

    /// Compares a log with its note that the disk refused to open at the start, before the first write replaces the note. The log may not
    /// have been readable then, or may have been cut since.
    pub(super) fn compare_end_once(&mut self) {
        let Some(end) = self.end.as_mut().filter(|end| !end.is_compared) else { return };
        end.is_compared = true;
        let state = end.state.clone();
        if let Some(shortfall) = self.shortfall(&state) {
            let record = self.shortfall_record(&shortfall);
            self.put_first(record);
        }
    }

    /// What the log lacks by the note in the state directory.
    fn shortfall(&self, state: &Path) -> Option<Shortfall> {
        let noted = NotedEnd::read(state, &self.path);
        match self.last_entry().map_err(EndNoteError::Log).and_then(|last| noted.compare(last)) {
            Ok(shortfall) => shortfall,
            Err(EndNoteError::Note { file, source }) => {
                let reason = format!("the note of the log's end cannot be read: {source}");
                Some(Shortfall { missing: 1, reason, file, note: None })
            }
            Err(EndNoteError::Log(error)) => {
                tracing::error!(%error, "Cannot compare the forensic log with the note of its end.");
                None
            }
        }
    }

    /// The number of the last entry; 0 for none. A log that the disk refuses to open is read for it.
    fn last_entry(&self) -> Result<u64, ReadError> {
        if let Some(place) = &self.place {
            return Ok(place.seq.saturating_sub(1));
        }
        match newest_entry(&self.path) {
            Err(error) if !error.is_missing() => Err(error),
            newest => Ok(newest.ok().flatten().map_or(0, |entry| entry.sequence)),
        }
    }

    fn shortfall_record(&self, shortfall: &Shortfall) -> Record {
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
        record
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
