//! The changes that another OS image brings to a node.
//!
//! In: the names of two images, their indexes, and the units of this host if they are asked for. Out: how many paths differ, the layers to
//! blame, when the changes take effect, and the units whose files or programs change. It reads no image.

use super::{
    diff::{ChangedPath, diff},
    error::ImageError,
    images::{Images, OSTREE, warn_of_skipped},
    index::ImageIndex,
};
use crate::bounded;
use sensor_model::{
    image::{UpdateEffect, programs, unit_at, update_effect},
    observation::FileType,
    os::reference,
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Directories of unit files. A name in an earlier one hides the same name in a later one.
const UNITS: [&str; 3] = ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system"];
/// Directories that an image may have as links: those at the root into `/usr`, and one of `/usr` to its neighbour.
const MERGED: [&str; 5] = ["/bin/", "/sbin/", "/lib/", "/lib64/", "/usr/sbin/"];

/// The programs of this host's units: for each path the units that start it.
pub type UnitPrograms = BTreeMap<Vec<u8>, BTreeSet<String>>;

/// What another OS image changes, or why that is not known.
#[derive(Debug, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageUpdate {
    /// Both images have an index.
    Known(ImageChanges),
    /// Why the changes are not known.
    Unknown(String),
}

/// What another OS image changes.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ImageChanges {
    /// Digest of the old image's manifest, or the checksum of its ostree commit.
    pub old: String,
    /// Digest of the new image's manifest, or the checksum of its ostree commit.
    pub new: String,
    /// How many paths only the new image has.
    pub added: usize,
    /// How many paths only the old image has.
    pub removed: usize,
    /// How many paths both have, with a difference.
    pub changed: usize,
    /// How many of the paths take effect only after a reboot: boot loader, kernel, modules, firmware, systemd's process 1.
    pub need_reboot: usize,
    /// How many are shared libraries. A running process keeps the old ones until it starts again.
    pub libraries: usize,
    /// How many are unit files, drop-ins, or programs that a unit of this host starts.
    pub of_units: usize,
    /// How many are other files. A process reads the new content when it opens such a file again.
    pub files: usize,
    /// The units whose files or programs change, by name.
    pub units: Vec<ChangedUnit>,
    /// The layers that the changes come from: of the new image, and for removed paths of the old one. Those with most paths come first.
    pub layers: Vec<ChangedLayer>,
}

/// A unit that an update of the image changes.
#[derive(Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct ChangedUnit {
    /// The unit, with its suffix.
    pub unit: String,
    /// The files that change: its own, and programs that it starts.
    pub paths: Vec<String>,
}

/// A layer with changes.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ChangedLayer {
    /// Which image has the layer: the new one, or the old one for removed paths.
    pub of_new: bool,
    /// The layer's number, from 1 on, or the number of the package.
    pub number: usize,
    /// Digest of its blob; absent where the index has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// The line of the image's history that made it; null if it is not known.
    pub history: Option<String>,
    /// How many of the paths it has.
    pub paths: usize,
}

/// What an update from one image to another changes. The names are those of configs: an image, mostly with a digest after the `@`, or a
/// branch or a commit of ostree.
pub fn image_update(images: &Images, old: Option<&str>, new: &str, units: &UnitPrograms) -> ImageUpdate {
    let found = Indexes::of(images, old, "the old config").and_then(|old| {
        let new = Indexes::of(images, Some(new), "the new config")?;
        let (old, new) = old.comparable(new)?;
        changes(&old, &new, units).map_err(|error| error.to_string())
    });
    found.map_or_else(ImageUpdate::Unknown, ImageUpdate::Known)
}

/// The indexes of one image.
struct Indexes {
    /// Of its layout.
    layout: Option<ImageIndex>,
    /// Of an ostree commit that was made from it.
    commit: Option<ImageIndex>,
}

impl Indexes {
    /// Those of an image of a config. There is one at least.
    fn of(images: &Images, name: Option<&str>, whose: &str) -> Result<Self, String> {
        let name = name.ok_or_else(|| format!("{whose} has no osImageURL"))?;
        let digest = name.rsplit_once('@').map(|(_, digest)| digest);
        let layout = match digest.map(|digest| images.open(digest)).transpose() {
            Err(ImageError::Unknown { .. }) => None,
            opened => opened.map_err(|error| error.to_string())?,
        };
        let commit = of_commit(images, name, digest).map_err(|error| error.to_string())?;
        if layout.is_none() && commit.is_none() {
            let without = if digest.is_some() { "" } else { "is without a digest and " };
            return Err(format!(
                "{name} of {whose} {without}has no index; `holdfast image index` makes one of the layout of a digest, or of an ostree commit"
            ));
        }
        Ok(Self { layout, commit })
    }

    /// Two indexes of one kind. A layout has the layers' paths, and a commit has those of the host.
    fn comparable(self, new: Self) -> Result<(ImageIndex, ImageIndex), String> {
        let of_layouts = self.layout.zip(new.layout);
        of_layouts.or_else(|| self.commit.zip(new.commit)).ok_or_else(|| {
            "one image has an index of its layout alone, and the other one of its ostree commit alone, which cannot be compared; index both in \
             one of the two ways"
                .to_owned()
        })
    }
}

/// The index of an ostree commit that was made from the image, has the name as that of its branch, or is named itself. An index that cannot be
/// read is an error only if its file has the name of the wanted commit.
fn of_commit(images: &Images, name: &str, digest: Option<&str>) -> Result<Option<ImageIndex>, ImageError> {
    let name = reference(name);
    let others = images.commits()?;
    for indexed in [OSTREE.to_owned()].iter().chain(&others) {
        let index = match images.named(indexed) {
            Ok(Some(index)) => index,
            Ok(None) => continue,
            Err(error) if *indexed == Images::name_of_commit(name) => return Err(error),
            Err(error) => {
                warn_of_skipped(&error);
                continue;
            }
        };
        let meta = index.meta();
        let is_made_from = digest.is_some() && meta.manifest.as_deref() == digest;
        if is_made_from || meta.state.as_deref() == Some(name) || meta.names.iter().any(|known| known == name)
        {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

fn changes(old: &ImageIndex, new: &ImageIndex, units: &UnitPrograms) -> Result<ImageChanges, ImageError> {
    let mut found = ImageChanges {
        old: old.meta().digest.clone(),
        new: new.meta().digest.clone(),
        added: 0,
        removed: 0,
        changed: 0,
        need_reboot: 0,
        libraries: 0,
        of_units: 0,
        files: 0,
        units: Vec::new(),
        layers: Vec::new(),
    };
    let started = merged(units, new)?;
    let mut by_unit: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut by_layer: BTreeMap<(bool, u16), usize> = BTreeMap::new();
    for ChangedPath { path, old, new, .. } in diff(old, new)? {
        let layer = match (&old, &new) {
            (None, None) => continue,
            (before, Some(entry)) => {
                *if before.is_none() { &mut found.added } else { &mut found.changed } += 1;
                (true, entry.layer)
            }
            (Some(entry), None) => {
                found.removed += 1;
                (false, entry.layer)
            }
        };
        *by_layer.entry(layer).or_default() += 1;
        let of_units = started.get(&path).into_iter().flatten().map(String::as_str).chain(unit_at(&path));
        let shown = String::from_utf8_lossy(&path);
        let mut has_unit = false;
        for unit in of_units {
            has_unit = true;
            by_unit.entry(unit.to_owned()).or_default().push(shown.clone().into_owned());
        }
        let count = match update_effect(&path) {
            UpdateEffect::Reboot => &mut found.need_reboot,
            _ if has_unit => &mut found.of_units,
            UpdateEffect::Library => &mut found.libraries,
            UpdateEffect::Unit | UpdateEffect::File => &mut found.files,
        };
        *count += 1;
    }
    found.units = by_unit.into_iter().map(|(unit, paths)| ChangedUnit { unit, paths }).collect();
    found.layers = by_layer.into_iter().map(|(layer, paths)| changed_layer(old, new, layer, paths)).collect();
    found.layers.sort_by_key(|layer| std::cmp::Reverse(layer.paths));
    Ok(found)
}

fn changed_layer(
    old: &ImageIndex,
    new: &ImageIndex,
    (of_new, layer): (bool, u16),
    paths: usize,
) -> ChangedLayer {
    let meta = if of_new { new.meta() } else { old.meta() };
    let found = meta.layers.get(usize::from(layer));
    ChangedLayer {
        of_new,
        number: usize::from(layer) + 1,
        digest: found.map_or_else(String::new, |layer| layer.digest.clone()),
        history: found.and_then(|layer| layer.history.clone()),
        paths,
    }
}

/// The programs by the paths that the image has them at, where `/bin` and others are links.
fn merged(units: &UnitPrograms, image: &ImageIndex) -> Result<UnitPrograms, ImageError> {
    let mut links = Vec::new();
    for folder in MERGED {
        let entry = image.find(folder.trim_end_matches('/').as_bytes())?;
        let link = entry.filter(|entry| entry.file_type == FileType::Symlink).and_then(|entry| entry.target);
        if let Some(target) = link.and_then(|target| String::from_utf8(target).ok()) {
            let above = Path::new(folder).parent().unwrap_or(Path::new("/"));
            links.push((folder.as_bytes(), format!("{}/", above.join(target).display())));
        }
    }
    let mut found = UnitPrograms::new();
    for (path, names) in units {
        let mut path = path.clone();
        for (folder, target) in &links {
            if let Some(rest) = path.strip_prefix(*folder) {
                path = [target.as_bytes(), rest].concat();
            }
        }
        found.entry(path).or_default().extend(names.iter().cloned());
    }
    Ok(found)
}

/// The programs that the units of a host start, below a root directory, by their files and drop-ins. A file that cannot be read has none.
pub fn unit_programs(root: &Path) -> UnitPrograms {
    let mut found = UnitPrograms::new();
    let mut seen = BTreeSet::new();
    for folder in UNITS {
        let folder = root.join(folder.trim_start_matches('/'));
        for name in names(&folder) {
            let path = folder.join(&name);
            let (unit, files) = match name.strip_suffix(".d") {
                Some(unit) => (unit, names(&path).into_iter().map(|name| path.join(name)).collect()),
                None => (&*name, vec![path]),
            };
            // A unit hides the same one in a later directory. Drop-ins of all directories count.
            if !unit.ends_with(".service") || (unit == name && !seen.insert(name.clone())) {
                continue;
            }
            for file in files {
                // A masked unit is a link to a device.
                if !file.is_file() {
                    continue;
                }
                let Ok(text) = bounded::read_text(&file, bounded::UNIT) else { continue };
                for program in programs(&text) {
                    found.entry(program.as_bytes().to_vec()).or_default().insert(unit.to_owned());
                }
            }
        }
    }
    found
}

/// The names in a directory; none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
