//! The commit of a repository that a user names.
//!
//! In: the deployments of a host, and the words of the user. Out: the checksum of one commit, and the names of its deployments' images or
//! branches. It reads no object.

use crate::{
    image::error::{FEWEST, ImageError, OstreeFault},
    observation::{Observer, checksum_of},
};

/// The word for the booted deployment.
pub const BOOTED: &str = "booted";
/// The word for the deployment of the next boot, while it is staged.
const STAGED: &str = "staged";

/// A commit.
pub(super) struct NamedCommit {
    /// Its checksum.
    pub(super) checksum: String,
    /// The images or branches that deployments of the commit come from.
    pub(super) names: Vec<String>,
}

impl NamedCommit {
    /// The commit with a name.
    ///
    /// # Errors
    /// No commit has this name, or several have it.
    pub(super) fn of(observer: &Observer, wanted: &str, booted: &str) -> Result<Self, ImageError> {
        let deployments = observer.ostree_deployments();
        let checksums = |is_wanted: &dyn Fn(&str, bool, &str) -> bool| -> Vec<String> {
            let all = deployments.iter().filter_map(|(deployment, is_staged)| {
                let checksum = deployment.checksum.as_deref()?;
                is_wanted(checksum, *is_staged, deployment.name()).then(|| checksum.to_owned())
            });
            let mut all: Vec<_> = all.collect();
            all.sort();
            all.dedup();
            all
        };
        let found = match wanted {
            BOOTED => vec![booted.to_owned()],
            STAGED => checksums(&|_, is_staged, _| is_staged),
            checksum if checksum_of(checksum).is_some() => vec![checksum.to_lowercase()],
            name => checksums(&|checksum, _, image| {
                image == name || (name.len() >= FEWEST && checksum.starts_with(name))
            }),
        };
        match found.as_slice() {
            [checksum] => Ok(Self {
                names: deployments
                    .iter()
                    .filter(|(deployment, _)| deployment.checksum.as_ref() == Some(checksum))
                    .filter_map(|(deployment, _)| deployment.image.clone())
                    .collect(),
                checksum: checksum.clone(),
            }),
            several => Err(OstreeFault::NoCommit {
                wanted: wanted.to_owned(),
                of: several.len(),
                deployed: checksums(&|_, _, _| true),
            }
            .into()),
        }
    }
}
