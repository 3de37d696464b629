//! The last usable configs and policies, for a start that finds unusable ones.
//!
//! In: the files of each successful read of `--config` and `--policy`. Out: copies of them in the state directory, which only
//! root may read. The store of applies keeps applied configs, so for those this module keeps only the policies.

use super::{error::DesiredError, files::Files};
use crate::bounded;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const DIRECTORY: &str = "last-config";
const CONFIGS: &str = "configs";
const POLICIES: &str = "policies";

/// Their directory in a state directory.
pub(crate) fn directory(state: &Path) -> PathBuf {
    state.join(DIRECTORY)
}

/// Keeps files as the last usable ones: all of them or none.
pub(super) fn keep(directory: &Path, configs: &Files, policies: &Files) -> Result<(), DesiredError> {
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
    for path in [&new, &new.join(CONFIGS), &new.join(POLICIES)] {
        make(path)?;
    }
    for (name, bytes) in &wanted {
        let path = new.join(name);
        let own = path.parent().unwrap_or(&new);
        make(own)?;
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        written
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .and_then(|()| File::open(own)?.sync_all())
            .map_err(failed("write", &path))?;
    }
    for path in [&new.join(CONFIGS), &new.join(POLICIES), &new] {
        sync(path)?;
    }
    match renameat_with(CWD, &new, CWD, directory, RenameFlags::EXCHANGE) {
        Err(rustix::io::Errno::NOENT) => fs::rename(&new, directory),
        exchanged => exchanged.map_err(io::Error::from),
    }
    .map_err(failed("replace", directory))?;
    sync(directory.parent().unwrap_or(directory))?;
    remove(&new)
}

fn failed(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> DesiredError {
    move |error| DesiredError::Keep { operation, path: path.to_owned(), error }
}

fn make(directory: &Path) -> Result<(), DesiredError> {
    DirBuilder::new().mode(0o700).create(directory).map_err(failed("make", directory))
}

fn sync(directory: &Path) -> Result<(), DesiredError> {
    File::open(directory).and_then(|opened| opened.sync_all()).map_err(failed("sync", directory))
}

/// The configs that are kept, in their order; `None` where nothing was ever kept.
pub(super) fn configs(directory: &Path) -> Option<Vec<PathBuf>> {
    kept_files(&directory.join(CONFIGS)).ok()
}

/// The policies that are kept, in their order.
pub(super) fn policies(directory: &Path) -> Vec<PathBuf> {
    kept_files(&directory.join(POLICIES)).unwrap_or_default()
}

/// A directory that keeps the order, and in it the file's own name, which is the name of an Ignition config.
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

fn remove(directory: &Path) -> Result<(), DesiredError> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", directory)(error)),
        _ => Ok(()),
    }
}
