//! Sparse files.
//!
//! In: the map of a sparse file and its data. Out: the digest of the content, with zeros for its holes.

use sha2::{Digest as _, Sha256};
use tar_core::SparseEntry;

/// Zeros for the digest.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The map of a sparse file, as far as it was not read yet.
#[derive(Debug)]
pub(super) struct Holes {
    pieces: std::vec::IntoIter<SparseEntry>,
    /// Bytes of the current piece that are left.
    left: u64,
    /// How much of the content the digest has.
    at: u64,
    /// Size of the content.
    size: u64,
    /// Bytes in the archive.
    stored: u64,
}

impl Holes {
    /// Checks a map: its pieces are in order, within the size, and have as many bytes as the archive.
    pub(super) fn new(map: Vec<SparseEntry>, size: u64, stored: u64) -> Result<Self, &'static str> {
        let (mut end, mut total) = (0_u64, 0_u64);
        for piece in &map {
            if piece.offset < end {
                return Err("its pieces overlap or are out of order");
            }
            end = piece.offset.checked_add(piece.length).ok_or("a piece is too long")?;
            total += piece.length;
        }
        if end > size {
            return Err("a piece is behind the end of the file");
        }
        if total != stored {
            return Err("its pieces have another size than the data");
        }
        Ok(Self { pieces: map.into_iter(), left: 0, at: 0, size, stored })
    }

    /// Bytes of all holes.
    pub(super) fn bytes(&self) -> u64 {
        self.size.saturating_sub(self.stored)
    }

    /// Takes the next data.
    pub(super) fn data(&mut self, mut bytes: &[u8], digest: &mut Sha256) {
        while !bytes.is_empty() {
            if self.left == 0 {
                let Some(piece) = self.pieces.next() else { return };
                self.zeros(piece.offset, digest);
                self.left = piece.length;
                continue;
            }
            let taken = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            digest.update(&bytes[..taken]);
            (self.left, self.at) = (self.left - taken as u64, self.at + taken as u64);
            bytes = &bytes[taken..];
        }
    }

    /// Ends the content; gives its size.
    pub(super) fn finish(&mut self, digest: &mut Sha256) -> u64 {
        self.zeros(self.size, digest);
        self.size
    }

    fn zeros(&mut self, to: u64, digest: &mut Sha256) {
        while self.at < to {
            let length = (to - self.at).min(ZEROS.len() as u64);
            digest.update(&ZEROS[..usize::try_from(length).unwrap_or(0)]);
            self.at += length;
        }
    }
}
