//! The directories that a glob names.
//!
//! In: a glob in which `*` stays within a name. Out: the directories that match it now, without links to directories. It reads only
//! directories on the way, and follows the glob name by name.

use crate::{
    observation::{Observer, resolve::others_can_write},
    sys,
};
use nix::errno::Errno;
use sensor_model::name_patterns::NamePatterns;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Most directories that one glob names, and most names that it looks at in one directory.
const MOST: usize = 4096;
/// Most of them in a directory in which others than root can make names. Its owner may fill it, and so leave no room for the directories of
/// others.
const MOST_OF_OTHERS: usize = 64;

/// The directories that match, sorted. Adds the directories in which it looked for names to `searched`: a new name there may match.
pub(super) fn directories(
    observer: &Observer,
    pattern: &str,
    searched: &mut BTreeSet<PathBuf>,
) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    let mut is_cut = false;
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        if is_glob(part) {
            searched.extend(found.iter().take(MOST.saturating_sub(searched.len())).cloned());
        }
        found =
            found.iter().flat_map(|directory| matching(observer, directory, part)).take(MOST + 1).collect();
        is_cut |= found.len() > MOST;
        found.truncate(MOST);
    }
    found.retain(|path| observer.root().open_at(path, sys::DIRECTORY).is_ok());
    found.sort();
    if is_cut {
        tracing::warn!(
            pattern,
            most = MOST,
            "A glob of closed directories names too many; the others are not closed."
        );
    }
    found
}

fn is_glob(part: &str) -> bool {
    part.contains(['*', '?', '[', '{', '\\'])
}

/// The directories in a directory whose name matches, and what is at a name without a glob.
fn matching(observer: &Observer, directory: &Path, part: &str) -> Vec<PathBuf> {
    let Ok(names) = NamePatterns::new(vec![part.to_owned()]) else { return Vec::new() };
    if !is_glob(part) {
        return vec![directory.join(part)];
    }
    let mut found = Vec::new();
    let mut is_of_others = false;
    let opened = observer.root().open_at(directory, sys::DIRECTORY);
    let listed = opened.and_then(|opened| {
        is_of_others = others_can_write(&opened)?;
        sys::each_name(opened, |name: &OsStr| {
            if names.matches(&name.to_string_lossy()) {
                found.push(directory.join(name));
            }
            if found.len() < MOST { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
    });
    if let Err(errno) = listed
        && !matches!(errno, Errno::ENOENT | Errno::ENOTDIR)
    {
        tracing::warn!(directory = %directory.display(), %errno, "Cannot look for closed directories in a directory.");
    }
    found.sort();
    let most = if is_of_others { MOST_OF_OTHERS } else { MOST };
    let is_directory = |path: &PathBuf| observer.root().open_at(path, sys::DIRECTORY).is_ok();
    let looked_at = found.len();
    found = found.into_iter().filter(is_directory).take(most + 1).collect();
    if looked_at == MOST || found.len() > most {
        found.truncate(most);
        tracing::warn!(
            directory = %directory.display(),
            part,
            "A directory has too many names that the glob of closed directories matches; some of them are not closed."
        );
    }
    found
}
