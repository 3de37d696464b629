//! MachineConfig manifests and plain Ignition configs.
//!
//! In: the bytes of one file, and the file's name for errors. Out: its MachineConfigs, validated, and every other object
//! uninterpreted, for the module that reads its kind. Errors name the file, the object, the field and the reason.

mod error;
mod fields;
mod manifest;
mod object;
mod yaml;

#[cfg(test)]
mod tests;

pub use error::{JsonType, ManifestError, ManifestFault};
pub use manifest::{
    API_VERSION, GENERATED_BY_ANNOTATION, MachineConfig, Manifest, OtherObject, ROLE_LABEL, pool_of_rendered,
};

use crate::ignition;

/// Reads a file: YAML (many documents) or JSON, `List` objects, or one plain Ignition config.
///
/// `origin` is the name of the file for errors and for [`crate::expectation::Source::origin`]; its last component is the name
/// of a plain Ignition config.
///
/// # Errors
/// The first invalid object. One invalid object refuses the whole file, since no author declares a part of it alone.
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
