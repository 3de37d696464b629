//! The command `image pull`: an image of a registry becomes an image layout in a directory.
//!
//! In: a reference. Out: a directory with the image of one platform, as the OCI image layout specification defines it. `holdfast` opens
//! no network socket, so it reads images from such a directory. It verifies every digest again.
//!
//! ```text
//! authfile -> registry (manifests, then blobs) -> layout (each blob verified) -> index.json, which is written last
//! ```

mod authfile;
mod error;
mod layout;
mod platform;
mod pull;
mod registry;
#[cfg(test)]
mod tests;

pub use error::PullError;
pub use platform::Platform;
pub use pull::{Progress, PullOptions, Pulled, pull};
