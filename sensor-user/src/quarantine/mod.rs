//! Objects that a drift policy moved out of closed directories.
//!
//! In: a name in a directory that no config and no package declares. Out: the object in the state directory, with a manifest, so that
//! an admin can put it back. Nothing is deleted.
//!
//! On the file system of the state directory the object is renamed. On another one it is first renamed into a directory beside its
//! path that only root can open. From there it is copied, and removed when the copy is complete and nothing changed meanwhile. At each
//! moment the object is at its path, in the temporary directory, or in the quarantine, and the manifest says where. So a crash loses
//! nothing, and the next start completes or undoes the move. No call follows a link, and none crosses a mount.

mod copy;
mod error;
mod items;
mod limits;
mod manifest;
mod recover;
mod restore;
mod survey;
mod take;

#[cfg(test)]
mod tests;

pub use error::{QuarantineError, QuarantineRefusal};
pub(crate) use items::LOCK;
pub use items::Quarantine;
pub use manifest::{Cause, Manifest, TemporaryDirectory};
pub use take::{Moves, OwnFiles};
