//! A machine that goes on where a dead one was, and after a reboot.
//!
//! In: the records of the dead one, and the boot. Out: a machine at the request that is due now.

use super::{Machine, stage::Stage};
use crate::journal::{Action, Begin, Boot, Brings, Ended, Record};

/// Reboots that are asked for to bring the old OS back. A shutdown that does not finish what is staged, or a boot loader
/// that takes another entry, gets that many chances; then it is a person's turn.
const RETURNS: u8 = 3;

impl Machine {
    /// Goes on where a dead one was, by its records (the first of which is `begin`'s).
    pub fn resume(begin: &Begin, records: &[Record], boot: &Boot) -> Self {
        let mut machine = Self::new(begin, boot);
        let brings = Brings::of(begin.os.as_ref());
        machine.stage = machine.turn_back("interrupted while files were written".to_owned());
        for record in records {
            machine.stage = match record {
                Record::Begin(_) => continue,
                Record::Written => {
                    machine.reason.clear();
                    machine.sealed = true;
                    machine.clear(0)
                }
                Record::Started { act } => {
                    if let Some(begun) = machine.begun.get_mut(*act) {
                        *begun = true;
                    }
                    machine.act(*act)
                }
                Record::Finished { act } => machine.act(act + 1),
                Record::Failed { act, reason } => {
                    machine.fails(*act, reason);
                    Stage::AskingReboot
                }
                Record::RebootRequested { boot: asked } if asked.is_over(boot, brings) => machine.booted(),
                Record::RebootRequested { .. } => Stage::Rebooting,
                Record::Done => Stage::Committing(Ended::Done),
                Record::RollingBack { reason } => {
                    machine.reason.clone_from(reason);
                    machine.go_back()
                }
                Record::ReturnRequested { boot: asked } => {
                    machine.returned = machine.returned.saturating_add(1);
                    if asked.is_over(boot, brings) { Stage::VerifyingBack } else { Stage::Rebooting }
                }
                Record::RolledBack { problems } => {
                    machine.problems.clone_from(problems);
                    Stage::Committing(Ended::RolledBack)
                }
            };
        }
        // Whoever asked for the boot that runs: an update may have come with it.
        let goes_on = machine.sealed && machine.reason.is_empty();
        let waits = matches!(machine.stage, Stage::Rebooting | Stage::Committing(_));
        if goes_on && !waits && begin.boot.is_over(boot, Brings::Services) {
            let then = std::mem::replace(&mut machine.stage, Stage::Verifying);
            machine.stage = machine.again(0, then);
        }
        machine
    }

    /// The node is up again with the new config. Where that took the place of acts, their units are looked at; and they
    /// run with it, so that a way back is theirs, too.
    fn booted(&mut self) -> Stage {
        let Some((act, _)) = self.failed else { return Stage::Verifying };
        self.begun.iter_mut().skip(act).for_each(|begun| *begun = true);
        self.await_units(act)
    }

    /// Units are awaited from an act on, and then everything is compared.
    pub(super) fn await_units(&self, act: usize) -> Stage {
        if act < self.acts.len() { Stage::Awaiting(act) } else { Stage::Verifying }
    }

    /// The OS that was to come back with a reboot did not: it is staged once more, and nothing else is done again.
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
