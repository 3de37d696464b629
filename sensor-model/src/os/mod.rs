//! The operating system under a node: its kernel arguments, and the image that it booted.
//!
//! In: texts of the kernel, of ostree's own files, and of the tools that change an image-based host. Out: what is booted
//! and what the next boot is to be, and whether that is what a config declares. Nothing is run or read here.

pub mod arguments;
mod origin;
mod status;

#[cfg(test)]
mod tests;

pub use origin::of_origin;
pub use status::{Status, StatusError};

use serde::{Deserialize, Serialize};

/// One bootable version of the OS on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// The image or branch that it came from, without what says how it was fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Digest of the image's manifest, `sha256:…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The ostree commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Packages that were asked for beside those of the image.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
}

impl Deployment {
    /// Whether it is what a config's `osImageURL` names: the same image by name, the same manifest by digest, or the
    /// same commit.
    pub fn is(&self, declared: &str) -> bool {
        let declared = reference(declared);
        let digest = declared.rsplit_once('@').map(|(_, digest)| digest);
        self.image.as_deref() == Some(declared)
            || (digest.is_some() && self.digest.as_deref() == digest)
            || self.checksum.as_deref() == Some(declared)
    }

    /// What it is called in a message.
    pub fn name(&self) -> &str {
        self.image.as_deref().or(self.digest.as_deref()).or(self.checksum.as_deref()).unwrap_or("unknown")
    }
}

/// Ways to fetch an image, as tools write them before its name; several may follow each other.
const TRANSPORTS: [&str; 8] = [
    "ostree-unverified-registry:",
    "ostree-unverified-image:",
    "ostree-image-signed:",
    "docker://",
    "registry:",
    "containers-storage:",
    "oci:",
    "oci-archive:",
];

/// As above, with the name of the remote whose keys verify it.
const REMOTE_TRANSPORTS: [&str; 2] = ["ostree-remote-registry:", "ostree-remote-image:"];

/// An image's name alone.
pub fn reference(text: &str) -> &str {
    let mut rest = text;
    loop {
        let direct = TRANSPORTS.iter().find_map(|transport| rest.strip_prefix(transport));
        let remote = || {
            let named = REMOTE_TRANSPORTS.iter().find_map(|transport| rest.strip_prefix(transport))?;
            named.split_once(':').map(|(_, image)| image)
        };
        let Some(image) = direct.or_else(remote) else { return rest };
        rest = image;
    }
}
