//! The expectations of a rendered config.
//!
//! In: a rendered config. Out: one expectation for each thing, sorted and unique, each with its MachineConfig. An expectation has
//! only size and digest of a content; [`expected_bytes`] decodes the content again for a repair or a diff. A declaration also
//! forbids undeclared names in two cases: in the drop-in directory of a unit with drop-ins, and among a user's ssh keys. A drift
//! policy closes further directories ([`crate::closed`]).

mod declared;
mod keys;
mod os;
mod units;

pub use declared::ExpectationError;
pub(crate) use declared::{DIRECTORY_MODE, FILE_MODE, file_bytes, group, mode, user};
pub use units::install_directories;

#[cfg(test)]
mod tests;

use crate::{
    expectation::{DirectoryExpectation, Expectation, Expected, FileExpectation, LinkExpectation, Thing},
    merge::{Rendered, RenderedFile, Sourced},
};
use declared::digest;
use std::path::Path;

/// Declared files that are never compared: the Machine Config Daemon's certificate writer changes them without a new
/// MachineConfig.
pub const IGNORED_FILES: [&str; 3] = [
    "/etc/kubernetes/kubelet-ca.crt",
    "/etc/kubernetes/static-pod-resources/configmaps/cloud-config/ca-bundle.pem",
    "/etc/mco/internal-registry-pull-secret.json",
];

/// The expectations of all things, sorted by thing, each thing once.
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
            source: source.clone().into(),
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
            source: source.clone().into(),
        });
    }
    units::expectations(rendered, &mut found);
    keys::expectations(rendered, &mut found);
    os::expectations(rendered, &mut found);
    found.sort_by(|a, b| a.thing.cmp(&b.thing));
    debug_assert!(found.windows(2).all(|pair| pair[0].thing != pair[1].thing), "no thing is expected twice");
    Ok(found)
}

/// The declared bytes of a file, decoded from the rendered config; `None` if no MachineConfig declares the content of the path.
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
            keys: keys.into(),
            layout_free: false,
            mode: mode(declared.mode, FILE_MODE),
            user: user(declared.user.as_ref()),
            group: group(declared.group.as_ref()),
            may_be_missing: false,
            xattrs: None,
        }),
        ssh_keys,
        label: None,
        source: file.source.clone().into(),
    })
}

/// Whether sshd reads keys from a file of this name.
fn is_authorized_keys(path: &Path) -> bool {
    let parent = path.parent().and_then(Path::file_name);
    path.file_name().is_some_and(|name| name == "authorized_keys" || name == "authorized_keys2")
        && parent.is_some_and(|parent| parent == ".ssh")
        || parent.is_some_and(|parent| parent == "authorized_keys.d")
}
