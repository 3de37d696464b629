//! The line that is shown for a request, and the wait that the node's state names.
//!
//! In: a request of the journal's machine. Out: texts. Nothing is done here.

use super::state::{Run, RunNotes, WRITTEN};
use crate::apply::act_runner::describe;
use sensor_model::{
    journal::{
        machine::{MachineEnd, MachineRequest},
        target_step::TargetStep,
    },
    node_state::{NodeEvent, Wait},
};

impl Run<'_> {
    /// Notes what a request waits for, if that differs from the last note.
    pub(super) fn tell_wait(&mut self, request: &MachineRequest, ending: &mut dyn RunNotes) {
        let wait = match request {
            MachineRequest::Observe(_) | MachineRequest::Step(..) if self.machine.is_going_back() => {
                (Wait::Files, "files to be given back".to_owned())
            }
            MachineRequest::Observe(_) | MachineRequest::Step(..) => (Wait::Files, WRITTEN.to_owned()),
            MachineRequest::Act(act) | MachineRequest::Await(act) if self.awaits(request) => {
                (Wait::Act, format!("what the reboot made of: {}", describe(&self.begin.acts[*act])))
            }
            MachineRequest::Act(act) | MachineRequest::Await(act) | MachineRequest::Undo(act) => {
                let limit = self.begin.acts[*act].timeout_s;
                (Wait::Act, format!("{}, {limit} s at most", self.doing(request, *act)))
            }
            MachineRequest::Verify => (Wait::Comparison, "the comparison with the new config".to_owned()),
            MachineRequest::VerifyBack => {
                (Wait::Comparison, "the comparison of the OS with what it was".to_owned())
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
            ending.waits(wait.0, &wait.1);
            self.waits = Some(wait);
        }
    }

    /// Whether the request only waits for a unit.
    pub(super) fn awaits(&self, request: &MachineRequest) -> bool {
        matches!(request, MachineRequest::Await(_))
            || matches!(request, MachineRequest::Act(act) if self.booted_since() && !self.is_of_os(*act))
    }

    /// The words for an act that is run or undone.
    fn doing(&self, request: &MachineRequest, act: usize) -> String {
        let said = describe(&self.begin.acts[act]);
        match request {
            MachineRequest::Undo(_) if self.is_of_os(act) => "the way back of the OS".to_owned(),
            MachineRequest::Undo(_) => format!("{said} with the old config"),
            _ => said,
        }
    }

    /// The line for a person before a request.
    pub(super) fn line(&self, request: &MachineRequest) -> Option<String> {
        let path = |target: usize| self.target(target).path.display().to_string();
        Some(match request {
            MachineRequest::Begin => format!("write down {} changes of paths", self.begin.targets.len()),
            MachineRequest::Step(target, TargetStep::PutIn | TargetStep::Swap | TargetStep::Set(_))
                if self.machine.puts_again() =>
            {
                format!("put {} again, which the update of the OS took back", path(*target))
            }
            MachineRequest::Step(target, TargetStep::PutIn | TargetStep::Swap | TargetStep::Set(_)) => {
                let verb = if self.machine.is_going_back() { "give back" } else { "write" };
                format!("{verb} {}", path(*target))
            }
            MachineRequest::Step(target, TargetStep::TakeAway) => format!("remove {}", path(*target)),
            MachineRequest::Act(act) | MachineRequest::Await(act) if self.awaits(request) => {
                format!("look what the reboot made of: {}", describe(&self.begin.acts[*act]))
            }
            MachineRequest::Act(act) | MachineRequest::Await(act) => {
                format!("run {}", describe(&self.begin.acts[*act]))
            }
            MachineRequest::Undo(act) if self.is_of_os(*act) => "bring the old OS back".to_owned(),
            MachineRequest::VerifyBack => "compare the OS with what it was".to_owned(),
            MachineRequest::Undo(act) => {
                format!("run {} again, with the old config", describe(&self.begin.acts[*act]))
            }
            MachineRequest::Reboot => "reboot".to_owned(),
            MachineRequest::Verify => "compare everything with the new config".to_owned(),
            MachineRequest::Append(_)
            | MachineRequest::Observe(_)
            | MachineRequest::Step(..)
            | MachineRequest::Commit(_)
            | MachineRequest::Close => return None,
        })
    }

    /// Notes an apply that cannot go on now, and who can.
    pub(super) fn note_halt(&self, end: &MachineEnd, ending: &mut dyn RunNotes) {
        let MachineEnd::Halted(reason) = end else { return };
        let by = if self.refused_os_change { "`holdfast apply --resume`" } else { "the next start" };
        ending.happened(NodeEvent::Stuck, reason, by);
    }
}
