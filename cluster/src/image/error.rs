//! Why an image cannot be pulled.

use oci_client::errors::OciDistributionError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why an image cannot be pulled.
#[derive(Debug, Error)]
pub enum PullError {
    /// The reference is none.
    #[error(
        "`{text}` is no reference of an image; write it as REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:DIGEST"
    )]
    Reference {
        /// The text.
        text: String,
        /// The reason.
        #[source]
        error: oci_client::ParseError,
    },
    /// A file cannot be read or written.
    #[error("cannot {verb} `{}`", path.display())]
    File {
        /// What was tried.
        verb: &'static str,
        /// The path.
        path: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// The file with credentials cannot be used. No content of it is in the text.
    #[error("authfile `{}`: {reason}", path.display())]
    AuthFile {
        /// The path.
        path: PathBuf,
        /// The reason and what to do.
        reason: String,
    },
    /// The directory has something else in it.
    #[error("`{}` is no image layout and not empty; name an empty directory or one that does not exist", path.display())]
    NotALayout {
        /// The path.
        path: PathBuf,
    },
    /// `index.json` of the layout cannot be read.
    #[error("`{}` is no index of an image layout: {reason}; pull into another directory", path.display())]
    LayoutIndex {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The registry did not give a document or a blob.
    #[error("the registry did not give {object} of {reference}")]
    Registry {
        /// What was asked for.
        object: String,
        /// The reference.
        reference: String,
        /// The reason.
        #[source]
        error: Box<OciDistributionError>,
    },
    /// The registry has the image for other platforms.
    #[error("{reference} has no image for {platform}; it has {found}; choose one with --platform")]
    NoPlatform {
        /// The reference.
        reference: String,
        /// The platform that was asked for.
        platform: Platform,
        /// Those that exist.
        found: String,
    },
    /// A document cannot be used.
    #[error("{object} of {reference} cannot be used: {reason}")]
    Document {
        /// The document.
        object: String,
        /// The reference.
        reference: String,
        /// The reason.
        reason: String,
    },
    /// A blob is not what its descriptor says.
    #[error(
        "blob {digest}: {reason}; the registry or a proxy in between is wrong, and nothing of it was kept"
    )]
    Blob {
        /// The digest of the descriptor.
        digest: String,
        /// The reason.
        reason: String,
    },
    /// The transfer of a blob broke off too often.
    #[error(
        "blob {digest}: the transfer broke off {attempts} times, the last time after {bytes} bytes; try again, what is complete is kept"
    )]
    Transfer {
        /// The digest.
        digest: String,
        /// How often it was tried.
        attempts: u32,
        /// The bytes that arrived.
        bytes: u64,
        /// The last reason.
        #[source]
        error: io::Error,
    },
}

use super::platform::Platform;

impl PullError {
    /// Gives the error of a file operation its path.
    pub(super) fn file(verb: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { verb, path, error }
    }
}
