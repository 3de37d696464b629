//! An index of what the merged extensions of a host have at their paths.
//!
//! In: the lists of merged extensions, and the directories of extensions. Out: the index file. The "layer" of a path is the extension that
//! is visible there. Extensions that are disk images are left out.

use super::{
    baseline::Walk,
    error::ImageError,
    images::Images,
    merged_extensions::{merged, state},
    write::{self, Indexed},
};
use crate::{
    observation::{Observer, resolve::HANDLE},
    sys::CallError,
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

/// Indexes the directories of the merged extensions. Gives those that are left out, too. Without a merged extension the index is empty, and
/// says that none is expected.
///
/// # Errors
/// A root that is no running host, a directory that cannot be read, and an index that cannot be written.
pub fn index_extensions(
    observer: &Observer,
    images: &Images,
) -> Result<(Indexed, Vec<LeftOutExtension>), ImageError> {
    // Before the directories are read: an extension that is merged meanwhile makes the index old.
    let merged = merged(observer)?;
    let mut contents = Contents { observer, entries: BTreeMap::new(), layers: Vec::new() };
    let mut left_out = Vec::new();
    for class in ExtensionClass::ALL {
        for name in merged.names(*class) {
            match place(observer, *class, name) {
                Ok(directory) => contents.add(&merged, *class, name, &directory)?,
                Err(reason) => {
                    left_out.push(LeftOutExtension { name: name.to_owned(), class: *class, reason });
                }
            }
        }
    }
    let Contents { entries, layers, .. } = contents;
    let entries: Vec<(Vec<u8>, ImageEntry)> = entries.into_iter().collect();
    Ok((write::write(images, meta(&entries, layers, merged.text()), &entries)?, left_out))
}

/// The directory of an extension, without links, or why it has none.
fn place(observer: &Observer, class: ExtensionClass, name: &str) -> Result<PathBuf, String> {
    for directory in class.directories() {
        let path = Path::new(directory).join(name);
        // A link to a directory is an extension, too.
        if observer.root().open_at(&path, HANDLE | OFlag::O_DIRECTORY).is_ok()
            && let Ok((_, real)) = observer.root().walk(&path).end
        {
            return Ok(real);
        }
        let image = Path::new(directory).join(format!("{name}.raw"));
        if observer.root().open_at(&image, HANDLE).is_ok() {
            return Err(format!(
                "it is a disk image ({}), and Holdfast reads only extensions that are directories",
                image.display()
            ));
        }
    }
    Err(format!("it is not in {}", class.directories().join(", ")))
}

struct Contents<'a> {
    observer: &'a Observer,
    /// By path: what the last extension with it has there.
    entries: BTreeMap<Vec<u8>, ImageEntry>,
    layers: Vec<LayerMeta>,
}

impl Contents<'_> {
    /// Adds what an extension has below the hierarchies that it is merged over.
    fn add(
        &mut self,
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
                    entries.retain(|path, _| !path.starts_with(&start));
                }
                entries.insert(path, entry);
            };
            match Walk::new(self.observer, &mut take).all(&top) {
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
        layers,
        entries: 0,
        bytes: 0,
        ostree: false,
        state: Some(state),
    }
}
