//! The texts for a request: the line for people, and the wait in the node's state.
//!
//! In: a request of the journal's machine. Out: texts.

use super::state::{ApplyNotes, Driver, WRITTEN};
use crate::apply::act_error::{UNDO_OS, describe};
use sensor_model::{
    journal::{
        machine::{MachineEnd, MachineRequest},
        target_edit::TargetEdit,
    },
    node_state::{Milestone, Wait},
};

impl Driver<'_> {
    /// Notes what a request waits for, if that differs from the last note.
    pub(super) fn note_wait(&mut self, request: &MachineRequest, notes: &mut dyn ApplyNotes) {
        let wait = match request {
            MachineRequest::Observe(_) | MachineRequest::Edit(..) if self.machine.is_going_back() => {
                (Wait::Files, "files to be restored".to_owned())
            }
            MachineRequest::Observe(_) | MachineRequest::Edit(..) => (Wait::Files, WRITTEN.to_owned()),
            MachineRequest::Act(act) | MachineRequest::Await(act) if self.awaits(request) => {
                (Wait::Act, format!("the result after the reboot: {}", describe(&self.begin.acts[*act])))
            }
            MachineRequest::Act(act) | MachineRequest::Await(act) | MachineRequest::Undo(act) => {
                let limit = self.begin.acts[*act].timeout_s;
                (Wait::Act, format!("{}, {limit} s at most", self.doing(request, *act)))
            }
            MachineRequest::Verify => (Wait::Comparison, "the comparison with the new config".to_owned()),
            MachineRequest::VerifyBack => {
                (Wait::Comparison, "the comparison of the OS with the one before the apply".to_owned())
            }
            MachineRequest::Begin
            | MachineRequest::Append(_)
            | MachineRequest::Reboot
            | MachineRequest::Commit(_)
            | MachineRequest::Close => {
                return;
            }
        };
        if self.waits.as_ref() != Some(&wait) {
            notes.waits(wait.0, &wait.1);
            self.waits = Some(wait);
        }
    }

    /// Whether the request only waits for a unit.
    pub(super) fn awaits(&self, request: &MachineRequest) -> bool {
        matches!(request, MachineRequest::Await(_))
            || matches!(request, MachineRequest::Act(act) if self.booted_since() && !self.is_of_os(*act))
    }

    /// The words for an act that runs or is undone.
    fn doing(&self, request: &MachineRequest, act: usize) -> String {
        let words = describe(&self.begin.acts[act]);
        match request {
            MachineRequest::Undo(_) if self.is_of_os(act) => UNDO_OS.to_owned(),
            MachineRequest::Undo(_) => format!("{words} with the old config"),
            _ => words,
        }
    }

    /// The line for a person before a request.
    pub(super) fn line(&self, request: &MachineRequest) -> Option<String> {
        let path = |target: usize| self.target(target).path.display().to_string();
        Some(match request {
            MachineRequest::Begin => format!("journal {} path changes", self.begin.targets.len()),
            MachineRequest::Edit(target, TargetEdit::PutIn | TargetEdit::Swap | TargetEdit::Set(_))
                if self.machine.writes_overwritten() =>
            {
                format!("write {} again, which the update of the OS replaced", path(*target))
            }
            MachineRequest::Edit(target, TargetEdit::PutIn | TargetEdit::Swap | TargetEdit::Set(_)) => {
                let verb = if self.machine.is_going_back() { "restore" } else { "write" };
                format!("{verb} {}", path(*target))
            }
            MachineRequest::Edit(target, TargetEdit::TakeAway) => format!("remove {}", path(*target)),
            MachineRequest::Act(act) | MachineRequest::Await(act) if self.awaits(request) => {
                format!("check after the reboot: {}", describe(&self.begin.acts[*act]))
            }
            MachineRequest::Act(act) | MachineRequest::Await(act) => {
                format!("run {}", describe(&self.begin.acts[*act]))
            }
            MachineRequest::Undo(act) if self.is_of_os(*act) => "restore the old OS".to_owned(),
            MachineRequest::VerifyBack => "compare the OS with the one before the apply".to_owned(),
            MachineRequest::Undo(act) => {
                format!("run {} again, with the old config", describe(&self.begin.acts[*act]))
            }
            MachineRequest::Reboot => "reboot".to_owned(),
            MachineRequest::Verify => "compare everything with the new config".to_owned(),
            MachineRequest::Append(_)
            | MachineRequest::Observe(_)
            | MachineRequest::Edit(..)
            | MachineRequest::Commit(_)
            | MachineRequest::Close => return None,
        })
    }

    /// Notes an apply that cannot continue now, and what continues it.
    pub(super) fn note_halt(&self, end: &MachineEnd, notes: &mut dyn ApplyNotes) {
        let MachineEnd::Halted(reason) = end else { return };
        let by = if self.refused_os_change { "`holdfast apply --resume`" } else { "the next start" };
        notes.reached(Milestone::Stuck, reason, by);
    }
}
