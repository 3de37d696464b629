//! Blobs of a layout, verified while they are read.
//!
//! In: a directory and a descriptor. Out: a document, or a reader that knows at its end whether size and digest are right.

use super::error::BlobError;
use crate::bounded;
use nix::{
    fcntl::OFlag,
    sys::stat::{Mode, fstat},
};
use sensor_model::image::Descriptor;
use sha2::{Digest as _, Sha256};
use std::{
    cell::Cell,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    rc::Rc,
};

/// Most bytes of a JSON document, as in registries.
const DOCUMENT: u64 = 4 << 20;

/// Where a blob is. The digest was checked, so it has no path in it.
fn path(layout: &Path, digest: &str) -> PathBuf {
    let digits = digest.strip_prefix("sha256:").unwrap_or(digest);
    layout.join("blobs/sha256").join(digits)
}

/// Reads and verifies a document.
pub(super) fn document(layout: &Path, descriptor: &Descriptor) -> Result<Vec<u8>, BlobError> {
    if descriptor.size > DOCUMENT {
        return Err(BlobError::TooLarge { size: descriptor.size, limit: DOCUMENT });
    }
    let bytes = bounded::read(&path(layout, &descriptor.digest), DOCUMENT)?;
    check(descriptor, bytes.len() as u64, &Sha256::digest(&bytes))?;
    Ok(bytes)
}

fn check(descriptor: &Descriptor, size: u64, digest: &[u8]) -> Result<(), BlobError> {
    if size != descriptor.size {
        return Err(BlobError::Size { expected: descriptor.size, found: size });
    }
    let found = digest_text(digest);
    if found == descriptor.digest { Ok(()) } else { Err(BlobError::Digest { found }) }
}

/// `sha256:…`
pub(super) fn digest_text(digest: &[u8]) -> String {
    format!("sha256:{}", hex::encode(digest))
}

/// A blob that is being read.
#[derive(Debug)]
pub(super) struct BlobReader {
    file: File,
    digest: Sha256,
    read: Rc<Cell<u64>>,
    /// Why a read failed. A decompressor hides it behind an error of its own.
    failed: Option<io::Error>,
}

impl BlobReader {
    /// Opens a blob. Its size must be that of the descriptor, so that a reader cannot be kept busy for ever.
    pub(super) fn open(layout: &Path, descriptor: &Descriptor) -> Result<Self, BlobError> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let opened = nix::fcntl::open(&path(layout, &descriptor.digest), flags, Mode::empty());
        let file = opened.map_err(io::Error::from)?;
        let stat = fstat(&file).map_err(io::Error::from)?;
        if stat.st_mode & nix::libc::S_IFMT != nix::libc::S_IFREG {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file").into());
        }
        let found = u64::try_from(stat.st_size).unwrap_or(0);
        if found != descriptor.size {
            return Err(BlobError::Size { expected: descriptor.size, found });
        }
        Ok(Self { file: file.into(), digest: Sha256::new(), read: Rc::default(), failed: None })
    }

    /// How many bytes were read.
    pub(super) fn count(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.read)
    }

    /// Reads what is left, and verifies the blob.
    pub(super) fn finish(mut self, descriptor: &Descriptor, buffer: &mut [u8]) -> Result<(), BlobError> {
        if let Some(failed) = self.failed.take() {
            return Err(failed.into());
        }
        while self.read(buffer)? > 0 {}
        check(descriptor, self.read.get(), &self.digest.finalize())
    }
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = match self.file.read(buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                self.failed = Some(io::Error::from(error.kind()));
                return Err(error);
            }
        };
        self.digest.update(&buffer[..length]);
        self.read.set(self.read.get() + length as u64);
        Ok(length)
    }
}
