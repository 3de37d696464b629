//! The order of an apply, and its continuation after a kill.
//!
//! In: the outcome of the last request. Out: the next request. Every change is in the journal before it is made, everything is
//! verified before the apply is done, and what cannot be undone comes last. A machine from the records of a killed process
//! continues at the same place.

mod end;
mod phases;
#[cfg(test)]
mod planted;
mod resume;
mod stage;

pub use end::MachineEnd;

#[cfg(test)]
use super::mutation::Mutation;
use super::{
    Act, Action, ApplyEnd, Begin, Boot, Fallback, JournalRecord, TargetKind,
    target_edit::{Side, TargetEdit, TargetState, next_edit},
};
use stage::{Pass, Stage};

/// Most edits of one target in a row. Without interference five are enough. On a file system that does not keep attributes, or
/// beside a process that writes all the time, the edits would never end.
const EDITS: u8 = 12;

/// The next request to the caller, who answers each one by [`Machine::answer`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MachineRequest {
    /// Write the first record, durably.
    Begin,
    /// Add a record, durably.
    Append(JournalRecord),
    /// Observe a target and its temporary name. A half-written file there is removed first.
    Observe(usize),
    /// An edit of a target; never `Finished` or `Foreign`.
    Edit(usize, TargetEdit),
    /// Run an action and await its result.
    Act(usize),
    /// After a reboot in place of an action: wait until its unit is neither starting nor stopping, and check its state.
    Await(usize),
    /// The files are restored: run the action again, or undo it if it is a change of the OS.
    Undo(usize),
    /// Sync, and reboot. `Done` means that the reboot is under way.
    Reboot,
    /// Compare everything with the new config.
    Verify,
    /// After the reboot of a rollback: check whether the OS is the old one again.
    VerifyBack,
    /// Make the config the current one, and write the history. A second time it changes nothing.
    Commit(ApplyEnd),
    /// Remove the journal and its contents in the store.
    Close,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MachineAnswer {
    /// The request succeeded.
    Done,
    /// For [`MachineRequest::Observe`].
    Observed(TargetState),
    /// A directory that was to be removed is not empty; it stays.
    Kept,
    /// For [`MachineRequest::Act`]: the action is not possible and not needed. The reason is for a person.
    Skipped(String),
    /// For [`MachineRequest::Undo`]: it succeeded, and takes effect with the next boot.
    NeedsReboot,
    /// The request failed and left no effect.
    Failed(String),
    /// The request failed, and neither the apply nor a rollback can continue: the journal cannot be written, or the state is
    /// unknown.
    Broken(String),
}

/// The state machine of one apply.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Machine {
    kinds: Vec<TargetKind>,
    /// Paths that are written again after an update of the OS. Their numbers follow those of the targets.
    overwritten: Vec<TargetKind>,
    /// Paths, for messages.
    names: Vec<String>,
    acts: Vec<Act>,
    reboot: bool,
    /// The journal has the record [`JournalRecord::Written`], so a new process continues with the apply.
    sealed: bool,
    boot: Boot,
    /// Started actions, which a rollback has to undo.
    begun: Vec<bool>,
    /// The failed action that led to a reboot, and the reason.
    failed: Option<(usize, String)>,
    /// The reason of the rollback.
    reason: String,
    /// Targets that were left, actions that were skipped, and failures during the rollback.
    problems: Vec<String>,
    /// The paths of the targets that were left.
    left: Vec<String>,
    /// Failures that must be retried before the rollback can end.
    unfinished: Vec<String>,
    /// The undone change of the OS takes effect with the next boot.
    returns: bool,
    /// Requested reboots of the rollback.
    returned: u8,
    /// Most edits of one target.
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
            overwritten: begin.overwritten.iter().map(|path| path.target(None).kind()).collect(),
            names: begin.paths().map(|path| path.display().to_string()).collect(),
            sealed: false,
            acts: begin.acts.clone(),
            reboot: begin.reboot,
            boot: boot.clone(),
            begun: vec![false; begin.acts.len()],
            failed: None,
            reason: String::new(),
            problems: Vec::new(),
            left: Vec::new(),
            unfinished: Vec::new(),
            returns: false,
            returned: 0,
            patience: EDITS,
            stage: Stage::Opening,
            #[cfg(test)]
            mutation: None,
        }
    }

    /// The reason of the rollback; empty if there is none.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Targets left as another process wrote them, skipped actions, and failures during the rollback.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The paths of the targets left as another process wrote them.
    pub fn left(&self) -> &[String] {
        &self.left
    }

    /// The reason of an unplanned reboot; `None` if no action failed with a reboot as its fallback.
    pub fn failure(&self) -> Option<&str> {
        self.failed.as_ref().map(|(_, reason)| reason.as_str())
    }

    /// The end of a machine that cannot continue: the first reason, the problems after it, and the current one.
    pub fn halted(&self, now: &str) -> MachineEnd {
        let reasons = std::iter::once(&self.reason).chain(&self.problems).map(String::as_str).chain([now]);
        MachineEnd::Halted(reasons.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; "))
    }

    /// The end of the machine; `None` while it has a next request.
    pub fn end(&self) -> Option<&MachineEnd> {
        match &self.stage {
            Stage::AtEnd(end) => Some(end),
            _ => None,
        }
    }

    /// Whether a rollback is under way.
    pub fn is_going_back(&self) -> bool {
        matches!(self.stage, Stage::Turning | Stage::Returning { .. } | Stage::Undoing(_) | Stage::RolledBack)
            || !self.reason.is_empty()
    }

    /// The next request; `None` at the end.
    pub fn next(&self) -> Option<MachineRequest> {
        Some(match &self.stage {
            Stage::Opening => MachineRequest::Begin,
            Stage::Writing { at, state, .. } => self.edit(*at, Side::After, true, *state),
            Stage::Sealing => MachineRequest::Append(JournalRecord::Written),
            Stage::Clearing { at, state, .. } => self.edit(*at, Side::After, false, *state),
            Stage::Starting(act) => MachineRequest::Append(JournalRecord::Started { act: *act }),
            Stage::Acting(act) => MachineRequest::Act(*act),
            Stage::Finishing(act) => MachineRequest::Append(JournalRecord::Finished { act: *act }),
            Stage::Awaiting(act) => MachineRequest::Await(*act),
            Stage::Failing { act, reason } => {
                MachineRequest::Append(JournalRecord::Failed { act: *act, reason: reason.clone() })
            }
            Stage::AskingReboot => {
                MachineRequest::Append(JournalRecord::RebootRequested { boot: self.boot.clone() })
            }
            Stage::Rebooting => MachineRequest::Reboot,
            Stage::Verifying => MachineRequest::Verify,
            Stage::Overwritten { at, state, .. } => {
                self.edit(self.kinds.len() + at, Side::After, false, *state)
            }
            Stage::Ending => MachineRequest::Append(JournalRecord::Done),
            Stage::Turning => {
                MachineRequest::Append(JournalRecord::RollingBack { reason: self.reason.clone() })
            }
            Stage::Returning { at, state, .. } => self.edit(self.back(*at), Side::Before, false, *state),
            Stage::Undoing(act) => MachineRequest::Undo(*act),
            Stage::AskingReturn => {
                MachineRequest::Append(JournalRecord::ReturnRequested { boot: self.boot.clone() })
            }
            Stage::VerifyingBack => MachineRequest::VerifyBack,
            Stage::RolledBack => {
                let (problems, left) = (self.problems.clone(), self.left.clone());
                MachineRequest::Append(JournalRecord::RolledBack { problems, left })
            }
            Stage::Committing(ended) => MachineRequest::Commit(*ended),
            Stage::Closing(_) => MachineRequest::Close,
            Stage::AtEnd(_) => return None,
        })
    }

    /// The target at a place of the rollback, which restores the targets in reverse order. A hard link still comes after its
    /// file, if an object at its path can stay until then.
    fn back(&self, at: usize) -> usize {
        let count = self.kinds.len();
        let waits = |kind: &TargetKind| kind.hard && !kind.before_absent && !kind.last;
        let (files, names): (Vec<usize>, Vec<usize>) =
            (0..count).rev().partition(|target| !waits(&self.kinds[*target]));
        files.into_iter().chain(names).nth(at).unwrap_or_default()
    }

    fn edit(&self, target: usize, goal: Side, keep: bool, state: Option<TargetState>) -> MachineRequest {
        let Some(state) = state else { return MachineRequest::Observe(target) };
        #[cfg(test)]
        if self.has(Mutation::DropUnseen) && state.temporary == Some(None) {
            return MachineRequest::Edit(target, TargetEdit::Discard);
        }
        MachineRequest::Edit(target, next_edit(self.kind(target), goal, keep, state))
    }

    /// Takes the answer to the last request.
    pub fn answer(&mut self, outcome: MachineAnswer) {
        if let MachineAnswer::Broken(reason) = outcome {
            self.stage = self.halt(&reason);
            return;
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Opening);
        self.stage = self.after(stage, outcome);
    }

    #[expect(clippy::match_same_arms, reason = "one arm for each stage, in their order")]
    fn after(&mut self, stage: Stage, outcome: MachineAnswer) -> Stage {
        match (stage, outcome) {
            (Stage::Opening, MachineAnswer::Failed(reason)) => {
                self.problems.push(reason);
                Stage::Closing(ApplyEnd::Abandoned)
            }
            (Stage::Opening, _) => self.write(0),
            (Stage::Writing { at, edits, .. }, outcome) => self.moved(Pass::Writing, (at, edits), outcome),
            (Stage::Clearing { at, edits, .. }, outcome) => self.moved(Pass::Clearing, (at, edits), outcome),
            (Stage::Returning { at, edits, .. }, outcome) => {
                self.moved(Pass::Returning, (at, edits), outcome)
            }
            (Stage::Overwritten { at, edits, then, .. }, outcome) => {
                self.moved(Pass::Overwritten(then), (at, edits), outcome)
            }
            (Stage::Sealing, MachineAnswer::Failed(reason)) => self.turn_back(reason),
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
                MachineAnswer::Failed(reason),
            ) => self.turn_back(reason),
            (Stage::Starting(act), _) => {
                if let Some(begun) = self.begun.get_mut(act) {
                    *begun = true;
                }
                Stage::Acting(act)
            }
            (Stage::Acting(act), MachineAnswer::Failed(reason)) => match self.acts[act].fallback {
                Fallback::Reboot => {
                    self.fails(act, &reason);
                    Stage::Failing { act, reason }
                }
                Fallback::Rollback => self.turn_back(reason),
            },
            (Stage::Acting(act), MachineAnswer::Skipped(reason)) => {
                self.problems.push(reason);
                Stage::Finishing(act)
            }
            (Stage::Acting(act), _) => Stage::Finishing(act),
            (Stage::Finishing(act), _) => self.act(act + 1),
            (Stage::Failing { .. }, _) => Stage::AskingReboot,
            (Stage::AskingReboot, _) => Stage::Rebooting,
            // The next start asks again; until then the node waits for its reboot.
            (Stage::Rebooting, MachineAnswer::Failed(reason)) => self.halt(&reason),
            (Stage::Rebooting, _) => Stage::AtEnd(MachineEnd::Rebooting),
            (Stage::Awaiting(_) | Stage::Verifying, MachineAnswer::Failed(reason)) => self.turn_back(reason),
            (Stage::Awaiting(act), _) => self.await_units(act + 1),
            (Stage::Verifying, _) => Stage::Ending,
            (Stage::Ending, _) => Stage::Committing(ApplyEnd::Done),
            // Without the record `Written` the next start rolls back, with or without the record `RollingBack`.
            (Stage::Turning, MachineAnswer::Failed(_)) if !self.sealed => self.go_back(),
            (Stage::Turning, MachineAnswer::Failed(reason)) => {
                // Without the record `RollingBack` the next start would continue with the new config. So the rollback begins
                // only after it is written.
                self.halt(&format!("the rollback could not begin: {reason}"))
            }
            (Stage::Turning, _) => self.go_back(),
            (Stage::Undoing(act), outcome) => {
                match outcome {
                    // The new OS with the old files is neither the old nor the new state: the next start retries.
                    MachineAnswer::Failed(reason) if self.must_be_undone(act) => self.unfinished.push(reason),
                    MachineAnswer::Failed(reason) => self.problems.push(reason),
                    MachineAnswer::NeedsReboot => self.returns = true,
                    _ => {}
                }
                self.undo(act + 1)
            }
            (Stage::VerifyingBack, MachineAnswer::Failed(reason)) => self.not_back(&reason),
            (Stage::VerifyingBack, _) => Stage::RolledBack,
            (Stage::AskingReturn | Stage::RolledBack, MachineAnswer::Failed(reason)) => self.halt(&reason),
            (Stage::AskingReturn, _) => Stage::Rebooting,
            (Stage::RolledBack, _) => Stage::Committing(ApplyEnd::RolledBack),
            (Stage::Committing(_) | Stage::Closing(_), MachineAnswer::Failed(reason)) => self.halt(&reason),
            (Stage::Committing(ended), _) => Stage::Closing(ended),
            (Stage::Closing(ended), _) => Stage::AtEnd(MachineEnd::Closed(ended)),
            (end @ Stage::AtEnd(_), _) => end,
        }
    }

    fn write(&mut self, at: usize) -> Stage {
        let next = (at..self.kinds.len()).find(|target| !self.kinds[*target].last);
        next.map_or(Stage::Sealing, |at| Stage::Writing { at, state: None, edits: 0 })
    }

    fn clear(&mut self, at: usize) -> Stage {
        if at < self.kinds.len() { Stage::Clearing { at, state: None, edits: 0 } } else { self.act(0) }
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

    /// Records a failed action whose fallback is a reboot.
    fn fails(&mut self, act: usize, reason: &str) {
        let reason = format!("{reason}; so the node reboots");
        self.problems.push(reason.clone());
        self.failed = Some((act, reason));
    }

    fn halt(&self, now: &str) -> Stage {
        Stage::AtEnd(self.halted(now))
    }

    fn turn_back(&mut self, reason: String) -> Stage {
        self.reason = reason;
        #[cfg(test)]
        if self.has(Mutation::SkipRollingBack) {
            return self.go_back();
        }
        Stage::Turning
    }

    fn restore(&mut self, at: usize) -> Stage {
        if at < self.kinds.len() {
            return Stage::Returning { at, state: None, edits: 0 };
        }
        if self.unfinished.is_empty() { self.undo(0) } else { self.not_restored() }
    }

    fn not_restored(&self) -> Stage {
        self.halt(&format!("not everything could be restored: {}", self.unfinished.join("; ")))
    }

    fn undo(&mut self, act: usize) -> Stage {
        #[cfg(test)]
        let _ = self.has(Mutation::SkipReturn) && std::mem::take(&mut self.returns);
        if let Some(act) = (act..self.acts.len()).find(|act| self.begun[*act]) {
            return Stage::Undoing(act);
        }
        match self.returns {
            _ if !self.unfinished.is_empty() => self.not_restored(),
            true => Stage::AskingReturn,
            false => Stage::RolledBack,
        }
    }

    /// Whether an action that cannot be undone leaves a node in neither the old nor the new state.
    fn must_be_undone(&self, act: usize) -> bool {
        #[cfg(test)]
        if self.has(Mutation::ForgetUndo) {
            return false;
        }
        self.acts[act].kind == Action::Os
    }
}
