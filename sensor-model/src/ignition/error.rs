//! Why a config is refused.

/// Why a config was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct IgnitionError {
    /// The field: `storage.files[3].mode`.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

impl IgnitionError {
    pub(crate) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}
