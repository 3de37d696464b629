//! Directories that a drift policy closes.
//!
//! In: the expectations of a config, the policy, and the host's directories and packages. Out: an expectation for each closed
//! directory: each directory that a rule names, and each declared directory below it. An undeclared directory gets no expectation,
//! because the directory itself is an undeclared name. Nor does a directory whose name the rule excepts, or one below it, nor one that a rule
//! with the action `ignore` names. Each path is the one on the disk, without links on the way to it.

#[cfg(test)]
mod tests;

use crate::{
    drift_policy::{DriftAction, DriftPolicy, Rule},
    escape::name_text,
    expectation::{
        ClosedBy, ClosedDirectoryExpectation, Expectation, ExpectationSource, Expected, SYSTEMD_DIRECTORY,
        Thing,
    },
    expectations::IGNORED_FILES,
};
use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashSet},
    path::{Path, PathBuf},
};

/// Facts of a host about the directories that a policy closes.
#[derive(Debug, Clone, Default)]
pub struct HostDirectories {
    /// The directories that match the glob of a rule, by the rule's path.
    pub matching: BTreeMap<String, Vec<PathBuf>>,
    /// Closed directories that are links to other closed directories, with the paths of these. What is declared below such a link is
    /// declared below the other directory, and the link is no directory of its own.
    pub linked: BTreeMap<PathBuf, PathBuf>,
    /// The paths where nothing may be, each with its place: without links on the way to it.
    pub places: BTreeMap<PathBuf, PathBuf>,
    /// Closed directories, and directories of declared objects, to whose places links lead on the way, with these places. `/lib/udev` is
    /// `/usr/lib/udev` on most hosts.
    pub written: BTreeMap<PathBuf, PathBuf>,
    /// The paths where nothing may be that a baseline has.
    pub accepted: Vec<PathBuf>,
    /// What packages put below closed directories, and at the paths where nothing may be otherwise.
    pub packaged: Vec<PackagedPath>,
    /// A database of packages could not be read.
    pub packages_unread: bool,
    /// The booted image has no index, or one that is old or cannot be read.
    pub image_unindexed: bool,
    /// Without that index: `packaged` has all that the booted deployment ships in `/etc`, by its own copy.
    pub shipped_etc_known: bool,
}

impl HostDirectories {
    /// A closed directory as it is on the disk: without the links on the way to it.
    fn root_on_disk(&self, path: &Path) -> PathBuf {
        self.written.get(path).cloned().unwrap_or_else(|| self.on_disk(path).into_owned())
    }

    /// A path as it is on the disk: without the links on the way to it that are known. The object itself may be a link.
    pub(crate) fn on_disk<'a>(&self, path: &'a Path) -> Cow<'a, Path> {
        let place = |above: &'a Path| Some(self.written.get(above)?.join(path.strip_prefix(above).ok()?));
        let path = path.ancestors().skip(1).find_map(place).map_or(Cow::Borrowed(path), Cow::Owned);
        let below = |(link, directory): (&PathBuf, &PathBuf)| {
            let below = path.strip_prefix(link).ok().filter(|below| !below.as_os_str().is_empty())?;
            Some(directory.join(below))
        };
        self.linked.iter().find_map(below).map_or(path, Cow::Owned)
    }
}

/// A path that a package owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackagedPath {
    /// The path.
    pub path: PathBuf,
    /// It is a directory on this host.
    pub is_directory: bool,
}

/// A closed directory that a rule names.
struct Root<'a> {
    path: PathBuf,
    rule: &'a Rule,
    origin: &'a str,
}

impl Root<'_> {
    /// Whether the rule excepts a directory at or below the root: by its name, or by that of a directory above it.
    fn excepts(&self, path: &Path) -> bool {
        let below = path.strip_prefix(&self.path).unwrap_or(Path::new(""));
        below.iter().any(|name| self.rule.except.matches(&name_text(name)))
    }
}

/// The expectations of the directories that a policy closes, sorted by thing. A directory that the config closes already keeps the
/// config's expectation, and gets none here. `declared` are all expectations of the config, also those that the policy ignores.
pub fn closed_directories(
    declared: &[Expectation],
    policy: &DriftPolicy,
    host: &HostDirectories,
) -> Vec<Expectation> {
    let roots = roots(policy, host);
    if roots.iter().all(|root| root.rule.action == DriftAction::Ignore) {
        return Vec::new();
    }
    let names = names(declared, &roots, host);
    let by_config: HashSet<&Thing> = declared
        .iter()
        .map(|expectation| &expectation.thing)
        .filter(|thing| matches!(thing, Thing::ClosedDirectory { .. }))
        .collect();
    let found = names.into_iter().filter_map(|(path, names)| {
        // The longest root decides, and of two rules for one directory the more precise one, as elsewhere in the policy.
        let root = roots.iter().rev().find(|root| path.starts_with(&root.path))?;
        if root.rule.action == DriftAction::Ignore || root.excepts(&path) {
            return None;
        }
        let is_shipped_known = host.shipped_etc_known && path.starts_with("/etc");
        Some(Expectation {
            thing: Thing::closed_directory(path),
            expected: Expected::ClosedDirectory(ClosedDirectoryExpectation {
                names: names.into_iter().collect(),
                suffix: None,
                ssh_keys: false,
                except: root.rule.except.clone(),
                except_links: root.rule.except_links.clone(),
            }),
            ssh_keys: false,
            label: None,
            source: ExpectationSource::ClosedBy(ClosedBy {
                rule: root.rule.path.as_str().into(),
                policy: root.origin.into(),
                packages_unread: host.packages_unread,
                image_unindexed: host.image_unindexed && !is_shipped_known,
            }),
        })
    });
    found.filter(|expectation| !by_config.contains(&expectation.thing)).collect()
}

/// The directories that rules name, the most precise last. A rule with the action `ignore` names one that is left open.
fn roots<'a>(policy: &'a DriftPolicy, host: &HostDirectories) -> Vec<Root<'a>> {
    let mut roots = Vec::new();
    for (rule, origin) in policy.closed_or_left_open() {
        if let Some(path) = rule.directory() {
            if !host.linked.contains_key(path) {
                roots.push(Root { path: host.root_on_disk(path), rule, origin });
            }
        } else {
            let matching = host.matching.get(&rule.path).into_iter().flatten();
            roots.extend(matching.map(|path| Root { path: host.root_on_disk(path), rule, origin }));
        }
    }
    // Among equal rules the order of their texts decides, the first one first.
    roots.sort_by_cached_key(|root| {
        (root.path.components().count(), root.rule.precision(), Reverse(root.rule.path.clone()))
    });
    roots
}

/// The closed directories, each with the names that something declares in it.
fn names(
    declared: &[Expectation],
    roots: &[Root<'_>],
    host: &HostDirectories,
) -> BTreeMap<PathBuf, BTreeSet<String>> {
    let tops: HashSet<&Path> = roots.iter().map(|root| root.path.as_path()).collect();
    let mut names: BTreeMap<PathBuf, BTreeSet<String>> =
        tops.iter().map(|top| (top.to_path_buf(), BTreeSet::new())).collect();
    let mut declare = |path: &Path, is_directory: bool| {
        let path = &*host.on_disk(path);
        let is_below = path.ancestors().skip(1).any(|above| tops.contains(above));
        if !is_below {
            return;
        }
        if is_directory {
            names.entry(path.to_path_buf()).or_default();
        }
        let mut child = path;
        while let (Some(parent), Some(name)) = (child.parent(), child.file_name()) {
            if !parent.ancestors().any(|above| tops.contains(above)) {
                break;
            }
            names.entry(parent.to_path_buf()).or_default().insert(name_text(name).into_owned());
            child = parent;
        }
    };
    each_declared(declared, host, &mut declare);
    for root in roots {
        declare(&root.path, true);
    }
    for link in host.linked.keys() {
        declare(link, false);
    }
    names
}

/// Calls `declare` with each path that a config or a package declares, and whether it is a directory.
pub(crate) fn each_declared(
    declared: &[Expectation],
    host: &HostDirectories,
    mut declare: impl FnMut(&Path, bool),
) {
    for expectation in declared {
        let path = expectation.thing.path();
        match (&expectation.thing, &expectation.expected) {
            (Thing::Unit { name }, Expected::Unit(unit)) => {
                declare(&path, false);
                let links = unit.install_directories.iter().filter(|_| unit.enabled == Some(true));
                for directory in links {
                    declare(&Path::new(SYSTEMD_DIRECTORY).join(directory).join(name), false);
                }
            }
            (Thing::Directory { .. } | Thing::ClosedDirectory { .. }, _) => declare(&path, true),
            (Thing::File { .. } | Thing::Link { .. }, _) => declare(&path, false),
            _ => {}
        }
    }
    for path in IGNORED_FILES {
        declare(Path::new(path), false);
    }
    for packaged in &host.packaged {
        declare(&packaged.path, packaged.is_directory);
    }
}
