//! The checker's daemon: the real [`Detector`], driven as the module's documentation says. Each step has one effect that another
//! CPU can see.

use super::kernel::{DIRECTORY, Kernel, MapEntry, RecordSubject};
use crate::{
    Detector, Evidence, Finding, GapReason, Scope, ThingChange, ThingId, Transition, Verification,
    timing::{Mutation, Timing},
};

/// The only managed thing.
pub(super) const THING: ThingId = ThingId(0);
/// The time of every state: in the model time does not pass by itself.
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
    /// An open of the switch only causes a full verification.
    SwitchOnlyRechecked,
    /// Running hooks are enough to end a blindness, even if a process has the switch open.
    OpenSwitchForgotten,
    /// After a loss only dirty inodes cause a verification.
    SweepOnlyDirty,
    /// A starting daemon does not check whether a process has the switch open.
    SwitchForgottenAtStart,
}

/// The daemon's phase in a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum VerificationPhase {
    Idle,
    /// The lookup of the path is next.
    Lookup,
    /// A fault: the sample is taken first.
    Open(usize),
    /// Observation open of an inode (the directory's if nothing is at the path), in three steps.
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
    /// The next step of the verification under way, or the begin of one.
    Verify,
    /// A verification of another thing of the same inode clears the dirty bit.
    Sibling(usize),
    /// The check of the switch that comes with the canary.
    Canary,
    /// Nothing happens until the next deadline.
    Sleep,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Daemon {
    pub(super) detector: Detector,
    pub(super) phase: VerificationPhase,
    /// The ring was drained since the loss counter was read.
    drained: bool,
    /// The hooks did not run in the observation open of this verification.
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
        let timing =
            Timing { settle_ns: 1, backoff_first_ns: 1, backoff_max_ns: 1, change_spacing_ns: 1, mutation };
        let mut detector = Detector::new(timing);
        detector.add(THING, NOW);
        let mut daemon =
            Self { detector, phase: VerificationPhase::Idle, drained: true, unseen: false, blind: None };
        if kernel.switch.writers > 0 && fault != Some(Fault::SwitchForgottenAtStart) {
            daemon.blind();
        }
        daemon
    }

    /// Whether a gap for missed events is open.
    pub(super) fn is_blind(&self) -> bool {
        self.blind.is_some()
    }

    /// All possible steps. The model assumes no order among them.
    pub(super) fn moves(&self, kernel: &Kernel, fault: Option<Fault>) -> Vec<Move> {
        if self.phase != VerificationPhase::Idle {
            return vec![Move::Verify];
        }
        let mut moves = Vec::new();
        if kernel.ring.is_some() {
            moves.push(Move::Drain);
        } else if self.drained || (kernel.lost && fault != Some(Fault::LossOnlyAfterDrain)) {
            moves.push(Move::ReadLost);
        }
        match self.detector.next_deadline() {
            Some(NOW) => moves.push(Move::Verify),
            Some(_) => moves.push(Move::Sleep),
            None => {}
        }
        // If every record found room, the ring still has the change, so the other verification makes no difference.
        let sibling =
            |inode: &usize| kernel.entries[*inode].is_some_and(|entry| entry.dirty.is_some() && entry.lost);
        moves.extend((0..3).filter(sibling).map(Move::Sibling));
        if self.sees_switch(kernel, fault) {
            moves.push(Move::Canary);
        }
        moves
    }

    /// Whether the check of the switch would change something.
    fn sees_switch(&self, kernel: &Kernel, fault: Option<Fault>) -> bool {
        let switch = &kernel.switch;
        let reachable = switch.writers > 0 || switch.moved;
        match (self.is_blind(), fault) {
            // The check of the switch needs running hooks.
            _ if switch.off => false,
            (true, Some(Fault::OpenSwitchForgotten)) => true,
            (true, _) => switch.moved || switch.writers == 0,
            (false, Some(Fault::OpenSwitchForgotten | Fault::SwitchOnlyRechecked)) => false,
            (false, Some(Fault::SwitchForgottenAtStart)) => switch.moved,
            (false, _) => reachable,
        }
    }

    fn check_switch(&mut self, kernel: &mut Kernel, fault: Option<Fault>) -> Vec<Transition> {
        let moved = std::mem::take(&mut kernel.switch.moved);
        let reachable = moved || kernel.switch.writers > 0;
        match self.blind {
            Some(number) if !reachable || fault == Some(Fault::OpenSwitchForgotten) => {
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

    /// A process can switch the hooks off.
    fn blind(&mut self) {
        if self.blind.is_none() {
            self.blind = Some(self.detector.open_blindness(Scope::All, GapReason::FtraceOpened, NOW).number);
        }
    }

    fn switch_opened(&mut self, fault: Option<Fault>) {
        if fault == Some(Fault::SwitchOnlyRechecked) {
            self.detector.recheck(Scope::All, NOW);
        } else {
            self.blind();
        }
    }

    pub(super) fn step(&mut self, step: Move, kernel: &mut Kernel, fault: Option<Fault>) -> Vec<Transition> {
        match step {
            Move::Drain => {
                self.drained = true;
                match kernel.ring.take() {
                    Some(RecordSubject::Ours) => self.event(),
                    Some(RecordSubject::Switch) => self.switch_opened(fault),
                    Some(RecordSubject::Other) | None => {}
                }
            }
            Move::ReadLost => {
                self.drained = false;
                let sweep = self.detector.drained(u64::from(std::mem::take(&mut kernel.lost)));
                self.detector.lost = 0;
                let changed = |entry: &MapEntry| {
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
            Move::Canary => return self.check_switch(kernel, fault),
            Move::Sleep => {
                let deadline = self.detector.next_deadline().unwrap_or(NOW);
                self.detector.rebase(deadline);
            }
            Move::Verify => return self.verify(kernel, fault),
        }
        Vec::new()
    }

    fn event(&mut self) {
        self.detector.changed(THING, NOW, ThingChange { own: false, outside_evidence: false });
    }

    fn verify(&mut self, kernel: &mut Kernel, fault: Option<Fault>) -> Vec<Transition> {
        self.phase = match self.phase {
            VerificationPhase::Idle | VerificationPhase::Lookup => {
                if self.phase == VerificationPhase::Idle {
                    self.detector.due(NOW, 1);
                }
                let inode = kernel.path.unwrap_or(DIRECTORY);
                if kernel.switch.off {
                    // The kernel does not answer the observation open, so the verification has no evidence, and a file is taken
                    // for not enrolled.
                    if inode != DIRECTORY {
                        kernel.entries[inode] = None;
                    }
                    self.unseen = true;
                    self.phase = VerificationPhase::Read(inode);
                    return Vec::new();
                }
                self.unseen = false;
                if kernel.entries[inode].is_none() {
                    // Another inode than before replaces the enrolled one.
                    kernel.entries[1 - inode] = None;
                    kernel.entries[inode] = Some(MapEntry::default());
                }
                if fault == Some(Fault::SampleFirst) {
                    VerificationPhase::Open(inode)
                } else {
                    VerificationPhase::Clear(inode)
                }
            }
            VerificationPhase::Open(inode) => {
                if fault == Some(Fault::SampleFirst) {
                    kernel.sample(inode);
                }
                VerificationPhase::Clear(inode)
            }
            VerificationPhase::Clear(inode) => {
                if let Some(entry) = &mut kernel.entries[inode] {
                    entry.dirty = None;
                }
                VerificationPhase::Copy(inode)
            }
            VerificationPhase::Copy(inode) => {
                if let Some(entry) = &mut kernel.entries[inode] {
                    entry.moved = Some(false);
                }
                VerificationPhase::Sample(inode)
            }
            VerificationPhase::Sample(inode) => {
                if fault != Some(Fault::SampleFirst) {
                    kernel.sample(inode);
                }
                VerificationPhase::Read(inode)
            }
            VerificationPhase::Read(DIRECTORY) if kernel.path.is_some() => start_over(DIRECTORY, kernel),
            VerificationPhase::Read(DIRECTORY) => {
                VerificationPhase::ReadEntry(DIRECTORY, Finding::Differs { fingerprint: 1, transient: true })
            }
            VerificationPhase::Read(inode) => {
                let finding = if kernel.good[inode] {
                    Finding::Compliant { untouched: false }
                } else {
                    Finding::Differs { fingerprint: 2, transient: false }
                };
                VerificationPhase::LookupAgain(inode, finding)
            }
            VerificationPhase::LookupAgain(inode, finding) => {
                if kernel.path == Some(inode) || fault == Some(Fault::SkipSecondLookup) {
                    VerificationPhase::ReadEntry(inode, finding)
                } else {
                    start_over(inode, kernel)
                }
            }
            VerificationPhase::ReadEntry(inode, finding) => {
                self.phase = VerificationPhase::Idle;
                let entry = kernel.entries[inode].filter(|_| !std::mem::take(&mut self.unseen));
                let evidence = entry.map(|entry| Evidence {
                    observed_counter: 0,
                    counter: u64::from(entry.moved == Some(true)),
                    writers: entry.observed_writers,
                    locked: entry.observed_locked,
                });
                start_over(inode, kernel);
                return self.detector.verified(THING, NOW, &Verification { finding, evidence });
            }
        };
        Vec::new()
    }

    /// Whether it has nothing to do until the next event.
    pub(super) fn is_settled(&self, kernel: &Kernel, fault: Option<Fault>) -> bool {
        self.moves(kernel, fault).is_empty()
    }
}

/// Ends the observation of an inode: the kernel's samples are no longer used.
fn start_over(inode: usize, kernel: &mut Kernel) -> VerificationPhase {
    kernel.entries[inode] = kernel.entries[inode].map(|entry| MapEntry {
        dirty: entry.dirty,
        lost: entry.lost,
        ..MapEntry::default()
    });
    VerificationPhase::Lookup
}
