//! What anybody may cause as often as they like: the first times by somebody are told one by one, the rest by their number.
//!
//! In: what happened, by whom, and the time. Out: whether that is a record of its own, and the counts of what was not. Whoever
//! may run a managed program, or is refused something, could otherwise rotate the log away. No I/O.

use super::episode::brief;
use sensor_model::record::Actor;
use std::collections::HashMap;
use std::hash::Hash;

/// Times that one thing is told one by one of one actor in a window.
const ONE_BY_ONE: u32 = 4;

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

/// With so many windows that not even what happened is told apart, it is `None`.
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
    told: u32,
    untold: Option<Untold<What>>,
}

/// What is told by its number.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Untold<What> {
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
    /// Whether the window lets this be told by a record of its own. Then [`Windows::add`] takes it in.
    pub(super) fn may_tell(&self, what: &What, actor: &Actor) -> bool {
        self.windows.get(&self.key(what, actor)).is_none_or(|window| window.told < ONE_BY_ONE)
    }

    /// One more. `told`: by a record of its own; else it is counted. `at_ns`: when it was, boot time.
    pub(super) fn add(&mut self, what: &What, actor: &Actor, at_ns: u64, now: u64, told: bool) {
        let key = self.key(what, actor);
        let what = key.0.clone();
        let window = self.windows.entry(key).or_insert_with(|| Window::new(now, FIRST_NS));
        if told {
            window.told += 1;
            return;
        }
        let untold = window.untold.get_or_insert_with(|| Untold {
            what,
            count: 0,
            first_ns: at_ns,
            last_ns: at_ns,
            actor: Actor::default(),
        });
        untold.count += 1;
        untold.last_ns = at_ns;
        untold.actor = brief(actor);
    }

    /// What was counted in windows that are over; with `u64::MAX` in all of them.
    pub(super) fn ended(&mut self, now: u64) -> Vec<Untold<What>> {
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

    fn key(&self, what: &What, actor: &Actor) -> Key<What> {
        let Actor { uid, login_uid, unit, container_id, .. } = actor;
        let (uid, login_uid) = (*uid, *login_uid);
        // Whoever logged in has as many of them as they like.
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
        Self { ends: now.saturating_add(length), length, told: 0, untold: None }
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

    /// Takes one in; whether it is told.
    fn tells(windows: &mut Windows<What>, what: What, actor: &Actor, now: u64) -> bool {
        let told = windows.may_tell(&what, actor);
        windows.add(&what, actor, now, now, told);
        told
    }

    #[test]
    fn a_flood_is_a_few_records_and_the_right_count() {
        let mut windows = Windows::default();
        let mut told: u64 = 0;
        let (mut counted, mut counts) = (0, 0);
        for n in 0..100_000_u32 {
            // A thousand a second.
            let now = u64::from(n) * 1_000_000;
            told += u64::from(tells(&mut windows, (1, AS_DECLARED), &user(1000, n), now));
            for untold in windows.ended(now) {
                (counted, counts) = (counted + untold.count, counts + 1);
            }
        }
        let last = windows.ended(u64::MAX);
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
        let told = (0..1000).filter(|n| {
            let mut actor = user(1000, *n);
            actor.login_uid = Some(1000);
            actor.unit = Some(format!("run-{n}.service"));
            actor.container_id = Some(n.to_string());
            tells(&mut windows, (1, AS_DECLARED), &actor, 5)
        });
        assert_eq!(told.count(), ONE_BY_ONE as usize);
        // Containers that the node runs are told apart, whatever user they run as.
        let container = |id: &str| Actor { container_id: Some(id.to_owned()), ..user(1000, 1) };
        for _ in 0..10 {
            tells(&mut windows, (2, AS_DECLARED), &container("a"), 5);
        }
        assert!(tells(&mut windows, (2, AS_DECLARED), &container("b"), 5));
    }

    #[test]
    fn what_is_kept_is_bounded_however_many_come_and_however_many_things_there_are() {
        let mut windows = Windows::default();
        let mut told =
            (0..10_000).filter(|uid| tells(&mut windows, (1, AS_DECLARED), &user(*uid, 1), 5)).count();
        assert_eq!(told, MOST + ONE_BY_ONE as usize);
        told += (0..10_000).filter(|n| tells(&mut windows, (*n, AS_DECLARED), &user(*n, 1), 5)).count();
        assert!(windows.windows.len() <= 2 * MOST + 1);
        let counted: u64 = windows.ended(u64::MAX).iter().map(|untold| untold.count).sum();
        assert_eq!(counted + told as u64, 20_000);
    }

    #[test]
    fn of_whoever_is_counted_little_is_kept() {
        let mut windows = Windows::default();
        let mut actor = user(1000, 1);
        actor.argv = vec!["x".repeat(1024)];
        actor.ancestors = vec![actor.clone(); 8];
        for _ in 0..=ONE_BY_ONE {
            tells(&mut windows, (1, AS_DECLARED), &actor, 5);
        }
        let untold = windows.ended(u64::MAX).remove(0);
        assert!(untold.actor.argv.is_empty() && untold.actor.argv_cut && untold.actor.ancestors.is_empty());
    }
}
