//! What the tools say of a host's deployments.
//!
//! In: the output of `rpm-ostree status --json`, `bootc status --format json` or `ostree admin status`. Out: what is
//! booted, and what the next boot is to be where that is something else. Fields that are not needed may be anything.

use super::{Deployment, reference};
use serde::Deserialize;

/// What a tool says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// What runs.
    pub booted: Option<Deployment>,
    /// What the next boot is to be; `None` when it is what runs.
    pub next: Option<Deployment>,
    /// The next one becomes complete only when the host is shut down.
    pub staged: bool,
    /// Stateroot and name of the deployment that runs, where the tool tells them.
    pub place: Option<(String, String)>,
}

/// An answer that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the answer of {tool} is not understood: {reason}")]
pub struct StatusError {
    /// Whose answer.
    pub tool: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

#[derive(Deserialize)]
struct RpmOstree {
    deployments: Vec<RpmOstreeDeployment>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RpmOstreeDeployment {
    #[serde(default)]
    booted: bool,
    #[serde(default)]
    staged: bool,
    container_image_reference: Option<String>,
    container_image_reference_digest: Option<String>,
    origin: Option<String>,
    base_checksum: Option<String>,
    checksum: Option<String>,
    #[serde(default)]
    requested_packages: Vec<String>,
}

#[derive(Deserialize)]
struct Bootc {
    status: BootcStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BootcStatus {
    booted: Option<BootcEntry>,
    staged: Option<BootcEntry>,
    rollback: Option<BootcEntry>,
    #[serde(default)]
    rollback_queued: bool,
}

#[derive(Deserialize)]
struct BootcEntry {
    image: Option<BootcImage>,
    ostree: Option<BootcOstree>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BootcImage {
    image: BootcReference,
    image_digest: Option<String>,
}

#[derive(Deserialize)]
struct BootcReference {
    image: String,
}

#[derive(Deserialize)]
struct BootcOstree {
    checksum: String,
}

impl Status {
    /// Reads `rpm-ostree status --json`.
    ///
    /// # Errors
    /// What is not JSON of that shape.
    pub fn of_rpm_ostree(json: &[u8]) -> Result<Self, StatusError> {
        let answer: RpmOstree = read("rpm-ostree", json)?;
        let mut status = Self::default();
        for (number, found) in answer.deployments.into_iter().enumerate() {
            let (booted, staged) = (found.booted, found.staged);
            let origin = found.container_image_reference.or(found.origin);
            let deployment = Deployment {
                image: origin.map(|image| reference(&image).to_owned()),
                digest: found.container_image_reference_digest,
                checksum: found.base_checksum.or(found.checksum),
                packages: found.requested_packages,
            };
            // The first one is what the boot loader takes.
            if booted {
                status.booted = Some(deployment);
            } else if number == 0 {
                (status.next, status.staged) = (Some(deployment), staged);
            }
        }
        Ok(status)
    }

    /// Reads `bootc status --format json`.
    ///
    /// # Errors
    /// What is not JSON of that shape.
    pub fn of_bootc(json: &[u8]) -> Result<Self, StatusError> {
        let Bootc { status } = read("bootc", json)?;
        let deployment = |entry: BootcEntry| {
            let (image, digest) = match entry.image {
                Some(image) => (Some(reference(&image.image.image).to_owned()), image.image_digest),
                None => (None, None),
            };
            let checksum = entry.ostree.map(|ostree| ostree.checksum);
            Deployment { image, digest, checksum, packages: Vec::new() }
        };
        let staged = status.staged.is_some();
        let rollback = status.rollback.filter(|_| status.rollback_queued);
        Ok(Self {
            booted: status.booted.map(deployment),
            next: status.staged.or(rollback).map(deployment),
            staged,
            place: None,
        })
    }

    /// Reads `ostree admin status`: a line for each deployment, the booted one marked by an asterisk, and further
    /// in a line that names its origin.
    ///
    /// # Errors
    /// A line of a deployment that names no commit.
    pub fn of_ostree(text: &str) -> Result<Self, StatusError> {
        let mut found: Vec<(bool, bool, Deployment)> = Vec::new();
        let mut place = None;
        for line in text.lines() {
            if line.starts_with("    ") {
                if let (Some(image), Some((_, _, deployment))) =
                    (line.trim().strip_prefix("origin refspec:"), found.last_mut())
                {
                    deployment.image = Some(reference(image.trim()).to_owned());
                }
                continue;
            }
            let mut words = line.trim_start_matches('*').split_whitespace();
            let (Some(stateroot), Some(name)) = (words.next(), words.next()) else { continue };
            let checksum = name.split_once('.').map(|(checksum, _)| checksum).filter(|sum| is_commit(sum));
            let Some(checksum) = checksum else {
                let reason = format!("no commit in {line:?}");
                return Err(StatusError { tool: "ostree", reason });
            };
            let staged = words.any(|word| word == "(staged)");
            let deployment = Deployment { checksum: Some(checksum.to_owned()), ..Deployment::default() };
            let booted = line.starts_with('*');
            if booted {
                place = Some((stateroot.to_owned(), name.to_owned()));
            }
            found.push((booted, staged, deployment));
        }
        let mut status = Self { place, ..Self::default() };
        for (number, (booted, staged, deployment)) in found.into_iter().enumerate() {
            if booted {
                status.booted = Some(deployment);
            } else if number == 0 {
                (status.next, status.staged) = (Some(deployment), staged);
            }
        }
        Ok(status)
    }
}

/// Whether a text is the checksum of a commit.
fn is_commit(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn read<'a, T: Deserialize<'a>>(tool: &'static str, json: &'a [u8]) -> Result<T, StatusError> {
    serde_json::from_slice(json).map_err(|error| StatusError { tool, reason: error.to_string() })
}
