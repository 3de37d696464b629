//! Manifests as an apply reads and keeps them.
//!
//! In: paths, or the directory of a generation. Out: bytes that were read once, what they say together, and the names
//! under which they are kept. Of a kept config nothing is the fault of who calls.

use crate::{
    cli::told,
    desired::{self, Files, Unknown, read},
};
use anyhow::Context as _;
use sensor_model::{ignition::Purpose, merge::Rendered};
use std::path::Path;

/// File names and bytes.
pub(crate) type Manifests = Files;

/// What they say together.
pub(crate) fn merged(read: &Files, purpose: Purpose, unknown: Unknown) -> anyhow::Result<Rendered> {
    let names = || read.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let merged = desired::merged(read, purpose, unknown)?;
    merged.with_context(|| format!("no MachineConfig or Ignition config in {}", names()))
}

/// The manifests as they are kept: by a name that keeps their order, and their bytes.
pub(crate) fn kept(read: Files) -> Manifests {
    let name = |(number, (path, bytes)): (usize, (String, Vec<u8>))| {
        let path = Path::new(&path);
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // Only files with a known ending are read again in a directory.
        let ending = if desired::has_known_ending(path) { "" } else { ".yaml" };
        (format!("{number:03}-{name}{ending}"), bytes)
    };
    read.into_iter().enumerate().map(name).collect()
}

/// The rendered config of a generation that is kept. One that is damaged is nobody's bad input.
pub(crate) fn generation(path: &Path) -> anyhow::Result<(Manifests, Rendered)> {
    let paths = [path.to_owned()];
    let load = || {
        let read = read(&paths)?;
        // It was accepted when it was applied, perhaps by another version.
        let rendered = merged(&read, Purpose::Verify, Unknown::Warn)?;
        let name = |path: &str| {
            Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
        };
        Ok((read.into_iter().map(|(path, bytes)| (name(&path), bytes)).collect(), rendered))
    };
    load().map_err(|error: anyhow::Error| {
        anyhow::anyhow!("the config that is kept in {} cannot be used: {}", path.display(), told(&error))
    })
}
