//! The line that is shown for a request, and the wait that the node's state names.
//!
//! In: a request of the journal's machine. Out: texts. Nothing is done here.

use super::state::{Run, RunNotes, WRITTEN};
use crate::apply::act_runner::describe;
use sensor_model::{
    journal::{
        machine::{Request, Rest},
        target_step::Settling,
    },
    node_state::{NodeEvent, Wait},
};

impl Run<'_> {
    /// Notes what a request waits for, if that differs from the last note.
    pub(super) fn tell_wait(&mut self, request: &Request, ending: &mut dyn RunNotes) {
        let wait = match request {
            Request::Look(_) | Request::Step(..) if self.machine.is_going_back() => {
                (Wait::Files, "files to be given back".to_owned())
            }
            Request::Look(_) | Request::Step(..) => (Wait::Files, WRITTEN.to_owned()),
            Request::Act(act) | Request::Await(act) if self.awaits(request) => {
                (Wait::Act, format!("what the reboot made of: {}", describe(&self.begin.acts[*act])))
            }
            Request::Act(act) | Request::Await(act) | Request::Undo(act) => {
                let limit = self.begin.acts[*act].timeout_s;
                (Wait::Act, format!("{}, {limit} s at most", self.doing(request, *act)))
            }
            Request::Verify => (Wait::Comparison, "the comparison with the new config".to_owned()),
            Request::VerifyBack => (Wait::Comparison, "the comparison of the OS with what it was".to_owned()),
            Request::Begin | Request::Append(_) | Request::Reboot | Request::Commit(_) | Request::Close => {
                return;
            }
        };
        if self.waits.as_ref() != Some(&wait) {
            ending.waits(wait.0, &wait.1);
            self.waits = Some(wait);
        }
    }

    /// Whether the request only waits for a unit.
    pub(super) fn awaits(&self, request: &Request) -> bool {
        matches!(request, Request::Await(_))
            || matches!(request, Request::Act(act) if self.booted_since() && !self.is_of_os(*act))
    }

    /// The words for an act that is run or undone.
    fn doing(&self, request: &Request, act: usize) -> String {
        let said = describe(&self.begin.acts[act]);
        match request {
            Request::Undo(_) if self.is_of_os(act) => "the way back of the OS".to_owned(),
            Request::Undo(_) => format!("{said} with the old config"),
            _ => said,
        }
    }

    /// The line for a person before a request.
    pub(super) fn line(&self, request: &Request) -> Option<String> {
        let path = |target: usize| self.target(target).path.display().to_string();
        Some(match request {
            Request::Begin => format!("write down {} changes of paths", self.begin.targets.len()),
            Request::Step(target, Settling::PutIn | Settling::Swap | Settling::Set(_))
                if self.machine.puts_again() =>
            {
                format!("put {} again, which the update of the OS took back", path(*target))
            }
            Request::Step(target, Settling::PutIn | Settling::Swap | Settling::Set(_)) => {
                let verb = if self.machine.is_going_back() { "give back" } else { "write" };
                format!("{verb} {}", path(*target))
            }
            Request::Step(target, Settling::TakeAway) => format!("remove {}", path(*target)),
            Request::Act(act) | Request::Await(act) if self.awaits(request) => {
                format!("look what the reboot made of: {}", describe(&self.begin.acts[*act]))
            }
            Request::Act(act) | Request::Await(act) => format!("run {}", describe(&self.begin.acts[*act])),
            Request::Undo(act) if self.is_of_os(*act) => "bring the old OS back".to_owned(),
            Request::VerifyBack => "compare the OS with what it was".to_owned(),
            Request::Undo(act) => {
                format!("run {} again, with the old config", describe(&self.begin.acts[*act]))
            }
            Request::Reboot => "reboot".to_owned(),
            Request::Verify => "compare everything with the new config".to_owned(),
            Request::Append(_)
            | Request::Look(_)
            | Request::Step(..)
            | Request::Commit(_)
            | Request::Close => return None,
        })
    }

    /// Notes an apply that cannot go on now, and who can.
    pub(super) fn note_halt(&self, rest: &Rest, ending: &mut dyn RunNotes) {
        let Rest::Halted(reason) = rest else { return };
        let by = if self.refused_os_change { "`holdfast apply --resume`" } else { "the next start" };
        ending.happened(NodeEvent::Stuck, reason, by);
    }
}
