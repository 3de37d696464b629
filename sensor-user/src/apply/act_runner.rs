//! Who runs acts, and what an act came to.
//!
//! In: an act of the journal. Out: typed results; the text of a failure is for people and decides nothing.

use sensor_model::journal::{Act, ActKind, Begin, OsChange};
use std::{future::Future, pin::Pin};

pub(super) type Answer<'a, T = ()> = Pin<Box<dyn Future<Output = Result<T, String>> + 'a>>;

/// What became of an act that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActResult {
    /// It is done.
    Done,
    /// It cannot be done and need not be, and why.
    Skipped(String),
}

/// When what was undone takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndoResult {
    /// It has.
    Done,
    /// With the next boot.
    NeedsReboot,
}

/// How a unit is after a boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnitAfterBoot {
    /// It runs, has done what it is for, or is not started by a boot.
    Settled,
    /// It does not, and why.
    Failed(String),
}

/// Who carries acts out.
pub trait ActRunner {
    /// Does an act of an apply and awaits its end.
    fn act<'a>(&'a mut self, act: &'a Act, begin: &'a Begin) -> Answer<'a, ActResult>;
    /// After another boot, in which nothing is reloaded or restarted any more: awaits that the act's unit comes to rest. An
    /// error is why nobody can tell.
    fn unit_after_boot<'a>(&'a mut self, act: &'a Act, begin: &'a Begin) -> Answer<'a, UnitAfterBoot>;
    /// The files are the old ones again: does it again, or reverts it.
    fn undo<'a>(&'a mut self, act: &'a Act, begin: &'a Begin) -> Answer<'a, UndoResult>;
    /// After the reboot of a way back: whether the OS is what it was before a change.
    ///
    /// # Errors
    /// What it is instead.
    fn is_back(&mut self, os: &OsChange) -> Result<(), String>;
    /// Syncs and asks for a reboot.
    fn reboot(&mut self) -> Answer<'_>;
    /// How often systemd started everything but the kernel anew in this boot; `None` where nothing counts that. An error is
    /// why that is not known.
    fn soft_reboots(&mut self) -> Answer<'_, Option<u32>> {
        Box::pin(async { Ok(None) })
    }
}

/// Carries out nothing, for a root that is not running: what is written takes effect at its next boot.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoActs;

impl ActRunner for NoActs {
    fn act<'a>(&'a mut self, _: &'a Act, _: &'a Begin) -> Answer<'a, ActResult> {
        Box::pin(async { Ok(ActResult::Done) })
    }

    fn unit_after_boot<'a>(&'a mut self, _: &'a Act, _: &'a Begin) -> Answer<'a, UnitAfterBoot> {
        Box::pin(async { Ok(UnitAfterBoot::Settled) })
    }

    fn undo<'a>(&'a mut self, _: &'a Act, _: &'a Begin) -> Answer<'a, UndoResult> {
        Box::pin(async { Ok(UndoResult::Done) })
    }

    fn is_back(&mut self, _: &OsChange) -> Result<(), String> {
        Ok(())
    }

    fn reboot(&mut self) -> Answer<'_> {
        Box::pin(async { Err("no act is run in this root, so no reboot either".to_owned()) })
    }
}

/// `reload chronyd.service`.
pub(super) fn describe(act: &Act) -> String {
    let verb = match act.kind {
        ActKind::DaemonReload => "daemon-reload",
        ActKind::Reload => "reload",
        ActKind::Restart => "restart",
        ActKind::ReloadOrRestart => "reload-or-restart",
        ActKind::Stop => "stop",
        ActKind::Os => "the change of the OS",
    };
    match &act.unit {
        Some(unit) => format!("{verb} {unit}"),
        None => verb.to_owned(),
    }
}
