//! `holdfast rollback`: applies the config that was there before.

use super::{
    BadInput,
    apply::{How, Place, Site, Wanted},
    output::Screen,
};
use crate::desired::{Kept, generation};
use sensor_model::journal::Ended;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Rollback {
    /// Number of the apply whose config is applied again; see `holdfast history`. [default: the one before the current one]
    #[arg(long, value_name = "NUMBER")]
    to: Option<u64>,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    place: Place,
}

impl Rollback {
    /// Plans the way back and takes it, like any other apply.
    ///
    /// # Errors
    /// No such config, and why nothing was begun.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let site = Site::open(&self.place, &self.how, screen)?;
        site.recover()?;
        let store = site.store()?;
        let Some((current, store)) = site.current()?.map(|(id, _)| id).zip(store) else {
            return Err(BadInput::because("no config was applied yet, so there is none to go back to"));
        };
        let done =
            |id: u64| store.history(id).ok().flatten().is_some_and(|entry| entry.result == Some(Ended::Done));
        let to = match self.to {
            Some(id) if done(id) => id,
            Some(id) => {
                return Err(BadInput::because(format!(
                    "--to {id}: apply number {id} does not exist or never completed; see `holdfast history`"
                )));
            }
            None => {
                let previous = store.history(current)?.and_then(|entry| entry.previous);
                previous.filter(|id| done(*id)).ok_or_else(|| {
                    BadInput::because(format!(
                        "the current config, number {current}, is the first one that was applied"
                    ))
                })?
            }
        };
        let old = site.there(current)?;
        let Kept { manifests, rendered: new } = generation((to, store.config(to)).into())?;
        let previous = Some(current);
        site.apply(screen, Wanted { manifests, old, previous, new, rollback_to: Some(to) })
    }
}
