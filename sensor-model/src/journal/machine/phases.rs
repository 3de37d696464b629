//! What a look or a step of a target leads to, in each part of an apply.
//!
//! In: the part, the target, the outcome. Out: the next stage. On the way there whatever is somebody else's leads back; on
//! the way back it is left and told.

use super::{
    super::{
        Kind, Target,
        settle::{Settling, Side, Sight, settle},
    },
    LEFT, Machine, Outcome,
    stage::{Phase, Stage},
};

impl Machine {
    /// The same with what the booted image has of the paths that are put again: in another boot that is something else.
    #[must_use]
    pub fn with_image(mut self, again: &[Target]) -> Self {
        self.again = again.iter().map(Target::kind).collect();
        self
    }

    /// Whether it puts again what an update took back, which is done before anything reads it.
    pub fn puts_again(&self) -> bool {
        matches!(self.stage, Stage::Again { .. })
    }

    pub(super) fn kind(&self, target: usize) -> Kind {
        self.kinds.iter().chain(&self.again).nth(target).copied().unwrap_or_default()
    }

    /// What is put again from a number on, and then a stage.
    pub(super) fn again(&mut self, at: usize, then: Stage) -> Stage {
        if at < self.again.len() {
            return Stage::Again { at, sight: None, steps: 0, then: Box::new(then) };
        }
        match then {
            Stage::Returning { .. } => self.give_back(0),
            then => then,
        }
    }

    /// The way back. What an update took back comes first: it may be one of the targets, and what was there before is
    /// given back only from what we wrote.
    pub(super) fn go_back(&mut self) -> Stage {
        self.again(0, Stage::Returning { at: 0, sight: None, steps: 0 })
    }

    /// After a look or a step of a target.
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
                // A death in the middle of setting a directory's attributes.
                let is_half_way = matches!(phase, Phase::Again(_)) && sight.between;
                let path = sight.path.or(is_half_way.then_some(Side::Before));
                let sight = Sight { path, ..sight };
                match settle(self.kind(target), goal, keep, sight) {
                    Settling::Finished => self.pass(phase, at),
                    // The comparison tells it, unless it is nobody's concern.
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
            // A directory that is not empty stays, with what another process put in it.
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

    /// A target that cannot be brought where it shall be.
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
