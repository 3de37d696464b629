//! Manifests that a command compares or renders, from files and directories.
//!
//! In: paths. Out: their objects, in the order of the paths and of the names in each directory. Every error
//! names the file. Unusual things in a MachineConfig are warned of and no error.

use crate::{
    bounded,
    cli::BadInput,
    desired::{self, Unknown},
};
use anyhow::Context as _;
use sensor_model::{
    ignition::Purpose,
    machine_config::{Manifest, parse_for},
    merge::{self, Rendered},
};
use std::path::{Path, PathBuf};

/// Reads all objects.
///
/// # Errors
/// A file that cannot be read or used: the input's fault.
pub fn read(paths: &[PathBuf], purpose: Purpose, unknown: Unknown) -> anyhow::Result<Manifest> {
    let mut all = Manifest::default();
    for path in desired::files(paths).map_err(BadInput::wrap)? {
        let bytes = bytes(&path)?;
        let manifest = parse_for(&path.display().to_string(), &bytes, purpose)?;
        unknown.check(&manifest)?;
        for config in &manifest.machine_configs {
            for warning in &config.warnings {
                tracing::warn!(machine_config = &*config.source.machine_config, "{warning}");
            }
        }
        all.machine_configs.extend(manifest.machine_configs);
        all.others.extend(manifest.others);
    }
    Ok(all)
}

/// Reads one file.
///
/// # Errors
/// Its name, and why it cannot be read: the input's fault.
pub fn bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = bounded::read(path, bounded::CONFIG).with_context(|| format!("read {}", path.display()));
    bytes.map_err(BadInput::wrap)
}

/// Reads one side of a comparison: one MachineConfig as it is, several merged as a pool's.
///
/// # Errors
/// A file that cannot be read or used, and one without any MachineConfig: the input's fault.
pub fn side(path: &Path, unknown: Unknown) -> anyhow::Result<Rendered> {
    let mut configs = read(&[path.to_owned()], Purpose::Compare, unknown)?.machine_configs;
    if configs.len() > 1 {
        return Ok(merge::merge(configs)?);
    }
    match configs.pop() {
        Some(config) => Ok(merge::rendered(config)?),
        None => Err(BadInput::because(format!("{}: no MachineConfig in it", path.display()))),
    }
}

/// How a side is called: by its MachineConfig, or by its file where there are several.
pub fn name(side: &Rendered, path: &Path) -> String {
    match &side.sources[..] {
        [source, ..] if side.sources.iter().all(|other| other.origin == source.origin) => {
            source.machine_config.to_string()
        }
        _ => path.display().to_string(),
    }
}
