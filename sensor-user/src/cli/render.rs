//! `holdfast render`: the rendered MachineConfig of a pool.
//!
//! In: MachineConfigs and MachineConfigPools, from files and directories. Out: the pool's rendered MachineConfig, whose name has
//! the hash of its content. It changes nothing.

use super::{BadInput, IN_SYNC, output::Screen};
use crate::desired::{Unknown, objects};
use sensor_model::pool::{self, Pool, RenderError, RenderedMachineConfig};
use std::path::PathBuf;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Render {
    /// MachineConfigs and MachineConfigPools: files, or directories of them.
    #[arg(required = true, value_name = "PATH")]
    path: Vec<PathBuf>,
    /// The pool to render; required if there are several.
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Log a warning about unknown fields in configs instead of refusing the configs.
    #[arg(long)]
    allow_unknown: bool,
    /// Output format.
    #[arg(short = 'o', long = "output", value_name = "FORMAT", value_enum, default_value_t)]
    format: Format,
}

/// How an object is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// For people, and for most tools.
    #[default]
    Yaml,
    /// For programs.
    Json,
}

impl Render {
    /// Renders and prints.
    ///
    /// # Errors
    /// Bad input.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let rendered = self.rendered().map_err(|error| match error.downcast::<RenderError>() {
            Ok(error) => BadInput::wrap(error),
            Err(error) => error,
        })?;
        match self.format {
            Format::Yaml => write!(screen.writer(), "{}", rendered.to_yaml()?)?,
            Format::Json => screen.json(&rendered.object)?,
        }
        Ok(IN_SYNC)
    }

    fn rendered(&self) -> anyhow::Result<RenderedMachineConfig> {
        let manifest = objects(&self.path, Unknown::allowed(self.allow_unknown)).map_err(BadInput::wrap)?;
        let pools = pool::pools(&manifest.others)?;
        let pool = self.choose(&pools)?;
        let images = pool::cluster_images(&manifest.others);
        let version = concat!("holdfast-", env!("CARGO_PKG_VERSION"));
        Ok(pool::render(pool, &manifest.machine_configs, &images, version)?)
    }

    fn choose<'a>(&self, pools: &'a [Pool]) -> anyhow::Result<&'a Pool> {
        let mut names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        names.sort_unstable();
        let names = names.join(", ");
        let refuse = |reason: String| Err(BadInput::because(reason));
        match (&self.pool, pools) {
            (_, []) => refuse("no MachineConfigPool among the objects".to_owned()),
            (None, [pool]) => Ok(pool),
            (None, _) => refuse(format!("there are several pools; name one with --pool: {names}")),
            (Some(name), _) => match pools.iter().find(|pool| pool.name == *name) {
                Some(pool) => Ok(pool),
                None => refuse(format!("--pool: there is no pool {name:?}; the objects have: {names}")),
            },
        }
    }
}
