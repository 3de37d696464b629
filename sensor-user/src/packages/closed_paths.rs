//! The directories that a policy closes, as its rules name them and as they are on the disk.
//!
//! In: the policy's rules. Out: the directories of paths and globs; those that are links to other closed directories, such as `/etc/init.d` on hosts
//! of RHEL; and the places of those to which links lead on the way, such as `/lib/udev/rules.d`. A link to a directory that is not closed is
//! left out: it then differs from a directory, because files that nothing closes would take the place of the closed ones.

use super::globs;
use crate::observation::Observer;
use sensor_model::drift_policy::{DriftAction, DriftPolicy};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Directories that a policy closes.
#[derive(Debug, Default)]
pub(super) struct ClosedPaths {
    /// Those that a policy closes, as rules and globs name them, and as they are on the disk.
    pub(super) roots: BTreeSet<PathBuf>,
    /// The directories that match the glob of a rule, by the rule's path, also those that the rule leaves open.
    pub(super) matching: BTreeMap<String, Vec<PathBuf>>,
    /// Directories whose path leads through links to another closed directory, with the path of that one.
    pub(super) linked: BTreeMap<PathBuf, PathBuf>,
    /// The places of the others to which links lead on the way.
    pub(super) written: BTreeMap<PathBuf, PathBuf>,
}

impl ClosedPaths {
    /// Those of a policy on a host. Adds the directories in which globs look for names to `searched`.
    pub(super) fn of(observer: &Observer, policy: &DriftPolicy, searched: &mut BTreeSet<PathBuf>) -> Self {
        let mut found = Self::default();
        let mut all: BTreeSet<PathBuf> = BTreeSet::new();
        let mut closed: BTreeSet<PathBuf> = BTreeSet::new();
        for (rule, _) in policy.closed_or_left_open() {
            let named = match rule.directory() {
                Some(path) => vec![path.to_owned()],
                None => globs::directories(observer, &rule.path, searched),
            };
            all.extend(named.iter().cloned());
            if rule.action != DriftAction::Ignore {
                closed.extend(named.iter().cloned());
            }
            if rule.directory().is_none() {
                found.matching.insert(rule.path.clone(), named);
            }
        }
        let mut places = Places { observer, above: BTreeMap::new() };
        for path in all {
            // A link below a directory that others than root can write is not followed.
            let end = observer.root().walk(&path).end.ok().map(|(_, real)| real);
            if end.as_ref() == Some(&path) {
                continue;
            }
            let place = places.of(&path);
            if let Some(real) = end.filter(|real| closed.contains(real)) {
                found.linked.insert(path, real);
            } else if place != path {
                found.written.insert(path, place);
            }
        }
        let places = found.written.iter().filter(|(path, _)| closed.contains(*path)).map(|(_, place)| place);
        found.roots = places.chain(found.linked.keys()).cloned().collect();
        found.roots.extend(closed);
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
