//! What an update of the OS took back, as records.
//!
//! In: the history of the last apply. Out: one record for each path that was put again, as the update's doing: no process of
//! this host wrote what was found there.

use super::Agent;
use sensor_model::record::{RecordKind, ThingName};

/// The operation of such a record.
pub(super) const OPERATION: &str = "os-update";

impl Agent {
    /// Records what was put again since the last start.
    pub(super) fn taken_back(&mut self) {
        for (apply, taken) in self.follow.taken_back() {
            let mut record = self.log.record(RecordKind::Reverted);
            record.time = taken.time;
            record.operation = Some(OPERATION.to_owned());
            let declared = self.desired.expectations.iter().find(|one| *one.thing.path() == *taken.path);
            match declared {
                Some(declared) => {
                    record.set_name(ThingName::from(&declared.thing));
                    record.source = Some(declared.source.machine_config.to_string());
                }
                None => record.path = Some(taken.path.display().to_string()),
            }
            record.detail.insert("found".into(), taken.found.into());
            record.detail.insert("apply".into(), apply.into());
            self.group.push(record);
        }
    }
}
