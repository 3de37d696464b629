//! `holdfast baseline`: what is at paths now, to compare with later.

use super::{
    exit::{BadInput, IN_SYNC},
    output::Screen,
    progress::Bar,
    sources::host_path,
};
use crate::{image::take_baseline, observation::Observer};
use std::path::PathBuf;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct BaselineCommand {
    /// The paths, with everything below them on the same file system.
    #[arg(required = true, value_parser = host_path)]
    path: Vec<PathBuf>,
    /// The root directory to read.
    #[arg(long, default_value = "/", value_name = "DIRECTORY")]
    root: PathBuf,
}

impl BaselineCommand {
    /// Prints the baseline as JSON: digests, and no contents.
    ///
    /// # Errors
    /// A path that does not exist or cannot be read. Nothing is printed then.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let observer = Observer::new(&self.root).map_err(BadInput::wrap)?;
        let mut bar = Bar::new();
        let taken = take_baseline(&observer, &self.path, &mut |paths| bar.show(|| format!("{paths} paths")));
        bar.end();
        let baseline = taken.map_err(|error| BadInput::wrap_if(error.is_input(), error))?;
        screen.json(&baseline)?;
        Ok(IN_SYNC)
    }
}
