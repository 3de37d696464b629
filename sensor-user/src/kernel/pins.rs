//! Where pins live in a BPF file system.
//!
//! In: a directory, and what tells one set of programs from another. Out: directories for the pins of links and maps, and
//! those of other sets. It attaches nothing.

use super::hooks::Mode;
use super::load::{LoadError, OBJECT_SHA256};
use sensor_common::ABI_VERSION;
use sensor_model::host::hierarchy::Hierarchy;
use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The number of a set of programs: other objects and other modes have another one. Zero is no set.
pub(super) fn set_number(mode: Mode) -> u32 {
    let object = u32::from_str_radix(&OBJECT_SHA256[..8], 16).unwrap_or_default();
    let mode = match mode {
        Mode::Lsm => 1,
        Mode::Fentry => 2,
    };
    object & !3 | mode
}

/// Where pins live: maps by ABI, links by object and mode, both by the hierarchy of control groups that counts, so that an
/// upgrade attaches the new programs before the old ones go.
#[derive(Debug, Clone)]
pub(super) struct Pins {
    root: PathBuf,
    pub(super) maps: PathBuf,
    pub(super) links: PathBuf,
}

impl Pins {
    /// Makes the directories, for root only.
    pub(super) fn prepare(root: &Path, mode: Mode, groups: Hierarchy) -> Result<Self, LoadError> {
        // The numbers of control groups that programs put into maps are those of one hierarchy.
        let of = groups.controller.map(|name| format!("-{name}-{}", groups.number)).unwrap_or_default();
        let pins = Self {
            root: root.to_owned(),
            maps: root.join(format!("maps-v{ABI_VERSION}{of}")),
            links: root.join(format!("links-{}-{}{of}", &OBJECT_SHA256[..12], mode.prefix())),
        };
        for path in [&pins.root, &pins.maps, &pins.links] {
            let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
            created
                .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o700)))
                .map_err(|source| LoadError::Pins { path: path.clone(), source })?;
        }
        Ok(pins)
    }

    /// Link directories of other objects or modes, maps of another ABI, and both of another hierarchy of control groups.
    pub(super) fn foreign(&self) -> Vec<PathBuf> {
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

    /// A path at which a program may be pinned for a moment, free of what a daemon that was killed there has left.
    pub(super) fn moment(&self) -> Result<PathBuf, Error> {
        let path = self.links.join("moment");
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(path),
        }
    }

    /// Removes the links' directory.
    pub(super) fn remove_links(&self) {
        let path = &self.links;
        if let Err(error) = fs::remove_dir_all(path) {
            tracing::warn!(path = %path.display(), %error, "Could not remove pins.");
        }
    }
}
