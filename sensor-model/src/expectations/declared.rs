//! The bytes, the mode and the owner that a declaration means.
//!
//! In: a declared file, directory or link. Out: its decoded bytes, and its mode and owner with the defaults.

use crate::{
    data_url::{self, ContentError},
    expectation::{Content, Owner, Source},
    ignition::{Dialect, spec},
    merge::RenderedFile,
    text::quote,
};
use sha2::{Digest as _, Sha256};

/// Mode of a file that declares none.
pub(crate) const FILE_MODE: u32 = 0o644;

/// Mode of a directory that declares none.
pub(crate) const DIRECTORY_MODE: u32 = 0o755;

/// A rendered file whose contents cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: MachineConfig {}: couldn't decode file {}: {reason}", source_of.origin, quote(&source_of.machine_config), quote(path))]
pub struct ExpectationError {
    /// The last MachineConfig that declares the file.
    pub source_of: Source,
    /// The file.
    pub path: String,
    /// What is wrong with its contents. Each MachineConfig alone is valid, so the merge caused it: for example, the source of one
    /// with the compression of another.
    pub reason: ContentError,
}

/// The bytes of a file; `None` if the content is not declared.
pub(crate) fn file_bytes(
    RenderedFile { file, dialect }: &RenderedFile,
) -> Result<Option<Vec<u8>>, ContentError> {
    let contents = file.contents.as_ref();
    let source = contents.and_then(|contents| contents.source.as_deref()).filter(|source| !source.is_empty());
    let (Some(contents), Some(source)) = (contents, source) else {
        // For the Machine Config Operator a file without a source is empty. For Ignition an existing file stays unless
        // `overwrite` is set.
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

pub(super) fn digest(bytes: &[u8]) -> Content {
    Content { size: bytes.len() as u64, sha256: Sha256::digest(bytes).into() }
}

/// The parser has checked the range.
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
