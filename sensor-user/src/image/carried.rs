//! Whether the booted image carries the config that it was built from.
//!
//! In: the name of the node's config, and the expectations that it makes. Out: the declared files that the image has in another state or not at
//! all, if a cluster built the image from that config. Such an image has the config's files in it, so a node that boots it needs no further write.

use super::{
    booted_image::booted_image, chosen::booted, error::ImageError, images::Images, index::ImageIndex,
};
use crate::observation::Observer;
use sensor_model::{
    expectation::{Expectation, Expected, FileExpectation, NotCarried},
    image::ImageSource,
    observation::FileType,
};
use std::{os::unix::ffi::OsStrExt as _, path::Path};

/// Most paths that are named.
const NAMED: usize = 16;
/// What an image has of a host. A declared file elsewhere is made by the node.
const OF_IMAGES: [&str; 2] = ["/etc", "/usr"];

/// What the booted image lacks of the config with this name; `None` if it lacks nothing, was built from no config or another one, or has no
/// index. An index that cannot be read is logged, and shows nothing.
pub(crate) fn not_carried(
    observer: &Observer,
    state: &Path,
    config: &str,
    declared: &[Expectation],
) -> Option<NotCarried> {
    let images = Images::of(state);
    if booted_image(observer, &images)?.config.as_deref() != Some(config) {
        return None;
    }
    missing(observer, &images, config, declared).unwrap_or_else(|error| {
        tracing::warn!(%error, config, "Cannot read the index of the booted image, so the image is not compared with its config.");
        None
    })
}

fn missing(
    observer: &Observer,
    images: &Images,
    config: &str,
    declared: &[Expectation],
) -> Result<Option<NotCarried>, ImageError> {
    let is_of_image =
        |index: &ImageIndex| matches!(index.meta().source, ImageSource::Layers | ImageSource::Ostree);
    let Some(index) = booted(images, observer)?.indexes.into_iter().find(is_of_image) else {
        return Ok(None);
    };
    let mut found = NotCarried { config: config.to_owned(), paths: Vec::new(), more: 0 };
    for expectation in declared {
        let (Expected::File(file), path) = (&expectation.expected, expectation.thing.path()) else {
            continue;
        };
        if !OF_IMAGES.iter().any(|above| path.starts_with(above)) || carries(&index, &path, file)? {
            continue;
        }
        if found.paths.len() < NAMED {
            found.paths.push(path.to_string_lossy().into_owned());
        } else {
            found.more += 1;
        }
    }
    Ok((!found.paths.is_empty()).then_some(found))
}

/// Whether the image has a declared file as declared. Also true if its index does not know enough to say, and for a path below a link: the
/// target may be a directory that only the node has.
fn carries(index: &ImageIndex, path: &Path, file: &FileExpectation) -> Result<bool, ImageError> {
    let Some(content) = &file.content else { return Ok(true) };
    let Some(entry) = index.find(path.as_os_str().as_bytes())? else {
        for above in path.ancestors().skip(1) {
            if let Some(entry) = index.find(above.as_os_str().as_bytes())? {
                return Ok(entry.file_type != FileType::Directory || file.may_be_missing);
            }
        }
        return Ok(true);
    };
    let has_content = entry.sha256.is_none_or(|sha256| sha256 == content.sha256);
    let has_mode = !entry.known.has_metadata() || entry.mode == file.mode;
    Ok(!entry.known.has_type() || (entry.file_type == FileType::Regular && has_content && has_mode))
}
