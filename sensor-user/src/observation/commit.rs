//! The commits in the repository of an ostree host.
//!
//! In: the host's root, and the checksum of a commit. Out: the commit, if its object has this checksum. The metadata of the booted commit has
//! the digest of the image that the commit was made from, also if the host booted the image by a tag.

use super::resolve::{HANDLE, Root};
use crate::bounded;
use nix::{errno::Errno, fcntl::OFlag};
use sensor_model::ostree::{Checksum, Commit, OBJECT_LIMIT};
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};

/// The repository of a booted host.
pub(crate) const REPOSITORY: &str = "/ostree/repo";

/// The checksum with a name.
pub(crate) fn checksum_of(name: &str) -> Option<Checksum> {
    Checksum::try_from(hex::decode(name).ok()?).ok()
}

/// Where the repository has an object.
pub(crate) fn object_place(kind: &str, checksum: Checksum) -> PathBuf {
    let name = hex::encode(checksum);
    Path::new(REPOSITORY).join("objects").join(&name[..2]).join(format!("{}.{kind}", &name[2..]))
}

/// Whether the repository has the object of a commit. One that cannot be looked up counts as there.
pub(super) fn has_commit(root: &Root, checksum: &str) -> bool {
    let opened =
        checksum_of(checksum).map(|checksum| root.open_at(&object_place("commit", checksum), HANDLE));
    !matches!(opened, None | Some(Err(Errno::ENOENT)))
}

/// A commit. `None` if the repository does not have it, or has other bytes in its place.
pub(super) fn commit(root: &Root, checksum: &str) -> Option<Commit> {
    let checksum = checksum_of(checksum)?;
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = root.open_at(&object_place("commit", checksum), flags).ok()?;
    let bytes = bounded::read_open(file, OBJECT_LIMIT).ok()?;
    if Checksum::from(Sha256::digest(&bytes)) != checksum {
        tracing::debug!(checksum = %hex::encode(checksum), "The object of the commit does not have its checksum.");
        return None;
    }
    Commit::parse(&bytes).ok()
}
