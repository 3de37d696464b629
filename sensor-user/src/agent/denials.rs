//! Deny rules, the changes that they refused, and the executions and loads of files.
//!
//! In: ring records of denials and of executions. Out: a forensic record for the first ones by each actor, about the thing that
//! the rule protects, and records that count the others. It owns the rules, the counts, and each user's budget in the log. It only
//! counts the events of a user whose budget is empty.

use super::budgets::{Account, Budgets, OverBudget};
use super::counting_windows::{CountedEvents, CountingWindows};
use super::deny_rules::DenyRules;
use super::executions::LookedUpPaths;
use super::kernel_programs::KernelPrograms;
use super::registry::Concerned;
use super::reports::AgentReport;
use super::verdicts::Verdicts;
use super::verifier::Verifier;
use crate::event::CheckedRecord;
use crate::image::KeptIndexes;
use crate::observation::Observer;
use sensor_common::map::Counter;
use sensor_common::op::Operation;
use sensor_model::fit::{CHAIN, LONGEST_ENTRY, length};
use sensor_model::protocol::ThingId;
use sensor_model::record::{Actor, Record, RecordKind};
use sensor_model::verdict::VerdictKind;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Denials that are counted together: one operation at one path that one thing's rule protects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Denial {
    thing: ThingId,
    operation: &'static str,
    /// The path of the attempt, if it is not the thing's own.
    at: Option<PathBuf>,
    /// The program, for root only: other users can create any number of programs.
    program: Option<String>,
}

/// Executions that are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum CountedExecution {
    /// Of one thing, by one operation, while its verdict is the same.
    Of(ThingId, &'static str, Option<VerdictKind>),
    /// Of a file that nothing expects, by one operation.
    Unknown(PathBuf, &'static str),
}

/// `detail.reason` of the execution or load of a file that nothing expects.
const UNKNOWN_EXECUTABLE: &str = "unknown-executable";

/// Deny rules, and the events that users may cause without end.
#[derive(Default)]
pub(super) struct DenialRecorder {
    pub(super) rules: DenyRules,
    refused: CountingWindows<Denial>,
    executed: CountingWindows<CountedExecution>,
    /// Executed and loaded files that have no thing.
    pub(super) looked_up: LookedUpPaths,
    /// The indexes in which they are looked up.
    pub(super) indexes: KeptIndexes,
    budgets: Budgets,
    kernel_counts: KernelDenialCounts,
}

impl DenialRecorder {
    /// Begins with the rules, budgets and counts of the run before.
    pub(super) fn new(rules: DenyRules, budgets: Budgets, kernel_counts: KernelDenialCounts) -> Self {
        Self { rules, budgets, kernel_counts, ..Self::default() }
    }

    /// Takes the rules, budgets and counts out, so that the next run begins with them.
    pub(super) fn carry(&mut self) -> (DenyRules, Budgets, KernelDenialCounts) {
        let Self { rules, budgets, kernel_counts, .. } = std::mem::take(self);
        (rules, budgets, kernel_counts)
    }

    /// Updates the kernel's list of allowed actors. `writers`: processes of Holdfast that write now.
    pub(super) fn refresh(
        &mut self,
        root: &Path,
        verifier: &mut Verifier,
        writers: impl Iterator<Item = (u32, u64)>,
    ) {
        if let Some((kernel, observer)) = verifier.kernel_and_observer() {
            self.rules.refresh(root, observer, kernel, writers);
        }
    }

    /// Records or counts that a deny rule refused a change of these watches' inode, or of a name in it.
    pub(super) fn record_denial(
        &mut self,
        watches: &[u32],
        concerned: &Concerned,
        (change, actor): (&CheckedRecord, &Actor),
        verifier: &Verifier,
        verdicts: &mut Verdicts,
    ) {
        let found = verifier.protected_thing(watches, change.name().filter(|_| !change.name_cut()));
        // The rule may not exist any more.
        let thing = found.as_ref().map(|(thing, _)| *thing);
        let Some(thing) =
            thing.or_else(|| concerned.in_evidence.iter().chain(&concerned.outside_evidence).next().copied())
        else {
            return;
        };
        let code = u16::try_from(change.record.detail).unwrap_or(0);
        let operation = Operation::from_code(code).unwrap_or(change.operation).name();
        // The process may have tried to move, or to mount over, a directory above the thing.
        let at = found.map(|(_, at)| at).filter(|at| *at != *verdicts.expectation(thing).thing.path());
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
            has_record = self.record_within_budget(record, &verifier.observer, verdicts);
        }
        self.refused.add(&what, actor, change.record.time_ns, verdicts.now(), has_record);
        verdicts.report(AgentReport::WithoutRecord(RecordKind::Denied, u64::from(!has_record)));
    }

    /// Records or counts the execution of a managed file.
    pub(super) fn record_execution(
        &mut self,
        thing: ThingId,
        change: &CheckedRecord,
        actor: &Actor,
        observer: &Observer,
        verdicts: &mut Verdicts,
    ) {
        let verdict = verdicts.verdict_now(thing);
        let what = CountedExecution::Of(thing, change.operation.name(), verdict);
        let mut has_record = self.executed.may_record(&what, actor);
        if has_record {
            let mut record = verdicts.record_about(RecordKind::Exec, thing, change, actor);
            record.verdict = verdict;
            has_record = self.record_within_budget(record, observer, verdicts);
        }
        self.executed.add(&what, actor, change.record.time_ns, verdicts.now(), has_record);
        verdicts.report(AgentReport::WithoutRecord(RecordKind::Exec, u64::from(!has_record)));
    }

    /// Records or counts the execution or load of a file that no config, image, package or baseline has.
    pub(super) fn record_unknown_execution(
        &mut self,
        path: &Path,
        change: &CheckedRecord,
        actor: &Actor,
        observer: &Observer,
        verdicts: &mut Verdicts,
    ) {
        let what = CountedExecution::Unknown(path.to_owned(), change.operation.name());
        let mut has_record = self.executed.may_record(&what, actor);
        if has_record {
            let mut record = verdicts.record_of_change(RecordKind::Exec, change, actor);
            set_unknown_executable(&mut record, path);
            if change.name_cut() {
                record.detail.insert("name_cut".into(), true.into());
            }
            tracing::warn!(
                path = record.path,
                operation = record.operation,
                pid = actor.pid,
                "A process executed or loaded a file that no config, image, package or baseline has."
            );
            has_record = self.record_within_budget(record, observer, verdicts);
        }
        self.executed.add(&what, actor, change.record.time_ns, verdicts.now(), has_record);
        verdicts.report(AgentReport::UnknownExecution(change.operation));
        verdicts.report(AgentReport::WithoutRecord(RecordKind::Exec, u64::from(!has_record)));
    }

    /// Adds a record that a user without rights may cause, if the user's budget has room. Gives whether it had.
    fn record_within_budget(&mut self, record: Record, observer: &Observer, verdicts: &mut Verdicts) -> bool {
        let bytes = (length(&record) + CHAIN).min(LONGEST_ENTRY);
        let fits = self.budgets.takes(account(&record, observer), bytes, verdicts.now());
        if fits {
            verdicts.add_record(record);
        }
        fits
    }

    /// Records the counts of windows that ended by a time; `u64::MAX` ends all windows.
    pub(super) fn record_counts(&mut self, by: u64, verifier: &mut Verifier, verdicts: &mut Verdicts) {
        self.count_kernel_denials(verifier.kernel.as_mut(), verdicts);
        let executed = self.executed.ended(by).into_iter();
        let executed = executed.map(|it| (it.first_ns, it.count, record_of_executions(it, verdicts)));
        let mut counted: Vec<_> = executed.collect();
        let refused = self.refused.ended(by).into_iter();
        counted.extend(refused.map(|it| (it.first_ns, it.count, record_of_denials(it, verdicts))));
        for (first_ns, count, record) in counted {
            let over = OverBudget {
                account: account(&record, &verifier.observer),
                kind: record.kind,
                count,
                first_ns,
                last_ns: record.monotonic_ns,
            };
            if !self.record_within_budget(record, &verifier.observer, verdicts) {
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
            verdicts.add_record(record);
        }
    }

    /// Reads the kernel programs' counts at the start, so that the daemon reports no denial of an earlier daemon again.
    pub(super) fn set_kernel_baseline(&mut self, kernel: Option<&mut KernelPrograms>) {
        if let Some(kernel) = kernel.filter(|_| self.kernel_counts == KernelDenialCounts::default()) {
            let all = kernel.maps().count(Counter::DeniedUnrecorded).unwrap_or(0);
            self.kernel_counts = KernelDenialCounts::since(all, kernel.maps().unrecorded_denials());
        }
    }

    /// Counts the denials since the last call that the kernel programs only counted.
    fn count_kernel_denials(&mut self, kernel: Option<&mut KernelPrograms>, verdicts: &mut Verdicts) {
        let now = verdicts.now();
        let Some(kernel) = kernel else { return };
        let all = kernel.maps().count(Counter::DeniedUnrecorded).unwrap_or(self.kernel_counts.all);
        if all <= self.kernel_counts.all {
            return;
        }
        let users: Vec<(u32, u64)> = kernel.maps().unrecorded_denials().collect();
        verdicts.report(AgentReport::WithoutRecord(RecordKind::Denied, all - self.kernel_counts.all));
        for (account, count) in self.kernel_counts.take_increase(all, &users) {
            let over = OverBudget { account, kind: RecordKind::Denied, count, first_ns: now, last_ns: now };
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

fn record_of_executions(counted: CountedEvents<CountedExecution>, verdicts: &Verdicts) -> Record {
    let (thing, operation, verdict, unknown) = match counted.what {
        Some(CountedExecution::Of(thing, operation, verdict)) => (Some(thing), operation, verdict, None),
        Some(CountedExecution::Unknown(path, operation)) => (None, operation, None, Some(path)),
        None => (None, Operation::Exec.name(), None, None),
    };
    let (count, first_ns, last_ns) = (counted.count, counted.first_ns, counted.last_ns);
    let mut record = verdicts.record_of_count(RecordKind::Exec, thing, count, first_ns, last_ns);
    record.operation = Some(operation.to_owned());
    record.actor = Some(counted.actor);
    record.verdict = verdict;
    if let Some(path) = unknown {
        set_unknown_executable(&mut record, &path);
    }
    record
}

fn set_unknown_executable(record: &mut Record, path: &Path) {
    record.path = Some(path.to_string_lossy().into_owned());
    record.detail.insert("reason".into(), UNKNOWN_EXECUTABLE.into());
}

fn record_of_denials(counted: CountedEvents<Denial>, verdicts: &Verdicts) -> Record {
    let thing = counted.what.as_ref().map(|what| what.thing);
    let (count, first_ns, last_ns) = (counted.count, counted.first_ns, counted.last_ns);
    let mut record = verdicts.record_of_count(RecordKind::Denied, thing, count, first_ns, last_ns);
    if let Some(Denial { operation, at, .. }) = counted.what {
        record.operation = Some(operation.to_owned());
        record.verdict = thing.and_then(|thing| verdicts.last_verdict(thing));
        if let Some(at) = at {
            record.detail.insert("at".into(), at.to_string_lossy().into());
        }
    }
    record.actor = Some(counted.actor);
    record
}

/// The kernel programs' counts of denials without a record, as last read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KernelDenialCounts {
    all: u64,
    users: HashMap<u32, u64>,
}

impl KernelDenialCounts {
    /// Begins with counts that were reported before.
    pub(super) fn since(all: u64, users: impl IntoIterator<Item = (u32, u64)>) -> Self {
        Self { all, users: users.into_iter().collect() }
    }

    /// The increase of each count since the last call, by user. The programs drop a user's count when many other users come; its
    /// denials are in the sum, and become those of other users.
    fn take_increase(&mut self, all: u64, users: &[(u32, u64)]) -> Vec<(Account, u64)> {
        let before = std::mem::replace(self, Self::since(all, users.iter().copied()));
        let mut unassigned = all.saturating_sub(before.all);
        let mut increase = Vec::new();
        for (uid, count) in users {
            let known = before.users.get(uid).copied().filter(|known| known <= count).unwrap_or(0);
            let more = (count - known).min(unassigned);
            unassigned -= more;
            if more > 0 {
                increase.push((if *uid == 0 { Account::Root } else { Account::User(*uid) }, more));
            }
        }
        if unassigned > 0 {
            increase.push((Account::Others, unassigned));
        }
        increase
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_users_kernel_count_is_reported_once_and_none_is_left_out() {
        let mut counts = KernelDenialCounts::since(10, [(1000, 10)]);
        assert_eq!(
            counts.take_increase(15, &[(1000, 13), (0, 2)]),
            [(Account::User(1000), 3), (Account::Root, 2)]
        );
        assert_eq!(counts.take_increase(15, &[(1000, 13), (0, 2)]), []);
        // The programs dropped user 1000, and then counted it again.
        assert_eq!(
            counts.take_increase(25, &[(1000, 4), (0, 2)]),
            [(Account::User(1000), 4), (Account::Others, 6)]
        );
    }
}
