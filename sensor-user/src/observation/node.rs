//! Facts of the node besides its files: whether it runs in FIPS mode, and its architecture.

use sensor_model::reconcile::NodeFacts;
use std::{fs, io};

/// The file that shows the FIPS mode. A kernel without FIPS support does not have it.
pub const FIPS: &str = "/proc/sys/crypto/fips_enabled";

/// The facts of this node.
///
/// # Errors
/// [`FIPS`] cannot be read.
pub fn facts() -> io::Result<NodeFacts> {
    let fips = match fs::read_to_string(FIPS) {
        Ok(text) => Some(text.trim() == "1"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let machine = rustix::system::uname().machine().to_string_lossy().into_owned();
    Ok(NodeFacts { fips, architecture: machine })
}
