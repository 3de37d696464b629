//! `holdfast completions`: scripts for shells.

use super::{exit::IN_SYNC, output::Screen};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell.
    shell: clap_complete::Shell,
}

impl Completions {
    /// Prints the script for the whole command line.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn run(&self, command: &mut clap::Command, screen: &mut Screen) -> anyhow::Result<u8> {
        // The generator panics if a write fails, so it writes to memory.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, "holdfast", &mut script);
        screen.writer().write_all(&script)?;
        Ok(IN_SYNC)
    }
}
