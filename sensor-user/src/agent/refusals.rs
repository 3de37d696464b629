//! What deny rules refused.
//!
//! In: records of refused operations. Out: one entry of the log for each, about the thing that the rule protects.

use super::Agent;
use super::registry::Concerned;
use crate::event::Change;
use sensor_common::op::Operation;
use sensor_model::record::RecordKind;

impl Agent {
    /// A deny rule refused a change of what these watches lead to, or of a name in it.
    pub(super) fn refused(&mut self, watches: &[u32], concerned: &Concerned, change: &Change) {
        let found = self.looker.registry.refused(watches, change.name().filter(|_| !change.name_cut()));
        // The rule may be gone since.
        let thing = found.as_ref().map(|(thing, _)| *thing);
        let Some(thing) = thing.or_else(|| concerned.direct.iter().chain(&concerned.beyond).next().copied())
        else {
            return;
        };
        let actor = self.attributor.attribute(&change.record, &*self.processes);
        let code = u16::try_from(change.record.detail).unwrap_or(0);
        let operation = Operation::from_code(code).unwrap_or(change.operation);
        let mut record = self.about(RecordKind::Denied, thing, change, &actor);
        record.operation = Some(operation.name().to_owned());
        // The thing may lie below what somebody wanted to move, or to mount over.
        if let Some((_, at)) =
            found.filter(|(_, at)| *at != *self.desired.expectations[thing as usize].thing.path())
        {
            record.detail.insert("at".into(), at.to_string_lossy().into());
        }
        tracing::warn!(path = record.path, operation = operation.name(), pid = actor.pid, "Refused.");
        self.group.push(record);
    }
}
