//! Runs of scenarios that wait for a worker, and the boots that they share.
//!
//! In: runs, each with the name of its boot. Out: the next task of each worker. The first worker that needs a shared boot makes
//! it, once. Meanwhile the others take runs of other boots. If only one run needs a boot, that run boots for itself, and
//! nothing is saved. A heavy run takes the places of several, and places that become free one by one are kept for it. Other work may take
//! places, too.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What a worker does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<R, S> {
    /// Make the boot that this run and others start from, and report it to the queue.
    Boot(R),
    /// Run it, from a saved boot or from its own.
    Run(R, Option<Arc<S>>),
}

/// A boot.
#[derive(Debug)]
enum BootState<S> {
    /// Several runs need it.
    Shared,
    /// A worker makes it.
    Making,
    /// It is saved.
    Saved(Arc<S>),
    /// Each run makes its own.
    Own,
}

#[derive(Debug)]
struct State<R, S> {
    /// Runs with the names of their boots.
    waiting: VecDeque<(String, R)>,
    boots: HashMap<String, BootState<S>>,
    /// How many places a run takes.
    weigh: fn(&R) -> usize,
    /// The places; how many of them boots, runs and other work take now; and how many of these heavy runs and other work take.
    places: usize,
    taken: usize,
    heavy: usize,
    others: usize,
}

/// The queue; workers share it.
#[derive(Debug)]
pub(crate) struct Queue<R, S> {
    state: Mutex<State<R, S>>,
    changed: Condvar,
}

impl<R: Clone, S> Queue<R, S> {
    /// A queue of runs with the names of their boots. They begin in this order, unless a run waits for its boot or for places. A boot
    /// takes one place, and a run as many as `weigh` says. A run that needs more than there are takes all. A heavy run that waits for places
    /// lets others pass only if it does not wait longer by that.
    pub(crate) fn new(runs: Vec<(String, R)>, places: usize, weigh: fn(&R) -> usize) -> Self {
        let mut boots = HashMap::new();
        for (name, _) in &runs {
            boots.entry(name.clone()).and_modify(|boot| *boot = BootState::Shared).or_insert(BootState::Own);
        }
        let state = State { waiting: runs.into(), boots, weigh, places, taken: 0, heavy: 0, others: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The next task; `None` when every run has a worker. Waits while every remaining run needs a boot that a worker makes, or
    /// more places than are free.
    pub(crate) fn next(&self) -> Option<Next<R, S>> {
        let mut state = self.lock();
        loop {
            if state.waiting.is_empty() {
                return None;
            }
            if let Some(next) = state.next() {
                return Some(next);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A boot was made. Without one each run that needs it boots for itself.
    pub(crate) fn made(&self, name: &str, saved: Option<S>) {
        let boot = saved.map_or(BootState::Own, |saved| BootState::Saved(Arc::new(saved)));
        let mut state = self.lock();
        state.boots.insert(name.to_owned(), boot);
        state.taken = state.taken.saturating_sub(1);
        drop(state);
        self.changed.notify_all();
    }

    /// Other work takes this many places, until [`Queue::free`].
    pub(crate) fn take(&self, places: usize) {
        let mut state = self.lock();
        state.taken += places;
        state.others += places;
    }

    /// Other work has ended, which took this many places.
    pub(crate) fn free(&self, places: usize) {
        let mut state = self.lock();
        state.taken = state.taken.saturating_sub(places);
        state.others = state.others.saturating_sub(places);
        drop(state);
        self.changed.notify_all();
    }

    /// A run has ended.
    pub(crate) fn ended(&self, run: &R) {
        let mut state = self.lock();
        let weight = state.weight(run);
        state.taken = state.taken.saturating_sub(weight);
        if weight > 1 {
            state.heavy = state.heavy.saturating_sub(weight);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<R, S>> {
        // It is changed in single steps, so a worker that panicked left it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Clone, S> State<R, S> {
    fn weight(&self, run: &R) -> usize {
        (self.weigh)(run).min(self.places)
    }

    /// The place in the queue of what can begin now.
    fn first(&self) -> Option<usize> {
        let free = self.places.saturating_sub(self.taken);
        // What boots and light runs may take, so that the first heavy run that waits needs only the end of those that run now.
        let mut most = usize::MAX;
        let light = self.taken.saturating_sub(self.heavy).saturating_sub(self.others);
        self.waiting.iter().position(|(name, run)| {
            let needed = match self.boots.get(name) {
                Some(BootState::Making) => return false,
                Some(BootState::Shared) => 1,
                _ => self.weight(run),
            };
            let beside = self.places.saturating_sub(self.others);
            if needed > free && needed <= beside {
                most = most.min(beside - needed);
            }
            needed <= free && light + needed <= most
        })
    }

    fn next(&mut self) -> Option<Next<R, S>> {
        let at = self.first()?;
        let name = self.waiting[at].0.clone();
        let saved = match self.boots.get_mut(&name) {
            Some(boot @ BootState::Shared) => {
                *boot = BootState::Making;
                self.taken += 1;
                return Some(Next::Boot(self.waiting[at].1.clone()));
            }
            Some(BootState::Saved(saved)) => Some(Arc::clone(saved)),
            _ => None,
        };
        let (_, run) = self.waiting.remove(at)?;
        let weight = self.weight(&run);
        self.taken += weight;
        if weight > 1 {
            self.heavy += weight;
        }
        if self.waiting.iter().all(|(other, _)| *other != name) {
            // The last run of a saved boot removes its files.
            self.boots.remove(&name);
        }
        Some(Next::Run(run, saved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three places. Runs from 100 on take two.
    fn queue(runs: &[(&str, u8)]) -> Queue<u8, &'static str> {
        let runs = runs.iter().map(|(boot, run)| ((*boot).to_owned(), *run)).collect();
        Queue::new(runs, 3, |run| if *run >= 100 { 2 } else { 1 })
    }

    /// What a worker that waits gets by a change of the queue.
    fn next_by<S: Send + Sync>(queue: &Queue<u8, S>, change: impl FnOnce()) -> Option<Next<u8, S>> {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| queue.next());
            change();
            worker.join().expect("the worker's thread does not panic")
        })
    }

    #[test]
    fn a_boot_that_several_runs_share_is_made_once_and_each_run_starts_from_it() {
        let queue = queue(&[("bare", 1), ("bare", 2)]);
        assert_eq!(queue.next(), Some(Next::Boot(1)));
        queue.made("bare", Some("state"));
        assert_eq!(queue.next(), Some(Next::Run(1, Some(Arc::new("state")))));
        assert_eq!(queue.next(), Some(Next::Run(2, Some(Arc::new("state")))));
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn a_run_that_shares_its_boot_with_no_other_boots_for_itself() {
        assert_eq!(queue(&[("ostree", 1)]).next(), Some(Next::Run(1, None)));
    }

    #[test]
    fn while_a_boot_is_made_workers_take_runs_of_other_boots_and_the_last_waits_for_it() {
        let queue = queue(&[("bare", 1), ("bare", 2), ("ostree", 3)]);
        assert_eq!(queue.next(), Some(Next::Boot(1)));
        assert_eq!(queue.next(), Some(Next::Run(3, None)));
        assert!(matches!(next_by(&queue, || queue.made("bare", Some("state"))), Some(Next::Run(1, Some(_)))));
    }

    #[test]
    fn a_heavy_run_waits_for_its_places_and_lets_others_pass() {
        let queue = queue(&[("kube", 100), ("kubelet", 101), ("bare", 1), ("other", 2)]);
        assert_eq!(queue.next(), Some(Next::Run(100, None)));
        assert_eq!(queue.next(), Some(Next::Run(1, None)));
        assert!(matches!(next_by(&queue, || queue.ended(&100)), Some(Next::Run(101, None))));
        assert!(matches!(next_by(&queue, || queue.ended(&1)), Some(Next::Run(2, None))));
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn places_that_become_free_one_by_one_are_kept_for_a_heavy_run() {
        let queue = queue(&[("a", 1), ("b", 2), ("c", 3), ("kube", 100), ("d", 4)]);
        for light in [1, 2, 3] {
            assert_eq!(queue.next(), Some(Next::Run(light, None)));
        }
        queue.ended(&1);
        assert!(matches!(next_by(&queue, || queue.ended(&2)), Some(Next::Run(100, None))));
        assert!(matches!(next_by(&queue, || queue.ended(&3)), Some(Next::Run(4, None))));
    }

    #[test]
    fn while_other_work_takes_places_only_runs_that_fit_beside_it_begin() {
        let queue = queue(&[("kube", 100), ("bare", 1), ("other", 2)]);
        queue.take(2);
        assert_eq!(queue.next(), Some(Next::Run(1, None)));
        assert!(matches!(next_by(&queue, || queue.free(2)), Some(Next::Run(100, None))));
    }

    #[test]
    fn a_run_that_needs_more_places_than_there_are_runs_alone() {
        let queue: Queue<u8, ()> = Queue::new(vec![("kube".to_owned(), 1), ("bare".to_owned(), 2)], 1, |_| 2);
        assert_eq!(queue.next(), Some(Next::Run(1, None)));
        assert!(matches!(next_by(&queue, || queue.ended(&1)), Some(Next::Run(2, None))));
    }

    #[test]
    fn where_a_boot_cannot_be_saved_each_of_its_runs_boots_for_itself() {
        let queue = queue(&[("bare", 1), ("bare", 2)]);
        assert_eq!(queue.next(), Some(Next::Boot(1)));
        queue.made("bare", None);
        assert_eq!(queue.next(), Some(Next::Run(1, None)));
        assert_eq!(queue.next(), Some(Next::Run(2, None)));
    }

    #[test]
    fn the_last_run_of_a_boot_is_the_last_owner_of_its_state() {
        let queue = queue(&[("bare", 1), ("bare", 2)]);
        queue.next();
        queue.made("bare", Some("state"));
        drop(queue.next());
        let Some(Next::Run(2, Some(state))) = queue.next() else { panic!("a run from the state") };
        assert_eq!(Arc::strong_count(&state), 1);
    }
}
