//! File systems for scenarios.
//!
//! In: a kind of file system. Out: an empty one, mounted. The host gives each guest one empty disk each for ext4, XFS and
//! Btrfs, and removes them after the guest's end. Neither tmpfs nor overlay needs a disk.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount, umount};

use super::files::load_module;

/// A kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// In memory.
    Tmpfs,
    /// On its own disk.
    Ext4,
    /// On its own disk.
    Xfs,
    /// On its own disk. The device number of stat differs from that of the kernel's superblock.
    Btrfs,
    /// Two tmpfs folders over each other.
    Overlay,
}

impl FileSystem {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Tmpfs, Self::Ext4, Self::Xfs, Self::Btrfs, Self::Overlay];

    /// The kernel's name for it, and that of its disk.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Overlay => "overlay",
        }
    }

    /// Creates a folder and mounts an empty file system on it. For an overlay, `<place>-layers` has `lower` and `upper`; files that are in
    /// `lower` before the call are visible.
    pub fn mount(self, place: &Path) -> Result<()> {
        fs::create_dir_all(place)?;
        load_module(self.name())?;
        let name = self.name();
        let (source, options) = match self {
            Self::Tmpfs => (PathBuf::from(name), None),
            Self::Overlay => (PathBuf::from(name), Some(overlay_options(place)?)),
            Self::Ext4 | Self::Xfs | Self::Btrfs => (find(name)?, None),
        };
        mount(Some(&source), place, Some(name), MsFlags::empty(), options.as_deref())
            .with_context(|| format!("cannot mount {name} on {}", place.display()))
    }
}

/// Unmounts a file system.
pub fn unmount(place: &Path) -> Result<()> {
    umount(place).with_context(|| format!("cannot unmount {}", place.display()))
}

/// Creates the layers of an overlay, on their own tmpfs.
fn overlay_options(place: &Path) -> Result<String> {
    let layers = overlay_layers(place);
    if !layers.join("lower").exists() {
        fs::create_dir_all(&layers)?;
        mount(Some("tmpfs"), &layers, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    }
    for layer in ["lower", "upper", "work"] {
        fs::create_dir_all(layers.join(layer))?;
    }
    let l = layers.display();
    Ok(format!("lowerdir={l}/lower,upperdir={l}/upper,workdir={l}/work"))
}

/// The folder with the layers of an overlay on `place`.
pub fn overlay_layers(place: &Path) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push("-layers");
    PathBuf::from(name)
}

/// The device of the disk with this name from the host.
pub fn find(serial: &str) -> Result<PathBuf> {
    load_module("virtio_pci")?;
    load_module("virtio_blk")?;
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        if fs::read_to_string(entry.path().join("serial")).is_ok_and(|text| text.trim() == serial) {
            return Ok(Path::new("/dev").join(entry.file_name()));
        }
    }
    bail!("this guest has no disk {serial}")
}
