//! The order of an apply, and of going on after a death.
//!
//! In: the outcome of the last request. Out: the next request. Nothing is written before the journal says
//! what, nothing is called done before everything was looked at, and what cannot be undone is last. A
//! machine that is made from the records of a dead one goes on where that one was.

mod phases;
#[cfg(test)]
mod planted;
mod rest;
mod resume;
mod stage;

pub use rest::Rest;

#[cfg(test)]
use super::mutation::Mutation;
use super::{
    Act, Action, Begin, Boot, Ended, Fallback, Kind, Record,
    settle::{Settling, Side, Sight, settle},
};
use stage::{Phase, Stage};

/// How the message about a target ends that was left as it is.
pub const LEFT: &str = ": left as somebody else wrote it";

/// Steps that one target gets in a row. Five are needed at most where nobody else is at work; on a file system that does not
/// keep what it is given, or beside somebody who never stops, there would be one more for ever.
const STEPS: u8 = 12;

/// What is to be done next. Each one is answered by [`Machine::answer`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// Write the first record, durably.
    Begin,
    /// Add a record, durably.
    Append(Record),
    /// Tell what is at a target and at its temporary name. What is half-written there goes away first.
    Look(usize),
    /// A step of a target; never `Finished` or `Foreign`.
    Step(usize, Settling),
    /// Do an act and await its result.
    Act(usize),
    /// After a reboot that took the place of an act: await that its unit comes to rest, and look at it.
    Await(usize),
    /// The files are back: do the act again, or revert it where it is one of the OS.
    Undo(usize),
    /// Sync, and reboot. The answer is that the reboot is under way.
    Reboot,
    /// Compare everything with the new config.
    Verify,
    /// After the reboot that ends a way back: tell whether the OS is the old one again.
    VerifyBack,
    /// Make the config that holds now the current one, and write the history. Done twice it is as done once.
    Commit(Ended),
    /// Remove the journal and what it needed.
    Close,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is done.
    Done,
    /// For [`Request::Look`].
    Sight(Sight),
    /// A directory that shall go away is not empty; it stays.
    Kept,
    /// For [`Request::Act`]: it cannot be done and need not be, for a reason that a person has to know.
    Skipped(String),
    /// For [`Request::Undo`]: it is done, and takes effect with the next boot.
    NeedsReboot,
    /// It was not done, and nothing of it stays.
    Failed(String),
    /// It was not done, and it can be gone neither on nor back from here: the journal takes no other record, or nobody
    /// tells what is.
    Broken(String),
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Machine {
    kinds: Vec<Kind>,
    /// Of what is put again after an update of the OS. It is numbered behind the targets.
    again: Vec<Kind>,
    /// Paths, for messages.
    names: Vec<String>,
    acts: Vec<Act>,
    reboot: bool,
    /// The record that everything is written is there, so that a start without another record goes on.
    sealed: bool,
    boot: Boot,
    /// Acts that were begun, which have to be undone on the way back.
    begun: Vec<bool>,
    /// The act that failed and led to a reboot, and why.
    failed: Option<(usize, String)>,
    /// Why it goes back.
    reason: String,
    /// What was left, was skipped, or failed on the way back.
    problems: Vec<String>,
    /// What must be tried again before it can be called over.
    unfinished: Vec<String>,
    /// What was undone takes effect with the next boot.
    returns: bool,
    /// Reboots that were asked for on the way back.
    returned: u8,
    /// Steps that a target gets.
    patience: u8,
    stage: Stage,
    #[cfg(test)]
    pub(super) mutation: Option<Mutation>,
}

impl Machine {
    /// An apply that has not begun.
    pub fn new(begin: &Begin, boot: &Boot) -> Self {
        Self {
            kinds: begin.targets.iter().map(super::Target::kind).collect(),
            again: begin.put_again.iter().map(|again| again.target(None).kind()).collect(),
            names: begin.paths().map(|path| path.display().to_string()).collect(),
            sealed: false,
            acts: begin.acts.clone(),
            reboot: begin.reboot,
            boot: boot.clone(),
            begun: vec![false; begin.acts.len()],
            failed: None,
            reason: String::new(),
            problems: Vec::new(),
            unfinished: Vec::new(),
            returns: false,
            returned: 0,
            patience: STEPS,
            stage: Stage::Opening,
            #[cfg(test)]
            mutation: None,
        }
    }

    /// Why it goes or went back; empty while it goes on.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// What was left as somebody else wrote it, acts that were skipped, and what failed on the way back.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Why it reboots although no plan says so; `None` where no act led to that.
    pub fn failure(&self) -> Option<&str> {
        self.failed.as_ref().map(|(_, reason)| reason.as_str())
    }

    /// It cannot go on now: the first reason, what went wrong after it, and what it is now.
    pub fn halted(&self, now: &str) -> Rest {
        let told = std::iter::once(&self.reason).chain(&self.problems).map(String::as_str).chain([now]);
        Rest::Halted(told.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; "))
    }

    /// How it stands when it asks for nothing.
    pub fn rest(&self) -> Option<&Rest> {
        match &self.stage {
            Stage::Resting(rest) => Some(rest),
            _ => None,
        }
    }

    /// Whether it is on its way back.
    pub fn is_going_back(&self) -> bool {
        matches!(self.stage, Stage::Turning | Stage::Returning { .. } | Stage::Undoing(_) | Stage::Ended)
            || !self.reason.is_empty()
    }

    /// What is to be done next; `None` at rest.
    pub fn next(&self) -> Option<Request> {
        Some(match &self.stage {
            Stage::Opening => Request::Begin,
            Stage::Writing { at, sight, .. } => self.step(*at, Side::After, true, *sight),
            Stage::Sealing => Request::Append(Record::Written),
            Stage::Clearing { at, sight, .. } => self.step(*at, Side::After, false, *sight),
            Stage::Starting(act) => Request::Append(Record::Started { act: *act }),
            Stage::Acting(act) => Request::Act(*act),
            Stage::Finishing(act) => Request::Append(Record::Finished { act: *act }),
            Stage::Awaiting(act) => Request::Await(*act),
            Stage::Failing { act, reason } => {
                Request::Append(Record::Failed { act: *act, reason: reason.clone() })
            }
            Stage::AskingReboot => Request::Append(Record::RebootRequested { boot: self.boot.clone() }),
            Stage::Rebooting => Request::Reboot,
            Stage::Verifying => Request::Verify,
            Stage::Again { at, sight, .. } => self.step(self.kinds.len() + at, Side::After, false, *sight),
            Stage::Ending => Request::Append(Record::Done),
            Stage::Turning => Request::Append(Record::RollingBack { reason: self.reason.clone() }),
            Stage::Returning { at, sight, .. } => self.step(self.back(*at), Side::Before, false, *sight),
            Stage::Undoing(act) => Request::Undo(*act),
            Stage::AskingReturn => Request::Append(Record::ReturnRequested { boot: self.boot.clone() }),
            Stage::VerifyingBack => Request::VerifyBack,
            Stage::Ended => Request::Append(Record::RolledBack { problems: self.problems.clone() }),
            Stage::Committing(ended) => Request::Commit(*ended),
            Stage::Closing(_) => Request::Close,
            Stage::Resting(_) => return None,
        })
    }

    /// Targets go back in the other order; other names of a file after that file all the same, where something was there
    /// that can stay until then.
    fn back(&self, at: usize) -> usize {
        let count = self.kinds.len();
        let waits = |kind: &Kind| kind.hard && !kind.before_absent && !kind.last;
        let (files, names): (Vec<usize>, Vec<usize>) =
            (0..count).rev().partition(|target| !waits(&self.kinds[*target]));
        files.into_iter().chain(names).nth(at).unwrap_or_default()
    }

    fn step(&self, target: usize, goal: Side, keep: bool, sight: Option<Sight>) -> Request {
        let Some(sight) = sight else { return Request::Look(target) };
        #[cfg(test)]
        if self.has(Mutation::DropUnseen) && sight.temporary == Some(None) {
            return Request::Step(target, Settling::Discard);
        }
        Request::Step(target, settle(self.kind(target), goal, keep, sight))
    }

    /// Takes the answer to the last request.
    pub fn answer(&mut self, outcome: Outcome) {
        if let Outcome::Broken(reason) = outcome {
            self.stage = self.halt(&reason);
            return;
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Opening);
        self.stage = self.after(stage, outcome);
    }

    #[expect(clippy::match_same_arms, reason = "one arm for each stage, in their order")]
    fn after(&mut self, stage: Stage, outcome: Outcome) -> Stage {
        match (stage, outcome) {
            (Stage::Opening, Outcome::Failed(reason)) => {
                self.problems.push(reason);
                Stage::Closing(Ended::Abandoned)
            }
            (Stage::Opening, _) => self.write(0),
            (Stage::Writing { at, steps, .. }, outcome) => self.moved(Phase::Writing, (at, steps), outcome),
            (Stage::Clearing { at, steps, .. }, outcome) => self.moved(Phase::Clearing, (at, steps), outcome),
            (Stage::Returning { at, steps, .. }, outcome) => {
                self.moved(Phase::Returning, (at, steps), outcome)
            }
            (Stage::Again { at, steps, then, .. }, outcome) => {
                self.moved(Phase::Again(then), (at, steps), outcome)
            }
            (Stage::Sealing, Outcome::Failed(reason)) => self.turn_back(reason),
            (Stage::Sealing, _) => {
                self.sealed = true;
                self.clear(0)
            }
            (
                Stage::Starting(_)
                | Stage::Finishing(_)
                | Stage::Failing { .. }
                | Stage::AskingReboot
                | Stage::Ending,
                Outcome::Failed(reason),
            ) => self.turn_back(reason),
            (Stage::Starting(act), _) => {
                if let Some(begun) = self.begun.get_mut(act) {
                    *begun = true;
                }
                Stage::Acting(act)
            }
            (Stage::Acting(act), Outcome::Failed(reason)) => match self.acts[act].fallback {
                Fallback::Reboot => {
                    self.fails(act, &reason);
                    Stage::Failing { act, reason }
                }
                Fallback::Rollback => self.turn_back(reason),
            },
            (Stage::Acting(act), Outcome::Skipped(reason)) => {
                self.problems.push(reason);
                Stage::Finishing(act)
            }
            (Stage::Acting(act), _) => Stage::Finishing(act),
            (Stage::Finishing(act), _) => self.act(act + 1),
            (Stage::Failing { .. }, _) => Stage::AskingReboot,
            (Stage::AskingReboot, _) => Stage::Rebooting,
            // Asked again at the next start; until then the node waits for its reboot.
            (Stage::Rebooting, Outcome::Failed(reason)) => self.halt(&reason),
            (Stage::Rebooting, _) => Stage::Resting(Rest::Rebooting),
            (Stage::Awaiting(_) | Stage::Verifying, Outcome::Failed(reason)) => self.turn_back(reason),
            (Stage::Awaiting(act), _) => self.await_units(act + 1),
            (Stage::Verifying, _) => Stage::Ending,
            (Stage::Ending, _) => Stage::Committing(Ended::Done),
            // What was not sealed goes back at the next start without being told.
            (Stage::Turning, Outcome::Failed(_)) if !self.sealed => self.go_back(),
            (Stage::Turning, Outcome::Failed(reason)) => {
                // Without that record the next start would go on with the new config, so nothing goes back
                // before it is there.
                self.halt(&format!("the way back could not begin: {reason}"))
            }
            (Stage::Turning, _) => self.go_back(),
            (Stage::Undoing(act), outcome) => {
                match outcome {
                    // The new OS under the old files is neither of the two: it is tried again at the next start.
                    Outcome::Failed(reason) if self.must_be_undone(act) => self.unfinished.push(reason),
                    Outcome::Failed(reason) => self.problems.push(reason),
                    Outcome::NeedsReboot => self.returns = true,
                    _ => {}
                }
                self.undo(act + 1)
            }
            (Stage::VerifyingBack, Outcome::Failed(reason)) => self.not_back(&reason),
            (Stage::VerifyingBack, _) => Stage::Ended,
            (Stage::AskingReturn | Stage::Ended, Outcome::Failed(reason)) => self.halt(&reason),
            (Stage::AskingReturn, _) => Stage::Rebooting,
            (Stage::Ended, _) => Stage::Committing(Ended::RolledBack),
            (Stage::Committing(_) | Stage::Closing(_), Outcome::Failed(reason)) => self.halt(&reason),
            (Stage::Committing(ended), _) => Stage::Closing(ended),
            (Stage::Closing(ended), _) => Stage::Resting(Rest::Closed(ended)),
            (resting @ Stage::Resting(_), _) => resting,
        }
    }

    fn write(&mut self, at: usize) -> Stage {
        let next = (at..self.kinds.len()).find(|target| !self.kinds[*target].last);
        next.map_or(Stage::Sealing, |at| Stage::Writing { at, sight: None, steps: 0 })
    }

    fn clear(&mut self, at: usize) -> Stage {
        if at < self.kinds.len() { Stage::Clearing { at, sight: None, steps: 0 } } else { self.act(0) }
    }

    fn act(&mut self, act: usize) -> Stage {
        if act < self.acts.len() {
            Stage::Starting(act)
        } else if self.reboot {
            Stage::AskingReboot
        } else {
            #[cfg(test)]
            if self.has(Mutation::SkipVerify) {
                return Stage::Ending;
            }
            Stage::Verifying
        }
    }

    /// An act failed, and its fallback is a reboot.
    fn fails(&mut self, act: usize, reason: &str) {
        let reason = format!("{reason}; so the node reboots");
        self.problems.push(reason.clone());
        self.failed = Some((act, reason));
    }

    fn halt(&self, now: &str) -> Stage {
        Stage::Resting(self.halted(now))
    }

    fn turn_back(&mut self, reason: String) -> Stage {
        self.reason = reason;
        #[cfg(test)]
        if self.has(Mutation::SkipRollingBack) {
            return self.go_back();
        }
        Stage::Turning
    }

    fn give_back(&mut self, at: usize) -> Stage {
        if at < self.kinds.len() {
            return Stage::Returning { at, sight: None, steps: 0 };
        }
        if self.unfinished.is_empty() { self.undo(0) } else { self.not_given_back() }
    }

    fn not_given_back(&self) -> Stage {
        self.halt(&format!("not everything could be given back: {}", self.unfinished.join("; ")))
    }

    fn undo(&mut self, act: usize) -> Stage {
        #[cfg(test)]
        let _ = self.has(Mutation::SkipReturn) && std::mem::take(&mut self.returns);
        if let Some(act) = (act..self.acts.len()).find(|act| self.begun[*act]) {
            return Stage::Undoing(act);
        }
        match self.returns {
            _ if !self.unfinished.is_empty() => self.not_given_back(),
            true => Stage::AskingReturn,
            false => Stage::Ended,
        }
    }

    /// Whether an act that cannot be undone leaves a node that is neither old nor new.
    fn must_be_undone(&self, act: usize) -> bool {
        #[cfg(test)]
        if self.has(Mutation::ForgetUndo) {
            return false;
        }
        self.acts[act].kind == Action::Os
    }
}
