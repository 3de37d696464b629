//! The MD5 of a file, for packages that have no better digest.
//!
//! In: a path of the host. Out: the sum of the regular file there. No link is followed, and no device or pipe is read.

use crate::observation::Observer;
use md5::{Digest as _, Md5};
use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::stat::{SFlag, fstat},
};
use std::{fs::File, io::Read as _, path::Path};

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// The sum of a file of `size` bytes. `None` if something else is there now, or if the file has grown: then the observation is not of
/// this content.
pub(super) fn md5(observer: &Observer, path: &Path, size: u64) -> Result<Option<[u8; 16]>, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = observer.root().open_at(path, flags)?;
    if fstat(&file)?.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFREG.bits() {
        return Ok(None);
    }
    let mut file = File::from(file).take(size.saturating_add(1));
    let mut buffer = vec![0; PIECE];
    let (mut sum, mut read) = (Md5::new(), 0);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                sum.update(&buffer[..length]);
                read += length as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Errno::from_raw(error.raw_os_error().unwrap_or(0))),
        }
    }
    Ok((read == size).then(|| sum.finalize().into()))
}
