//! The next stage after an observation or an edit of a target.
//!
//! In: the pass, the target, the outcome. Out: the next stage. If a target has the state of another process, an apply rolls back,
//! and a rollback leaves and reports that target.

use super::{
    super::{
        Target, TargetKind,
        target_edit::{Side, TargetEdit, TargetState, next_edit},
    },
    Machine, MachineAnswer,
    stage::{Pass, Stage},
};

/// The end of the problem of a target that a rollback leaves, after its path.
const LEFT: &str = ": left as another process wrote it";

/// The same in records of older versions.
const LEFT_BEFORE: &str = ": left as somebody else wrote it";

/// The paths that a rollback left, by the problems of its record. Older versions wrote no list of these paths, so for their records
/// the text is the only source. No other decision reads a text.
pub(super) fn left_by_older_version(problems: &[String]) -> Vec<String> {
    problems.iter().filter_map(|problem| problem.strip_suffix(LEFT_BEFORE)).map(str::to_owned).collect()
}

impl Machine {
    /// The same machine with the booted image's state of the paths that are written again, which each boot can change.
    #[must_use]
    pub fn with_shipped(mut self, overwritten: &[Target]) -> Self {
        self.overwritten = overwritten.iter().map(Target::kind).collect();
        self
    }

    /// Whether the machine writes overwritten paths again. That has to happen before any service reads them.
    pub fn writes_overwritten(&self) -> bool {
        matches!(self.stage, Stage::Overwritten { .. })
    }

    pub(super) fn kind(&self, target: usize) -> TargetKind {
        self.kinds.iter().chain(&self.overwritten).nth(target).copied().unwrap_or_default()
    }

    /// Writes overwritten paths again, from a number on. Then the given stage follows.
    pub(super) fn write_overwritten(&mut self, at: usize, then: Stage) -> Stage {
        if at < self.overwritten.len() {
            return Stage::Overwritten { at, state: None, edits: 0, then: Box::new(then) };
        }
        match then {
            Stage::Returning { .. } => self.restore(0),
            then => then,
        }
    }

    /// Begins the rollback. Overwritten paths are written again first: such a path may be a target, and a target is restored only
    /// from the state that Holdfast wrote.
    pub(super) fn go_back(&mut self) -> Stage {
        self.write_overwritten(0, Stage::Returning { at: 0, state: None, edits: 0 })
    }

    /// The stage after an observation or an edit of a target.
    pub(super) fn moved(&mut self, pass: Pass, (at, edits): (usize, u8), outcome: MachineAnswer) -> Stage {
        let target = match pass {
            Pass::Writing | Pass::Clearing => at,
            Pass::Overwritten(_) => self.kinds.len() + at,
            Pass::Returning => self.back(at),
        };
        match outcome {
            MachineAnswer::Observed(state) => {
                #[cfg(test)]
                let state = self.seen(target, state);
                let (goal, keep) = match pass {
                    Pass::Writing => (Side::After, true),
                    Pass::Clearing | Pass::Overwritten(_) => (Side::After, false),
                    Pass::Returning => (Side::Before, false),
                };
                // A process was killed while it set a directory's attributes.
                let is_half_way = matches!(pass, Pass::Overwritten(_)) && state.between;
                let path = state.path.or(is_half_way.then_some(Side::Before));
                let state = TargetState { path, ..state };
                match next_edit(self.kind(target), goal, keep, state) {
                    TargetEdit::Finished => self.next_target(pass, at),
                    // The final comparison reports it, if a config declares the path.
                    TargetEdit::Foreign if matches!(pass, Pass::Overwritten(_)) => self.next_target(pass, at),
                    TargetEdit::Foreign if pass == Pass::Returning => {
                        let name = &self.names[target];
                        self.problems.push(format!("{name}{LEFT}"));
                        self.left.push(name.clone());
                        self.next_target(pass, at)
                    }
                    TargetEdit::Foreign => self
                        .turn_back(format!("{}: another process changed it meanwhile", self.names[target])),
                    _ => pass.at(at, Some(state), edits),
                }
            }
            // A directory that is not empty stays, with the objects of another process.
            MachineAnswer::Kept => {
                self.problems.push(format!("{}: the directory is not empty and stays", self.names[target]));
                self.next_target(pass, at)
            }
            MachineAnswer::Failed(reason) => self.not_moved(pass, at, reason),
            MachineAnswer::Done
            | MachineAnswer::Skipped(_)
            | MachineAnswer::NeedsReboot
            | MachineAnswer::Broken(_)
                if edits >= self.patience =>
            {
                let reason = format!("{}: the state that Holdfast writes does not stay", self.names[target]);
                self.not_moved(pass, at, reason)
            }
            MachineAnswer::Done
            | MachineAnswer::Skipped(_)
            | MachineAnswer::NeedsReboot
            | MachineAnswer::Broken(_) => pass.at(at, None, edits + 1),
        }
    }

    /// Handles a target that cannot get its wanted state.
    fn not_moved(&mut self, pass: Pass, at: usize, reason: String) -> Stage {
        if !pass.goes_back() {
            return self.turn_back(reason);
        }
        self.unfinished.push(reason);
        self.next_target(pass, at)
    }

    fn next_target(&mut self, pass: Pass, at: usize) -> Stage {
        match pass {
            Pass::Writing => self.write(at + 1),
            Pass::Clearing => self.clear(at + 1),
            Pass::Overwritten(then) => self.write_overwritten(at + 1, *then),
            Pass::Returning => self.restore(at + 1),
        }
    }
}
