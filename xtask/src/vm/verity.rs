//! The hashes of dm-verity over a file system, as `veritysetup format` makes them.
//!
//! In: the blocks of a file system. Out: the blocks of hashes, the highest level first, and the root hash: form 1, SHA-256, no salt, no superblock
//! (`Documentation/admin-guide/device-mapper/verity.rst`).

use sha2::{Digest as _, Sha256};

/// Bytes of a block of data or hashes.
pub(super) const BLOCK: usize = 4096;

/// The blocks of hashes and the root hash of whole blocks of data.
pub(super) fn hashes(data: &[u8]) -> (Vec<u8>, [u8; 32]) {
    let mut levels: Vec<Vec<u8>> = Vec::new();
    let mut below = data.to_vec();
    while below.len() > BLOCK || levels.is_empty() {
        let mut level: Vec<u8> = below.chunks(BLOCK).flat_map(Sha256::digest).collect();
        level.resize(level.len().next_multiple_of(BLOCK), 0);
        levels.push(level.clone());
        below = level;
    }
    (levels.into_iter().rev().flatten().collect(), Sha256::digest(&below).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_has_the_hashes_of_the_one_below_and_the_highest_has_one_block() {
        let data = vec![7; 129 * BLOCK];
        let (hashes, root) = hashes(&data);
        assert_eq!(hashes.len(), 3 * BLOCK, "129 hashes take two blocks, whose hashes take one");
        let of_data: [u8; 32] = Sha256::digest(&data[..BLOCK]).into();
        assert_eq!(hashes[BLOCK..BLOCK + 32], of_data);
        assert_eq!(hashes[BLOCK + 129 * 32..], vec![0; 2 * BLOCK - 129 * 32]);
        let of_level: [u8; 32] = Sha256::digest(&hashes[BLOCK..2 * BLOCK]).into();
        assert_eq!(hashes[..32], of_level);
        assert_eq!(root, <[u8; 32]>::from(Sha256::digest(&hashes[..BLOCK])));
    }
}
