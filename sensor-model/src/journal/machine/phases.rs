//! The next stage after an observation or a step of a target.
//!
//! In: the pass, the target, the outcome. Out: the next stage. If a target has the state of another process, an apply rolls back,
//! and a rollback leaves and reports that target.

use super::{
    super::{
        Target, TargetKind,
        target_step::{Settling, Side, Sight, settle},
    },
    LEFT, Machine, Outcome,
    stage::{Phase, Stage},
};

impl Machine {
    /// The same machine with the booted image's state of the paths that are written again, which each boot can change.
    #[must_use]
    pub fn with_image(mut self, again: &[Target]) -> Self {
        self.again = again.iter().map(Target::kind).collect();
        self
    }

    /// Whether it writes reverted paths again, which has to happen before any service reads them.
    pub fn puts_again(&self) -> bool {
        matches!(self.stage, Stage::Again { .. })
    }

    pub(super) fn kind(&self, target: usize) -> TargetKind {
        self.kinds.iter().chain(&self.again).nth(target).copied().unwrap_or_default()
    }

    /// Writes reverted paths again, from a number on. Then the given stage follows.
    pub(super) fn again(&mut self, at: usize, then: Stage) -> Stage {
        if at < self.again.len() {
            return Stage::Again { at, sight: None, steps: 0, then: Box::new(then) };
        }
        match then {
            Stage::Returning { .. } => self.give_back(0),
            then => then,
        }
    }

    /// Begins the rollback. Reverted paths are written again first: such a path may be a target, and a target is restored only from the
    /// state that Holdfast wrote.
    pub(super) fn go_back(&mut self) -> Stage {
        self.again(0, Stage::Returning { at: 0, sight: None, steps: 0 })
    }

    /// The stage after an observation or a step of a target.
    pub(super) fn moved(&mut self, phase: Phase, (at, steps): (usize, u8), outcome: Outcome) -> Stage {
        let target = match phase {
            Phase::Writing | Phase::Clearing => at,
            Phase::Again(_) => self.kinds.len() + at,
            Phase::Returning => self.back(at),
        };
        match outcome {
            Outcome::Sight(sight) => {
                #[cfg(test)]
                let sight = self.seen(target, sight);
                let (goal, keep) = match phase {
                    Phase::Writing => (Side::After, true),
                    Phase::Clearing | Phase::Again(_) => (Side::After, false),
                    Phase::Returning => (Side::Before, false),
                };
                // A process was killed while it set a directory's attributes.
                let is_half_way = matches!(phase, Phase::Again(_)) && sight.between;
                let path = sight.path.or(is_half_way.then_some(Side::Before));
                let sight = Sight { path, ..sight };
                match settle(self.kind(target), goal, keep, sight) {
                    Settling::Finished => self.pass(phase, at),
                    // The final comparison reports it, if a config declares the path.
                    Settling::Foreign if matches!(phase, Phase::Again(_)) => self.pass(phase, at),
                    Settling::Foreign if phase == Phase::Returning => {
                        self.problems.push(format!("{}{LEFT}", self.names[target]));
                        self.pass(phase, at)
                    }
                    Settling::Foreign => {
                        self.turn_back(format!("{}: somebody else changed it meanwhile", self.names[target]))
                    }
                    _ => phase.at(at, Some(sight), steps),
                }
            }
            // A directory that is not empty stays, with the objects of another process.
            Outcome::Kept => {
                self.problems.push(format!("{}: the directory is not empty and stays", self.names[target]));
                self.pass(phase, at)
            }
            Outcome::Failed(reason) => self.not_moved(phase, at, reason),
            Outcome::Done | Outcome::Skipped(_) | Outcome::NeedsReboot | Outcome::Broken(_)
                if steps >= self.patience =>
            {
                let reason = format!("{}: what is written to it does not stay", self.names[target]);
                self.not_moved(phase, at, reason)
            }
            Outcome::Done | Outcome::Skipped(_) | Outcome::NeedsReboot | Outcome::Broken(_) => {
                phase.at(at, None, steps + 1)
            }
        }
    }

    /// Handles a target that cannot get its wanted state.
    fn not_moved(&mut self, phase: Phase, at: usize, reason: String) -> Stage {
        if !phase.goes_back() {
            return self.turn_back(reason);
        }
        self.unfinished.push(reason);
        self.pass(phase, at)
    }

    fn pass(&mut self, phase: Phase, at: usize) -> Stage {
        match phase {
            Phase::Writing => self.write(at + 1),
            Phase::Clearing => self.clear(at + 1),
            Phase::Again(then) => self.again(at + 1, *then),
            Phase::Returning => self.give_back(at + 1),
        }
    }
}
