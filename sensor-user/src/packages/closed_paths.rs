//! The directories that a policy closes, as its rules name them and as they are on the disk.
//!
//! In: the policy's rules. Out: the directories of paths and globs; those that are links to other closed directories, such as `/etc/init.d` on hosts
//! of RHEL; and the places of those to which links lead on the way, such as `/lib/udev/rules.d`. A link to a directory that is not closed is
//! left out: it then differs from a directory, because files that nothing closes would take the place of the closed ones.

use super::globs;
use crate::observation::{Observer, resolve::HANDLE};
use nix::{
    fcntl::OFlag,
    libc,
    sys::stat::{FileStat, fstat},
};
use sensor_model::drift_policy::{DriftAction, DriftPolicy};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Directories that a policy closes or leaves open.
#[derive(Debug, Default)]
pub(super) struct ClosedPaths {
    /// All of them, as rules and globs name them, and as they are on the disk.
    pub(super) all: BTreeSet<PathBuf>,
    /// The directories that match the glob of a rule, by the rule's path.
    pub(super) matching: BTreeMap<String, Vec<PathBuf>>,
    /// Those that are other ones, by a link at their end or on the way.
    pub(super) linked: BTreeMap<PathBuf, PathBuf>,
    /// The places of the others to which links lead on the way.
    pub(super) written: BTreeMap<PathBuf, PathBuf>,
}

impl ClosedPaths {
    /// Those of a policy on a host. Adds the directories in which globs look for names to `searched`.
    pub(super) fn of(observer: &Observer, policy: &DriftPolicy, searched: &mut BTreeSet<PathBuf>) -> Self {
        let mut found = Self::default();
        let mut closed: BTreeSet<PathBuf> = BTreeSet::new();
        for (rule, _) in policy.closed_or_left_open() {
            let named = match rule.directory() {
                Some(path) => vec![path.to_owned()],
                None => globs::directories(observer, &rule.path, searched),
            };
            found.all.extend(named.iter().cloned());
            if rule.action != DriftAction::Ignore {
                closed.extend(named.iter().cloned());
            }
            if rule.directory().is_none() {
                found.matching.insert(rule.path.clone(), named);
            }
        }
        let mut places = Places { observer, above: BTreeMap::new() };
        for path in &found.all {
            let place = places.of(path);
            let is_other = place != *path;
            // A link below a directory that others than root can write is not followed.
            let leads = || observer.root().walk(path).end.ok().map(|(_, real)| real);
            let end = if is_other || is_link(observer, path) { leads() } else { None };
            match end.filter(|real| real != path && closed.contains(real)) {
                Some(real) => drop(found.linked.insert(path.clone(), real)),
                None if is_other => drop(found.written.insert(path.clone(), place)),
                None => {}
            }
        }
        found.all.extend(found.written.values().cloned());
        found
    }
}

/// The places of paths. Many paths have the same directory above them.
struct Places<'a> {
    observer: &'a Observer,
    /// The places of directories.
    above: BTreeMap<PathBuf, PathBuf>,
}

impl Places<'_> {
    /// The path without links on the way to it.
    fn of(&mut self, path: &Path) -> PathBuf {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return path.to_owned() };
        if let Some(place) = self.above.get(above) {
            return place.join(name);
        }
        let place = self.observer.root().place(path);
        self.above.insert(above.to_owned(), place.parent().unwrap_or(above).to_owned());
        place
    }
}

fn is_link(observer: &Observer, path: &Path) -> bool {
    let is_link = |stat: &FileStat| stat.st_mode & libc::S_IFMT == libc::S_IFLNK;
    let found = observer.root().open_at(path, HANDLE | OFlag::O_NOFOLLOW).and_then(fstat);
    found.as_ref().is_ok_and(is_link)
}
