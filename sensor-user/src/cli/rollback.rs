//! `holdfast rollback`: applies the config that was there before.

use super::{
    apply::{
        configs::Wanted,
        options::{How, Place, Site},
    },
    exit::BadInput,
    output::Screen,
};
use crate::{
    apply::rollback_target,
    desired::{Kept, generation},
};

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
        let to = rollback_target(&store, current, self.to)
            .map_err(|error| if error.is_input() { BadInput::wrap(error) } else { error.into() })?;
        let old = site.there(current)?;
        let Kept { manifests, rendered: new } = generation((to, store.config(to)).into())?;
        let previous = Some(current);
        site.apply(screen, Wanted { manifests, old, previous, new, rollback_to: Some(to) })
    }
}
