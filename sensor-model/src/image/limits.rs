//! The limits of an image.
//!
//! In: nothing. Out: how much of everything an image may have. A registry or a disk may hold any bytes, and root reads them.

/// How much an image may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLimits {
    /// Entries of all layers together, with the directories that no layer names.
    pub entries: u32,
    /// Bytes of all names, targets of links and extended attributes together.
    pub metadata: u64,
    /// Names in the targets of links, each counted as often as the link is on the way to an entry.
    pub link_names: u64,
    /// Bytes of all uncompressed layers together, with the holes of sparse files.
    pub bytes: u64,
    /// Bytes of the holes of sparse files in all layers, without [`Self::ratio`] of them for each compressed byte of their layer. An archive
    /// needs no bytes for a hole, and the digest of the content needs each one. A `lastlog` has 292 bytes for each user id.
    pub holes: u64,
    /// Bytes of one path, as in the kernel (`PATH_MAX`).
    pub path: usize,
    /// Bytes of one name, as in the kernel (`NAME_MAX`).
    pub name: usize,
    /// Bytes of the extended attributes of one entry.
    pub xattrs: usize,
    /// Bytes of a layer below which its compression ratio has no limit.
    pub ratio_from: u64,
    /// How many uncompressed bytes one compressed byte may give.
    pub ratio: u64,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self {
            entries: 2_000_000,
            metadata: 256 << 20,
            link_names: 1 << 26,
            bytes: 64 << 30,
            holes: 4 << 30,
            path: 4095,
            name: 255,
            xattrs: 64 << 10,
            ratio_from: 1 << 30,
            ratio: 200,
        }
    }
}
