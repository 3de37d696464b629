//! `holdfast completions`: scripts for shells.

use super::{IN_SYNC, output::Screen};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell.
    shell: clap_complete::Shell,
}

impl Completions {
    /// Prints the script.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        // The generator takes any failed write for a bug, so it writes to memory.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::command(), "holdfast", &mut script);
        screen.writer().write_all(&script)?;
        Ok(IN_SYNC)
    }
}
