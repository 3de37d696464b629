//! Executions of managed files: the first ones by somebody are told one by one, the rest by their number.
//!
//! In: who executed what, how that stood, and the time. Out: whether that is a record of its own, and the counts of what
//! was not. Whoever may run a managed program could otherwise rotate the log away. No I/O.

use super::Agent;
use crate::event::Change;
use sensor_common::op::Operation;
use sensor_model::record::{Actor, RecordKind};
use sensor_model::verdict::VerdictKind;
use std::collections::HashMap;

/// Executions of one thing by one actor that are told one by one in a window.
const ONE_BY_ONE: u32 = 4;

/// A window's length, which doubles while there is something to be counted.
const FIRST_NS: u64 = 60_000_000_000;
const LONGEST_NS: u64 = 60 * FIRST_NS;

/// Windows at once; who comes later is counted with all others.
const MOST: usize = 512;

/// Executions that are counted.
#[derive(Debug, Default)]
pub(super) struct Executions {
    windows: HashMap<Key, Window>,
}

/// What is counted together: executions of one thing, while it stands in one way, by one actor.
type Key = (u32, Option<VerdictKind>, Who);

/// Who executes, as far as it stays the same when the process does not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Who {
    Somebody { uid: u32, login_uid: Option<u32>, unit: Option<String>, container_id: Option<String> },
    Others,
}

#[derive(Debug)]
struct Window {
    ends: u64,
    length: u64,
    told: u32,
    untold: Option<Untold>,
}

/// Executions that are told by their number.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Untold {
    pub(super) thing: u32,
    pub(super) verdict: Option<VerdictKind>,
    pub(super) count: u64,
    /// Boot-time nanoseconds of the first and the last.
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    /// Who made the last.
    pub(super) actor: Actor,
}

impl Executions {
    /// Whether an execution is told by a record of its own. `verdict`: how the thing stood; `at_ns`: when it was, boot
    /// time.
    pub(super) fn tells(
        &mut self,
        thing: u32,
        verdict: Option<VerdictKind>,
        actor: &Actor,
        at_ns: u64,
        now: u64,
    ) -> bool {
        let Actor { uid, login_uid, mut unit, mut container_id, .. } = actor.clone();
        // Whoever logged in has as many of them as they like.
        if uid != 0 {
            unit = None;
            container_id = container_id.filter(|_| login_uid.is_none());
        }
        let mut key = (thing, verdict, Who::Somebody { uid, login_uid, unit, container_id });
        if self.windows.len() >= MOST && !self.windows.contains_key(&key) {
            key.2 = Who::Others;
        }
        let window = self.windows.entry(key).or_insert_with(|| Window::new(now, FIRST_NS));
        if window.told < ONE_BY_ONE {
            window.told += 1;
            return true;
        }
        let untold = window.untold.get_or_insert_with(|| Untold {
            thing,
            verdict,
            count: 0,
            first_ns: at_ns,
            last_ns: at_ns,
            actor: Actor::default(),
        });
        untold.count += 1;
        untold.last_ns = at_ns;
        untold.actor.clone_from(actor);
        false
    }

    /// What was counted in windows that are over; with `u64::MAX` in all of them.
    pub(super) fn ended(&mut self, now: u64) -> Vec<Untold> {
        let mut told = Vec::new();
        self.windows.retain(|_, window| {
            if window.ends > now {
                return true;
            }
            let Some(untold) = window.untold.take() else { return false };
            told.push(untold);
            *window = Window::new(now, window.length.saturating_mul(2).min(LONGEST_NS));
            true
        });
        told.sort_by_key(|untold| untold.first_ns);
        told
    }
}

impl Window {
    fn new(now: u64, length: u64) -> Self {
        Self { ends: now.saturating_add(length), length, told: 0, untold: None }
    }
}

impl Agent {
    /// A managed file was executed: who, and was it as expected at that moment.
    pub(super) fn executed(&mut self, thing: u32, change: &Change, actor: &Actor) {
        let now = self.clock.boot_ns();
        let verdict = self.verdict_now(thing);
        if self.executions.tells(thing, verdict, actor, change.record.time_ns, now) {
            let mut record = self.about(RecordKind::Exec, thing, change, actor);
            record.verdict = verdict;
            self.group.push(record);
        }
    }

    /// How a thing stands at this moment: what was decided before a change that no look has followed yet is not known
    /// to be so any more.
    pub(super) fn verdict_now(&self, thing: u32) -> Option<VerdictKind> {
        let standing = self.detector.standing(thing)?;
        let is_open = standing.verdict == VerdictKind::Compliant && standing.in_flux;
        Some(if is_open { VerdictKind::Unknown } else { standing.verdict })
    }

    /// Tells what was only counted in windows that are over by a time.
    pub(super) fn tell_executions(&mut self, by: u64) {
        for untold in self.executions.ended(by) {
            let expectation = &self.desired.expectations[untold.thing as usize];
            let mut record = self.log.record(RecordKind::Exec);
            record.source = Some(expectation.source.machine_config.to_string());
            record.set_name(self.name(untold.thing));
            record.operation = Some(Operation::Exec.name().to_owned());
            record.monotonic_ns = untold.last_ns;
            record.time = self.wall(untold.last_ns);
            record.actor = Some(untold.actor);
            record.verdict = untold.verdict;
            record.detail.insert("count".into(), untold.count.into());
            record.detail.insert("since".into(), self.wall(untold.first_ns).into());
            self.group.push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPLIANT: Option<VerdictKind> = Some(VerdictKind::Compliant);

    fn user(uid: u32, pid: u32) -> Actor {
        Actor { uid, pid, ..Actor::default() }
    }

    #[test]
    fn a_flood_of_executions_is_a_few_records_and_the_right_count() {
        let mut executions = Executions::default();
        let mut told: u64 = 0;
        let (mut counted, mut counts) = (0, 0);
        for n in 0..100_000_u32 {
            // A thousand a second.
            let now = u64::from(n) * 1_000_000;
            told += u64::from(executions.tells(1, COMPLIANT, &user(1000, n), now, now));
            for untold in executions.ended(now) {
                (counted, counts) = (counted + untold.count, counts + 1);
            }
        }
        let last = executions.ended(u64::MAX);
        assert_eq!(last[0].actor.pid, 99_999);
        counted += last.iter().map(|untold| untold.count).sum::<u64>();
        assert_eq!(told + counted, 100_000);
        assert_eq!(
            (told, counts + last.len()),
            (8, 2),
            "a hundred seconds are one window and part of the next"
        );
    }

    #[test]
    fn who_comes_now_and_then_is_always_told_one_by_one() {
        let mut executions = Executions::default();
        for n in 0..50 {
            let now = n * FIRST_NS;
            assert_eq!(executions.ended(now), []);
            assert!(executions.tells(1, COMPLIANT, &user(0, 7), now, now));
        }
    }

    #[test]
    fn a_flood_by_one_does_not_hide_another_nor_another_thing() {
        let mut executions = Executions::default();
        for pid in 0..100 {
            executions.tells(1, COMPLIANT, &user(1000, pid), 5, 5);
        }
        assert!(!executions.tells(1, COMPLIANT, &user(1000, 0), 5, 5));
        assert!(
            executions.tells(1, COMPLIANT, &user(0, 1), 5, 5)
                && executions.tells(2, COMPLIANT, &user(1000, 1), 5, 5)
        );
    }

    #[test]
    fn what_ran_while_it_was_drifted_is_never_counted_with_what_ran_as_declared() {
        let mut executions = Executions::default();
        for n in 0..10 {
            executions.tells(1, COMPLIANT, &user(0, n), 5, 5);
        }
        let drifted = Some(VerdictKind::Drifted);
        assert!(executions.tells(1, drifted, &user(0, 11), 5, 5));
        for n in 0..10 {
            executions.tells(1, drifted, &user(0, n), 5, 5);
        }
        let mut counts: Vec<_> =
            executions.ended(u64::MAX).iter().map(|untold| (untold.verdict, untold.count)).collect();
        counts.sort();
        let mut expected = vec![(COMPLIANT, 6), (drifted, 7)];
        expected.sort();
        assert_eq!(counts, expected);
    }

    #[test]
    fn who_logged_in_gains_nothing_by_another_unit_or_container_each_time() {
        let mut executions = Executions::default();
        let told = (0..1000).filter(|n| {
            let mut actor = user(1000, *n);
            actor.login_uid = Some(1000);
            actor.unit = Some(format!("run-{n}.service"));
            actor.container_id = Some(n.to_string());
            executions.tells(1, COMPLIANT, &actor, 5, 5)
        });
        assert_eq!(told.count(), ONE_BY_ONE as usize);
        // Containers that the node runs are told apart, whatever user they run as.
        let container = |id: &str| Actor { container_id: Some(id.to_owned()), ..user(1000, 1) };
        for _ in 0..10 {
            executions.tells(2, COMPLIANT, &container("a"), 5, 5);
        }
        assert!(executions.tells(2, COMPLIANT, &container("b"), 5, 5));
    }

    #[test]
    fn what_is_kept_is_bounded_however_many_come() {
        let mut executions = Executions::default();
        let told = (0..10_000).filter(|uid| executions.tells(1, COMPLIANT, &user(*uid, 1), 5, 5)).count();
        assert!(executions.windows.len() <= MOST + 1);
        assert_eq!(told, MOST + ONE_BY_ONE as usize);
        let counted: u64 = executions.ended(u64::MAX).iter().map(|untold| untold.count).sum();
        assert_eq!(counted + told as u64, 10_000);
    }
}
