//! Executions of managed files: who, and was the file as expected at that moment.
//!
//! In: records of executions. Out: an entry of the log for each of the first ones by somebody, and one that counts the rest.

use super::Agent;
use super::windows::{Untold, Windows};
use crate::event::Change;
use sensor_common::op::Operation;
use sensor_model::record::{Actor, Record, RecordKind};
use sensor_model::verdict::VerdictKind;

/// Executions of one thing are counted together while it stands in one way.
pub(super) type Executions = Windows<Execution>;

/// A thing, and how it stood.
pub(super) type Execution = (u32, Option<VerdictKind>);

impl Agent {
    /// A managed file was executed: who, and was it as expected at that moment.
    pub(super) fn executed(&mut self, thing: u32, change: &Change, actor: &Actor) {
        let now = self.clock.boot_ns();
        let verdict = self.verdict_now(thing);
        let what = (thing, verdict);
        let mut told = self.executions.may_tell(&what, actor);
        if told {
            let mut record = self.about(RecordKind::Exec, thing, change, actor);
            record.verdict = verdict;
            told = self.tell_if_there_is_room(record);
        }
        self.executions.add(&what, actor, change.record.time_ns, now, told);
        self.telemetry.folded(RecordKind::Exec, u64::from(!told));
    }

    /// How a thing stands at this moment: what was decided before a change that no look has followed yet is not known
    /// to be so any more.
    pub(super) fn verdict_now(&self, thing: u32) -> Option<VerdictKind> {
        let standing = self.detector.standing(thing)?;
        let is_open = standing.verdict == VerdictKind::Compliant && standing.in_flux;
        Some(if is_open { VerdictKind::Unknown } else { standing.verdict })
    }

    /// The entry that counts executions of one thing by one actor.
    pub(super) fn counted_executions(&self, untold: Untold<Execution>) -> Record {
        let (thing, verdict) = untold.what.unzip();
        let mut record = self.counted(RecordKind::Exec, thing, untold.count, untold.first_ns, untold.last_ns);
        record.operation = Some(Operation::Exec.name().to_owned());
        record.actor = Some(untold.actor);
        record.verdict = verdict.flatten();
        record
    }
}
