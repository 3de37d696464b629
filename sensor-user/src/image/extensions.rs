//! An index of what the merged extensions of a host have at their paths.
//!
//! In: the lists of merged extensions, and their directories and disk images. Out: the index file. The "layer" of a path is the extension that
//! is visible there.

use super::{
    baseline::Walk,
    disk_extensions::{OwnMounts, is_own_root},
    error::ImageError,
    images::Images,
    merged_extensions::{merged, state},
    write::{self, Indexed},
};
use crate::{
    observation::{Observer, resolve::HANDLE},
    sys::{self, CallError},
};
use nix::{errno::Errno, fcntl::OFlag};
use sensor_model::{
    drift_policy::DriftPolicy,
    image::{ImageEntry, ImageMeta, ImageSource, LayerMeta, encode_record},
    observation::FileType,
    os::{extensions::MergedExtensions, hierarchy::ExtensionClass},
};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// A merged extension that is not in the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct LeftOutExtension {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: ExtensionClass,
    /// Why it is left out.
    pub reason: String,
}

/// The state of the merged extensions as a text, if a policy has rules about the image and there is an index of extensions; else empty.
pub(crate) fn followed_state(observer: &Observer, policy: &DriftPolicy, state_directory: &Path) -> String {
    if policy.expects_image() && Images::of(state_directory).has(super::EXTENSIONS) {
        state(observer)
    } else {
        String::new()
    }
}

/// Indexes the merged extensions. Gives those that are left out, too. Without a merged extension the index is empty, and
/// says that none is expected.
///
/// # Errors
/// A root that is no running host, a directory that cannot be read, and an index that cannot be written.
pub fn index_extensions(
    observer: &Observer,
    images: &Images,
) -> Result<(Indexed, Vec<LeftOutExtension>), ImageError> {
    // Before the extensions are read: one that is merged meanwhile makes the index old.
    let merged = merged(observer)?;
    let found = ExtensionClass::ALL.iter().flat_map(|class| {
        merged.names(*class).into_iter().map(|name| (*class, name, Place::of(observer, *class, name)))
    });
    let found: Vec<_> = found.collect();
    let is_disk = |place: &Result<Place, String>| matches!(place, Ok(Place::Disk(_)));
    let contents = if is_own_root(observer) && found.iter().any(|(.., place)| is_disk(place)) {
        OwnMounts::with(images, |mounts| Contents::of(&mounts.observer, &merged, found, Some(mounts)))??
    } else {
        Contents::of(observer, &merged, found, None)?
    };
    let Contents { entries, layers, left_out } = contents;
    let entries: Vec<(Vec<u8>, ImageEntry)> = entries.into_iter().collect();
    Ok((write::write(images, meta(&entries, layers, merged.text()), &entries)?, left_out))
}

/// Where an extension is, without links.
enum Place {
    /// A directory with its files.
    Directory(PathBuf),
    /// A disk image.
    Disk(PathBuf),
}

impl Place {
    /// The place of an extension, or why it has none.
    fn of(observer: &Observer, class: ExtensionClass, name: &str) -> Result<Self, String> {
        for directory in class.directories() {
            let path = Path::new(directory).join(name);
            if let Some(place) = directory_at(observer, &path) {
                return Ok(Self::Directory(place));
            }
            let image = Path::new(directory).join(format!("{name}.raw"));
            if let Some(place) = file_at(observer, &image) {
                return Ok(Self::Disk(place));
            }
            for (versions, ending) in [(format!("{name}.v"), ""), (format!("{name}.raw.v"), ".raw")] {
                let versions = Path::new(directory).join(versions);
                if let Some(version) = only_version(observer, &versions, name, ending)? {
                    let place = if ending.is_empty() {
                        directory_at(observer, &version).map(Self::Directory)
                    } else {
                        file_at(observer, &version).map(Self::Disk)
                    };
                    return place.ok_or_else(|| format!("{} is no extension", version.display()));
                }
            }
        }
        Err(format!("it is not in {}", class.directories().join(", ")))
    }
}

/// The path of a directory without links. A link to one is an extension, too.
fn directory_at(observer: &Observer, path: &Path) -> Option<PathBuf> {
    real(observer, path, HANDLE | OFlag::O_DIRECTORY)
}

/// The path of a file without links.
fn file_at(observer: &Observer, path: &Path) -> Option<PathBuf> {
    real(observer, path, HANDLE)
}

/// The path without links of what these flags open; `None` if they open nothing.
fn real(observer: &Observer, path: &Path, flags: OFlag) -> Option<PathBuf> {
    observer.root().open_at(path, flags).ok()?;
    observer.root().walk(path).end.ok().map(|(_, real)| real)
}

/// The version in a directory of versions, or why it is not known which one is merged. `None` without the directory or a version in it.
fn only_version(
    observer: &Observer,
    versions: &Path,
    name: &str,
    ending: &str,
) -> Result<Option<PathBuf>, String> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let Ok(names) = observer.root().open_at(versions, flags).and_then(sys::names) else { return Ok(None) };
    let start = format!("{name}_");
    let is_version = |found: &str| found.starts_with(&start) && found.ends_with(ending);
    let mut found = names.iter().filter(|found| found.to_str().is_some_and(is_version));
    match (found.next(), found.next()) {
        (Some(_), Some(_)) => {
            Err(format!("{} has several versions, and nothing shows which one is merged", versions.display()))
        }
        (one, _) => Ok(one.map(|one| versions.join(one))),
    }
}

#[derive(Default)]
struct Contents {
    /// By path: what the last extension with it has there.
    entries: BTreeMap<Vec<u8>, ImageEntry>,
    layers: Vec<LayerMeta>,
    left_out: Vec<LeftOutExtension>,
}

impl Contents {
    /// What the extensions have, in their order. Without `mounts` disk images are left out.
    fn of(
        observer: &Observer,
        merged: &MergedExtensions,
        found: Vec<(ExtensionClass, &str, Result<Place, String>)>,
        mounts: Option<&OwnMounts>,
    ) -> Result<Self, ImageError> {
        let mut contents = Self::default();
        for (class, name, place) in found {
            let directory = place.and_then(|place| match (place, mounts) {
                (Place::Directory(directory), _) => Ok(directory),
                (Place::Disk(image), Some(mounts)) => mounts
                    .of_image(&image)
                    .map(Path::to_owned)
                    .map_err(|reason| format!("the disk image {} cannot be read: {reason}", image.display())),
                (Place::Disk(image), None) => Err(format!(
                    "the disk image {} can be read only on the running host, without --root",
                    image.display()
                )),
            });
            match directory {
                Ok(directory) => contents.add(observer, merged, class, name, &directory)?,
                Err(reason) => {
                    let left_out = LeftOutExtension { name: name.to_owned(), class, reason };
                    contents.left_out.push(left_out);
                }
            }
        }
        Ok(contents)
    }

    /// Adds what an extension has below the hierarchies that it is merged over.
    fn add(
        &mut self,
        observer: &Observer,
        merged: &MergedExtensions,
        class: ExtensionClass,
        name: &str,
        directory: &Path,
    ) -> Result<(), ImageError> {
        let layer = u16::try_from(self.layers.len()).unwrap_or(u16::MAX);
        self.layers.push(LayerMeta {
            digest: String::new(),
            diff_id: String::new(),
            size: None,
            components: Vec::new(),
            package: None,
            history: Some(format!("extension {name} ({})", class.as_str())),
        });
        let hierarchies = merged.hierarchies.iter().filter(|merged| merged.class == class);
        for hierarchy in hierarchies.map(|merged| &merged.path) {
            let top = directory.join(hierarchy.strip_prefix("/").unwrap_or(hierarchy));
            let entries = &mut self.entries;
            let mut take = |path: &Path, mut entry: ImageEntry| {
                let Ok(below) = path.strip_prefix(directory) else { return };
                // The merged hierarchy's own directory is that of the host. A whiteout hides a path of the host.
                let is_whiteout =
                    entry.file_type == FileType::CharacterDevice && entry.device == Some((0, 0));
                if path == top || is_whiteout {
                    return;
                }
                entry.layer = layer;
                let path = Path::new("/").join(below).as_os_str().as_bytes().to_vec();
                if entry.file_type != FileType::Directory {
                    // It hides a directory of an earlier extension.
                    let start = [&path[..], b"/"].concat();
                    let from = entries.range(start.clone()..).map(|(path, _)| path);
                    let hidden: Vec<_> = from.take_while(|path| path.starts_with(&start)).cloned().collect();
                    for path in hidden {
                        entries.remove(&path);
                    }
                }
                entries.insert(path, entry);
            };
            match Walk::new(observer, &mut take).all(&top) {
                Err(ImageError::Call(error)) if is_missing(&error) => {}
                walked => walked?,
            }
        }
        Ok(())
    }
}

/// An extension need not have each hierarchy.
fn is_missing(error: &CallError) -> bool {
    error.errno() == Some(Errno::ENOENT)
}

fn meta(entries: &[(Vec<u8>, ImageEntry)], layers: Vec<LayerMeta>, state: String) -> ImageMeta {
    let mut digest = Sha256::new();
    let mut record = Vec::new();
    for (path, entry) in entries {
        record.clear();
        encode_record(path, entry, &mut record);
        digest.update(&record);
    }
    digest.update(&state);
    ImageMeta {
        source: ImageSource::Extensions,
        digest: super::blob::digest_text(&digest.finalize()),
        manifest: None,
        indexes: Vec::new(),
        config: String::new(),
        platform: String::new(),
        names: Vec::new(),
        created: None,
        machine_config: None,
        layers,
        entries: 0,
        bytes: 0,
        ostree: false,
        object_xattrs: false,
        shipped_etc: false,
        state: Some(state),
        damaged: None,
    }
}
