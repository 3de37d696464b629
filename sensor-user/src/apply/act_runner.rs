//! Running the acts of a journal: the trait, and the result of an act.
//!
//! In: an act. Out: typed results and errors.

use super::act_error::{ActError, UnitFailure};
use sensor_model::journal::{Act, Begin, OsChange};
use std::{future::Future, pin::Pin};

/// The future result of an act.
pub type ActFuture<'a, T = ()> = Pin<Box<dyn Future<Output = Result<T, ActError>> + 'a>>;

/// The result of an act that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActResult {
    /// The act is done.
    Done,
    /// The act is impossible and unnecessary, for this reason.
    Skipped(String),
}

/// When the undoing of an act takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndoResult {
    /// It has taken effect.
    Done,
    /// It takes effect with the next boot.
    NeedsReboot,
}

/// The state of a unit after a boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnitAfterBoot {
    /// It runs, has finished, or is not started by a boot.
    Settled,
    /// It does not run.
    Failed(UnitFailure),
}

/// Runs acts.
pub trait ActRunner {
    /// Runs an act of an apply and waits for its end.
    fn act<'a>(&'a mut self, act: &'a Act, begin: &'a Begin) -> ActFuture<'a, ActResult>;
    /// After another boot the act is not run again. Waits until the act's unit has settled. An error means that its state cannot
    /// be read.
    fn unit_after_boot<'a>(&'a mut self, act: &'a Act, begin: &'a Begin) -> ActFuture<'a, UnitAfterBoot>;
    /// The files are the old ones again: runs the act once more, or takes it back.
    fn undo<'a>(&'a mut self, act: &'a Act, begin: &'a Begin) -> ActFuture<'a, UndoResult>;
    /// After the reboot of a rollback: checks that the OS is what it was before a change.
    ///
    /// # Errors
    /// How the OS differs.
    fn is_back(&mut self, os: &OsChange) -> Result<(), ActError>;
    /// Syncs and asks for a reboot.
    fn reboot(&mut self) -> ActFuture<'_>;
    /// The number of soft reboots since the kernel booted; `None` where systemd does not count them. An error means that the
    /// number cannot be read.
    fn soft_reboots(&mut self) -> ActFuture<'_, Option<u32>> {
        Box::pin(async { Ok(None) })
    }
}

/// Runs no act, for a root that is not booted: its next boot uses the files.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoActs;

impl ActRunner for NoActs {
    fn act<'a>(&'a mut self, _: &'a Act, _: &'a Begin) -> ActFuture<'a, ActResult> {
        Box::pin(async { Ok(ActResult::Done) })
    }

    fn unit_after_boot<'a>(&'a mut self, _: &'a Act, _: &'a Begin) -> ActFuture<'a, UnitAfterBoot> {
        Box::pin(async { Ok(UnitAfterBoot::Settled) })
    }

    fn undo<'a>(&'a mut self, _: &'a Act, _: &'a Begin) -> ActFuture<'a, UndoResult> {
        Box::pin(async { Ok(UndoResult::Done) })
    }

    fn is_back(&mut self, _: &OsChange) -> Result<(), ActError> {
        Ok(())
    }

    fn reboot(&mut self) -> ActFuture<'_> {
        Box::pin(async { Err(ActError::NoReboot) })
    }
}
