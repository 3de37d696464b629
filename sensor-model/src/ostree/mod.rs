//! The objects of an ostree repository: a commit, directories, and the checksum of a file; the image that a commit was made from; and what ostree
//! notes about the boot.
//!
//! In: the bytes of objects. Out: what they say, or that they are damaged; which layer of the image put something at a path. It reads no file. Objects are in the serialisation of `GVariant`;
//! `variant` knows as much of it as these objects need. Facts: the manual page of ostree and the specification of `GVariant`.

mod booted;
mod checksum;
mod image;
mod layers;
mod objects;
mod variant;

#[cfg(test)]
mod tests;

pub use booted::backing_root;
pub use checksum::{FileHeader, Xattr, sorted_xattrs};
pub use image::{CommitImage, CommitImageError, CommitLayer, LayerContent};
pub use layers::{LayerPaths, Placed, TooManyPaths};
pub use objects::{
    Commit, DirectoryMeta, DirectoryTree, OBJECT_LIMIT, ObjectError, SubDirectory, TreeFile, parse_xattrs,
};

/// The checksum of an object: a SHA-256.
pub type Checksum = [u8; 32];
