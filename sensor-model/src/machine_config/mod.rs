//! MachineConfig manifests and plain Ignition configs.
//!
//! The bytes of one file come in, with the name under which reports shall speak of it; out come its
//! MachineConfigs, validated, and every other object untouched, for whoever understands it. Errors
//! name the file, the object, the field and the reason. Nothing is read from disk here.

mod error;
mod fields;
mod manifest;
mod object;
mod yaml;

#[cfg(test)]
mod tests;

pub use error::ManifestError;
pub use manifest::{
    API_VERSION, GENERATED_BY_ANNOTATION, MachineConfig, Manifest, OtherObject, ROLE_LABEL, pool_of_rendered,
};

use crate::ignition;

/// Reads a file: YAML (many documents) or JSON, `List` objects, or one plain Ignition config.
///
/// `origin` is the name of the file for errors and for [`crate::expectation::Source::origin`]; a plain Ignition config is
/// named by its last component.
///
/// # Errors
/// The first object that cannot be used. One bad object refuses the file: half a configuration is not
/// one that anybody asked for.
pub fn parse(origin: &str, bytes: &[u8]) -> Result<Manifest, ManifestError> {
    parse_for(origin, bytes, ignition::Purpose::Verify)
}

/// Reads a file for a purpose; else as [`parse`].
///
/// # Errors
/// As [`parse`].
pub fn parse_for(origin: &str, bytes: &[u8], purpose: ignition::Purpose) -> Result<Manifest, ManifestError> {
    let documents = yaml::documents(origin, bytes)?;
    let mut manifest = Manifest::default();
    for (index, document) in documents.into_iter().enumerate() {
        object::read(origin, &format!("document {}", index + 1), document, purpose, &mut manifest)?;
    }
    Ok(manifest)
}
