//! The packages of a host, and facts about the directories that a drift policy closes and the paths where it expects nothing.
//!
//! In: the policy; the databases of dpkg and rpm. Out: the directories that its globs name, those that are links to others, and the paths of
//! packages below all closed directories and where nothing may be otherwise; or what each package has at its paths. A database that
//! cannot be read is logged, and its packages then declare nothing there. A path in a directory that is a link into `/usr` (`/lib` and others,
//! since the merged `/usr`), or in `/usr/sbin` if that is one, is given as it is on the disk.

mod closed_paths;
mod collector;
mod contents;
mod dpkg;
mod globs;
mod merged;
mod rpm;
mod unread;
mod version;

#[cfg(test)]
mod tests;

use crate::{
    desired::DirectoriesVersion,
    observation::{Observer, resolve::others_can_write},
    sys,
};
use closed_paths::ClosedPaths;
use merged::MergedDirectories;
use sensor_model::{
    absent::AbsentNames,
    closed::{HostDirectories, PackagedPath},
    drift_policy::{DriftPolicy, Rule},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

pub(crate) use collector::PackageContents;
pub(crate) use contents::contents;
pub(crate) use unread::Unread;
use version::identity;

/// The directories that a policy closes, and what packages put below them, or at a path where nothing may be otherwise.
pub(crate) fn directories(observer: &Observer, policy: &DriftPolicy) -> HostDirectories {
    let ClosedPaths { roots, matching, linked, written } =
        ClosedPaths::of(observer, policy, &mut BTreeSet::new());
    let mut found = HostDirectories { matching, linked, written, ..HostDirectories::default() };
    if roots.is_empty() && policy.absent().next().is_none() {
        return found;
    }
    let merged = MergedDirectories::of(observer);
    let absent = AbsentPlaces::of(observer, policy);
    let is_wanted = |path: &Path| {
        let path = merged.on_disk(path);
        let is_below = || path.ancestors().skip(1).any(|above| roots.contains(above));
        absent.at_or_above(&path).next().is_some() || is_below()
    };
    let mut paths = BTreeSet::new();
    for read in
        [dpkg::packaged(observer, &is_wanted, &mut paths), rpm::packaged(observer, &is_wanted, &mut paths)]
    {
        if let Err(error) = read {
            found.packages_unread = true;
            tracing::warn!(
                %error,
                "Cannot read a database of packages; Holdfast takes files of packages in closed directories, and where nothing may be, for \
                 undeclared ones, and moves nothing to the quarantine."
            );
        }
    }
    let mut paths: BTreeSet<PathBuf> = paths.into_iter().map(|path| merged.on_disk(&path)).collect();
    let owned: Vec<PathBuf> = paths.iter().flat_map(|path| absent.at_or_above(path)).cloned().collect();
    paths.extend(owned);
    let above: BTreeSet<PathBuf> =
        paths.iter().filter_map(|path| path.parent().map(Path::to_owned)).collect();
    let is_directory =
        |path: &Path| above.contains(path) || observer.root().open_at(path, sys::DIRECTORY).is_ok();
    found.packaged =
        paths.into_iter().map(|path| PackagedPath { is_directory: is_directory(&path), path }).collect();
    found.places = absent.places;
    found
}

/// The paths where a policy expects nothing, with their places.
struct AbsentPlaces<'a> {
    observer: &'a Observer,
    /// By the path of the rule.
    places: BTreeMap<PathBuf, PathBuf>,
    names: AbsentNames,
}

impl<'a> AbsentPlaces<'a> {
    fn of(observer: &'a Observer, policy: &DriftPolicy) -> Self {
        let path = |rule: &Rule| PathBuf::from(&rule.path);
        let places = policy.absent().map(|(rule, _)| (path(rule), observer.root().place(&path(rule))));
        Self { observer, places: places.collect(), names: AbsentNames::of(policy) }
    }

    /// The paths of rules for a package's path, and for a directory above it.
    fn at_or_above(&self, packaged: &Path) -> impl Iterator<Item = &PathBuf> {
        // Links are followed only for the few names that rules have.
        let places: Vec<(PathBuf, PathBuf)> = self
            .names
            .at_or_above(packaged)
            .map(|above| (above.to_owned(), self.observer.root().place(above)))
            .collect();
        let is_of = move |(rule, place): &(&PathBuf, &PathBuf)| {
            places.iter().any(|(path, real)| path == *rule || real == *place)
        };
        self.places.iter().filter(is_of).map(|(rule, _)| rule)
    }
}

/// The versions of the facts of [`directories`]: another version means other facts. It reads no list of a package.
pub(crate) fn version(observer: &Observer, policy: &DriftPolicy) -> DirectoriesVersion {
    let mut searched = BTreeSet::new();
    let ClosedPaths { matching, mut linked, written, .. } = ClosedPaths::of(observer, policy, &mut searched);
    searched.extend(linked.keys().filter_map(|link| link.parent().map(Path::to_owned)));
    linked.extend(written);
    let mut version = DirectoriesVersion { matching, linked, ..DirectoriesVersion::default() };
    let reads_packages = policy.expects_image() || policy.undeclared().next().is_some();
    version.searched =
        searched.into_iter().filter(|directory| !is_open_to_others(observer, directory)).collect();
    if reads_packages {
        version.packages = databases(observer).map(|(_, identity)| identity).collect();
    }
    version
}

/// Whether others than root can make names in a directory. They could fill the ring of changes with the records of them.
fn is_open_to_others(observer: &Observer, directory: &Path) -> bool {
    let opened = observer.root().open_at(directory, sys::DIRECTORY);
    // One that does not exist yet is root's to make.
    opened.is_ok_and(|opened| others_can_write(opened).unwrap_or(true))
}

/// A path as an index of the packages has it: links from the root directory into `/usr`, and that of `/usr/sbin`, are followed, as they are on
/// this host.
pub(crate) fn place(observer: &Observer, path: &Path) -> PathBuf {
    MergedDirectories::of(observer).on_disk(path)
}

/// The state of the packages as a text: another text means other packages. Empty on a host without packages.
pub(crate) fn state(observer: &Observer) -> String {
    let Ok(Some(dpkg)) = dpkg::state(observer) else { return versions(observer) };
    // The database of rpm changes with its packages alone, and so do dpkg's diversions.
    let others = of_databases(observer, |path| !dpkg::is_status(path));
    [dpkg].into_iter().chain(others).collect::<Vec<_>>().join("; ")
}

/// The versions of the databases' files as a text: with the same text [`state`] is the same. It reads no file.
pub(crate) fn versions(observer: &Observer) -> String {
    of_databases(observer, |_| true).collect::<Vec<_>>().join("; ")
}

fn of_databases(observer: &Observer, is_wanted: impl Fn(&Path) -> bool) -> impl Iterator<Item = String> {
    databases(observer).filter(move |(path, _)| is_wanted(path)).filter_map(|(path, identity)| {
        let (inode, size, modified, changed) = identity?;
        Some(format!("{} inode {inode}, {size} bytes, {modified}, {changed}", path.display()))
    })
}

/// The files of the databases, each with its version; `None` for one that does not exist, and for an empty log of rpm, which any query makes.
fn databases(observer: &Observer) -> impl Iterator<Item = (PathBuf, Option<sys::FileVersion>)> {
    let files = dpkg::paths().chain(rpm::paths());
    let files = files.map(move |path| (path.to_owned(), identity(observer, path)));
    let logs = rpm::logs().map(move |path| {
        let version = identity(observer, &path).filter(|(_, size, ..)| *size > 0);
        (path, version)
    });
    files.chain(logs)
}
