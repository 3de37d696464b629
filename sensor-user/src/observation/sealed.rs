//! Files whose content the kernel proves, so that it need not be read again.
//!
//! In: an open file, and the SHA-256 that its content should have. Out: whether the kernel refuses any other content. A file with fs-verity
//! has a digest of its own that covers the whole content. The kernel compares each block with it, and gives no other bytes. So a file with the
//! same fs-verity digest as one that was read before has the same content.

use composefs_ioctls::fsverity::fs_ioc_measure_verity;
use rustix::fs::{Statx, StatxAttributes, fstatfs};
use sha2::{Digest as _, Sha256};
use std::{
    collections::HashMap,
    os::fd::BorrowedFd,
    sync::{Mutex, PoisonError},
};

/// Magic numbers of the file systems of the kernel with fs-verity: ext4, Btrfs and f2fs (include/uapi/linux/magic.h). A FUSE server
/// answers for its files itself, so its answer proves nothing.
const PROVING: [i64; 3] = [0xef53, 0x9123_683e, 0xf2f5_2010];
/// `FS_VERITY_HASH_ALG_SHA256` and `FS_VERITY_HASH_ALG_SHA512` (include/uapi/linux/fsverity.h).
const SHA256: u8 = 1;
const SHA512: u8 = 2;
/// Most contents that are known at a time, each of which takes 32 bytes on the disk and about twice that in memory.
const MOST: usize = 512 << 10;

/// That a file with a certain fs-verity digest has a content with a certain SHA-256: a digest of both.
pub(crate) type SealedContent = [u8; 32];

/// The fs-verity digest of a file, with its algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seal {
    algorithm: u8,
    digest: Vec<u8>,
}

impl Seal {
    /// The seal of an open file; `None` if the kernel proves nothing about its content, or does not say so. Then the file has to be read.
    pub(super) fn of(file: BorrowedFd<'_>, stat: &Statx) -> Option<Self> {
        let is_sealed = stat.stx_attributes.contains(StatxAttributes::VERITY);
        if !is_sealed || !PROVING.contains(&fstatfs(file).ok()?.f_type) {
            return None;
        }
        if let Ok(digest) = fs_ioc_measure_verity::<32>(file, SHA256) {
            return Some(Self { algorithm: SHA256, digest: digest.into() });
        }
        let digest = fs_ioc_measure_verity::<64>(file, SHA512).ok()?;
        Some(Self { algorithm: SHA512, digest: digest.into() })
    }

    /// That a file with this seal has this content.
    fn of_content(&self, sha256: &[u8; 32]) -> SealedContent {
        Sha256::new()
            .chain_update([self.algorithm])
            .chain_update(&self.digest)
            .chain_update(sha256)
            .finalize()
            .into()
    }
}

/// The contents of files with fs-verity that were read before.
#[derive(Debug, Default)]
pub(crate) struct SealedContents {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Whether each content was asked for since the beginning.
    contents: HashMap<SealedContent, bool>,
    /// Those that are new since the last call of [`SealedContents::take_new`].
    new: Vec<SealedContent>,
}

impl SealedContents {
    /// The contents that an earlier process read.
    pub(crate) fn new(known: impl IntoIterator<Item = SealedContent>) -> Self {
        let contents = known.into_iter().take(MOST).map(|content| (content, false)).collect();
        Self { known: Mutex::new(Known { contents, new: Vec::new() }) }
    }

    /// Whether a file with this seal was read before and had this content.
    pub(super) fn proves(&self, seal: &Seal, sha256: &[u8; 32]) -> bool {
        match self.known().contents.get_mut(&seal.of_content(sha256)) {
            Some(is_used) => {
                *is_used = true;
                true
            }
            None => false,
        }
    }

    /// A file with this seal was read, and had this content.
    pub(super) fn learn(&self, seal: &Seal, sha256: &[u8; 32]) {
        let mut known = self.known();
        let content = seal.of_content(sha256);
        if known.contents.len() < MOST && known.contents.insert(content, true).is_none() {
            known.new.push(content);
        }
    }

    /// The contents that are new since the last call.
    pub(crate) fn take_new(&self) -> Vec<SealedContent> {
        std::mem::take(&mut self.known().new)
    }

    /// The contents that files had since the beginning. The others are of files that are gone.
    pub(crate) fn used(&self) -> Vec<SealedContent> {
        let known = self.known();
        known.contents.iter().filter(|(_, is_used)| **is_used).map(|(content, _)| *content).collect()
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        // Each lock covers one change of the map, so a panic elsewhere leaves it intact.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{AtFlags, StatxFlags, statx};
    use std::os::fd::AsFd as _;

    fn seal(algorithm: u8, byte: u8) -> Seal {
        Seal { algorithm, digest: vec![byte; 32] }
    }

    #[test]
    fn a_seal_proves_only_the_content_that_was_read_with_it() {
        let contents = SealedContents::default();
        assert!(!contents.proves(&seal(SHA256, 1), &[7; 32]));
        contents.learn(&seal(SHA256, 1), &[7; 32]);
        assert!(contents.proves(&seal(SHA256, 1), &[7; 32]));
        assert!(!contents.proves(&seal(SHA256, 1), &[8; 32]), "another content");
        assert!(!contents.proves(&seal(SHA256, 2), &[7; 32]), "another seal");
        assert!(!contents.proves(&seal(SHA512, 1), &[7; 32]), "another algorithm");
    }

    #[test]
    fn a_later_process_knows_what_was_read_and_forgets_what_no_file_has_any_more() {
        let first = SealedContents::default();
        first.learn(&seal(SHA256, 1), &[7; 32]);
        first.learn(&seal(SHA256, 2), &[8; 32]);
        let kept = first.take_new();
        assert_eq!((kept.len(), first.take_new().len()), (2, 0));
        let second = SealedContents::new(kept);
        assert!(second.proves(&seal(SHA256, 1), &[7; 32]));
        assert_eq!(second.used(), [seal(SHA256, 1).of_content(&[7; 32])]);
    }

    #[test]
    fn a_file_without_fs_verity_has_no_seal() {
        let file = tempfile::tempfile().unwrap();
        let stat = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).unwrap();
        assert_eq!(Seal::of(file.as_fd(), &stat), None);
    }
}
