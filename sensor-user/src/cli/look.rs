//! `holdfast look`: what the daemon asks of a process of its own; nothing for people.

use super::IN_SYNC;
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
    /// Looks at what it is asked to until nobody asks any more.
    ///
    /// # Errors
    /// A host root that cannot be opened, or nobody who takes the answers.
    pub fn run(&self) -> anyhow::Result<u8> {
        worker::serve(&self.host_root, io::stdin().lock(), io::stdout().lock())?;
        Ok(IN_SYNC)
    }
}
