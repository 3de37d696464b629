//! The actors of one thing's changes since its last settled verification.
//!
//! In: changes of one thing, each with its actor and whether the kernel refused it. Out: all changes, and the newest. It owns one
//! change for each actor. An actor that keeps the file open can change it without another record, so the episode keeps every
//! actor until the thing is settled. No I/O.

use sensor_model::record::Actor;

/// Actors that one episode keeps. It counts the others.
pub(super) const ACTORS: usize = 16;

/// Bytes of arguments of an actor in a list of several.
const ARGUMENTS: usize = 128;

/// The last change by one actor.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AttributedChange {
    /// `None` if the process is unknown.
    pub(super) actor: Option<Actor>,
    pub(super) operation: &'static str,
    /// Boot-time nanoseconds.
    pub(super) at_ns: u64,
}

impl AttributedChange {
    /// Whether both changes have one actor. A process that executes another program is another actor.
    fn is_by_same(&self, other: &Self) -> bool {
        let who = |change: &Self| {
            change.actor.as_ref().map(|actor| (actor.pid, actor.start_ns, actor.exe.clone(), actor.uid))
        };
        who(self) == who(other)
    }
}

/// The changes of a thing since its last settled verification.
#[derive(Debug, Clone)]
pub(super) struct Episode {
    /// One for each actor, the newest last.
    changes: Vec<AttributedChange>,
    /// The number of actors without room, and of changes whose record was lost.
    more: u64,
    /// The last attempt that the kernel refused, as far as owner and capabilities show. It is no change.
    refused: Option<AttributedChange>,
    /// Boot time of the first change that no record names, for the latency.
    pub(super) first_ns: u64,
    /// A record named all changes. The actors stay, because they can change the thing without another record.
    pub(super) reported: bool,
}

impl Episode {
    /// An episode that begins with a change.
    pub(super) fn new(change: AttributedChange) -> Self {
        let first_ns = change.at_ns;
        Self { changes: vec![change], more: 0, refused: None, first_ns, reported: false }
    }

    /// An episode that begins with an attempt that the kernel refused.
    pub(super) fn attempted(change: AttributedChange) -> Self {
        Self { changes: Vec::new(), more: 0, first_ns: change.at_ns, refused: Some(change), reported: true }
    }

    /// An episode that begins with a change whose record was lost.
    pub(super) fn lost(at_ns: u64) -> Self {
        Self { changes: Vec::new(), more: 1, first_ns: at_ns, refused: None, reported: true }
    }

    /// Counts an actor whose record was lost.
    pub(super) fn add_unnamed(&mut self) {
        self.more = self.more.saturating_add(1);
    }

    /// Adds a change. Changes may come late: the daemon compares mounts some time after their records, and another process may have changed
    /// the thing since.
    pub(super) fn add(&mut self, mut change: AttributedChange) {
        if self.reported {
            self.reported = false;
            self.first_ns = change.at_ns;
        }
        if let Some(at) = self.changes.iter().position(|known| known.is_by_same(&change)) {
            let known = self.changes.remove(at);
            if known.at_ns > change.at_ns {
                change = known;
            }
        } else if self.changes.len() == ACTORS {
            self.more += 1;
            // The episode always keeps the newest actor.
            if self.changes.pop_if(|newest| newest.at_ns <= change.at_ns).is_none() {
                return;
            }
        }
        let place = self.changes.partition_point(|known| known.at_ns <= change.at_ns);
        self.changes.insert(place, change);
    }

    /// Adds an attempt that the kernel refused.
    pub(super) fn attempt(&mut self, change: AttributedChange) {
        self.refused = Some(change);
    }

    /// The newest change; `None` if there were only refused attempts.
    pub(super) fn newest(&self) -> Option<&AttributedChange> {
        self.changes.last()
    }

    /// All changes, the newest first.
    pub(super) fn changes(&self) -> impl Iterator<Item = &AttributedChange> {
        self.changes.iter().rev()
    }

    /// The number of actors without room, and of changes whose record was lost.
    pub(super) fn more(&self) -> u64 {
        self.more
    }

    /// The actor of a refused attempt, if no process changed the thing.
    pub(super) fn refused(&self) -> Option<&Actor> {
        self.refused.as_ref().filter(|_| self.changes.is_empty())?.actor.as_ref()
    }

    /// All known actors, the oldest first, in the brief form for a list. Empty if there is only one.
    pub(super) fn actors(&self) -> Vec<Actor> {
        if self.changes.len() < 2 {
            return Vec::new();
        }
        self.changes.iter().filter_map(|change| change.actor.as_ref()).map(brief).collect()
    }
}

/// An actor without ancestors, and with only its first arguments.
pub(super) fn brief(actor: &Actor) -> Actor {
    let mut room = ARGUMENTS;
    let argv: Vec<String> = actor
        .argv
        .iter()
        .take_while(|argument| {
            let fits = argument.len() <= room;
            room = room.saturating_sub(argument.len());
            fits
        })
        .cloned()
        .collect();
    let argv_cut = actor.argv_cut || argv.len() < actor.argv.len();
    Actor { argv, argv_cut, ancestors: Vec::new(), ..actor.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(pid: u32, at_ns: u64) -> AttributedChange {
        let actor = Actor { pid, ..Actor::default() };
        AttributedChange { actor: Some(actor), operation: "write", at_ns }
    }

    fn pids(episode: &Episode) -> Vec<u32> {
        episode.changes().filter_map(|change| change.actor.as_ref()).map(|actor| actor.pid).collect()
    }

    #[test]
    fn each_actor_is_kept_once_and_the_newest_is_the_last_that_made_a_change() {
        let mut episode = Episode::new(change(1, 10));
        assert_eq!(episode.actors(), []);
        for (pid, at) in [(2, 20), (1, 30), (3, 40), (1, 50)] {
            episode.add(change(pid, at));
        }
        assert_eq!(pids(&episode), [1, 3, 2]);
        assert_eq!((episode.newest().unwrap().at_ns, episode.first_ns, episode.actors().len()), (50, 10, 3));
    }

    #[test]
    fn a_change_that_comes_late_is_no_newer_one() {
        let mut episode = Episode::new(change(1, 50));
        episode.add(change(2, 40));
        assert_eq!(pids(&episode), [1, 2]);
        episode.add(change(1, 30));
        assert_eq!(episode.newest().map(|change| change.at_ns), Some(50));
    }

    #[test]
    fn a_reported_actor_stays_and_the_latency_begins_again() {
        let mut episode = Episode::new(change(1, 10));
        episode.reported = true;
        episode.add(change(2, 90));
        assert_eq!((pids(&episode), episode.first_ns, episode.reported), (vec![2, 1], 90, false));
    }

    #[test]
    fn actors_without_room_are_counted_and_the_newest_is_named() {
        let mut episode = Episode::new(change(0, 0));
        for pid in 1..40 {
            episode.add(change(pid, u64::from(pid)));
        }
        assert_eq!((episode.actors().len(), episode.more(), pids(&episode)[0]), (ACTORS, 24, 39));
    }

    #[test]
    fn an_actor_without_room_that_comes_late_displaces_none() {
        let mut episode = Episode::new(change(0, 100));
        for pid in 1..16 {
            episode.add(change(pid, 100 + u64::from(pid)));
        }
        episode.add(change(99, 50));
        assert_eq!((episode.more(), pids(&episode)[0], pids(&episode).contains(&99)), (1, 15, false));
    }

    #[test]
    fn a_change_whose_record_was_lost_counts_as_an_unnamed_actor() {
        let mut episode = Episode::lost(10);
        assert_eq!((episode.newest(), episode.more()), (None, 1));
        episode.add(change(2, 90));
        episode.add_unnamed();
        assert_eq!((pids(&episode), episode.more(), episode.first_ns), (vec![2], 2, 90));
    }

    #[test]
    fn a_refused_attempt_is_named_only_without_any_change() {
        let mut episode = Episode::attempted(change(1, 10));
        assert!(episode.reported && episode.newest().is_none());
        assert_eq!(episode.refused().map(|actor| actor.pid), Some(1));
        episode.add(change(2, 90));
        episode.attempt(change(1, 95));
        assert_eq!((pids(&episode), episode.refused(), episode.first_ns), (vec![2], None, 90));
    }

    #[test]
    fn an_actor_in_a_list_is_brief() {
        let ancestors = vec![Actor::default(); 8];
        let argv = vec!["x".repeat(100), "y".repeat(100), "z".to_owned()];
        let reported = brief(&Actor { argv, ancestors, ..Actor::default() });
        assert_eq!((reported.argv.len(), reported.argv_cut, reported.ancestors.len()), (1, true, 0));
    }
}
