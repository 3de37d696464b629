//! What differs between two images.
//!
//! In: the indexes of an old and a new image. Out: each path that an update adds, removes or changes, with the layer to blame. It
//! reads no file of the host.

use super::{error::ImageError, index::ImageIndex};
use sensor_model::image::{ImageEntry, ImageSource, changed_parts};

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

/// Everything that differs, in the order of the new index, and after that what it no longer has. The index of an ostree commit has `/usr/etc` once
/// more as `/etc`, which is left out.
///
/// # Errors
/// An index cannot be read.
pub fn diff(old: &ImageIndex, new: &ImageIndex) -> Result<Vec<ChangedPath>, ImageError> {
    let mut found = Vec::new();
    let are_commits = [old, new].iter().all(|index| index.meta().source == ImageSource::Ostree);
    let is_left_out = |path: &[u8]| are_commits && (path == b"/etc" || path.starts_with(b"/etc/"));
    new.each(|path, entry| {
        if is_left_out(path) {
            return Ok(());
        }
        let before = old.find(path)?;
        let parts = before.as_ref().map_or_else(Vec::new, |before| changed_parts(before, &entry));
        if before.is_none() || !parts.is_empty() {
            found.push(ChangedPath { path: path.to_vec(), old: before, new: Some(entry), parts });
        }
        Ok::<(), ImageError>(())
    })?;
    old.each(|path, entry| {
        if !is_left_out(path) && new.find(path)?.is_none() {
            found.push(ChangedPath { path: path.to_vec(), old: Some(entry), new: None, parts: Vec::new() });
        }
        Ok::<(), ImageError>(())
    })?;
    Ok(found)
}
