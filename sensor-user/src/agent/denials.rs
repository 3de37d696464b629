//! Deny rules, what they refused, and the executions of managed files.
//!
//! In: records of refused operations and of executions. Out: a record for each of the first ones by an actor, about the thing
//! that the rule protects, and records that count the others. A user whose budget in the log is used up is counted only.

use super::budgets::{Account, Budgets, Over};
use super::counting_windows::{Counted, Windows};
use super::deny_rules::DenyRules;
use super::registry::Concerned;
use super::reports::AgentEvent;
use super::verdicts::Verdicts;
use super::verifier::{Looker, Witness};
use crate::event::Change;
use crate::observation::Observer;
use sensor_common::map::Counter;
use sensor_common::op::Operation;
use sensor_model::fit::{CHAIN, LONGEST_ENTRY, length};
use sensor_model::record::{Actor, Record, RecordKind};
use sensor_model::verdict::VerdictKind;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is counted together: one operation on one place that one thing's rule protects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Denial {
    thing: u32,
    operation: &'static str,
    /// Where it was tried, if not at the thing itself.
    at: Option<PathBuf>,
    /// The program, for root only: other users can make any number of programs.
    program: Option<String>,
}

/// Executions of one thing are counted together while its verdict is the same.
type Execution = (u32, Option<VerdictKind>);

/// Deny rules, and what users may cause without end.
#[derive(Default)]
pub(super) struct Denials {
    pub(super) rules: DenyRules,
    refused: Windows<Denial>,
    executed: Windows<Execution>,
    budgets: Budgets,
    in_kernel: KernelCounts,
}

impl Denials {
    /// With the rules, budgets and counts of the run before.
    pub(super) fn new(rules: DenyRules, budgets: Budgets, in_kernel: KernelCounts) -> Self {
        Self { rules, budgets, in_kernel, ..Self::default() }
    }

    /// What the next run of the loop goes on with.
    pub(super) fn carry(&mut self) -> (DenyRules, Budgets, KernelCounts) {
        let Self { rules, budgets, in_kernel, .. } = std::mem::take(self);
        (rules, budgets, in_kernel)
    }

    /// Brings the kernel's list of allowed actors up to date. `writers`: processes of Holdfast that write now.
    pub(super) fn refresh(
        &mut self,
        root: &Path,
        looker: &mut Looker,
        writers: impl Iterator<Item = (u32, u64)>,
    ) {
        let observer = Arc::clone(&looker.observer);
        if let Some(witness) = looker.witness.as_mut() {
            self.rules.refresh(root, &observer, witness, writers);
        }
    }

    /// A deny rule refused a change of what these watches lead to, or of a name in it.
    pub(super) fn refused(
        &mut self,
        watches: &[u32],
        concerned: &Concerned,
        (change, actor): (&Change, &Actor),
        looker: &Looker,
        verdicts: &mut Verdicts,
    ) {
        let found = looker.registry.refused(watches, change.name().filter(|_| !change.name_cut()));
        // The rule may be gone since.
        let thing = found.as_ref().map(|(thing, _)| *thing);
        let Some(thing) = thing.or_else(|| concerned.direct.iter().chain(&concerned.beyond).next().copied())
        else {
            return;
        };
        let code = u16::try_from(change.record.detail).unwrap_or(0);
        let operation = Operation::from_code(code).unwrap_or(change.operation).name();
        // The thing may lie below what the process wanted to move, or to mount over.
        let at = found
            .map(|(_, at)| at)
            .filter(|at| *at != *verdicts.desired.expectations[thing as usize].thing.path());
        let program = actor.exe.clone().filter(|_| actor.uid == 0);
        let what = Denial { thing, operation, at, program };
        let mut has_record = self.refused.may_record(&what, actor);
        if has_record {
            let mut record = verdicts.record_about(RecordKind::Denied, thing, change, actor);
            record.operation = Some(operation.to_owned());
            if let Some(at) = &what.at {
                record.detail.insert("at".into(), at.to_string_lossy().into());
            }
            tracing::warn!(path = record.path, operation, pid = actor.pid, "A deny rule refused a change.");
            has_record = self.record_within_budget(record, &looker.observer, verdicts);
        }
        self.refused.add(&what, actor, change.record.time_ns, verdicts.now(), has_record);
        verdicts.reports.report(AgentEvent::Counted(RecordKind::Denied, u64::from(!has_record)));
    }

    /// A managed file was executed.
    pub(super) fn executed(
        &mut self,
        thing: u32,
        change: &Change,
        actor: &Actor,
        observer: &Observer,
        verdicts: &mut Verdicts,
    ) {
        let verdict = verdicts.verdict_now(thing);
        let what = (thing, verdict);
        let mut has_record = self.executed.may_record(&what, actor);
        if has_record {
            let mut record = verdicts.record_about(RecordKind::Exec, thing, change, actor);
            record.verdict = verdict;
            has_record = self.record_within_budget(record, observer, verdicts);
        }
        self.executed.add(&what, actor, change.record.time_ns, verdicts.now(), has_record);
        verdicts.reports.report(AgentEvent::Counted(RecordKind::Exec, u64::from(!has_record)));
    }

    /// Keeps a record that a user without rights may cause, if the user's budget has room for it.
    fn record_within_budget(&mut self, record: Record, observer: &Observer, verdicts: &mut Verdicts) -> bool {
        let bytes = (length(&record) + CHAIN).min(LONGEST_ENTRY);
        let fits = self.budgets.takes(account(&record, observer), bytes, verdicts.now());
        if fits {
            verdicts.records.push(record);
        }
        fits
    }

    /// Records what was only counted in windows that ended by a time; with `u64::MAX` in all of them.
    pub(super) fn record_counts(&mut self, by: u64, looker: &mut Looker, verdicts: &mut Verdicts) {
        self.count_in_kernel(looker.witness.as_mut(), verdicts);
        let executed = self.executed.ended(by).into_iter();
        let executed = executed.map(|it| (it.first_ns, it.count, record_of_executions(it, verdicts)));
        let mut counted: Vec<_> = executed.collect();
        let refused = self.refused.ended(by).into_iter();
        counted.extend(refused.map(|it| (it.first_ns, it.count, record_of_denials(it, verdicts))));
        for (first_ns, count, record) in counted {
            let over = Over {
                account: account(&record, &looker.observer),
                kind: record.kind,
                count,
                first_ns,
                last_ns: record.monotonic_ns,
            };
            if !self.record_within_budget(record, &looker.observer, verdicts) {
                self.budgets.count(over, verdicts.now());
            }
        }
        for over in self.budgets.ended(by) {
            let mut record =
                verdicts.record_of_count(over.kind, None, over.count, over.first_ns, over.last_ns);
            record.detail.insert("reason".into(), "too-many".into());
            if let Account::User(uid) = over.account {
                record.detail.insert("uid".into(), uid.into());
            }
            verdicts.records.push(record);
        }
    }

    /// Refusals that the kernel programs counted before this daemon are not reported again.
    pub(super) fn know_counts(&mut self, witness: Option<&mut Witness>) {
        if let Some(witness) = witness.filter(|_| self.in_kernel == KernelCounts::default()) {
            let all = witness.maps().count(Counter::DeniedUntold).unwrap_or(0);
            self.in_kernel = KernelCounts::since(all, witness.maps().untold_denials());
        }
    }

    /// Counts the refusals since the last call of which the kernel programs only counted the number.
    fn count_in_kernel(&mut self, witness: Option<&mut Witness>, verdicts: &mut Verdicts) {
        let now = verdicts.now();
        let Some(witness) = witness else { return };
        let all = witness.maps().count(Counter::DeniedUntold).unwrap_or(self.in_kernel.all);
        if all <= self.in_kernel.all {
            return;
        }
        let users: Vec<(u32, u64)> = witness.maps().untold_denials().collect();
        verdicts.reports.report(AgentEvent::Counted(RecordKind::Denied, all - self.in_kernel.all));
        for (account, count) in self.in_kernel.news(all, &users) {
            let over = Over { account, kind: RecordKind::Denied, count, first_ns: now, last_ns: now };
            self.budgets.count(over, now);
        }
    }
}

/// The budget that a record takes from.
fn account(record: &Record, observer: &Observer) -> Account {
    record.actor.as_ref().map_or(Account::Root, |actor| {
        let is_named = observer.user(actor.uid).is_some();
        Account::of(actor, is_named)
    })
}

fn record_of_executions(counted: Counted<Execution>, verdicts: &Verdicts) -> Record {
    let (thing, verdict) = counted.what.unzip();
    let (count, first_ns, last_ns) = (counted.count, counted.first_ns, counted.last_ns);
    let mut record = verdicts.record_of_count(RecordKind::Exec, thing, count, first_ns, last_ns);
    record.operation = Some(Operation::Exec.name().to_owned());
    record.actor = Some(counted.actor);
    record.verdict = verdict.flatten();
    record
}

fn record_of_denials(counted: Counted<Denial>, verdicts: &Verdicts) -> Record {
    let thing = counted.what.as_ref().map(|what| what.thing);
    let (count, first_ns, last_ns) = (counted.count, counted.first_ns, counted.last_ns);
    let mut record = verdicts.record_of_count(RecordKind::Denied, thing, count, first_ns, last_ns);
    if let Some(Denial { operation, at, .. }) = counted.what {
        record.operation = Some(operation.to_owned());
        record.verdict = thing.and_then(|thing| Some(verdicts.detector.thing_verdict(thing)?.verdict));
        if let Some(at) = at {
            record.detail.insert("at".into(), at.to_string_lossy().into());
        }
    }
    record.actor = Some(counted.actor);
    record
}

/// Refusals without a record, as the kernel programs had counted them when that was last asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KernelCounts {
    all: u64,
    users: HashMap<u32, u64>,
}

impl KernelCounts {
    /// From counts that were reported already.
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
        let mut counts = KernelCounts::since(10, [(1000, 10)]);
        assert_eq!(counts.news(15, &[(1000, 13), (0, 2)]), [(Account::User(1000), 3), (Account::Root, 2)]);
        assert_eq!(counts.news(15, &[(1000, 13), (0, 2)]), []);
        // 1000 was forgotten and came again.
        assert_eq!(counts.news(25, &[(1000, 4), (0, 2)]), [(Account::User(1000), 4), (Account::Others, 6)]);
    }
}
