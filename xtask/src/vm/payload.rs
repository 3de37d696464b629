//! Files of this machine that a guest gets.
//!
//! In: nothing. Out: the description of one file.

use std::path::PathBuf;

/// A file that the guest gets.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    /// Where it is here.
    pub(crate) source: PathBuf,
    /// Where it will be in the guest.
    pub(crate) place: String,
    /// Its permission bits there.
    pub(crate) mode: u32,
}
