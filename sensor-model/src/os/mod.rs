//! The operating system of a host: its kernel arguments and its booted image.
//!
//! In: texts of the kernel, of ostree's files, and of the tools that change an image-based host. Out: the booted deployment and
//! the next one, and whether they match a config. It runs no tool and reads no file.

pub mod arguments;
mod composefs;
pub mod extensions;
pub mod hierarchy;
mod mounted;
mod origin;
mod pristine;
mod status;
mod verity;

#[cfg(test)]
mod tests;

pub use composefs::{COMPOSEFS_DEPLOYMENTS, SealedRoot, has_root_image, origin_of_root, sealed_root};
pub use mounted::{DEPLOYMENTS, deployment_of_etc};
pub use origin::of_origin;
pub use pristine::PristineEtc;
pub use status::{DeploymentStatus, StatusError};
pub use verity::{VERITY_TARGET, VerityDevice, VerityMount, verity_mounts};

use serde::{Deserialize, Serialize};

/// One bootable version of the OS on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// The image or branch of the deployment, without the transport.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Digest of the image's manifest, `sha256:…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The ostree commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Requested packages besides those of the image.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
    /// The image that the cluster built for this node, without the transport. The node is to boot it in place of the config's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_image: Option<String>,
    /// The next boot is into the image that the cluster built.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cluster_image_is_staged: bool,
}

impl Deployment {
    /// Whether a config's `osImageURL` names this deployment: by the image's name, the manifest's digest, or the commit.
    pub fn is(&self, declared: &str) -> bool {
        let declared = reference(declared);
        let digest = declared.rsplit_once('@').map(|(_, digest)| digest);
        self.image.as_deref() == Some(declared)
            || (digest.is_some() && self.digest.as_deref() == digest)
            || self.checksum.as_deref() == Some(declared)
    }

    /// The deployment's name in messages.
    pub fn name(&self) -> &str {
        self.image.as_deref().or(self.digest.as_deref()).or(self.checksum.as_deref()).unwrap_or("unknown")
    }
}

/// Transports that tools write before an image's name. A name may have several in a row.
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

/// Transports with the name of a remote, whose keys verify the image.
const REMOTE_TRANSPORTS: [&str; 2] = ["ostree-remote-registry:", "ostree-remote-image:"];

/// An image's name without its transports.
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
