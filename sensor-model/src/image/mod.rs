//! OS images in the OCI format: which manifest to take, what its layers put at each path, and the index of that.
//!
//! In: the JSON of an image layout, and the bytes of each uncompressed layer, in pieces of any size. Out: one entry for each
//! path of the root directory that the layers make together, with the layer that made it; the bytes of an index file and back;
//! the differences between an entry and what is on the host. It reads no file and knows no compression. It refuses a layer
//! that two readers of tar could read in two ways.

mod baseline;
mod difference;
mod each_host;
mod entry;
mod error;
mod index;
mod limits;
mod manifest;
mod reference;
mod scan;
mod tar;
mod tree;
mod unmatched;
mod update;

#[cfg(test)]
mod tests;

pub use crate::strength::Strength;
pub use baseline::{Baseline, BaselineError, BaselinePath};
pub use difference::{changed_parts, differences, md5_difference};
pub use each_host::{is_of_each_host, trust_store_of};
pub use entry::{ImageEntry, Known};
pub use error::{EntryFault, LayerError};
pub use index::{
    IndexError, MAGIC, META_LIMIT, PathHasher, RECORD_LIMIT, SlotTable, TRAILER, Trailer, decode_record,
    encode_record, path_hash,
};
pub use limits::ImageLimits;
pub use manifest::{
    Choice, Compression, ConfigError, Descriptor, ImageConfig, Manifest, ManifestDocument, ManifestError,
    Platform, parse_config, parse_document,
};
pub use reference::{
    DamagedFile, DamagedFiles, ImageMeta, ImageSource, KnownXattrs, LayerMeta, ObjectDamage, Package,
    is_digest, ostree_digest, packages_text, without_history,
};
pub use scan::{EndedRound, MOST_FINDINGS, ScanPace, ScanProgress, ScanRound, ScanSpent};
pub use tar::LayerReader;
pub use tree::ImageTree;
pub use unmatched::{UnmatchedFile, UnmatchedFiles, UnmatchedReason};
pub use update::{UpdateEffect, programs, unit_at, update_effect};
