//! MachineConfigs and Ignition configs: what they say one by one, and what they say together.
//!
//! In: paths, or bytes that were read already. Out: objects, or the rendered config. Each warning about a MachineConfig is
//! logged and is no error.

use super::{error::DesiredError, files, files::Files, source::StateSource, unknown::Unknown};
use sensor_model::{
    ignition::Purpose,
    machine_config::{Manifest, parse_for},
    merge::{self, Rendered},
};
use std::path::{Path, PathBuf};

/// All objects in files and directories, in the order of the paths and of the names in each directory.
///
/// # Errors
/// A file that cannot be read or used.
pub fn objects(paths: &[PathBuf], unknown: Unknown) -> Result<Manifest, DesiredError> {
    parsed(&files::read(paths)?, Purpose::Compare, unknown)
}

/// The rendered config of a source, with contents.
///
/// # Errors
/// A file that cannot be read or used, and files without any config.
pub fn rendered(source: &StateSource, unknown: Unknown) -> Result<Rendered, DesiredError> {
    of_files(source.manifests(), &files::read(source.manifests())?, unknown)
}

/// The rendered config of files that were read from `paths`.
pub(super) fn of_files(paths: &[PathBuf], files: &Files, unknown: Unknown) -> Result<Rendered, DesiredError> {
    let names = || paths.iter().map(|path| path.display().to_string()).collect();
    merge_all(files, Purpose::Verify, unknown)?.ok_or_else(|| DesiredError::NoConfig(names()))
}

/// The rendered config of files that were read already.
///
/// # Errors
/// A file that cannot be used, and files without any config.
pub fn merged(files: &Files, purpose: Purpose, unknown: Unknown) -> Result<Rendered, DesiredError> {
    let names = || files.iter().map(|(name, _)| name.clone()).collect();
    merge_all(files, purpose, unknown)?.ok_or_else(|| DesiredError::NoConfig(names()))
}

/// One side of a comparison of configs.
///
/// # Errors
/// A file that cannot be read or used, and one without any config.
pub fn compared(path: &Path, unknown: Unknown) -> Result<Rendered, DesiredError> {
    merged(&files::read(&[path.to_owned()])?, Purpose::Compare, unknown).map_err(|error| match error {
        DesiredError::NoConfig(_) => DesiredError::NoConfig(vec![path.display().to_string()]),
        error => error,
    })
}

/// The name of one side of a comparison: its MachineConfig's, or its file's where there are several.
pub fn side_name(side: &Rendered, path: &Path) -> String {
    match &side.sources[..] {
        [source, ..] if side.sources.iter().all(|other| other.origin == source.origin) => {
            source.machine_config.to_string()
        }
        _ => path.display().to_string(),
    }
}

/// The merge of files; `None` where they hold no config.
fn merge_all(files: &Files, purpose: Purpose, unknown: Unknown) -> Result<Option<Rendered>, DesiredError> {
    let mut configs = parsed(files, purpose, unknown)?.machine_configs;
    if configs.len() > 1 {
        return Ok(Some(merge::merge(configs)?));
    }
    // A single config may be a rendered one, which also holds what a merge takes from no single config.
    Ok(configs.pop().map(merge::rendered).transpose()?)
}

fn parsed(files: &Files, purpose: Purpose, unknown: Unknown) -> Result<Manifest, DesiredError> {
    let mut all = Manifest::default();
    for (name, bytes) in files {
        let manifest = parse_for(name, bytes, purpose)?;
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
