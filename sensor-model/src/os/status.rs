//! A host's deployments, as the tools report them.
//!
//! In: the output of `rpm-ostree status --json`, `bootc status --format json` or `ostree admin status`. Out: the booted
//! deployment, and the next one if that is another. Unused fields may have any value.

use super::{Deployment, reference};
use serde::Deserialize;

/// The deployments that a tool reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeploymentStatus {
    /// The booted deployment.
    pub booted: Option<Deployment>,
    /// The deployment of the next boot; `None` if it is the booted one.
    pub next: Option<Deployment>,
    /// The next deployment is staged: it becomes complete during the shutdown.
    pub staged: bool,
    /// Stateroot and name of the booted deployment, if the tool reports them.
    pub place: Option<(String, String)>,
}

/// An output that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// The output is not JSON of the tool's form, in the parser's words.
    #[error("the answer of {tool} is not understood: {reason}")]
    Json {
        /// The tool.
        tool: &'static str,
        /// What is wrong with the output.
        reason: String,
    },
    /// The line of a deployment has no commit.
    #[error("the answer of ostree is not understood: no commit in {0:?}")]
    NoCommit(String),
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

impl DeploymentStatus {
    /// Reads `rpm-ostree status --json`.
    ///
    /// # Errors
    /// Output of another form.
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
                cluster_image: None,
                cluster_image_is_staged: false,
            };
            // The boot loader boots the first one.
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
    /// Output of another form.
    pub fn of_bootc(json: &[u8]) -> Result<Self, StatusError> {
        let Bootc { status } = read("bootc", json)?;
        let deployment = |entry: BootcEntry| {
            let (image, digest) = match entry.image {
                Some(image) => (Some(reference(&image.image.image).to_owned()), image.image_digest),
                None => (None, None),
            };
            let checksum = entry.ostree.map(|ostree| ostree.checksum);
            Deployment { image, digest, checksum, ..Deployment::default() }
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

    /// Reads `ostree admin status`: a line for each deployment, with an asterisk for the booted one, and indented lines below it,
    /// one with its origin.
    ///
    /// # Errors
    /// A deployment's line without a commit.
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
                return Err(StatusError::NoCommit(line.to_owned()));
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
    serde_json::from_slice(json).map_err(|error| StatusError::Json { tool, reason: error.to_string() })
}
