//! Limits the records of events that a user without rights may cause without end.
//!
//! In: events with actor and time. Out: whether an event has a record of its own, and the counts of the others. It owns one window
//! for each kind of event and actor. Without the limit, a user could rotate older entries out of the log: by running a managed
//! program, or by attempts that a rule refuses. No I/O.

use super::episode::brief;
use sensor_model::record::Actor;
use std::collections::HashMap;
use std::hash::Hash;

/// Records of one kind of event by one actor in a window.
const RECORDS_EACH: u32 = 4;

/// A window's first length. It doubles while a window counted events.
const FIRST_NS: u64 = 60_000_000_000;
const LONGEST_NS: u64 = 60 * FIRST_NS;

/// The number of windows; later actors share one.
const MOST: usize = 512;

/// All windows. `What`: the kind of event; equal ones by one actor are counted together.
#[derive(Debug)]
pub(super) struct CountingWindows<What> {
    windows: HashMap<Key<What>, Window<What>>,
}

/// The key of a window. With very many windows, all kinds of events share one: then the first value is `None`.
type Key<What> = (Option<What>, WindowActor);

/// The properties of an actor that its later processes share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum WindowActor {
    Named { uid: u32, login_uid: Option<u32>, unit: Option<String>, container_id: Option<String> },
    Others,
}

#[derive(Debug)]
struct Window<What> {
    ends: u64,
    length: u64,
    recorded: u32,
    counted: Option<CountedEvents<What>>,
}

/// Counted events, which have no record of their own.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CountedEvents<What> {
    pub(super) what: Option<What>,
    pub(super) count: u64,
    /// Boot-time nanoseconds of the first event and of the last.
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    /// The actor of the last event, without ancestors.
    pub(super) actor: Actor,
}

impl<What> Default for CountingWindows<What> {
    fn default() -> Self {
        Self { windows: HashMap::new() }
    }
}

impl<What: Clone + Eq + Hash> CountingWindows<What> {
    /// Whether the window has room for a record of this event. The caller calls [`CountingWindows::add`] in both cases.
    pub(super) fn may_record(&self, what: &What, actor: &Actor) -> bool {
        self.windows.get(&self.key(what, actor)).is_none_or(|window| window.recorded < RECORDS_EACH)
    }

    /// Adds an event. `recorded`: it has a record of its own, and is not counted. `at_ns`: its boot time.
    pub(super) fn add(&mut self, what: &What, actor: &Actor, at_ns: u64, now: u64, recorded: bool) {
        let key = self.key(what, actor);
        let what = key.0.clone();
        let window = self.windows.entry(key).or_insert_with(|| Window::new(now, FIRST_NS));
        if recorded {
            window.recorded += 1;
            return;
        }
        let counted = window.counted.get_or_insert_with(|| CountedEvents {
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

    /// The counts of windows that have ended; `u64::MAX` ends all windows.
    pub(super) fn ended(&mut self, now: u64) -> Vec<CountedEvents<What>> {
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
        // A user that logged in can create any number of units.
        let unit = unit.clone().filter(|_| uid == 0);
        let container_id = container_id.clone().filter(|_| uid == 0 || login_uid.is_none());
        let key = (Some(what.clone()), WindowActor::Named { uid, login_uid, unit, container_id });
        if self.windows.len() < MOST || self.windows.contains_key(&key) {
            return key;
        }
        let others = (key.0, WindowActor::Others);
        if self.windows.len() < 2 * MOST || self.windows.contains_key(&others) {
            return others;
        }
        (None, WindowActor::Others)
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

    /// A thing and its verdict.
    type What = (u32, &'static str);

    const AS_DECLARED: &str = "compliant";

    fn user(uid: u32, pid: u32) -> Actor {
        Actor { uid, pid, ..Actor::default() }
    }

    /// Adds an event. Gives whether it has a record.
    fn records(windows: &mut CountingWindows<What>, what: What, actor: &Actor, now: u64) -> bool {
        let recorded = windows.may_record(&what, actor);
        windows.add(&what, actor, now, now, recorded);
        recorded
    }

    #[test]
    fn a_flood_has_a_few_records_and_the_right_count() {
        let mut windows = CountingWindows::default();
        let mut recorded: u64 = 0;
        let (mut counted, mut counts) = (0, 0);
        for n in 0..100_000_u32 {
            // A thousand events each second.
            let now = u64::from(n) * 1_000_000;
            recorded += u64::from(records(&mut windows, (1, AS_DECLARED), &user(1000, n), now));
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
    fn rare_events_have_a_record_each() {
        let mut windows = CountingWindows::default();
        for n in 0..50 {
            let now = n * FIRST_NS;
            assert_eq!(windows.ended(now), []);
            assert!(records(&mut windows, (1, AS_DECLARED), &user(0, 7), now));
        }
    }

    #[test]
    fn a_flood_by_one_actor_hides_no_other_actor_and_no_other_thing() {
        let mut windows = CountingWindows::default();
        for pid in 0..100 {
            records(&mut windows, (1, AS_DECLARED), &user(1000, pid), 5);
        }
        assert!(!records(&mut windows, (1, AS_DECLARED), &user(1000, 0), 5));
        assert!(records(&mut windows, (1, AS_DECLARED), &user(0, 1), 5));
        assert!(records(&mut windows, (2, AS_DECLARED), &user(1000, 1), 5));
    }

    #[test]
    fn events_of_a_drifted_and_of_a_compliant_thing_are_counted_apart() {
        let mut windows = CountingWindows::default();
        for n in 0..10 {
            records(&mut windows, (1, AS_DECLARED), &user(0, n), 5);
        }
        assert!(records(&mut windows, (1, "drifted"), &user(0, 11), 5));
        for n in 0..10 {
            records(&mut windows, (1, "drifted"), &user(0, n), 5);
        }
        let mut counts: Vec<_> = windows.ended(u64::MAX).iter().map(|it| (it.what, it.count)).collect();
        counts.sort_unstable();
        assert_eq!(counts, [(Some((1, AS_DECLARED)), 6), (Some((1, "drifted")), 7)]);
    }

    #[test]
    fn a_user_that_logged_in_gains_no_records_by_more_units_or_containers() {
        let mut windows = CountingWindows::default();
        let recorded = (0..1000).filter(|n| {
            let mut actor = user(1000, *n);
            actor.login_uid = Some(1000);
            actor.unit = Some(format!("run-{n}.service"));
            actor.container_id = Some(n.to_string());
            records(&mut windows, (1, AS_DECLARED), &actor, 5)
        });
        assert_eq!(recorded.count(), RECORDS_EACH as usize);
        // Containers of the node have windows of their own, whichever user they run as.
        let container = |id: &str| Actor { container_id: Some(id.to_owned()), ..user(1000, 1) };
        for _ in 0..10 {
            records(&mut windows, (2, AS_DECLARED), &container("a"), 5);
        }
        assert!(records(&mut windows, (2, AS_DECLARED), &container("b"), 5));
    }

    #[test]
    fn the_number_of_windows_is_bounded_for_any_number_of_actors_and_things() {
        let mut windows = CountingWindows::default();
        let mut recorded =
            (0..10_000).filter(|uid| records(&mut windows, (1, AS_DECLARED), &user(*uid, 1), 5)).count();
        assert_eq!(recorded, MOST + RECORDS_EACH as usize);
        recorded += (0..10_000).filter(|n| records(&mut windows, (*n, AS_DECLARED), &user(*n, 1), 5)).count();
        assert!(windows.windows.len() <= 2 * MOST + 1);
        let counted: u64 = windows.ended(u64::MAX).iter().map(|counted| counted.count).sum();
        assert_eq!(counted + recorded as u64, 20_000);
    }

    #[test]
    fn the_actor_of_a_count_takes_little_memory() {
        let mut windows = CountingWindows::default();
        let mut actor = user(1000, 1);
        actor.argv = vec!["x".repeat(1024)];
        actor.ancestors = vec![actor.clone(); 8];
        for _ in 0..=RECORDS_EACH {
            records(&mut windows, (1, AS_DECLARED), &actor, 5);
        }
        let counted = windows.ended(u64::MAX).remove(0);
        assert!(
            counted.actor.argv.is_empty() && counted.actor.argv_cut && counted.actor.ancestors.is_empty()
        );
    }
}
