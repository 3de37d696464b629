//! `holdfast look`: observes things for the daemon, in a process of its own.

use super::exit::IN_SYNC;
use crate::observation::worker;
use std::{io, path::PathBuf};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Look {
    /// Root of the host's file system.
    #[arg(long, value_name = "DIRECTORY")]
    host_root: PathBuf,
}

impl Look {
    /// Answers questions until the daemon closes the pipe.
    ///
    /// # Errors
    /// A host root that cannot be opened, or a closed pipe.
    pub fn run(&self) -> anyhow::Result<u8> {
        worker::serve(&self.host_root, io::stdin().lock(), io::stdout().lock())?;
        Ok(IN_SYNC)
    }
}
