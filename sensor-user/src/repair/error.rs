//! Why a thing was not repaired.

use crate::disk::DiskError;
use sensor_model::difference::Difference;
use std::path::{Path, PathBuf};

/// Why a thing was not repaired, or not entirely.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// A repair would destroy something, or no config declares what to write.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// What stands in the way.
        reason: String,
    },
    /// The path could not be written.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// systemd refused.
    #[error("{unit}: systemd: {reason}")]
    Systemd {
        /// The unit.
        unit: String,
        /// Its answer.
        reason: String,
    },
    /// The thing still differs after the write, because another process changes it as well.
    #[error("{}: still differs after it was written; find the other writer with `holdfast who`: {}", path.display(), texts(differences))]
    StillDiffers {
        /// The path.
        path: PathBuf,
        /// What differs now.
        differences: Vec<Difference>,
    },
}

impl RepairError {
    pub(super) fn refused(path: &Path, reason: impl Into<String>) -> Self {
        Self::Refused { path: path.to_owned(), reason: reason.into() }
    }
}

fn texts(differences: &[Difference]) -> String {
    differences.iter().map(|difference| difference.text.as_str()).collect::<Vec<_>>().join("; ")
}
