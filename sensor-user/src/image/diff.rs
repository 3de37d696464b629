//! What differs between two images.
//!
//! In: the indexes of an old and a new image. Out: each path that an update adds, removes or changes, with the layer to blame. It
//! reads no file of the host.

use super::{error::ImageError, index::ImageIndex};
use sensor_model::image::{ImageEntry, changed_parts};

/// One path that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedPath {
    /// The path.
    pub path: Vec<u8>,
    /// What the old image has there; `None` if nothing.
    pub old: Option<ImageEntry>,
    /// What the new image has there; `None` if nothing.
    pub new: Option<ImageEntry>,
    /// Which parts differ, if both have something there.
    pub parts: Vec<&'static str>,
}

/// Everything that differs, in the order of the new index, and after that what it no longer has.
///
/// # Errors
/// An index cannot be read.
pub fn diff(old: &ImageIndex, new: &ImageIndex) -> Result<Vec<ChangedPath>, ImageError> {
    let mut found = Vec::new();
    new.each(|path, entry| {
        let before = old.find(path)?;
        let parts = before.as_ref().map_or_else(Vec::new, |before| changed_parts(before, &entry));
        if before.is_none() || !parts.is_empty() {
            found.push(ChangedPath { path: path.to_vec(), old: before, new: Some(entry), parts });
        }
        Ok::<(), ImageError>(())
    })?;
    old.each(|path, entry| {
        if new.find(path)?.is_none() {
            found.push(ChangedPath { path: path.to_vec(), old: Some(entry), new: None, parts: Vec::new() });
        }
        Ok::<(), ImageError>(())
    })?;
    Ok(found)
}
