//! Files whose content the kernel proves, so that it need not be read again.
//!
//! In: an open file, and the SHA-256 that its content should have. Out: whether the kernel refuses any other content. A file with fs-verity
//! has a digest of its own that covers the whole content. The kernel compares each block with it, and gives no other bytes. So a file with the
//! same fs-verity digest as one that was read before has the same content. On a mount that the kernel proves as a whole, a digest of what
//! determines its contents and the inode's number identify the content: an overlay does not report the digests of its files, and a
//! device of dm-verity has none of a single file.

use super::sealed_mounts::SealedMounts;
use composefs_ioctls::fsverity::fs_ioc_measure_verity;
use rustix::fs::{Statx, StatxAttributes, fstatfs};
use sensor_model::strength::SealKind;
use sha2::{Digest as _, Sha256};
use std::{
    collections::HashMap,
    os::fd::BorrowedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Magic numbers of the file systems of the kernel with fs-verity: ext4, Btrfs and f2fs (include/uapi/linux/magic.h). A FUSE server
/// answers for its files itself, so its answer proves nothing.
const PROVING: [i64; 3] = [0xef53, 0x9123_683e, 0xf2f5_2010];
/// `FS_VERITY_HASH_ALG_SHA256` and `FS_VERITY_HASH_ALG_SHA512` (include/uapi/linux/fsverity.h).
const SHA256: u8 = 1;
const SHA512: u8 = 2;
/// The first byte of the digest of a [`Seal::Image`]. That of a [`Seal::File`] is the algorithm, and the kernel gives none this number.
const IMAGE: u8 = 0;
/// Most contents that are known at a time, each of which takes 32 bytes on the disk and about twice that in memory.
const MOST: usize = 512 << 10;
/// Most contents that the daemon keeps: about a MiB. It reads further files each time.
const MOST_OF_WATCHED: usize = 16 << 10;

/// That a file with a certain fs-verity digest has a content with a certain SHA-256: a digest of both.
pub(crate) type SealedContent = [u8; 32];

/// An identity of a file, for which the kernel gives one content and no other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seal {
    /// The fs-verity digest of the file, with its algorithm.
    File { algorithm: u8, digest: Vec<u8> },
    /// A digest of what determines the contents of a mount, what proves them, and the number of the inode in it.
    Image { kind: SealKind, image: [u8; 32], inode: u64 },
}

impl Seal {
    /// The seal of an open file with fs-verity; `None` if the kernel proves nothing about its content, or does not report that.
    fn of_file(file: BorrowedFd<'_>, stat: &Statx) -> Option<Self> {
        let is_sealed = stat.stx_attributes.contains(StatxAttributes::VERITY);
        if !is_sealed || !PROVING.contains(&fstatfs(file).ok()?.f_type) {
            return None;
        }
        if let Ok(digest) = fs_ioc_measure_verity::<32>(file, SHA256) {
            return Some(Self::File { algorithm: SHA256, digest: digest.into() });
        }
        let digest = fs_ioc_measure_verity::<64>(file, SHA512).ok()?;
        Some(Self::File { algorithm: SHA512, digest: digest.into() })
    }

    /// The seal of a file on a mount that the kernel proves as a whole; `None` for a file on another mount.
    fn on_mount(mounts: &SealedMounts, stat: &Statx) -> Option<Self> {
        let (kind, image) = mounts.mount_of(stat)?;
        Some(Self::Image { kind, image, inode: stat.stx_ino })
    }

    /// What proves the content.
    pub(super) fn kind(&self) -> SealKind {
        match self {
            Self::File { .. } => SealKind::FsVerity,
            Self::Image { kind, .. } => *kind,
        }
    }

    /// That a file with this seal has this content.
    fn of_content(&self, sha256: &[u8; 32]) -> SealedContent {
        let hasher = match self {
            Self::File { algorithm, digest } => Sha256::new().chain_update([*algorithm]).chain_update(digest),
            Self::Image { image, inode, .. } => {
                Sha256::new().chain_update([IMAGE]).chain_update(image).chain_update(inode.to_le_bytes())
            }
        };
        hasher.chain_update(sha256).finalize().into()
    }
}

/// The contents of sealed files that were read before.
#[derive(Debug)]
pub(crate) struct SealedContents {
    known: Mutex<HashMap<SealedContent, Use>>,
    /// How many it keeps.
    most: usize,
    mounts: SealedMounts,
}

/// The use of a content since the beginning.
#[derive(Debug, Clone, Copy)]
struct Use {
    /// A file had it.
    is_used: bool,
    /// It is new, and [`SealedContents::take_new`] has not given it yet.
    is_new: bool,
}

impl SealedContents {
    /// The contents that an earlier process read.
    pub(crate) fn new(known: impl IntoIterator<Item = SealedContent>) -> Self {
        let unused = Use { is_used: false, is_new: false };
        let known = known.into_iter().take(MOST).map(|content| (content, unused)).collect();
        Self { known: Mutex::new(known), most: MOST, mounts: SealedMounts::default() }
    }

    /// No content yet, with room for as many as the daemon may keep in memory. The owner of a watched file can seal the same content again and
    /// again with another seal.
    pub(crate) fn of_watched() -> Self {
        Self { most: MOST_OF_WATCHED, ..Self::new([]) }
    }

    /// The same contents, on a host with these mounts.
    pub(super) fn with_mounts(self, mounts: SealedMounts) -> Self {
        Self { mounts, ..self }
    }

    /// The mounts that the kernel proves as a whole.
    pub(super) fn mounts(&self) -> &SealedMounts {
        &self.mounts
    }

    /// The seal of an open file; `None` if the file has to be read.
    pub(super) fn seal(&self, file: BorrowedFd<'_>, stat: &Statx) -> Option<Seal> {
        Seal::of_file(file, stat).or_else(|| Seal::on_mount(&self.mounts, stat))
    }

    /// Whether a file with this seal was read before and had this content.
    pub(super) fn proves(&self, seal: &Seal, sha256: &[u8; 32]) -> bool {
        match self.known().get_mut(&seal.of_content(sha256)) {
            Some(found) => {
                found.is_used = true;
                true
            }
            None => false,
        }
    }

    /// A file with this seal was read, and had this content, which is the expected one.
    pub(super) fn learn(&self, seal: &Seal, sha256: &[u8; 32]) {
        let mut known = self.known();
        let content = seal.of_content(sha256);
        if let Some(found) = known.get_mut(&content) {
            found.is_used = true;
        } else if known.len() < self.most {
            known.insert(content, Use { is_used: true, is_new: true });
        }
    }

    /// The contents that are new since the last call.
    pub(crate) fn take_new(&self) -> Vec<SealedContent> {
        let mut known = self.known();
        let new = |(content, found): (&SealedContent, &mut Use)| {
            std::mem::take(&mut found.is_new).then_some(*content)
        };
        known.iter_mut().filter_map(new).collect()
    }

    /// The contents that files had since the beginning. The others are of files that are gone.
    pub(crate) fn used(&self) -> Vec<SealedContent> {
        self.known().iter().filter(|(_, found)| found.is_used).map(|(content, _)| *content).collect()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<SealedContent, Use>> {
        // Each lock covers one change of the map, so a panic elsewhere leaves it intact.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{AtFlags, StatxFlags, statx};
    use sensor_model::os::SealedRoot;
    use std::{fs::File, os::fd::AsFd as _};

    fn seal(algorithm: u8, byte: u8) -> Seal {
        Seal::File { algorithm, digest: vec![byte; 32] }
    }

    #[test]
    fn a_seal_proves_only_the_content_that_was_read_with_it() {
        let contents = SealedContents::new([]);
        assert!(!contents.proves(&seal(SHA256, 1), &[7; 32]));
        contents.learn(&seal(SHA256, 1), &[7; 32]);
        assert!(contents.proves(&seal(SHA256, 1), &[7; 32]));
        assert!(!contents.proves(&seal(SHA256, 1), &[8; 32]), "another content");
        assert!(!contents.proves(&seal(SHA256, 2), &[7; 32]), "another seal");
        assert!(!contents.proves(&seal(SHA512, 1), &[7; 32]), "another algorithm");
    }

    #[test]
    fn a_later_process_knows_what_was_read_and_forgets_what_no_file_has_any_more() {
        let first = SealedContents::new([]);
        first.learn(&seal(SHA256, 1), &[7; 32]);
        first.learn(&seal(SHA256, 2), &[8; 32]);
        let kept = first.take_new();
        assert_eq!((kept.len(), first.take_new().len()), (2, 0));
        let second = SealedContents::new(kept);
        assert!(second.proves(&seal(SHA256, 1), &[7; 32]));
        assert_eq!(second.used(), [seal(SHA256, 1).of_content(&[7; 32])]);
    }

    fn sealed_root(mount: u64, digest: u8, boot: &str) -> SealedMounts {
        SealedMounts::with_root(&SealedRoot { mount, digest: vec![digest; 32] }, boot)
    }

    #[test]
    fn only_a_file_on_a_sealed_mount_has_the_seal_of_the_image() {
        let (_file, stat) = unsealed();
        let found = Seal::on_mount(&sealed_root(stat.stx_mnt_id, 1, "a"), &stat);
        let is_found = matches!(found, Some(Seal::Image { inode, .. }) if inode == stat.stx_ino);
        assert!(is_found, "{found:?}");
        assert_eq!(Seal::on_mount(&sealed_root(stat.stx_mnt_id + 1, 1, "a"), &stat), None, "another mount");
        let mut unknown = stat;
        unknown.stx_mask &= !StatxFlags::MNT_ID.bits();
        let mounts = sealed_root(stat.stx_mnt_id, 1, "a");
        assert_eq!(Seal::on_mount(&mounts, &unknown), None, "a kernel that names no mount");
    }

    #[test]
    fn the_seal_of_an_image_proves_one_content_of_one_inode_of_that_image_in_that_boot() {
        let (_file, mut stat) = unsealed();
        let mut seal = |digest, boot, inode| {
            stat.stx_ino = inode;
            Seal::on_mount(&sealed_root(stat.stx_mnt_id, digest, boot), &stat).unwrap()
        };
        let contents = SealedContents::new([]);
        contents.learn(&seal(1, "a", 2), &[7; 32]);
        assert!(contents.proves(&seal(1, "a", 2), &[7; 32]));
        assert!(!contents.proves(&seal(1, "a", 2), &[8; 32]), "another content");
        assert!(!contents.proves(&seal(1, "a", 3), &[7; 32]), "another inode");
        assert!(!contents.proves(&seal(2, "a", 2), &[7; 32]), "another image");
        assert!(!contents.proves(&seal(1, "b", 2), &[7; 32]), "another boot");
    }

    #[test]
    fn the_daemon_keeps_a_limited_number_of_contents() {
        let contents = SealedContents::of_watched();
        for inode in 0..=MOST_OF_WATCHED as u64 {
            contents.learn(&Seal::Image { kind: SealKind::FsVerity, image: [1; 32], inode }, &[7; 32]);
        }
        assert_eq!(contents.used().len(), MOST_OF_WATCHED);
    }

    #[test]
    fn a_file_without_fs_verity_has_no_seal() {
        let (file, stat) = unsealed();
        assert_eq!(SealedContents::new([]).seal(file.as_fd(), &stat), None);
    }

    fn unsealed() -> (File, Statx) {
        let file = tempfile::tempfile().unwrap();
        let stat =
            statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID).unwrap();
        (file, stat)
    }
}
