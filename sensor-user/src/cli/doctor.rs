//! `holdfast doctor`: tries what the daemon would do, and says what came of it.

use crate::kernel::hooks::Mode;
use crate::kernel::load;
use std::io::Write;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Doctor {}

impl Doctor {
    /// Loads the programs in both modes and prints how each hook stands.
    pub fn run(&self, to: &mut impl Write) -> anyhow::Result<u8> {
        for mode in [Mode::Lsm, Mode::Fentry] {
            match load::load(mode, None) {
                Ok(loaded) => {
                    for (name, state) in &loaded.sensor.hooks {
                        writeln!(to, "{} {name}: {state:?}", mode.prefix())?;
                    }
                }
                Err(error) => writeln!(to, "{}: {error}", mode.prefix())?,
            }
        }
        Ok(super::IN_SYNC)
    }
}
