//! The content of a path of `/etc` as the booted image ships it.
//!
//! In: what the image expects at a path. Out: the content, from the pristine `/etc` of the host, if it has the expected digest. Holdfast keeps no
//! content of an image itself.

use super::error::{RepairError, RepairRefusal};
use crate::{bounded, disk::Place, observation::Observer};
use sensor_model::{
    difference::{Difference, DifferenceKind},
    expectation::{Expectation, Expected},
};
use sha2::{Digest as _, Sha256};

/// The content of a file that the image has; `None` if the repair needs none: for a link, for a directory, and if only mode or owner differ.
///
/// # Errors
/// A path outside `/etc`, a deployment that does not ship the expected content, and attributes that no repair sets.
pub(super) fn content(
    observer: &Observer,
    expectation: &Expectation,
    before: &[Difference],
) -> Result<Option<Vec<u8>>, RepairError> {
    let path = expectation.thing.path();
    let refused = |what_does| Err(RepairError::refused(&path, RepairRefusal::NotRestorable(what_does)));
    let file = match &expectation.expected {
        Expected::Directory(_) | Expected::Link(_) => return Ok(None),
        Expected::File(file) => file,
        _ => return refused("only the image restores it"),
    };
    if file.xattrs.is_some() {
        return refused(
            "no repair sets the extended attributes that the image's file has or may have: copy it from the image's /etc",
        );
    }
    let needs_content = before.iter().any(|difference| {
        matches!(difference.kind, DifferenceKind::Content | DifferenceKind::Type | DifferenceKind::Missing)
    });
    if !needs_content {
        return Ok(None);
    }
    if !path.starts_with("/etc") {
        return refused(
            "Holdfast has digests of what the image put there, and no contents: deploy the image again, or install the package again",
        );
    }
    let Some(content) = file.content else { return refused("the image's content is not known") };
    let opened =
        observer.pristine().and_then(|pristine| Place::shipped(pristine, &path).ok()??.open(observer).ok());
    match opened.and_then(|file| bounded::read_open(file, content.size).ok()) {
        Some(bytes) if <[u8; 32]>::from(Sha256::digest(&bytes)) == content.sha256 => Ok(Some(bytes)),
        _ => refused(
            "the booted image does not ship this content in its /etc, or Holdfast cannot read that; install the package again, or deploy the image again",
        ),
    }
}
