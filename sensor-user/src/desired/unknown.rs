//! Fields that the format of a config does not have.

use sensor_model::machine_config::{Manifest, ManifestError};

/// What Holdfast does about fields that a config's format does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// It refuses the config: such a field is usually a typing error.
    Refuse,
    /// It logs a warning: a person allowed such fields, or the config was accepted before.
    Warn,
    /// It does nothing: an earlier read of the same config refused or warned.
    Ignore,
}

impl Unknown {
    /// What an option that allows such fields asks for.
    pub fn allowed(allow: bool) -> Self {
        if allow { Self::Warn } else { Self::Refuse }
    }

    /// Refuses a file, or logs warnings about it.
    ///
    /// # Errors
    /// The first unknown field, with the nearest known one.
    pub(super) fn check(self, manifest: &Manifest) -> Result<(), ManifestError> {
        match self {
            Self::Refuse => return manifest.refuse_unknown(),
            Self::Ignore => return Ok(()),
            Self::Warn => {}
        }
        for unknown in &manifest.unknown {
            tracing::warn!(
                file = unknown.origin,
                object = unknown.object,
                field = unknown.field,
                "{}",
                unknown.reason
            );
        }
        Ok(())
    }
}
