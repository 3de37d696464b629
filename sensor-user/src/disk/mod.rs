//! The only code that writes a managed path.
//!
//! In: a directory's handle and a name in it, and what is to be there: content, metadata, a link's target, or nothing. Out: the
//! old object or the new one, whole and durable. All writes go through [`crate::sys`], so that a test can stop at each of them.
//! Nothing here decides what is to be written, and no content is in an error.

mod error;
mod image;
mod listing;
mod make;
mod metadata;
mod names;
mod place;
mod replace;

pub use error::DiskError;
pub(crate) use image::Identity;
pub(crate) use listing::{KEPT, Listed, each_name, listed, names_in};
pub(crate) use make::part;
pub(crate) use metadata::{Changed, NewMetadata, Xattrs, label_value, set_existing, set_label};
pub(crate) use names::Removed;
pub(crate) use place::Place;
