//! The start of a process of Holdfast in a unit of the host's systemd.
//!
//! In: the unit, and the arguments of the hidden command `order`. Out: a unit that runs a copy of this program on the host.

use super::files::OrderDirectory;
use crate::{
    apply::{act_error::SystemdError, actions::transient},
    labels,
    observation::Observer,
};
use std::{io, path::Path, time::Duration};

/// The hidden command that plans and runs orders, and writes back.
pub const SUBCOMMAND: &str = "order";
/// This program, also when another version replaced its file, or when it is in a container's image.
pub(super) const THIS_PROGRAM: &str = "/proc/self/exe";

/// A unit was not started.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnitStartError {
    /// The host has no copy of the program.
    #[error("cannot keep a copy of the program: {0}")]
    Program(io::Error),
    /// systemd does not answer, or refuses.
    #[error("systemd does not start it: {0}")]
    Systemd(#[from] SystemdError),
}

/// A unit that runs the command `order`.
#[derive(Debug, Clone, Copy)]
pub(super) struct OrderUnit {
    /// Its name.
    pub(super) name: &'static str,
    /// Its description.
    pub(super) description: &'static str,
    /// What the command does.
    pub(super) what: &'static str,
    /// systemd ends the process after this time.
    pub(super) limit: Option<Duration>,
}

/// Starts a unit that runs the command `order` with these options.
///
/// # Errors
/// The host has no copy of the program, or systemd does not start the unit.
pub(super) async fn start_unit(
    root: &Path,
    directory: &OrderDirectory,
    unit: OrderUnit,
    options: &[(&str, &Path)],
) -> Result<(), UnitStartError> {
    let label = Observer::new(root).ok().and_then(|observer| labels::of_programs(&observer));
    let program = directory.program(Path::new(THIS_PROGRAM), label.as_deref());
    let program = program.map_err(UnitStartError::Program)?.to_string_lossy().into_owned();
    let options: Vec<(&str, String)> =
        options.iter().map(|(name, path)| (*name, path.to_string_lossy().into_owned())).collect();
    let mut command = vec![program.as_str(), SUBCOMMAND, unit.what];
    command.extend(options.iter().flat_map(|(name, path)| [*name, path.as_str()]));
    Ok(transient::start(root, unit.name, unit.description, &command, unit.limit).await?)
}
