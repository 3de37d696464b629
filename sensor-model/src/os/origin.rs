//! The origin file that ostree keeps for each deployment.
//!
//! In: the text of the file, and the commit. Out: the deployment.

use super::{Deployment, reference};

/// Keys of the section `[origin]` that name an image or a branch; an earlier one has priority.
const KEYS: [&str; 3] = ["container-image-reference", "refspec", "baserefspec"];

/// A deployment of an ostree host, by its origin file and its commit.
pub fn of_origin(origin: &str, checksum: &str) -> Deployment {
    let mut section = "";
    let mut found: [Option<&str>; KEYS.len()] = [None; KEYS.len()];
    for line in origin.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if section == "origin"
            && let Some((key, value)) = line.split_once('=')
            && let Some(number) = KEYS.iter().position(|known| *known == key.trim())
        {
            found[number] = Some(value.trim());
        }
    }
    let image = found.into_iter().flatten().find(|value| !value.is_empty());
    let image = image.map(reference);
    Deployment {
        digest: image.and_then(|image| image.rsplit_once('@')).map(|(_, digest)| digest.to_owned()),
        image: image.map(str::to_owned),
        checksum: Some(checksum.to_owned()),
        packages: Vec::new(),
    }
}
