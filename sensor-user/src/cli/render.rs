//! `holdfast render`: the rendered MachineConfig of a pool.
//!
//! In: MachineConfigs and MachineConfigPools, from files and directories. Out: the pool's rendered MachineConfig, whose name has
//! the hash of its content. It changes nothing.

use super::{
    exit::{BadInput, IN_SYNC},
    output::Screen,
};
use crate::desired::{Unknown, render_pool};
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
    format: ManifestFormat,
}

/// How an object is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum ManifestFormat {
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
        let unknown = Unknown::allowed(self.allow_unknown);
        let rendered = render_pool(&self.path, self.pool.as_deref(), unknown).map_err(BadInput::wrap)?;
        match self.format {
            ManifestFormat::Yaml => write!(screen.writer(), "{}", rendered.to_yaml()?)?,
            ManifestFormat::Json => screen.json(&rendered.object)?,
        }
        Ok(IN_SYNC)
    }
}
