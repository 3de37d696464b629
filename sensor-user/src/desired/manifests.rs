//! MachineConfigs and Ignition configs: parsed one by one, and merged.
//!
//! In: paths, or bytes that were read already. Out: objects, or the rendered config. A warning about a MachineConfig is logged and
//! is no error.

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
pub(super) fn objects(paths: &[PathBuf], unknown: Unknown) -> Result<Manifest, DesiredError> {
    parsed(&files::read(paths)?, Purpose::Compare, unknown)
}

/// The rendered config of a source, with contents.
///
/// # Errors
/// A file that cannot be read or used, and files without any config.
pub fn rendered(source: &StateSource, unknown: Unknown) -> Result<Rendered, DesiredError> {
    of_files(source.manifests(), &files::read(source.manifests())?, unknown)
}

/// The rendered config of files that were read from `paths`. Without any path nothing is declared.
pub(super) fn of_files(paths: &[PathBuf], files: &Files, unknown: Unknown) -> Result<Rendered, DesiredError> {
    if paths.is_empty() {
        return Ok(Rendered::default());
    }
    let names = || paths.iter().map(|path| path.display().to_string()).collect();
    merge_all(files, Purpose::Verify, unknown, names)
}

/// The rendered config of files that were read already.
///
/// # Errors
/// A file that cannot be used, and files without any config.
pub fn merged(files: &Files, purpose: Purpose, unknown: Unknown) -> Result<Rendered, DesiredError> {
    merge_all(files, purpose, unknown, || files.iter().map(|(name, _)| name.clone()).collect())
}

/// One side of a comparison of configs.
///
/// # Errors
/// A file that cannot be read or used, and one without any config.
pub fn compared(path: &Path, unknown: Unknown) -> Result<Rendered, DesiredError> {
    let files = files::read(&[path.to_owned()])?;
    merge_all(&files, Purpose::Compare, unknown, || vec![path.display().to_string()])
}

/// The name of one side of a comparison: that of its MachineConfig, or that of its file if there are several.
pub fn side_name(side: &Rendered, path: &Path) -> String {
    match &side.sources[..] {
        [source, ..] if side.sources.iter().all(|other| other.origin == source.origin) => {
            source.machine_config.to_string()
        }
        _ => path.display().to_string(),
    }
}

/// The merge of files. Errors use these names for them.
fn merge_all(
    files: &Files,
    purpose: Purpose,
    unknown: Unknown,
    names: impl FnOnce() -> Vec<String>,
) -> Result<Rendered, DesiredError> {
    let Manifest { mut machine_configs, others, .. } = parsed(files, purpose, unknown)?;
    if machine_configs.len() > 1 {
        return Ok(merge::merge(machine_configs)?);
    }
    let Some(config) = machine_configs.pop() else {
        let mut others: Vec<String> =
            others.iter().map(|object| format!("{} ({})", object.kind, object.api_version)).collect();
        others.sort_unstable();
        others.dedup();
        return Err(DesiredError::NoConfig { files: names(), others });
    };
    // A single config may be a rendered one, which also holds what a merge takes from no single config.
    Ok(merge::rendered(config)?)
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
