//! Manifests as the store of applies keeps them.
//!
//! In: files that were read, or the directory of a generation. Out: the names under which they are kept, or their rendered config.

use super::{
    error::DesiredError,
    files::Files,
    files::{has_known_ending, read},
    manifests,
    source::Generation,
    source::StateSource,
    unknown::Unknown,
};
use sensor_model::{ignition::Purpose, merge::Rendered};
use std::path::Path;

/// A config that is kept.
#[derive(Debug)]
pub struct KeptConfig {
    /// Names and bytes of its files.
    pub manifests: Files,
    /// Their merge.
    pub rendered: Rendered,
}

/// Files under names that sort in their order.
pub fn as_kept(files: Files) -> Files {
    let name = |(number, (path, bytes)): (usize, (String, Vec<u8>))| {
        // In a directory only files with a known ending are read.
        let ending = if has_known_ending(Path::new(&path)) { "" } else { ".yaml" };
        (format!("{number:03}-{}{ending}", file_name(&path)), bytes)
    };
    files.into_iter().enumerate().map(name).collect()
}

/// Reads a config that is kept.
///
/// # Errors
/// A damaged config. This is no mistake in an input.
pub fn generation(generation: Generation) -> Result<KeptConfig, DesiredError> {
    let path = generation.manifests.clone();
    let source = StateSource::applied(generation);
    let load = || {
        let files = read(source.manifests())?;
        // An apply accepted it, perhaps by another version of Holdfast.
        let rendered = manifests::merged(&files, Purpose::Verify, Unknown::Warn)?;
        let manifests = files.into_iter().map(|(path, bytes)| (file_name(&path), bytes)).collect();
        Ok(KeptConfig { manifests, rendered })
    };
    load().map_err(|error: DesiredError| DesiredError::Generation { path, error: Box::new(error) })
}

fn file_name(path: &str) -> String {
    Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
