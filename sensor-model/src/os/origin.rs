//! The origin file that ostree keeps for each deployment, and bootc for each one without ostree.
//!
//! In: the text of the file, and the commit. Out: the deployment.

use super::{Deployment, reference};

/// Keys of the section `[origin]` that name an image or a branch; an earlier one has priority.
const KEYS: [&str; 3] = ["container-image-reference", "refspec", "baserefspec"];

/// A deployment by its origin file, and by its commit on an ostree host. Without ostree the file also has the digest of the manifest.
pub fn of_origin(origin: &str, checksum: Option<&str>) -> Deployment {
    let mut section = "";
    let mut manifest = None;
    let mut found: [Option<&str>; KEYS.len()] = [None; KEYS.len()];
    for line in origin.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if section == "origin"
            && let Some((key, value)) = line.split_once('=')
            && let Some(number) = KEYS.iter().position(|known| *known == key.trim())
        {
            found[number] = Some(value.trim());
        } else if section == "image"
            && let Some((key, value)) = line.split_once('=')
            && key.trim() == "manifest_digest"
        {
            manifest = Some(value.trim());
        }
    }
    let image = found.into_iter().flatten().find(|value| !value.is_empty());
    let image = image.map(reference);
    Deployment {
        digest: manifest
            .or(image.and_then(|image| image.rsplit_once('@')).map(|(_, digest)| digest))
            .map(str::to_owned),
        image: image.map(str::to_owned),
        checksum: checksum.map(str::to_owned),
        packages: Vec::new(),
        cluster_image: None,
        cluster_image_is_staged: false,
    }
}
