//! Faults that a test plants in the machine, to show that the checker finds them.

use super::{
    super::{mutation::Mutation, target_edit::TargetState},
    ApplyEnd, Machine,
    stage::Stage,
};

impl Machine {
    /// The same machine with a planted fault.
    pub(in crate::journal) fn with(mut self, mutation: Option<Mutation>) -> Self {
        self.mutation = mutation;
        match mutation {
            Some(Mutation::CloseOnResume) if matches!(self.stage, Stage::Turning) => {
                self.stage = Stage::Closing(ApplyEnd::RolledBack);
            }
            Some(Mutation::WriteBeforeBegin) if self.stage == Stage::Opening => {
                self.stage = Stage::Writing { at: 0, state: None, edits: 0 };
            }
            Some(Mutation::SkipAwait) if matches!(self.stage, Stage::Awaiting(_)) => {
                self.stage = Stage::Verifying;
            }
            Some(Mutation::SkipOverwritten) if self.writes_overwritten() => {
                if let Stage::Overwritten { then, .. } = self.stage {
                    self.stage = *then;
                }
            }
            // More edits than any test waits for.
            Some(Mutation::StepForEver) => self.patience = u8::MAX,
            _ => {}
        }
        self
    }

    pub(super) fn has(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// The observation that the machine uses instead of `state`.
    pub(super) fn seen(&self, target: usize, mut state: TargetState) -> TargetState {
        let is_foreign = self.kind(target).in_place && state.path.is_none();
        state.between |= self.has(Mutation::SetWhatIsForeign) && is_foreign;
        state
    }
}
