//! The only code of Holdfast that writes a managed path.
//!
//! In: a directory's handle, a name in it, and the object that it should have: content, metadata, a link's target, or none. Out:
//! the old object or the new one, whole and durable. All writes use [`crate::sys`], so that a test can stop at each of them.
//! Callers decide what to write, and no error has content in it.
//!
//! There are two ways of writing. `make` and `names` are the edits of an apply, which has a journal
//! ([`sensor_model::journal::target_edit`]). They keep the replaced object beside the path, and set a directory's metadata
//! in place. `replace` replaces an object at once and without a journal, for a repair. Two other programs write managed paths
//! too. systemd does so when a repair asks it to enable or disable a unit. The OS tools do so when they merge `/etc`.

mod error;
mod leftovers;
mod listing;
mod make;
mod metadata;
mod names;
mod path_state;
mod place;
mod replace;

pub use error::{DiskError, DiskRefusal};
pub(crate) use leftovers::remove_leftovers;
pub(crate) use listing::{FirstNames, KEPT, each_name, listed, names_in};
pub(crate) use make::part;
pub(crate) use metadata::{
    Changed, NewMetadata, Xattrs, copied_xattrs, label_value, set_existing, set_label,
};
pub(crate) use names::NameRemoval;
pub(crate) use path_state::ObjectIdentity;
pub(crate) use place::Place;
