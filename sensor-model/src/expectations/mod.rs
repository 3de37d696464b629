//! From a rendered config to what every managed thing should be.
//!
//! The merge comes in; one expectation per thing goes out, sorted and unique, each with the
//! MachineConfig that says so. Contents become size and digest here; [`expected_bytes`] decodes them
//! again when a repair or a diff needs them. What nobody declares is expected only where declaring one
//! thing closes the place to others: drop-in directories of units with drop-ins, and users' ssh keys.

mod keys;
mod os;
mod units;

pub use units::install_directories;

#[cfg(test)]
mod tests;

use crate::{
    data_url::{self, ContentError},
    expectation::{
        Content, DirectoryExpectation, Expectation, Expected, FileExpectation, LinkExpectation, Owner,
        Source, Thing,
    },
    ignition::{Dialect, spec},
    merge::{Rendered, RenderedFile, Sourced},
    text::quote,
};
use sha2::{Digest as _, Sha256};
use std::path::Path;

/// Mode of a file that declares none.
pub(crate) const FILE_MODE: u32 = 0o644;

/// Mode of a directory that declares none.
pub(crate) const DIRECTORY_MODE: u32 = 0o755;

/// Declared files that are never compared: the Machine Config Daemon's certificate writer changes them
/// without a new MachineConfig.
pub const IGNORED_FILES: [&str; 3] = [
    "/etc/kubernetes/kubelet-ca.crt",
    "/etc/kubernetes/static-pod-resources/configmaps/cloud-config/ca-bundle.pem",
    "/etc/mco/internal-registry-pull-secret.json",
];

/// Why no expectation could be made of a rendered file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: MachineConfig {}: couldn't decode file {}: {reason}", source_of.origin, quote(&source_of.machine_config), quote(path))]
pub struct ExpectationError {
    /// Who said the file last.
    pub source_of: Source,
    /// The file.
    pub path: String,
    /// What is wrong with its contents. Each MachineConfig was fine by itself, so that this comes
    /// from their merge: a source of one under the compression of another.
    pub reason: ContentError,
}

/// What every managed thing should be, sorted by thing, no thing twice.
///
/// # Errors
/// A file whose merged contents cannot be decoded.
pub fn expectations(rendered: &Rendered) -> Result<Vec<Expectation>, ExpectationError> {
    let mut found = Vec::with_capacity(rendered.files.len() + rendered.units.len() * 2);
    for (path, file) in &rendered.files {
        if IGNORED_FILES.contains(&path.as_str()) {
            continue;
        }
        found.push(file_expectation(path, file)?);
    }
    for (path, Sourced { value: directory, source }) in &rendered.directories {
        found.push(Expectation {
            thing: Thing::directory(path),
            expected: Expected::Directory(DirectoryExpectation {
                mode: mode(directory.mode, DIRECTORY_MODE),
                user: user(directory.user.as_ref()),
                group: group(directory.group.as_ref()),
            }),
            ssh_keys: false,
            label: None,
            source: source.clone(),
        });
    }
    for (path, Sourced { value: link, source }) in &rendered.links {
        found.push(Expectation {
            thing: Thing::link(path),
            expected: Expected::Link(LinkExpectation {
                target: link.target.clone().unwrap_or_default().into(),
                hard: link.hard == Some(true),
                user: user(link.user.as_ref()),
                group: group(link.group.as_ref()),
            }),
            ssh_keys: false,
            label: None,
            source: source.clone(),
        });
    }
    units::expectations(rendered, &mut found);
    keys::expectations(rendered, &mut found);
    os::expectations(rendered, &mut found);
    found.sort_by(|a, b| a.thing.cmp(&b.thing));
    debug_assert!(found.windows(2).all(|pair| pair[0].thing != pair[1].thing), "no thing is expected twice");
    Ok(found)
}

/// The bytes that a declared file should have, decoded from the rendered config again; `None` when
/// nothing declares the content of that path.
pub fn expected_bytes(rendered: &Rendered, path: &Path) -> Option<Vec<u8>> {
    let text = path.to_str()?;
    if let Some(file) = rendered.files.get(text) {
        return file_bytes(&file.value).ok().flatten();
    }
    units::bytes(rendered, path).or_else(|| keys::bytes(rendered, path))
}

fn file_expectation(path: &str, file: &Sourced<RenderedFile>) -> Result<Expectation, ExpectationError> {
    let bytes = file_bytes(&file.value).map_err(|reason| ExpectationError {
        source_of: file.source.clone(),
        path: path.to_owned(),
        reason,
    })?;
    let declared = &file.value.file;
    let ssh_keys = is_authorized_keys(Path::new(path));
    let keys = match &bytes {
        Some(bytes) if ssh_keys => crate::authorized_keys::parse(bytes).keys,
        _ => Vec::new(),
    };
    Ok(Expectation {
        thing: Thing::file(path),
        expected: Expected::File(FileExpectation {
            content: bytes.as_deref().map(digest),
            keys,
            layout_free: false,
            mode: mode(declared.mode, FILE_MODE),
            user: user(declared.user.as_ref()),
            group: group(declared.group.as_ref()),
            may_be_missing: false,
        }),
        ssh_keys,
        label: None,
        source: file.source.clone(),
    })
}

/// `None` when the content is not declared.
pub(crate) fn file_bytes(
    RenderedFile { file, dialect }: &RenderedFile,
) -> Result<Option<Vec<u8>>, ContentError> {
    let contents = file.contents.as_ref();
    let source = contents.and_then(|contents| contents.source.as_deref()).filter(|source| !source.is_empty());
    let (Some(contents), Some(source)) = (contents, source) else {
        // To the Machine Config Operator no source is an empty file; to Ignition, whatever is there
        // may stay unless it is to be overwritten.
        let empty = match (dialect, file.overwrite) {
            (_, Some(overwrite)) => overwrite,
            (Dialect::MachineConfig, None) => true,
            (Dialect::Plain, None) => false,
        };
        return Ok(empty.then(Vec::new));
    };
    let bytes = data_url::decode(source, contents.compression.as_deref())?;
    if let Some(hash) = contents.verification.as_ref().and_then(|verification| verification.hash.as_deref()) {
        data_url::verify(hash, &bytes)?;
    }
    Ok(Some(bytes))
}

/// A file that sshd reads keys from.
fn is_authorized_keys(path: &Path) -> bool {
    let parent = path.parent().and_then(Path::file_name);
    path.file_name().is_some_and(|name| name == "authorized_keys" || name == "authorized_keys2")
        && parent.is_some_and(|parent| parent == ".ssh")
        || parent.is_some_and(|parent| parent == "authorized_keys.d")
}

fn digest(bytes: &[u8]) -> Content {
    Content { size: bytes.len() as u64, sha256: Sha256::digest(bytes).into() }
}

/// The range was checked when the config was read.
pub(crate) fn mode(declared: Option<i64>, default: u32) -> u32 {
    declared.and_then(|mode| u32::try_from(mode).ok()).map_or(default, |mode| mode & 0o7777)
}

pub(crate) fn user(declared: Option<&spec::NodeUser>) -> Owner {
    declared.map_or(Owner::Id(0), |user| owner(user.id, user.name.as_deref()))
}

pub(crate) fn group(declared: Option<&spec::NodeGroup>) -> Owner {
    declared.map_or(Owner::Id(0), |group| owner(group.id, group.name.as_deref()))
}

fn owner(id: Option<i64>, name: Option<&str>) -> Owner {
    match (id.and_then(|id| u32::try_from(id).ok()), name) {
        (Some(id), _) => Owner::Id(id),
        (None, Some(name)) if !name.is_empty() => Owner::Name(name.to_owned()),
        (None, _) => Owner::Id(0),
    }
}
