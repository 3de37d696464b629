//! What a user may cause without end: an actor's first events have a record each, the others are counted.
//!
//! In: what happened, by whom, and the time. Out: whether that is a record of its own, and the counts of what was not. Whoever
//! may run a managed program, or is refused something, could otherwise rotate the log away. No I/O.

use super::episode::brief;
use sensor_model::record::Actor;
use std::collections::HashMap;
use std::hash::Hash;

/// Records of one thing by one actor in a window.
const RECORDS_EACH: u32 = 4;

/// A window's length, which doubles while there is something to be counted.
const FIRST_NS: u64 = 60_000_000_000;
const LONGEST_NS: u64 = 60 * FIRST_NS;

/// Windows at once; who comes later is counted with all others.
const MOST: usize = 512;

/// What happens often, counted. `What`: what is counted together, when it is by one actor.
#[derive(Debug)]
pub(super) struct Windows<What> {
    windows: HashMap<Key<What>, Window<What>>,
}

/// With very many windows even different events are counted together; then it is `None`.
type Key<What> = (Option<What>, Who);

/// Who does it, as far as it stays the same when the process does not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Who {
    Somebody { uid: u32, login_uid: Option<u32>, unit: Option<String>, container_id: Option<String> },
    Others,
}

#[derive(Debug)]
struct Window<What> {
    ends: u64,
    length: u64,
    recorded: u32,
    counted: Option<Counted<What>>,
}

/// Events that have no record of their own.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Counted<What> {
    pub(super) what: Option<What>,
    pub(super) count: u64,
    /// Boot-time nanoseconds of the first and the last.
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    /// Who made the last, without ancestors.
    pub(super) actor: Actor,
}

impl<What> Default for Windows<What> {
    fn default() -> Self {
        Self { windows: HashMap::new() }
    }
}

impl<What: Clone + Eq + Hash> Windows<What> {
    /// Whether the window has room for a record of this. [`Windows::add`] takes it in either way.
    pub(super) fn may_record(&self, what: &What, actor: &Actor) -> bool {
        self.windows.get(&self.key(what, actor)).is_none_or(|window| window.recorded < RECORDS_EACH)
    }

    /// One more. `recorded`: by a record of its own; else it is counted. `at_ns`: when it was, boot time.
    pub(super) fn add(&mut self, what: &What, actor: &Actor, at_ns: u64, now: u64, recorded: bool) {
        let key = self.key(what, actor);
        let what = key.0.clone();
        let window = self.windows.entry(key).or_insert_with(|| Window::new(now, FIRST_NS));
        if recorded {
            window.recorded += 1;
            return;
        }
        let counted = window.counted.get_or_insert_with(|| Counted {
            what,
            count: 0,
            first_ns: at_ns,
            last_ns: at_ns,
            actor: Actor::default(),
        });
        counted.count += 1;
        counted.last_ns = at_ns;
        counted.actor = brief(actor);
    }

    /// What was counted in windows that are over; with `u64::MAX` in all of them.
    pub(super) fn ended(&mut self, now: u64) -> Vec<Counted<What>> {
        let mut recorded = Vec::new();
        self.windows.retain(|_, window| {
            if window.ends > now {
                return true;
            }
            let Some(counted) = window.counted.take() else { return false };
            recorded.push(counted);
            *window = Window::new(now, window.length.saturating_mul(2).min(LONGEST_NS));
            true
        });
        recorded.sort_by_key(|counted| counted.first_ns);
        recorded
    }

    fn key(&self, what: &What, actor: &Actor) -> Key<What> {
        let Actor { uid, login_uid, unit, container_id, .. } = actor;
        let (uid, login_uid) = (*uid, *login_uid);
        // A user that logged in can have any number of units.
        let unit = unit.clone().filter(|_| uid == 0);
        let container_id = container_id.clone().filter(|_| uid == 0 || login_uid.is_none());
        let key = (Some(what.clone()), Who::Somebody { uid, login_uid, unit, container_id });
        if self.windows.len() < MOST || self.windows.contains_key(&key) {
            return key;
        }
        let others = (key.0, Who::Others);
        if self.windows.len() < 2 * MOST || self.windows.contains_key(&others) {
            return others;
        }
        (None, Who::Others)
    }
}

impl<What> Window<What> {
    fn new(now: u64, length: u64) -> Self {
        Self { ends: now.saturating_add(length), length, recorded: 0, counted: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thing, and how it stands.
    type What = (u32, &'static str);

    const AS_DECLARED: &str = "compliant";

    fn user(uid: u32, pid: u32) -> Actor {
        Actor { uid, pid, ..Actor::default() }
    }

    /// Takes one in; whether it is recorded.
    fn tells(windows: &mut Windows<What>, what: What, actor: &Actor, now: u64) -> bool {
        let recorded = windows.may_record(&what, actor);
        windows.add(&what, actor, now, now, recorded);
        recorded
    }

    #[test]
    fn a_flood_is_a_few_records_and_the_right_count() {
        let mut windows = Windows::default();
        let mut recorded: u64 = 0;
        let (mut counted, mut counts) = (0, 0);
        for n in 0..100_000_u32 {
            // A thousand a second.
            let now = u64::from(n) * 1_000_000;
            recorded += u64::from(tells(&mut windows, (1, AS_DECLARED), &user(1000, n), now));
            for window in windows.ended(now) {
                (counted, counts) = (counted + window.count, counts + 1);
            }
        }
        let last = windows.ended(u64::MAX);
        assert_eq!(last[0].actor.pid, 99_999);
        counted += last.iter().map(|counted| counted.count).sum::<u64>();
        assert_eq!(recorded + counted, 100_000);
        assert_eq!(
            (recorded, counts + last.len()),
            (8, 2),
            "a hundred seconds are one window and part of the next"
        );
    }

    #[test]
    fn who_comes_now_and_then_is_always_told_one_by_one() {
        let mut windows = Windows::default();
        for n in 0..50 {
            let now = n * FIRST_NS;
            assert_eq!(windows.ended(now), []);
            assert!(tells(&mut windows, (1, AS_DECLARED), &user(0, 7), now));
        }
    }

    #[test]
    fn a_flood_by_one_does_not_hide_another_nor_another_thing() {
        let mut windows = Windows::default();
        for pid in 0..100 {
            tells(&mut windows, (1, AS_DECLARED), &user(1000, pid), 5);
        }
        assert!(!tells(&mut windows, (1, AS_DECLARED), &user(1000, 0), 5));
        assert!(tells(&mut windows, (1, AS_DECLARED), &user(0, 1), 5));
        assert!(tells(&mut windows, (2, AS_DECLARED), &user(1000, 1), 5));
    }

    #[test]
    fn what_happened_while_it_was_drifted_is_never_counted_with_what_happened_as_declared() {
        let mut windows = Windows::default();
        for n in 0..10 {
            tells(&mut windows, (1, AS_DECLARED), &user(0, n), 5);
        }
        assert!(tells(&mut windows, (1, "drifted"), &user(0, 11), 5));
        for n in 0..10 {
            tells(&mut windows, (1, "drifted"), &user(0, n), 5);
        }
        let mut counts: Vec<_> = windows.ended(u64::MAX).iter().map(|it| (it.what, it.count)).collect();
        counts.sort_unstable();
        assert_eq!(counts, [(Some((1, AS_DECLARED)), 6), (Some((1, "drifted")), 7)]);
    }

    #[test]
    fn who_logged_in_gains_nothing_by_another_unit_or_container_each_time() {
        let mut windows = Windows::default();
        let recorded = (0..1000).filter(|n| {
            let mut actor = user(1000, *n);
            actor.login_uid = Some(1000);
            actor.unit = Some(format!("run-{n}.service"));
            actor.container_id = Some(n.to_string());
            tells(&mut windows, (1, AS_DECLARED), &actor, 5)
        });
        assert_eq!(recorded.count(), RECORDS_EACH as usize);
        // Containers that the node runs are recorded apart, whatever user they run as.
        let container = |id: &str| Actor { container_id: Some(id.to_owned()), ..user(1000, 1) };
        for _ in 0..10 {
            tells(&mut windows, (2, AS_DECLARED), &container("a"), 5);
        }
        assert!(tells(&mut windows, (2, AS_DECLARED), &container("b"), 5));
    }

    #[test]
    fn what_is_kept_is_bounded_however_many_come_and_however_many_things_there_are() {
        let mut windows = Windows::default();
        let mut recorded =
            (0..10_000).filter(|uid| tells(&mut windows, (1, AS_DECLARED), &user(*uid, 1), 5)).count();
        assert_eq!(recorded, MOST + RECORDS_EACH as usize);
        recorded += (0..10_000).filter(|n| tells(&mut windows, (*n, AS_DECLARED), &user(*n, 1), 5)).count();
        assert!(windows.windows.len() <= 2 * MOST + 1);
        let counted: u64 = windows.ended(u64::MAX).iter().map(|counted| counted.count).sum();
        assert_eq!(counted + recorded as u64, 20_000);
    }

    #[test]
    fn of_whoever_is_counted_little_is_kept() {
        let mut windows = Windows::default();
        let mut actor = user(1000, 1);
        actor.argv = vec!["x".repeat(1024)];
        actor.ancestors = vec![actor.clone(); 8];
        for _ in 0..=RECORDS_EACH {
            tells(&mut windows, (1, AS_DECLARED), &actor, 5);
        }
        let counted = windows.ended(u64::MAX).remove(0);
        assert!(
            counted.actor.argv.is_empty() && counted.actor.argv_cut && counted.actor.ancestors.is_empty()
        );
    }
}
