//! Kernel arguments that wait for the next boot, on this host.
//!
//! In: the state directory, and the boot. Out: the arguments that wait under the current config, and those that will wait after an
//! apply. In another boot none wait.

use super::{error::ApplyError, os, request::ApplyRequest};
use crate::{clock::boot_id, observation::Observer, store::Store, sys::CallError};
use sensor_model::{
    expectation::Expectation,
    expectations::expectations,
    journal::OsChange,
    merge::Rendered,
    waiting::{self, Waiting, WaitingArgument},
};
use std::path::Path;

/// The arguments that wait in this boot, by the state directory; none if no config was ever applied.
///
/// # Errors
/// A file cannot be read, or Holdfast did not write it.
pub fn waits(state: &Path) -> Result<Vec<WaitingArgument>, ApplyError> {
    let store = match Store::open_existing(state) {
        // A user who may not read the store may still compare with another config.
        Err(error) if error.is_denied() => None,
        store => store?,
    };
    let Some(store) = store else { return Ok(Vec::new()) };
    let Some((id, _)) = store.current()? else { return Ok(Vec::new()) };
    let proc = Path::new("/proc");
    let boot_id = boot_id(proc).map_err(|error| CallError::new(proc, "read the boot id", error))?;
    Ok(store.waiting(id, &boot_id)?)
}

/// The arguments that wait in this boot. If they cannot be read, none wait, and a waiting argument is reported as drift.
pub fn waits_or_none(state: &Path) -> Vec<WaitingArgument> {
    waits(state).unwrap_or_else(|error| {
        tracing::warn!(%error, "Cannot read which kernel arguments wait for the next boot.");
        Vec::new()
    })
}

/// The arguments that wait under the current config.
///
/// # Errors
/// A file cannot be read, or Holdfast did not write it.
pub(super) fn before(store: &Store, boot_id: &str) -> Result<Waiting, ApplyError> {
    let arguments = match store.current()? {
        Some((id, _)) => store.waiting(id, boot_id)?,
        None => Vec::new(),
    };
    Ok(Waiting { boot_id: boot_id.to_owned(), config: String::new(), arguments })
}

/// The expectations of the current config in this boot.
///
/// # Errors
/// A part of the config cannot be decoded, or the waiting arguments cannot be read.
pub(super) fn expected(
    store: &Store,
    boot_id: &str,
    current: &Rendered,
) -> Result<Vec<Expectation>, ApplyError> {
    let mut expected = expectations(current).map_err(ApplyError::Expectation)?;
    waiting::note(&mut expected, &before(store, boot_id)?.arguments);
    Ok(expected)
}

/// The change of the OS in an apply, with the arguments that waited before; `None` if there is none.
pub(super) fn os_change(request: &ApplyRequest, waited: &Waiting, observer: &Observer) -> Option<OsChange> {
    let (old, new) = (&request.old, &request.new);
    let change = if request.force { os::forced(old, new, observer) } else { os::change(old, new) };
    let change = os::from_here(change.filter(|_| request.act)?, observer);
    Some(change.beside(waited.clone(), os::declared(old), os::declared(new)))
}

/// The arguments that will wait after an apply that is about to begin.
pub(super) fn after(
    request: &ApplyRequest,
    before: &Waiting,
    os: Option<&OsChange>,
    reboot: bool,
    observer: &Observer,
) -> Waiting {
    let changes = if os.is_some() && !reboot { request.plan.changes.as_slice() } else { &[] };
    let arguments = match os::running(observer) {
        Ok(found) => waiting::after(&before.arguments, changes, &os::declared(&request.new), &found),
        // The root is not booted, so no kernel is compared with it.
        Err(_) => Vec::new(),
    };
    let names: Vec<&str> = request.new.sources.iter().map(|source| &*source.machine_config).collect();
    Waiting { boot_id: before.boot_id.clone(), config: names.join(", "), arguments }
}
