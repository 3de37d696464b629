//! The MD5 of a file, for packages that have no better digest.
//!
//! In: a path of the host. Out: the sum of the regular file there. No link is followed, and no device or pipe is read.

use crate::{observation::Observer, sys};
use md5::{Digest as _, Md5};
use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::stat::{SFlag, fstat},
};
use std::path::Path;

/// The sum of a file of `size` bytes. `None` if something else is there now, or if the file has grown: then the observation is not of
/// this content.
pub(super) fn md5(observer: &Observer, path: &Path, size: u64) -> Result<Option<[u8; 16]>, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = observer.root().open_at(path, flags)?;
    if fstat(&file)?.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFREG.bits() {
        return Ok(None);
    }
    let mut sum = Md5::new();
    let is_whole = sys::each_chunk(&file, size, |chunk| {
        sum.update(chunk);
        Ok(())
    })?;
    Ok(is_whole.then(|| sum.finalize().into()))
}
