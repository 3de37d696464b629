//! `holdfast adopt`: prints the present state as a MachineConfig.

use super::{
    exit::{BadInput, DRIFT, IN_SYNC, runtime},
    output::{Screen, say},
    sources::{Sources, host_path},
};
use crate::inspection::{self, ManifestChoice, ObjectNameError, check_name};
use std::path::PathBuf;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Adopt {
    /// Paths on the host; for a unit, the path of its file.
    #[arg(value_parser = host_path, required = true)]
    path: Vec<PathBuf>,
    /// Name of the MachineConfig; MachineConfigs are merged by name, and the last one wins. [default: 99-<ROLE>-adopted]
    #[arg(long, value_parser = name)]
    name: Option<String>,
    /// Role of the pools that select it.
    #[arg(long, default_value = "worker", value_parser = name)]
    role: String,
    /// Print contents that the drift policy marks as secret, too.
    #[arg(long)]
    secrets: bool,
    #[command(flatten)]
    sources: Sources,
}

/// A name that Kubernetes accepts for an object.
fn name(text: &str) -> Result<String, ObjectNameError> {
    check_name(text).map(|()| text.to_owned())
}

impl Adopt {
    /// Prints the manifest. Standard error names what the manifest does not declare.
    ///
    /// # Errors
    /// Bad input, and a file that cannot be read or that changes meanwhile.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let host = self.sources.load()?;
        let choice = ManifestChoice { name: self.name.as_deref(), role: &self.role, secrets: self.secrets };
        let adopted = runtime()?
            .block_on(inspection::adopt(&host, &self.path, choice))
            .map_err(|error| BadInput::wrap_if(error.is_input(), error))?;
        screen.writer().write_all(adopted.yaml.as_bytes())?;
        screen.flush()?;
        for left_out in &adopted.left_out {
            let path = left_out.path.to_string_lossy();
            say(&format!("left out: {path}: {}", left_out.reason));
        }
        if adopted.withheld {
            say("hint: `--secrets` prints contents that the drift policy marks as secret");
        }
        Ok(if adopted.left_out.is_empty() { IN_SYNC } else { DRIFT })
    }
}
