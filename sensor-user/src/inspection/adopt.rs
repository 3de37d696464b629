//! The present state of paths as a MachineConfig.
//!
//! In: paths, and which contents may be in the manifest. Out: the manifest, and what it does not declare.

use super::DeclaredHost;
use crate::{
    bounded::{self, Unreadable},
    desired::DesiredError,
};
use sensor_model::{
    adopt::{self, AdoptError, Adoption, LeftOut},
    data_url::MAXIMUM_CONTENT,
    expectation::{Expectation, Expected, FileExpectation, Owner, Source, Thing},
    observation::{FileType, Observation},
};
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

/// Longest name of an object in Kubernetes.
const MAXIMUM_NAME: usize = 253;

/// The MachineConfig that is made.
#[derive(Debug, Clone, Copy)]
pub struct ManifestChoice<'a> {
    /// Its name; `None`: one made from the role.
    pub name: Option<&'a str>,
    /// Role of the pools that select it.
    pub role: &'a str,
    /// Whether it has contents that the drift policy marks as secret.
    pub secrets: bool,
}

impl ManifestChoice<'_> {
    fn name(&self) -> Cow<'_, str> {
        self.name.map_or_else(|| format!("99-{}-adopted", self.role).into(), Cow::Borrowed)
    }
}

/// The present state of paths.
#[derive(Debug)]
pub struct AdoptedPaths {
    /// A MachineConfig manifest.
    pub yaml: String,
    /// What it does not declare.
    pub left_out: Vec<LeftOut>,
    /// Whether a content is missing because it is secret.
    pub withheld: bool,
}

/// Why there is no manifest.
#[derive(Debug, thiserror::Error)]
pub enum AdoptionError {
    /// The content of a declared thing cannot be decoded.
    #[error(transparent)]
    Desired(#[from] DesiredError),
    /// The manifest cannot be made.
    #[error(transparent)]
    Manifest(#[from] AdoptError),
    /// No MachineConfig can hold the file.
    #[error("{}: larger than a MachineConfig may be", .0.display())]
    TooLarge(PathBuf),
    /// The file cannot be read.
    #[error("read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: Unreadable,
    },
}

impl AdoptionError {
    /// Whether the mistake is in the arguments or configs, and not on the host.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Desired(error) => error.is_input(),
            Self::TooLarge(_) => true,
            Self::Manifest(_) | Self::Read { .. } => false,
        }
    }
}

/// Kubernetes accepts no object of this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a Kubernetes name: lower-case letters, digits, `-` and `.`, a letter or digit at both ends")]
pub struct ObjectNameError;

/// Checks the name of a MachineConfig or a role.
///
/// # Errors
/// Kubernetes does not accept it.
pub fn check_name(text: &str) -> Result<(), ObjectNameError> {
    let end = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    let inside = |character: char| end(character) || matches!(character, '-' | '.');
    let is_name = text.len() <= MAXIMUM_NAME
        && text.chars().all(inside)
        && text.starts_with(end)
        && text.ends_with(end);
    if is_name { Ok(()) } else { Err(ObjectNameError) }
}

/// A path as it is now.
struct AdoptedPath<'a> {
    path: &'a Path,
    expectation: Option<Expectation>,
    observation: Observation,
    bytes: Option<Vec<u8>>,
}

/// Makes a MachineConfig that declares the present state of the paths.
///
/// # Errors
/// Bad input, and a file that cannot be read or that changes meanwhile.
pub async fn adopt(
    host: &DeclaredHost,
    paths: &[PathBuf],
    choice: ManifestChoice<'_>,
) -> Result<AdoptedPaths, AdoptionError> {
    let mut restorer = host.restorer();
    let mut found = Vec::new();
    for path in paths {
        let mut expectations: Vec<Option<Expectation>> = host
            .things_at(path)?
            .into_iter()
            // Where nothing may be, the path is undeclared.
            .filter(|one| *one.thing.path() == **path && one.expected != Expected::Absent)
            .map(Some)
            .collect();
        if expectations.is_empty() {
            expectations.push(None);
        }
        for expectation in expectations {
            let undeclared = undeclared(path);
            let asked = expectation.as_ref().unwrap_or(&undeclared);
            let (observation, _) = restorer.observe_and_compare(asked, &host.desired().ids).await;
            let bytes = bytes(host, path, &observation, choice.secrets)?;
            found.push(AdoptedPath { path, expectation, observation, bytes });
        }
    }
    let adoptions: Vec<Adoption<'_>> = found
        .iter()
        .map(|found| Adoption {
            path: found.path,
            expectation: found.expectation.as_ref(),
            observation: &found.observation,
            bytes: found.bytes.as_deref(),
        })
        .collect();
    let fragment = adopt::adopt(&choice.name(), choice.role, &adoptions)?;
    let withheld = found.iter().any(|found| match &found.observation {
        Observation::Object(object) => object.file_type == FileType::Regular && found.bytes.is_none(),
        _ => false,
    });
    Ok(AdoptedPaths { yaml: fragment.yaml, left_out: fragment.left_out, withheld })
}

/// A file's content, unless a rule of the policy marks it as secret.
fn bytes(
    host: &DeclaredHost,
    path: &Path,
    observation: &Observation,
    secrets: bool,
) -> Result<Option<Vec<u8>>, AdoptionError> {
    let Observation::Object(object) = observation else { return Ok(None) };
    let is_secret = host.decision(path).rule.is_some_and(|(rule, _)| rule.secret);
    if object.file_type != FileType::Regular || (is_secret && !secrets) {
        return Ok(None);
    }
    if object.size > MAXIMUM_CONTENT as u64 {
        return Err(AdoptionError::TooLarge(path.to_owned()));
    }
    let opened = host.observer.open_file(path).map_err(Unreadable::from);
    let read = opened.and_then(|file| bounded::read_open(file, MAXIMUM_CONTENT as u64));
    read.map(Some).map_err(|source| AdoptionError::Read { path: path.to_owned(), source })
}

/// The expectation by which an undeclared path is observed.
fn undeclared(path: &Path) -> Expectation {
    Expectation {
        thing: Thing::file(path),
        expected: Expected::File(FileExpectation {
            content: None,
            keys: Box::default(),
            layout_free: false,
            mode: 0,
            user: Owner::Undeclared,
            group: Owner::Undeclared,
            may_be_missing: true,
            xattrs: None,
        }),
        ssh_keys: false,
        label: None,
        source: Source::new(String::new(), String::new()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_without_a_name_is_named_after_its_role() {
        let choice = ManifestChoice { name: None, role: "infra", secrets: false };
        assert_eq!(choice.name(), "99-infra-adopted");
        assert_eq!(ManifestChoice { name: Some("a"), ..choice }.name(), "a");
    }
}
