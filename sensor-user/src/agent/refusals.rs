//! What deny rules refused.
//!
//! In: records of refused operations. Out: an entry of the log for each of the first ones by somebody, about the thing that the
//! rule protects, and entries that count the rest: those of one thing, and those of users who have no room left in the log.

use super::Agent;
use super::budgets::{Account, Over};
use super::registry::Concerned;
use super::windows::{Untold, Windows};
use crate::event::Change;
use sensor_common::map::Counter;
use sensor_common::op::Operation;
use sensor_model::fit::{CHAIN, LONGEST_ENTRY, length};
use sensor_model::record::{Record, RecordKind};
use std::collections::HashMap;
use std::path::PathBuf;

/// Refusals that are counted.
pub(super) type Denials = Windows<Denial>;

/// What is counted together: one operation on one place that one thing's rule protects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Denial {
    thing: u32,
    operation: &'static str,
    /// Where it was tried, if not at the thing itself.
    at: Option<PathBuf>,
    /// By which program; of root alone, as others make as many as they like.
    program: Option<String>,
}

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
        let operation = Operation::from_code(code).unwrap_or(change.operation).name();
        // The thing may lie below what somebody wanted to move, or to mount over.
        let at = found
            .map(|(_, at)| at)
            .filter(|at| *at != *self.desired.expectations[thing as usize].thing.path());
        let program = actor.exe.clone().filter(|_| actor.uid == 0);
        let what = Denial { thing, operation, at, program };
        let mut told = self.denials.may_tell(&what, &actor);
        if told {
            let mut record = self.about(RecordKind::Denied, thing, change, &actor);
            record.operation = Some(operation.to_owned());
            if let Some(at) = &what.at {
                record.detail.insert("at".into(), at.to_string_lossy().into());
            }
            tracing::warn!(path = record.path, operation, pid = actor.pid, "Refused.");
            told = self.tell_if_there_is_room(record);
        }
        let now = self.clock.boot_ns();
        self.denials.add(&what, &actor, change.record.time_ns, now, told);
        self.telemetry.folded(RecordKind::Denied, u64::from(!told));
    }

    /// Tells what somebody without rights may cause, as long as there is room for that user's entries.
    pub(super) fn tell_if_there_is_room(&mut self, record: Record) -> bool {
        let bytes = (length(&record) + CHAIN).min(LONGEST_ENTRY);
        let told = self.budgets.takes(self.account(&record), bytes, self.clock.boot_ns());
        if told {
            self.group.push(record);
        }
        told
    }

    /// Whose budget an entry takes.
    fn account(&self, record: &Record) -> Account {
        record.actor.as_ref().map_or(Account::Root, |actor| {
            let is_named = self.looker.observer.user(actor.uid).is_some();
            Account::of(actor, is_named)
        })
    }

    /// Tells what was only counted in windows that are over by a time; with `u64::MAX` in all of them.
    pub(super) fn tell_counted(&mut self, by: u64) {
        self.count_untold();
        let executions = self
            .executions
            .ended(by)
            .into_iter()
            .map(|it| (it.first_ns, it.count, self.counted_executions(it)));
        let mut counted: Vec<_> = executions.collect();
        let denials =
            self.denials.ended(by).into_iter().map(|it| (it.first_ns, it.count, self.counted_denials(it)));
        counted.extend(denials);
        for (first_ns, count, record) in counted {
            let over = Over {
                account: self.account(&record),
                kind: record.kind,
                count,
                first_ns,
                last_ns: record.monotonic_ns,
            };
            if !self.tell_if_there_is_room(record) {
                self.budgets.count(over, self.clock.boot_ns());
            }
        }
        for over in self.budgets.ended(by) {
            let mut record = self.counted(over.kind, None, over.count, over.first_ns, over.last_ns);
            record.detail.insert("reason".into(), "too-many".into());
            if let Account::User(uid) = over.account {
                record.detail.insert("uid".into(), uid.into());
            }
            self.group.push(record);
        }
    }

    fn counted_denials(&self, untold: Untold<Denial>) -> Record {
        let thing = untold.what.as_ref().map(|what| what.thing);
        let mut record =
            self.counted(RecordKind::Denied, thing, untold.count, untold.first_ns, untold.last_ns);
        if let Some(Denial { operation, at, .. }) = untold.what {
            record.operation = Some(operation.to_owned());
            record.verdict = thing.and_then(|thing| Some(self.detector.standing(thing)?.verdict));
            if let Some(at) = at {
                record.detail.insert("at".into(), at.to_string_lossy().into());
            }
        }
        record.actor = Some(untold.actor);
        record
    }

    /// An entry that counts what happened from one time to another, boot-time nanoseconds.
    pub(super) fn counted(
        &self,
        kind: RecordKind,
        thing: Option<u32>,
        count: u64,
        first_ns: u64,
        last_ns: u64,
    ) -> Record {
        let mut record = self.log.record(kind);
        if let Some(thing) = thing {
            let expectation = &self.desired.expectations[thing as usize];
            record.source = Some(expectation.source.machine_config.to_string());
            record.set_name(self.name(thing));
        }
        record.monotonic_ns = last_ns;
        record.time = self.wall(last_ns);
        record.detail.insert("count".into(), count.into());
        record.detail.insert("since".into(), self.wall(first_ns).into());
        record
    }

    /// Refusals that the kernel programs counted before this daemon are not told again.
    pub(super) fn know_untold(&mut self) {
        if let Some(witness) =
            self.looker.witness.as_mut().filter(|_| self.untold == KernelsCounts::default())
        {
            let all = witness.maps().count(Counter::DeniedUntold).unwrap_or(0);
            self.untold = KernelsCounts::since(all, witness.maps().untold_denials());
        }
    }

    /// Counts the refusals that the kernel programs told only by their number, since the last call.
    fn count_untold(&mut self) {
        let now = self.clock.boot_ns();
        let Some(witness) = self.looker.witness.as_mut() else { return };
        let all = witness.maps().count(Counter::DeniedUntold).unwrap_or(self.untold.all);
        if all <= self.untold.all {
            return;
        }
        let users: Vec<(u32, u64)> = witness.maps().untold_denials().collect();
        self.telemetry.folded(RecordKind::Denied, all - self.untold.all);
        for (account, count) in self.untold.news(all, &users) {
            let over = Over { account, kind: RecordKind::Denied, count, first_ns: now, last_ns: now };
            self.budgets.count(over, now);
        }
    }
}

/// Refusals without a record, as the kernel programs had counted them when that was last asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KernelsCounts {
    all: u64,
    users: HashMap<u32, u64>,
}

impl KernelsCounts {
    /// From counts that were told already.
    pub(super) fn since(all: u64, users: impl IntoIterator<Item = (u32, u64)>) -> Self {
        Self { all, users: users.into_iter().collect() }
    }

    /// How many there are more than before, by user. The programs forget a user when many others come; what they counted
    /// of such a one since is in the sum.
    fn news(&mut self, all: u64, users: &[(u32, u64)]) -> Vec<(Account, u64)> {
        let before = std::mem::replace(self, Self::since(all, users.iter().copied()));
        let mut rest = all.saturating_sub(before.all);
        let mut news = Vec::new();
        for (uid, count) in users {
            let known = before.users.get(uid).copied().filter(|known| known <= count).unwrap_or(0);
            let more = (count - known).min(rest);
            rest -= more;
            if more > 0 {
                news.push((if *uid == 0 { Account::Root } else { Account::User(*uid) }, more));
            }
        }
        if rest > 0 {
            news.push((Account::Others, rest));
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counts_are_told_once_for_each_user_and_none_is_left_out() {
        let mut counts = KernelsCounts::since(10, [(1000, 10)]);
        assert_eq!(counts.news(15, &[(1000, 13), (0, 2)]), [(Account::User(1000), 3), (Account::Root, 2)]);
        assert_eq!(counts.news(15, &[(1000, 13), (0, 2)]), []);
        // 1000 was forgotten and came again.
        assert_eq!(counts.news(25, &[(1000, 4), (0, 2)]), [(Account::User(1000), 4), (Account::Others, 6)]);
    }
}
