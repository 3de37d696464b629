//! The last configs and policies that could be used, for a start that finds unusable ones.
//!
//! In: the files of each successful read of `--config` and `--policy`. Out: the same files in the state directory, which is
//! closed to others than root, and the options that read them. The configs that `holdfast apply` applied are kept elsewhere and
//! count more; beside them only policies are kept here.

use super::{Desired, Files, apart};
use crate::agent::Options;
use crate::{bounded, observation::Observer};
use anyhow::{Context as _, bail};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const DIRECTORY: &str = "last-config";
const CONFIGS: &str = "configs";
const POLICIES: &str = "policies";

/// The subject for which a daemon without usable configs is not ready.
pub(crate) const CONFIG: &str = "config";

/// Where they are in a state directory.
pub(crate) fn directory(state: &Path) -> PathBuf {
    state.join(DIRECTORY)
}

/// Keeps files as the last that could be used; all of them or none.
pub(crate) fn keep(directory: &Path, configs: &Files, policies: &Files) -> anyhow::Result<()> {
    let wanted: Vec<(PathBuf, &[u8])> = [(CONFIGS, configs), (POLICIES, policies)]
        .into_iter()
        .flat_map(|(part, files)| {
            let files = files.iter().enumerate();
            files
                .map(move |(number, (name, bytes))| (Path::new(part).join(kept_name(number, name)), &**bytes))
        })
        .collect();
    if is_kept(directory, &wanted) {
        return Ok(());
    }
    let new = directory.with_extension("new");
    remove(&new)?;
    for path in [new.clone(), new.join(CONFIGS), new.join(POLICIES)] {
        DirBuilder::new().mode(0o700).create(&path).with_context(|| format!("make {}", path.display()))?;
    }
    for (name, bytes) in &wanted {
        let path = new.join(name);
        let own = path.parent().unwrap_or(&new);
        DirBuilder::new().mode(0o700).create(own).with_context(|| format!("make {}", own.display()))?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| File::open(own)?.sync_all())
            .with_context(|| format!("write {}", path.display()))?;
    }
    for path in [new.join(CONFIGS), new.join(POLICIES), new.clone()] {
        File::open(&path)?.sync_all()?;
    }
    let exchanged = renameat_with(CWD, &new, CWD, directory, RenameFlags::EXCHANGE);
    if exchanged == Err(rustix::io::Errno::NOENT) {
        fs::rename(&new, directory)?;
    } else {
        exchanged?;
    }
    let parent = directory.parent().unwrap_or(directory);
    File::open(parent)?.sync_all().with_context(|| format!("write {}", parent.display()))?;
    remove(&new)
}

/// A directory that keeps the order, and in it the file's own name, by which an Ignition config is called.
fn kept_name(number: usize, name: &str) -> PathBuf {
    let name = Path::new(name).file_name().unwrap_or_default();
    Path::new(&format!("{number:06}")).join(name)
}

/// The files that are kept of one kind, in their order.
fn kept_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for part in fs::read_dir(directory)? {
        for file in fs::read_dir(part?.path())? {
            files.push(file?.path());
        }
    }
    files.sort();
    Ok(files)
}

fn is_kept(directory: &Path, wanted: &[(PathBuf, &[u8])]) -> bool {
    let count = |part| fs::read_dir(directory.join(part)).map_or(0, Iterator::count);
    count(CONFIGS) + count(POLICIES) == wanted.len()
        && wanted.iter().all(|(name, bytes)| {
            bounded::read(&directory.join(name), bounded::CONFIG).is_ok_and(|kept| kept == *bytes)
        })
}

fn remove(directory: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// Reads what the options name. Where that cannot be used, the last that could be is read, and the options name it from then
/// on; then the daemon is not ready, for the reason that comes with it.
///
/// # Errors
/// Neither can be used: what is wrong with what the options name.
pub(crate) fn load(options: &mut Options, observer: &Observer) -> anyhow::Result<(Desired, Option<String>)> {
    options.name_given();
    let is_applied = are_applied(&options.configs, &options.state);
    let kept = directory(&options.state);
    let configs = match kept_files(&kept.join(CONFIGS)) {
        Ok(_) if is_applied => options.configs.clone(),
        Ok(configs) => configs,
        Err(_) => Vec::new(),
    };
    let refused = match apart::load(options, observer) {
        Ok(desired) if desired.nothing && !options.allow_empty && !is_applied && !configs.is_empty() => {
            anyhow::anyhow!(NOTHING)
        }
        Ok(desired) => return Ok((desired, None)),
        Err(error) if configs.is_empty() => return Err(error),
        Err(error) => error,
    };
    let given = (std::mem::replace(&mut options.configs, configs), std::mem::take(&mut options.policies));
    options.given = Some(given);
    options.policies = kept_files(&kept.join(POLICIES)).unwrap_or_default();
    match apart::load(options, observer) {
        Ok(desired) => {
            let reason = format!("{refused:#}");
            tracing::error!(
                kept = %kept.display(),
                "The configs or policies cannot be used, and the last that could be used stay in force: {reason}"
            );
            Ok((desired, Some(reason)))
        }
        Err(error) => {
            tracing::error!("The last configs that could be used cannot be used either: {error:#}");
            bail!(refused)
        }
    }
}

/// Why configs that declare nothing are refused.
pub(crate) const NOTHING: &str =
    "the configs declare nothing, and those before declared something; `--allow-empty` if that is meant";

/// Whether configs are those of an apply, which were accepted then.
pub(crate) fn are_applied(configs: &[PathBuf], state: &Path) -> bool {
    let applied = state.join("apply");
    !configs.is_empty() && configs.iter().all(|path| path.starts_with(&applied))
}

impl Options {
    /// Names again what the daemon was given, where the last that could be used was in its place.
    pub(crate) fn name_given(&mut self) {
        if let Some((configs, policies)) = self.given.take() {
            (self.configs, self.policies) = (configs, policies);
        }
    }

    /// The same, for another read.
    pub(crate) fn as_given(&self) -> Self {
        let mut options = self.clone();
        options.name_given();
        options
    }

    /// What the options name is the last that could be used.
    pub(crate) fn are_kept(&self) -> bool {
        self.given.is_some()
    }
}
