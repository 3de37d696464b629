//! Kernel arguments that wait for the next boot, on this host.
//!
//! In: the state directory, and the boot. Out: the arguments that wait under the current config, and those that will wait after an
//! apply. In another boot none wait.

use super::{error::ApplyError, os, request::Request};
use crate::{clock::boot_id, observation::Observer, store::Store};
use sensor_model::{
    expectation::Expectation,
    expectations::expectations,
    journal::OsChange,
    merge::Rendered,
    waiting::{self, Waiting, WaitingArgument},
};
use std::path::Path;

/// What waits in this boot, by the state directory; nothing where nothing was ever applied.
///
/// # Errors
/// A file that cannot be read or is none of ours.
pub fn waits(state: &Path) -> Result<Vec<WaitingArgument>, ApplyError> {
    let store = match Store::look(state) {
        // A user without rights on the store may still compare with a config of their own.
        Err(error) if error.is_denied() => None,
        store => store?,
    };
    let Some(store) = store else { return Ok(Vec::new()) };
    let Some((id, _)) = store.current()? else { return Ok(Vec::new()) };
    let proc = Path::new("/proc");
    let boot_id = boot_id(proc).map_err(|error| ApplyError::io(proc, "read the boot id", &error))?;
    Ok(store.waiting(id, &boot_id)?)
}

/// The same; nothing where that cannot be read. Arguments that wait are drift then, which is on the safe side.
pub fn waits_or_none(state: &Path) -> Vec<WaitingArgument> {
    waits(state).unwrap_or_else(|error| {
        tracing::warn!(%error, "It is not known which kernel arguments wait for the next boot.");
        Vec::new()
    })
}

/// What waits under the config that is current.
///
/// # Errors
/// A file that cannot be read or is none of ours.
pub(super) fn before(store: &Store, boot_id: &str) -> Result<Waiting, ApplyError> {
    let arguments = match store.current()? {
        Some((id, _)) => store.waiting(id, boot_id)?,
        None => Vec::new(),
    };
    Ok(Waiting { boot_id: boot_id.to_owned(), config: String::new(), arguments })
}

/// What the config that is current says a host should be in this boot.
///
/// # Errors
/// A part of it that cannot be expected, or what waits cannot be read.
pub(super) fn expected(
    store: &Store,
    boot_id: &str,
    current: &Rendered,
) -> Result<Vec<Expectation>, ApplyError> {
    let mut expected = expectations(current).map_err(ApplyError::Expectation)?;
    waiting::note(&mut expected, &before(store, boot_id)?.arguments);
    Ok(expected)
}

/// How an apply changes the OS, with the arguments that waited; `None` where it does not.
pub(super) fn os_change(request: &Request, waited: &Waiting, observer: &Observer) -> Option<OsChange> {
    let (old, new) = (&request.old, &request.new);
    let change = if request.force { os::forced(old, new, observer) } else { os::change(old, new) };
    let change = os::from_here(change.filter(|_| request.act)?, observer);
    Some(change.beside(waited.clone(), os::declared(old), os::declared(new)))
}

/// What waits once an apply is done that is about to begin.
pub(super) fn after(
    request: &Request,
    before: &Waiting,
    os: Option<&OsChange>,
    reboot: bool,
    observer: &Observer,
) -> Waiting {
    let changes = if os.is_some() && !reboot { request.plan.changes.as_slice() } else { &[] };
    let arguments = match os::running(observer) {
        Ok(found) => waiting::after(&before.arguments, changes, &os::declared(&request.new), &found),
        // Nothing is compared with a kernel that does not run in this root.
        Err(_) => Vec::new(),
    };
    let names: Vec<&str> = request.new.sources.iter().map(|source| &*source.machine_config).collect();
    Waiting { boot_id: before.boot_id.clone(), config: names.join(", "), arguments }
}
