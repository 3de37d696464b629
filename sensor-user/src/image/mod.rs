//! The images of the OS: read from a layout into an index, and looked up in it.
//!
//! In: a directory with an OCI image layout, the repository of an ostree host, the databases of packages, the directories of merged extensions, or a baseline. Out: an index file in the state directory, and what it has at a path of the host. It
//! verifies each digest itself, keeps no content, and opens no network socket. `live` gives what indexes say about the paths that a drift policy
//! names, as expectations of the daemon. A layer passes through memory in pieces. The
//! index is for root alone: an image may have secrets in its history.

mod baseline;
mod blob;
mod booted_image;
mod build;
mod carried;
mod chosen;
mod content;
mod deployment;
mod diff;
mod disk_extensions;
mod error;
mod extensions;
mod held_back;
mod hierarchies;
mod images;
mod index;
mod kept_indexes;
mod layout;
mod live;
mod merged_extensions;
mod ostree;
mod package_files;
mod packages;
mod pristine;
mod scan;
mod scan_files;
mod scan_spending;
mod sealed_trees;
mod shipped_etc;
mod update;
mod verify;
mod write;
mod zstd;

pub use baseline::{index_baseline, take_baseline};
pub use booted_image::booted_image;
pub use build::{Progress, index_image};
pub(crate) use carried::not_carried;
pub use chosen::{
    beside_extensions, choose_indexes, merged_extensions, of_booted_commit, of_booted_image,
    why_no_booted_image,
};
pub use deployment::booted_digest;
pub use diff::{ChangedPath, diff};
pub use error::{BlobError, ImageError, LayoutError};
pub(crate) use extensions::followed_state;
pub use extensions::{LeftOutExtension, index_extensions};
pub(crate) use held_back::held_back;
pub(crate) use hierarchies::is_of_unmerged_extension;
pub use hierarchies::{CoveredHierarchy, covered};
pub use images::{BASELINE, EXTENSIONS, Images, OSTREE, PACKAGES};
pub use index::ImageIndex;
pub(crate) use kept_indexes::KeptIndexes;
pub use layout::Layout;
pub(crate) use live::{add_names_below, decides, expected, expected_at, expected_in_etc, version};
pub use merged_extensions::ExtensionFault;
pub use ostree::{BOOTED, delete_old_commits, index_ostree, renew_ostree};
pub use packages::index_packages;
pub(crate) use pristine::Undeclared;
pub use scan::{Scan, ScanEnd, ScanError};
pub(crate) use scan_files::{ScanFiles, TreeFiles};
pub use scan_spending::pauses_in_a_file;
pub use update::{
    ChangedLayer, ChangedUnit, ImageChanges, ImageUpdate, UnitPrograms, image_update, unit_programs,
};
pub use verify::{Found, UnlistedDirectory, Verified, Verifier};
pub use write::Indexed;
