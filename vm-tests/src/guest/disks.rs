//! File systems to try things on.
//!
//! Comes in: a kind of file system. Goes out: a fresh one, mounted. The host gives each guest one empty disk for
//! ext4, XFS and Btrfs, made before the guest started and thrown away after; tmpfs and overlay need none.

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
    /// On its own disk; device numbers differ between stat and the kernel's superblock.
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

    /// Mounts a fresh one on a folder, which is created. For an overlay, `<place>-layers` holds `lower` and `upper`;
    /// what is in `lower` before the call shows through.
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

/// Takes a mounted file system away.
pub fn unmount(place: &Path) -> Result<()> {
    umount(place).with_context(|| format!("cannot unmount {}", place.display()))
}

/// Makes the layers of an overlay on a tmpfs of their own.
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

/// Where the layers of an overlay on `place` are.
pub fn overlay_layers(place: &Path) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push("-layers");
    PathBuf::from(name)
}

/// The device of the disk that the host named so.
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
