//! Records for paths that an update of the OS overwrote and an apply wrote again.
//!
//! In: the history of the last apply. Out: one record for each path, with the update as its operation, because no process of this
//! host wrote the update's content. No state.

use super::applies::Overwritten;
use super::verdicts::Verdicts;
use sensor_model::record::{RecordKind, ThingName};

/// The operation of these records.
const OPERATION: &str = "os-update";

/// Records the paths that an apply wrote again since the last start.
pub(super) fn record(overwritten: Vec<Overwritten>, verdicts: &mut Verdicts) {
    for Overwritten { apply, path, time, found } in overwritten {
        let mut record = verdicts.new_record(RecordKind::Reverted);
        record.time = time;
        record.operation = Some(OPERATION.to_owned());
        match verdicts.desired.expectations.iter().find(|one| *one.thing.path() == *path) {
            Some(declared) => {
                record.set_name(ThingName::from(&declared.thing));
                record.source = Some(declared.source.name().to_owned());
            }
            None => record.path = Some(path.display().to_string()),
        }
        record.detail.insert("found".into(), found.into());
        record.detail.insert("apply".into(), apply.into());
        verdicts.add_record(record);
    }
}
