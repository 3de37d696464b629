//! Who changed a thing since it was last verified.
//!
//! In: announced changes of one thing, each with its actor and whether the kernel would let that actor. Out: all of them, and
//! the newest. One that keeps the file open goes on changing it without another record, so no actor is forgotten before the
//! thing is at rest. No I/O.

use sensor_model::record::Actor;

/// Actors of one episode that are kept; those that come later are counted.
pub(super) const ACTORS: usize = 16;

/// Bytes of arguments of an actor that stands beside others in a record.
const ARGUMENTS: usize = 128;

/// What an actor did last.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AttributedChange {
    /// `None` where no process could be named.
    pub(super) actor: Option<Actor>,
    pub(super) operation: &'static str,
    /// Boot-time nanoseconds.
    pub(super) at_ns: u64,
}

impl AttributedChange {
    /// Whether the two are of one actor: a process that executes another program is another.
    fn is_by_same(&self, other: &Self) -> bool {
        let who = |change: &Self| {
            change.actor.as_ref().map(|actor| (actor.pid, actor.start_ns, actor.exe.clone(), actor.uid))
        };
        who(self) == who(other)
    }
}

/// The changes of a thing, kept until it is at rest.
#[derive(Debug, Clone)]
pub(super) struct Episode {
    /// One for each actor, the newest last.
    changes: Vec<AttributedChange>,
    /// Actors for which there was no room, and changes whose records were lost.
    more: u64,
    /// An attempt that the kernel refused, as far as owner and capabilities tell. It is no change.
    refused: Option<AttributedChange>,
    /// Time of the first change that no record names, for the latency.
    pub(super) first_ns: u64,
    /// A record named all of them; they are kept, since they may go on changing the thing without another record.
    pub(super) reported: bool,
}

impl Episode {
    /// Begins with a change.
    pub(super) fn new(change: AttributedChange) -> Self {
        let first_ns = change.at_ns;
        Self { changes: vec![change], more: 0, refused: None, first_ns, reported: false }
    }

    /// Begins with an attempt that was refused.
    pub(super) fn attempted(change: AttributedChange) -> Self {
        Self { changes: Vec::new(), more: 0, first_ns: change.at_ns, refused: Some(change), reported: true }
    }

    /// Begins with a change whose record was lost.
    pub(super) fn lost(at_ns: u64) -> Self {
        Self { changes: Vec::new(), more: 1, first_ns: at_ns, refused: None, reported: true }
    }

    /// An actor whose record was lost may have changed it, too.
    pub(super) fn add_unnamed(&mut self) {
        self.more = self.more.saturating_add(1);
    }

    /// One more change.
    pub(super) fn add(&mut self, change: AttributedChange) {
        if self.reported {
            self.reported = false;
            self.first_ns = change.at_ns;
        }
        if let Some(at) = self.changes.iter().position(|known| known.is_by_same(&change)) {
            self.changes.remove(at);
        } else if self.changes.len() == ACTORS {
            // The newest is always named.
            self.changes.pop();
            self.more += 1;
        }
        self.changes.push(change);
    }

    /// One more attempt that was refused.
    pub(super) fn attempt(&mut self, change: AttributedChange) {
        self.refused = Some(change);
    }

    /// The newest change; `None` where there were only attempts.
    pub(super) fn newest(&self) -> Option<&AttributedChange> {
        self.changes.last()
    }

    /// All changes, the newest first.
    pub(super) fn changes(&self) -> impl Iterator<Item = &AttributedChange> {
        self.changes.iter().rev()
    }

    /// How many actors there was no room for, or whose record was lost.
    pub(super) fn more(&self) -> u64 {
        self.more
    }

    /// Who tried and was refused, where no process changed anything.
    pub(super) fn refused(&self) -> Option<&Actor> {
        self.refused.as_ref().filter(|_| self.changes.is_empty())?.actor.as_ref()
    }

    /// All who could be named, the first first, as a record names them beside each other; none where there is no more than
    /// one to be named.
    pub(super) fn actors(&self) -> Vec<Actor> {
        if self.changes.len() < 2 {
            return Vec::new();
        }
        self.changes.iter().filter_map(|change| change.actor.as_ref()).map(brief).collect()
    }
}

/// An actor without ancestors, and with the first of its arguments.
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

    fn pids(noted: &Episode) -> Vec<u32> {
        noted.changes().filter_map(|change| change.actor.as_ref()).map(|actor| actor.pid).collect()
    }

    #[test]
    fn each_actor_is_kept_once_and_the_newest_is_the_last_that_changed_something() {
        let mut noted = Episode::new(change(1, 10));
        assert_eq!(noted.actors(), []);
        for (pid, at) in [(2, 20), (1, 30), (3, 40), (1, 50)] {
            noted.add(change(pid, at));
        }
        assert_eq!(pids(&noted), [1, 3, 2]);
        assert_eq!((noted.newest().unwrap().at_ns, noted.first_ns, noted.actors().len()), (50, 10, 3));
    }

    #[test]
    fn whoever_was_told_stays_and_the_latency_begins_anew() {
        let mut noted = Episode::new(change(1, 10));
        noted.reported = true;
        noted.add(change(2, 90));
        assert_eq!((pids(&noted), noted.first_ns, noted.reported), (vec![2, 1], 90, false));
    }

    #[test]
    fn more_actors_than_there_is_room_for_are_counted_and_the_newest_is_named() {
        let mut noted = Episode::new(change(0, 0));
        for pid in 1..40 {
            noted.add(change(pid, u64::from(pid)));
        }
        assert_eq!((noted.actors().len(), noted.more(), pids(&noted)[0]), (ACTORS, 24, 39));
    }

    #[test]
    fn a_change_whose_record_was_lost_counts_as_an_actor_who_is_not_named() {
        let mut noted = Episode::lost(10);
        assert_eq!((noted.newest(), noted.more()), (None, 1));
        noted.add(change(2, 90));
        noted.add_unnamed();
        assert_eq!((pids(&noted), noted.more(), noted.first_ns), (vec![2], 2, 90));
    }

    #[test]
    fn a_refused_attempt_is_named_only_where_nobody_changed_anything_and_is_no_news() {
        let mut noted = Episode::attempted(change(1, 10));
        assert!(noted.reported && noted.newest().is_none());
        assert_eq!(noted.refused().map(|actor| actor.pid), Some(1));
        noted.add(change(2, 90));
        noted.attempt(change(1, 95));
        assert_eq!((pids(&noted), noted.refused(), noted.first_ns), (vec![2], None, 90));
    }

    #[test]
    fn an_actor_beside_others_takes_little_room() {
        let ancestors = vec![Actor::default(); 8];
        let argv = vec!["x".repeat(100), "y".repeat(100), "z".to_owned()];
        let reported = brief(&Actor { argv, ancestors, ..Actor::default() });
        assert_eq!((reported.argv.len(), reported.argv_cut, reported.ancestors.len()), (1, true, 0));
    }
}
