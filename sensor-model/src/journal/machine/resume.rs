//! The continuation of an apply after a kill or a reboot.
//!
//! In: the records of the killed process, and the boot. Out: a machine at its next request.

use super::{Machine, phases::left_by_older_version, stage::Stage};
use crate::journal::{Action, ApplyEnd, Begin, Boot, Brings, JournalRecord};

/// Most reboots to restore the old OS. A shutdown may fail to finalize the staged deployment, or the boot loader may boot another
/// entry. After this many attempts a person has to act.
const RETURNS: u8 = 3;

impl Machine {
    /// Continues an apply by its records, the first of which is `begin`.
    pub fn resume(begin: &Begin, records: &[JournalRecord], boot: &Boot) -> Self {
        let mut machine = Self::new(begin, boot);
        let brings = Brings::of(begin.os.as_ref());
        machine.stage = machine.turn_back("interrupted while files were written".to_owned());
        for record in records {
            machine.stage = match record {
                JournalRecord::Begin(_) => continue,
                JournalRecord::Written => {
                    machine.reason.clear();
                    machine.sealed = true;
                    machine.clear(0)
                }
                JournalRecord::Started { act } => {
                    if let Some(begun) = machine.begun.get_mut(*act) {
                        *begun = true;
                    }
                    machine.act(*act)
                }
                JournalRecord::Finished { act } => machine.act(act + 1),
                JournalRecord::Failed { act, reason } => {
                    machine.fails(*act, reason);
                    Stage::AskingReboot
                }
                JournalRecord::RebootRequested { boot: asked } if asked.is_over(boot, brings) => {
                    machine.booted()
                }
                JournalRecord::RebootRequested { .. } => Stage::Rebooting,
                JournalRecord::Done => Stage::Committing(ApplyEnd::Done),
                JournalRecord::RollingBack { reason } => {
                    machine.reason.clone_from(reason);
                    machine.go_back()
                }
                JournalRecord::ReturnRequested { boot: asked } => {
                    machine.returned = machine.returned.saturating_add(1);
                    if asked.is_over(boot, brings) { Stage::VerifyingBack } else { Stage::Rebooting }
                }
                JournalRecord::RolledBack { problems, left } => {
                    machine.problems.clone_from(problems);
                    machine.left =
                        if left.is_empty() { left_by_older_version(problems) } else { left.clone() };
                    Stage::Committing(ApplyEnd::RolledBack)
                }
            };
        }
        // Any boot since the begin may have booted another OS, even a boot that the apply did not request.
        let goes_on = machine.sealed && machine.reason.is_empty();
        let waits = matches!(machine.stage, Stage::Rebooting | Stage::Committing(_));
        if goes_on && !waits && begin.boot.is_over(boot, Brings::Services) {
            let then = std::mem::replace(&mut machine.stage, Stage::Verifying);
            machine.stage = machine.write_overwritten(0, then);
        }
        machine
    }

    /// The stage after the reboot with the new config. If the reboot took the place of actions, their units are checked. These
    /// units run with the new config, so a rollback has to undo the actions, too.
    fn booted(&mut self) -> Stage {
        let Some((act, _)) = self.failed else { return Stage::Verifying };
        self.begun.iter_mut().skip(act).for_each(|begun| *begun = true);
        self.await_units(act)
    }

    /// Waits for the units of the actions from a number on. Then everything is verified.
    pub(super) fn await_units(&self, act: usize) -> Stage {
        if act < self.acts.len() { Stage::Awaiting(act) } else { Stage::Verifying }
    }

    /// Handles an old OS that the reboot did not restore: it is staged once more, and no other action is repeated.
    pub(super) fn not_back(&mut self, reason: &str) -> Stage {
        if self.returned >= RETURNS {
            return self
                .halt(&format!("{reason}, after {RETURNS} reboots for that; it has to be booted by hand"));
        }
        for (begun, act) in self.begun.iter_mut().zip(&self.acts) {
            *begun &= act.kind == Action::Os;
        }
        self.undo(0)
    }
}
