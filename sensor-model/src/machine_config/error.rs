//! Why a manifest is refused.

/// Why a file was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {object}: {field}: {reason}")]
pub struct ManifestError {
    /// The file.
    pub origin: String,
    /// `MachineConfig "99-worker-chrony"`, or `document 2` when it has no name.
    pub object: String,
    /// The field, as a path from the object's root.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}
