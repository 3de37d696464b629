//! The generation that a host has, and the one that a rollback applies again.
//!
//! In: the store. Out: the present config, or a generation's number.

use super::os;
use crate::{
    desired::{DesiredError, generation},
    observation::Observer,
    store::{Store, StoreError},
};
use sensor_model::{journal::ApplyEnd, merge::Rendered};

/// Why a generation cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A config in the store is damaged.
    #[error(transparent)]
    Config(Box<DesiredError>),
    /// The apply does not exist or never completed.
    #[error("--to {0}: apply number {0} does not exist or never completed; see `holdfast history`")]
    NeverApplied(u64),
    /// The current config has none before it.
    #[error("the current config, number {0}, is the first one that was applied")]
    First(u64),
}

impl From<DesiredError> for GenerationError {
    fn from(error: DesiredError) -> Self {
        Self::Config(Box::new(error))
    }
}

impl GenerationError {
    /// Whether the command line asks for something that does not exist.
    pub fn is_input(&self) -> bool {
        matches!(self, Self::NeverApplied(_) | Self::First(_))
    }
}

/// The present config of a host whose current generation is `id`. Its OS is that of the last generation that was applied with
/// acts, unless the OS of the current one is booted.
///
/// # Errors
/// The store cannot be read, or a config in it is damaged.
pub fn present_config(store: &Store, id: u64, observer: &Observer) -> Result<Rendered, GenerationError> {
    let kept = |id| generation((id, store.config(id)).into()).map(|kept| kept.rendered);
    let mut rendered = kept(id)?;
    let mut done = Some(id);
    while let Some(id) = done
        && let Some(entry) = store.history(id)?
        && entry.without_acts
    {
        done = entry.previous;
    }
    if done != Some(id) && !os::is_there(&rendered, observer) {
        rendered.take_os(done.map(kept).transpose()?.unwrap_or_default());
    }
    Ok(rendered)
}

/// The generation that a rollback from `current` applies again: the named one, else the one before the current one.
///
/// # Errors
/// There is no such generation, or the store cannot be read.
pub fn rollback_target(store: &Store, current: u64, named: Option<u64>) -> Result<u64, GenerationError> {
    let is_done =
        |id: u64| store.history(id).ok().flatten().is_some_and(|entry| entry.result == Some(ApplyEnd::Done));
    match named {
        Some(id) if is_done(id) => Ok(id),
        Some(id) => Err(GenerationError::NeverApplied(id)),
        None => {
            let entry = store.history(current)?;
            let previous = entry.and_then(|entry| entry.previous).filter(|id| is_done(*id));
            previous.ok_or(GenerationError::First(current))
        }
    }
}
