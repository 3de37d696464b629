//! Directories for pins in a BPF file system.
//!
//! In: a directory, the set and the hierarchy of control groups. Out: the directories for this set's links and maps, and those of
//! other sets. It attaches nothing.

use super::hooks::ProgramSet;
use super::object::OBJECT_SHA256;
use sensor_common::ABI_VERSION;
use sensor_model::host::hierarchy::Hierarchy;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The name at which the daemon pins a program for a moment, beside the links.
pub(super) const MOMENT: &str = "moment";

/// A directory for pins is unusable.
#[derive(Debug, Error)]
#[error("pin directory `{path}`: {source}")]
pub struct PinsError {
    /// The directory.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// The number of a set of programs; another object has other numbers. It is never zero.
pub(super) fn set_number(set: ProgramSet) -> u32 {
    let object = u32::from_str_radix(&OBJECT_SHA256[..8], 16).unwrap_or_default();
    let set = match set {
        ProgramSet::Lsm => 1,
        ProgramSet::Fentry => 2,
    };
    object & !3 | set
}

/// The directories of a set. Maps are apart by ABI, links by object and set, both by the hierarchy of control groups. So an upgrade
/// attaches the new programs before it removes the old ones.
#[derive(Debug, Clone)]
pub(super) struct Pins {
    root: PathBuf,
    pub(super) maps: PathBuf,
    pub(super) links: PathBuf,
}

impl Pins {
    /// The paths of the directories.
    fn of(root: &Path, set: ProgramSet, groups: Hierarchy) -> Self {
        // The programs write numbers of control groups to maps, and a number is valid in one hierarchy only.
        let of = groups.controller.map(|name| format!("-{name}-{}", groups.number)).unwrap_or_default();
        Self {
            root: root.to_owned(),
            maps: root.join(format!("maps-v{ABI_VERSION}{of}")),
            links: root.join(format!("links-{}-{}{of}", &OBJECT_SHA256[..12], set.prefix())),
        }
    }

    /// Whether a daemon with this object left links of the set.
    pub(super) fn has_links(root: &Path, set: ProgramSet, groups: Hierarchy) -> bool {
        is_used(&Self::of(root, set, groups).links)
    }

    /// Creates the directories, for root only.
    ///
    /// It keeps links and the maps of all `names` together or not at all. Kept links use the maps that they were created with;
    /// the daemon would write to others. If a set lacks a map, or its maps are `outgrown`, it renames both directories. The
    /// set's programs run until [`Pins::others`] are removed.
    pub(super) fn prepare(
        root: &Path,
        set: ProgramSet,
        groups: Hierarchy,
        names: &[&str],
        outgrown: impl Fn(&Path) -> bool,
    ) -> Result<Self, PinsError> {
        let pins = Self::of(root, set, groups);
        let lacks = pins.lack(names);
        if lacks || outgrown(&pins.maps) {
            let path = pins.maps.display();
            if lacks {
                tracing::warn!(%path, "Pins of maps are missing: Holdfast creates new programs and maps.");
            } else {
                tracing::info!(%path, "The config outgrew the maps of the last run: Holdfast creates new programs and maps.");
            }
            for path in [&pins.links, &pins.maps] {
                set_aside(path).map_err(|source| PinsError { path: path.clone(), source })?;
            }
        }
        for path in [&pins.root, &pins.maps, &pins.links] {
            let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
            created
                .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o700)))
                .map_err(|source| PinsError { path: path.clone(), source })?;
        }
        Ok(pins)
    }

    /// Whether pins exist, but not those of all maps.
    fn lack(&self, names: &[&str]) -> bool {
        let missing = names.iter().filter(|name| !self.maps.join(name).exists()).count();
        missing > 0 && (is_used(&self.maps) || is_used(&self.links))
    }

    /// Directories of other sets: links of other objects or program sets, maps of another ABI, both of another hierarchy, and those set
    /// aside.
    pub(super) fn others(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.root) else { return Vec::new() };
        entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
                (name.starts_with("links-") && *path != self.links)
                    || (name.starts_with("maps-v") && *path != self.maps)
            })
            .collect()
    }

    /// A path at which the daemon may pin a program for a moment. It removes the pin that a killed daemon left there.
    pub(super) fn moment(&self) -> Result<PathBuf, io::Error> {
        let path = self.links.join(MOMENT);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(path),
        }
    }

    /// Removes the links' directory.
    pub(super) fn remove_links(&self) {
        let path = &self.links;
        if let Err(error) = fs::remove_dir_all(path) {
            tracing::warn!(path = %path.display(), %error, "Cannot remove pins.");
        }
    }
}

/// Whether anything is in a directory.
fn is_used(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some())
}

/// Renames a directory to a new name, so that it counts as another set's.
fn set_aside(path: &Path) -> Result<(), io::Error> {
    let free = (0_u32..).map(|number| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!("-aside-{number}"));
        PathBuf::from(name)
    });
    let Some(free) = free.into_iter().find(|free| !free.exists()) else { return Ok(()) };
    match fs::rename(path, free) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["MANAGED", "ALLOWED"];

    fn prepare(root: &Path) -> Pins {
        Pins::prepare(root, ProgramSet::Lsm, Hierarchy::default(), &NAMES, |_| false).unwrap()
    }

    #[test]
    fn outgrown_maps_are_set_aside_with_their_links() {
        let root = tempfile::tempdir().unwrap();
        let pins = prepare(root.path());
        let all = [pins.maps.join("MANAGED"), pins.maps.join("ALLOWED"), pins.links.join("file_open")];
        for path in &all {
            fs::write(path, "").unwrap();
        }
        let outgrown = |maps: &Path| maps == pins.maps && maps.join("MANAGED").exists();
        Pins::prepare(root.path(), ProgramSet::Lsm, Hierarchy::default(), &NAMES, outgrown).unwrap();
        assert!(!all.iter().any(|path| path.exists()) && pins.maps.exists() && pins.links.exists());
        assert_eq!(pins.others().len(), 2, "they run until the new set has answered");
    }

    #[test]
    fn links_are_kept_only_with_all_of_their_maps() {
        let root = tempfile::tempdir().unwrap();
        let pins = prepare(root.path());
        let all = [pins.maps.join("MANAGED"), pins.maps.join("ALLOWED"), pins.links.join("file_open")];
        for path in &all {
            fs::write(path, "").unwrap();
        }
        prepare(root.path());
        assert!(all.iter().all(|path| path.exists()) && pins.others().is_empty());
        for round in 1..3 {
            fs::remove_file(&all[1]).unwrap();
            prepare(root.path());
            assert!(!all.iter().any(|path| path.exists()), "nothing is kept");
            assert_eq!(pins.others().len(), round * 2, "the old directories are removed later");
            for path in &all {
                fs::write(path, "").unwrap();
            }
        }
        fs::remove_dir_all(&pins.maps).unwrap();
        prepare(root.path());
        assert!(!all[2].exists(), "links without any map are not kept");
    }

    #[test]
    fn a_set_has_links_once_one_is_pinned_and_not_by_those_of_another_set() {
        let root = tempfile::tempdir().unwrap();
        let has = |set| Pins::has_links(root.path(), set, Hierarchy::default());
        let pins = prepare(root.path());
        assert!(!has(ProgramSet::Lsm), "its directory is empty");
        fs::write(pins.links.join("file_open"), "").unwrap();
        assert!(has(ProgramSet::Lsm) && !has(ProgramSet::Fentry));
    }

    #[test]
    fn maps_without_links_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let pins = prepare(root.path());
        let maps = NAMES.map(|name| pins.maps.join(name));
        for path in &maps {
            fs::write(path, "").unwrap();
        }
        pins.remove_links();
        prepare(root.path());
        assert!(maps.iter().all(|path| path.exists()));
    }
}
