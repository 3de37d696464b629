//! Why the TLS port cannot be served.

use std::io;
use std::path::PathBuf;
use thiserror::Error;
use tokio_rustls::rustls;

/// Why there is no usable certificate.
#[derive(Debug, Error)]
pub enum SecureError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// A file has no valid PEM.
    #[error("{}: no valid {content} in PEM", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it is to contain.
        content: &'static str,
        /// The reason.
        #[source]
        error: rustls::pki_types::pem::Error,
    },
    /// The file has no certificate.
    #[error("{}: no certificate in PEM", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// Certificate and key cannot be used together.
    #[error("the certificate and its key cannot be used")]
    Unusable(#[source] rustls::Error),
    /// No certificate can be made.
    #[error("cannot make a self-signed certificate for {names:?}")]
    SelfSigned {
        /// The names in it.
        names: Vec<String>,
        /// The reason.
        #[source]
        error: rcgen::Error,
    },
}
