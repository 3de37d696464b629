//! A file of `/etc` as the booted image ships it.
//!
//! In: what the image expects at a path. Out: content and extended attributes, from the pristine `/etc` of the host, if the content has the
//! expected digest. Holdfast keeps no content of an image itself.

use super::error::{RepairError, RepairRefusal};
use crate::{
    bounded,
    disk::{Place, copied_xattrs},
    observation::Observer,
};
use sensor_model::{
    difference::{Difference, DifferenceKind},
    expectation::{Expectation, Expected, ExpectedXattrs},
};
use sha2::{Digest as _, Sha256};
use std::{collections::BTreeMap, os::fd::AsFd as _};

/// A file that the booted image ships.
#[derive(Debug)]
pub(super) struct PristineFile {
    /// The content, which has the expected digest.
    pub(super) bytes: Vec<u8>,
    /// The extended attributes that a copy gets, by name, with values in hexadecimal digits. The label is not among them. No digest proves them.
    pub(super) xattrs: BTreeMap<String, String>,
}

/// The file that the image has; `None` if the repair needs none: for a link, for a directory, and if only mode or owner differ.
///
/// # Errors
/// A path outside `/etc`, a deployment that does not ship the expected content, and attributes that no repair sets.
pub(super) fn file(
    observer: &Observer,
    expectation: &Expectation,
    before: &[Difference],
) -> Result<Option<PristineFile>, RepairError> {
    let path = expectation.thing.path();
    let refused = |what_does| Err(RepairError::refused(&path, RepairRefusal::NotRestorable(what_does)));
    let file = match &expectation.expected {
        Expected::Directory(_) | Expected::Link(_) => return Ok(None),
        Expected::File(file) => file,
        Expected::OstreeObject(_) => {
            return refused(
                "the file's object in the ostree repository is damaged, and so is the file that the deployment ships: deploy the image again",
            );
        }
        _ => return refused("only the image restores it"),
    };
    // Unknown attributes are never compared. A file that is written anew gets those of the shipped one, as an update by ostree gives them.
    if !matches!(file.xattrs.as_deref(), None | Some(ExpectedXattrs::Unknown)) {
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
    let read = opened.and_then(|file| {
        let xattrs = copied_xattrs(file.as_fd()).ok()?;
        Some(PristineFile { bytes: bounded::read_open(file, content.size).ok()?, xattrs })
    });
    match read {
        Some(file) if <[u8; 32]>::from(Sha256::digest(&file.bytes)) == content.sha256 => Ok(Some(file)),
        _ => refused(
            "the booted image does not ship this content in its /etc, or Holdfast cannot read that; install the package again, or deploy the image again",
        ),
    }
}
