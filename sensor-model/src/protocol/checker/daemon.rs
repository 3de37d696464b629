//! The checker's daemon: the real [`Detector`], driven as the module's documentation says, one step of
//! which another CPU can see the effect at a time.

use super::{
    super::{Config, Detector, Event, Evidence, Finding, Mutation, Outcome, Report, Scope},
    kernel::{About, DIRECTORY, Entry, Kernel},
};

/// The only managed thing.
pub(super) const THING: u32 = 0;
/// Time does not pass by itself in the model: every state is at this time.
const NOW: u64 = 0;

/// A fault in the daemon's or the kernel's order of steps; each breaks the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Fault {
    /// One in the detector itself.
    Detector(Mutation),
    /// The path is not looked up again after the content was read.
    SkipSecondLookup,
    /// Writers and lock are sampled before the dirty bit is cleared and the counter copied.
    SampleFirst,
    /// The loss counter is read after a drain, and not again at the canary.
    LossOnlyAfterDrain,
    /// The hook of an open for writing fires before the writer is counted.
    OpenCountsLate,
    /// An open of the switch is a reason to look at everything, and no more.
    SwitchOnlyRechecked,
    /// Hooks that run are taken for ones that go on running, whoever has the switch open.
    SwitchOutOfMind,
    /// After a loss only inodes that are dirty are looked at.
    SweepOnlyDirty,
    /// A daemon that starts takes it for granted that nobody has the switch open.
    SwitchForgottenAtStart,
}

/// Where the daemon stands in a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Idle,
    /// The path is to be looked up.
    Lookup,
    /// A fault: the sample is taken first.
    Open(usize),
    /// Observation open of an inode (the directory's when the path led to nothing), in three steps.
    Clear(usize),
    Copy(usize),
    Sample(usize),
    Read(usize),
    LookupAgain(usize, Finding),
    ReadEntry(usize, Finding),
}

/// What the daemon can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Move {
    /// Take a record from the ring.
    Drain,
    /// Read the loss counter; sweep if it moved.
    ReadLost,
    /// The next step of the look under way, or the begin of one.
    Look,
    /// Another thing of the same inode is looked at, which takes the dirty bit away.
    Sibling(usize),
    /// Look at the switch, by the canary's clock.
    Canary,
    /// Nothing happens until the next deadline.
    Sleep,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Daemon {
    pub(super) detector: Detector,
    pub(super) place: Place,
    /// The ring was drained since the loss counter was read.
    drained: bool,
    /// The hooks did not see the look under way.
    unseen: bool,
    /// The gap of a blindness.
    blind: Option<u32>,
}

impl Daemon {
    /// A daemon that has just started: everything is due.
    pub(super) fn new(kernel: &Kernel, fault: Option<Fault>) -> Self {
        let mutation = match fault {
            Some(Fault::Detector(mutation)) => Some(mutation),
            _ => None,
        };
        let config =
            Config { settle_ns: 1, backoff_first_ns: 1, backoff_max_ns: 1, event_spacing_ns: 1, mutation };
        let mut detector = Detector::new(config);
        detector.add(THING, NOW);
        let mut daemon = Self { detector, place: Place::Idle, drained: true, unseen: false, blind: None };
        if kernel.switch.writers > 0 && fault != Some(Fault::SwitchForgottenAtStart) {
            daemon.blind();
        }
        daemon
    }

    /// Whether events may be missed at present, as far as it knows.
    pub(super) fn is_blind(&self) -> bool {
        self.blind.is_some()
    }

    /// Everything it could do now. The order in which a real daemon does them is not assumed.
    pub(super) fn moves(&self, kernel: &Kernel, fault: Option<Fault>) -> Vec<Move> {
        if self.place != Place::Idle {
            return vec![Move::Look];
        }
        let mut moves = Vec::new();
        if kernel.ring.is_some() {
            moves.push(Move::Drain);
        } else if self.drained || (kernel.lost && fault != Some(Fault::LossOnlyAfterDrain)) {
            moves.push(Move::ReadLost);
        }
        match self.detector.next_deadline() {
            Some(NOW) => moves.push(Move::Look),
            Some(_) => moves.push(Move::Sleep),
            None => {}
        }
        // Where every record found room, the other thing's look changes nothing that the ring does not tell.
        let sibling =
            |inode: &usize| kernel.entries[*inode].is_some_and(|entry| entry.dirty.is_some() && entry.lost);
        moves.extend((0..3).filter(sibling).map(Move::Sibling));
        if self.sees_switch(kernel, fault) {
            moves.push(Move::Canary);
        }
        moves
    }

    /// Whether the canary's look at the switch would lead to something.
    fn sees_switch(&self, kernel: &Kernel, fault: Option<Fault>) -> bool {
        let switch = &kernel.switch;
        let reachable = switch.writers > 0 || switch.moved;
        match (self.is_blind(), fault) {
            // The hooks have to run for the switch to be looked at.
            _ if switch.off => false,
            (true, Some(Fault::SwitchOutOfMind)) => true,
            (true, _) => switch.moved || switch.writers == 0,
            (false, Some(Fault::SwitchOutOfMind | Fault::SwitchOnlyRechecked)) => false,
            (false, Some(Fault::SwitchForgottenAtStart)) => switch.moved,
            (false, _) => reachable,
        }
    }

    fn look_at_switch(&mut self, kernel: &mut Kernel, fault: Option<Fault>) -> Vec<Report> {
        let moved = std::mem::take(&mut kernel.switch.moved);
        let reachable = moved || kernel.switch.writers > 0;
        match self.blind {
            Some(number) if !reachable || fault == Some(Fault::SwitchOutOfMind) => {
                self.blind = None;
                self.detector.end_blindness(number, NOW)
            }
            Some(_) => Vec::new(),
            None => {
                self.blind();
                Vec::new()
            }
        }
    }

    /// Somebody can switch the hooks off.
    fn blind(&mut self) {
        if self.blind.is_none() {
            self.blind = Some(self.detector.open_blindness(Scope::All, "switch", NOW).number);
        }
    }

    fn switch_opened(&mut self, fault: Option<Fault>) {
        if fault == Some(Fault::SwitchOnlyRechecked) {
            self.detector.recheck(Scope::All, NOW);
        } else {
            self.blind();
        }
    }

    pub(super) fn step(&mut self, step: Move, kernel: &mut Kernel, fault: Option<Fault>) -> Vec<Report> {
        match step {
            Move::Drain => {
                self.drained = true;
                match kernel.ring.take() {
                    Some(About::Ours) => self.event(),
                    Some(About::Switch) => self.switch_opened(fault),
                    Some(About::Other) | None => {}
                }
            }
            Move::ReadLost => {
                self.drained = false;
                let sweep = self.detector.drained(u64::from(std::mem::take(&mut kernel.lost)));
                self.detector.lost = 0;
                let changed = |entry: &Entry| {
                    entry.dirty.is_some() || (entry.lost && fault != Some(Fault::SweepOnlyDirty))
                };
                if sweep && kernel.entries.iter().flatten().any(changed) {
                    self.event();
                }
                if sweep {
                    kernel.entries.iter_mut().flatten().for_each(|entry| entry.lost = false);
                }
                if sweep && kernel.switch.moved {
                    self.switch_opened(fault);
                }
            }
            Move::Sibling(inode) => {
                if let Some(entry) = &mut kernel.entries[inode] {
                    entry.dirty = None;
                }
            }
            Move::Canary => return self.look_at_switch(kernel, fault),
            Move::Sleep => {
                let deadline = self.detector.next_deadline().unwrap_or(NOW);
                self.detector.rebase(deadline);
            }
            Move::Look => return self.look(kernel, fault),
        }
        Vec::new()
    }

    fn event(&mut self) {
        self.detector.event(THING, NOW, Event { own: false, beyond: false });
    }

    fn look(&mut self, kernel: &mut Kernel, fault: Option<Fault>) -> Vec<Report> {
        self.place = match self.place {
            Place::Idle | Place::Lookup => {
                if self.place == Place::Idle {
                    self.detector.due(NOW, 1);
                }
                let inode = kernel.path.unwrap_or(DIRECTORY);
                if kernel.switch.off {
                    // The kernel does not say what was opened: nothing vouches for it, and a file counts as not
                    // enrolled.
                    if inode != DIRECTORY {
                        kernel.entries[inode] = None;
                    }
                    self.unseen = true;
                    self.place = Place::Read(inode);
                    return Vec::new();
                }
                self.unseen = false;
                if kernel.entries[inode].is_none() {
                    // Another inode than before: it takes the place of the one enrolled.
                    kernel.entries[1 - inode] = None;
                    kernel.entries[inode] = Some(Entry::default());
                }
                if fault == Some(Fault::SampleFirst) { Place::Open(inode) } else { Place::Clear(inode) }
            }
            Place::Open(inode) => {
                if fault == Some(Fault::SampleFirst) {
                    kernel.sample(inode);
                }
                Place::Clear(inode)
            }
            Place::Clear(inode) => {
                if let Some(entry) = &mut kernel.entries[inode] {
                    entry.dirty = None;
                }
                Place::Copy(inode)
            }
            Place::Copy(inode) => {
                if let Some(entry) = &mut kernel.entries[inode] {
                    entry.moved = Some(false);
                }
                Place::Sample(inode)
            }
            Place::Sample(inode) => {
                if fault != Some(Fault::SampleFirst) {
                    kernel.sample(inode);
                }
                Place::Read(inode)
            }
            Place::Read(DIRECTORY) if kernel.path.is_some() => start_over(DIRECTORY, kernel),
            Place::Read(DIRECTORY) => {
                Place::ReadEntry(DIRECTORY, Finding::Differs { fingerprint: 1, transient: true })
            }
            Place::Read(inode) => {
                let finding = if kernel.good[inode] {
                    Finding::Compliant { untouched: false }
                } else {
                    Finding::Differs { fingerprint: 2, transient: false }
                };
                Place::LookupAgain(inode, finding)
            }
            Place::LookupAgain(inode, finding) => {
                if kernel.path == Some(inode) || fault == Some(Fault::SkipSecondLookup) {
                    Place::ReadEntry(inode, finding)
                } else {
                    start_over(inode, kernel)
                }
            }
            Place::ReadEntry(inode, finding) => {
                self.place = Place::Idle;
                let entry = kernel.entries[inode].filter(|_| !std::mem::take(&mut self.unseen));
                let evidence = entry.map(|entry| Evidence {
                    observed_counter: 0,
                    counter: u64::from(entry.moved == Some(true)),
                    writers: entry.observed_writers,
                    locked: entry.observed_locked,
                });
                start_over(inode, kernel);
                return self.detector.verified(THING, NOW, &Outcome { finding, evidence });
            }
        };
        Vec::new()
    }

    /// Whether it does nothing more unless something happens.
    pub(super) fn is_settled(&self, kernel: &Kernel, fault: Option<Fault>) -> bool {
        self.moves(kernel, fault).is_empty()
    }
}

/// The observation of an inode is over: what the kernel noted of it means nothing any more.
fn start_over(inode: usize, kernel: &mut Kernel) -> Place {
    kernel.entries[inode] =
        kernel.entries[inode].map(|entry| Entry { dirty: entry.dirty, lost: entry.lost, ..Entry::default() });
    Place::Lookup
}
