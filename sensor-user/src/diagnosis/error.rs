//! Why a host cannot be tested.

use crate::observation::RootError;
use std::{io, path::PathBuf};

/// Why the host cannot be tested.
#[derive(Debug, thiserror::Error)]
pub enum DiagnosisError {
    /// The root directory cannot be opened.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The directory of the canary cannot be made.
    #[error("cannot make the directory of the canary, {}: {source}", path.display())]
    CanaryDirectory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}
