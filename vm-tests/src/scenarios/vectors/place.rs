//! The path of each vector's thing, and its declaration.
//!
//! In: vectors and file systems. Out: things as they are declared (or as their target says), and one MachineConfig that
//! declares them all.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};

use crate::guest::disks::{FileSystem, overlay_layers};
use crate::vectors::{StartState, Vector, declared_content, prepare};

/// Directory of drop-ins.
const UNITS: &str = "/etc/systemd/system";
const DECLARED_DROPIN: &str = "10-declared.conf";

/// A thing of a vector on a file system.
#[derive(Debug)]
pub(super) struct VectorPlace {
    pub(super) kind: FileSystem,
    /// The path that the vector changes.
    pub(super) acts_on: PathBuf,
    /// The path that records name.
    pub(super) reported: String,
    unit: String,
}

/// Mounts all file systems except the overlay, whose lower layer is filled first.
pub(super) fn mount_all() -> Result<PathBuf> {
    let overlay = place_of(FileSystem::Overlay);
    for kind in FileSystem::ALL.into_iter().filter(|kind| *kind != FileSystem::Overlay) {
        kind.mount(&place_of(kind))?;
    }
    let layers = overlay_layers(&overlay);
    fs::create_dir_all(&layers)?;
    mount(Some("tmpfs"), &layers, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    fs::create_dir(layers.join("lower"))?;
    Ok(overlay)
}

/// Mounts the overlay.
pub(super) fn mount_overlay(place: &Path) -> Result<()> {
    FileSystem::Overlay.mount(place)
}

impl VectorPlace {
    /// Creates the thing; on the overlay in its lower layer.
    pub(super) fn prepare(vector: &Vector, kind: FileSystem) -> Result<Self> {
        let top = place_of(kind).join(vector.id);
        let made_in = match kind {
            FileSystem::Overlay => overlay_layers(&place_of(kind)).join("lower").join(vector.id),
            _ => top.clone(),
        };
        let unit = format!("{}-{}.service", vector.id.to_lowercase(), kind.name());
        let (acts_on, reported) = if vector.target == StartState::ClosedDirectory {
            (top.join("d"), format!("{UNITS}/{unit}.d"))
        } else {
            let file = top.join("d/file");
            (file.clone(), file.display().to_string())
        };
        let place = Self { kind, acts_on, reported, unit };
        place.make(vector, &made_in.join("d")).with_context(|| format!("make {}", made_in.display()))?;
        Ok(place)
    }

    fn make(&self, vector: &Vector, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory.parent().context("a path with a directory")?)?;
        if vector.target == StartState::AbsentDirectory {
            return Ok(());
        }
        if vector.target == StartState::FileInSubvolume {
            prepare::subvolume(directory)?;
        } else {
            fs::create_dir(directory)?;
        }
        let file = directory.join("file");
        match vector.target {
            StartState::AbsentFile | StartState::AbsentDirectory => {}
            StartState::Link => symlink("/etc/declared", &file)?,
            StartState::Directory => {
                fs::create_dir(&file)?;
                fs::set_permissions(&file, Permissions::from_mode(0o755))?;
            }
            StartState::ClosedDirectory => fs::write(directory.join(DECLARED_DROPIN), "[Unit]\n")?,
            StartState::Script | StartState::Program => {
                fs::write(&file, content(vector.target, &self.acts_on))?;
                fs::set_permissions(&file, Permissions::from_mode(0o755))?;
            }
            StartState::Blocks | StartState::Swap => fs::write(&file, content(vector.target, &self.acts_on))?,
            StartState::File
            | StartState::FileInMount
            | StartState::FileInSubvolume
            | StartState::FileMountedOver
            | StartState::FileWithXattr
            | StartState::FileWithAcl => fs::write(&file, declared_content(&self.acts_on))?,
        }
        Ok(())
    }

    /// Preparations that need every file system mounted.
    pub(super) fn finish(&self, vector: &Vector) -> Result<()> {
        match vector.target {
            StartState::ClosedDirectory => {
                let directory = Path::new(&self.reported);
                fs::create_dir_all(directory)?;
                prepare::bind(&self.acts_on, directory)
            }
            StartState::FileMountedOver => prepare::mount_over(&self.acts_on),
            StartState::FileInMount => {
                let directory = self.acts_on.parent().context("a path with a directory")?;
                let hidden = directory.with_extension("hidden");
                fs::create_dir(&hidden)?;
                fs::copy(&self.acts_on, hidden.join("file"))?;
                fs::remove_file(&self.acts_on)?;
                prepare::bind(&hidden, directory)
            }
            StartState::FileWithXattr => prepare::set_undeclared(&self.acts_on),
            StartState::FileWithAcl => prepare::set_acl(&self.acts_on),
            _ => Ok(()),
        }
    }
}

fn content(target: StartState, path: &Path) -> Vec<u8> {
    match target {
        StartState::Script => b"#!/bin/sh\nexit 0\n".to_vec(),
        StartState::Program => prepare::smallest_program(),
        StartState::Swap => prepare::swap(),
        StartState::Blocks => declared_content(path).repeat(20).into_bytes(),
        _ => declared_content(path).into_bytes(),
    }
}

/// The MachineConfig that declares every thing.
pub(super) fn config<'a>(things: impl Iterator<Item = (&'a Vector, &'a VectorPlace)>) -> String {
    let (mut files, mut links, mut directories, mut units) = (vec![], vec![], vec![], vec![]);
    for (vector, place) in things {
        let path = &place.acts_on;
        match vector.target {
            StartState::Link => links.push(json!({ "path": path, "target": "/etc/declared" })),
            StartState::Directory => directories.push(json!({ "path": path, "mode": 0o755 })),
            StartState::ClosedDirectory => units.push(json!({
                "name": place.unit,
                "dropins": [{ "name": DECLARED_DROPIN, "contents": "[Unit]\n" }],
            })),
            target => {
                let mode =
                    if matches!(target, StartState::Script | StartState::Program) { 0o755 } else { 0o644 };
                let source = data_url(&content(target, path));
                files.push(json!({ "path": path, "mode": mode, "contents": { "source": source } }));
            }
        }
    }
    let config: Value = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {
            "name": "99-worker-vectors",
            "labels": { "machineconfiguration.openshift.io/role": "worker" },
        },
        "spec": { "config": {
            "ignition": { "version": "3.4.0" },
            "storage": { "files": files, "links": links, "directories": directories },
            "systemd": { "units": units },
        } },
    });
    config.to_string()
}

/// Bytes as a data URL, each percent-encoded.
pub(crate) fn data_url(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold("data:,".to_owned(), |mut url, byte| {
        // Writing to a string cannot fail.
        let _ = match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' => url.write_char(char::from(*byte)),
            _ => write!(url, "%{byte:02X}"),
        };
        url
    })
}

/// Mount point of a file system.
pub(super) fn place_of(kind: FileSystem) -> PathBuf {
    PathBuf::from("/mnt").join(kind.name())
}
