//! The mounts in which the kernel proves each file, as [`super::seals`] found them.
//!
//! In: the mounts, and the state of a file. Out: what seals the file, and a digest of everything that determines the contents of its mount.

use super::device_mapper::{DeviceNumber, VerityDevices};
use rustix::fs::{Statx, StatxFlags};
use sensor_model::{
    os::{SealedRoot, VerityDevice, VerityMount},
    strength::SealKind,
};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
};

/// Mount points, each with the number of its topmost mount.
pub(super) type MountPoints = BTreeMap<PathBuf, Vec<u8>>;

/// A mount in which the kernel proves each file.
#[derive(Debug)]
pub(super) struct SealedMount {
    /// The number of the mount. The handle keeps the mount, so no other one gets its number.
    mount: u64,
    _handle: Option<OwnedFd>,
    /// The device of a mount that dm-verity seals.
    device: Option<DeviceNumber>,
    /// A digest of everything that determines the contents of the mount.
    image: [u8; 32],
}

impl SealedMount {
    fn kind(&self) -> SealKind {
        if self.device.is_some() { SealKind::DmVerity } else { SealKind::FsVerity }
    }

    /// The root of a host. Its contents are certain in this boot only.
    pub(super) fn of_root(root: &SealedRoot, boot_id: &str) -> Self {
        let image = Sha256::new().chain_update(boot_id).chain_update(&root.digest).finalize().into();
        Self { mount: root.mount, _handle: None, device: None, image }
    }

    /// A mount on a verity device. Its contents are certain as long as these answers are.
    pub(super) fn on_device(
        mount: &VerityMount,
        device: &VerityDevice,
        answers: &VerityDevices,
        handle: OwnedFd,
    ) -> Self {
        let text = format!("{VERITY} {} {}\n{}", answers.name(), mount.file_system, device.form);
        let image = Sha256::digest(text).into();
        Self { mount: mount.mount, _handle: Some(handle), device: Some(mount.device), image }
    }
}

/// The beginning of what a digest of a mount on a verity device covers. No boot id begins with it.
const VERITY: &str = "dm-verity";

/// The mounts of a host in which the kernel proves each file.
#[derive(Debug, Default)]
pub(super) struct SealedMounts {
    mounts: RwLock<Vec<SealedMount>>,
    devices: Option<Arc<VerityDevices>>,
}

impl SealedMounts {
    /// With these devices, and no mount yet.
    pub(super) fn with_devices(devices: Option<Arc<VerityDevices>>) -> Self {
        Self { mounts: RwLock::default(), devices }
    }

    /// The devices whose tables are known.
    pub(super) fn devices(&self) -> Option<&Arc<VerityDevices>> {
        self.devices.as_ref()
    }

    /// Sets the mounts.
    pub(super) fn set(&self, mounts: Vec<SealedMount>) {
        *self.mounts.write().unwrap_or_else(PoisonError::into_inner) = mounts;
    }

    /// A digest of all mounts that are sealed now; `None` without any.
    pub(super) fn digest(&self) -> Option<Sha256> {
        let is_current = self.are_current();
        let mounts = self.mounts.read().unwrap_or_else(PoisonError::into_inner);
        let sealed = mounts.iter().filter(|mount| mount.device.is_none() || is_current);
        sealed.fold(None, |digest: Option<Sha256>, mount| {
            let digest = digest.unwrap_or_default();
            Some(digest.chain_update(mount.mount.to_le_bytes()).chain_update(mount.image))
        })
    }

    /// Whether the tables of the devices are still those that were asked for.
    fn are_current(&self) -> bool {
        self.devices.as_ref().is_some_and(|devices| devices.are_current())
    }

    /// The sealed mount of a file, with what seals it and a digest of everything that determines its contents. `None` for a file on
    /// another mount, and if the table of its device may have been replaced.
    pub(super) fn mount_of(&self, stat: &Statx) -> Option<(SealKind, [u8; 32])> {
        let needed = StatxFlags::MNT_ID | StatxFlags::INO;
        let is_known = stat.stx_mask & needed.bits() == needed.bits();
        let mounts = self.mounts.read().unwrap_or_else(PoisonError::into_inner);
        let found = mounts.iter().find(|mount| is_known && mount.mount == stat.stx_mnt_id)?;
        if let Some(device) = found.device {
            let is_there = device == (stat.stx_dev_major, stat.stx_dev_minor);
            if !is_there || !self.are_current() {
                return None;
            }
        }
        Some((found.kind(), found.image))
    }

    /// A sealed mount for tests.
    #[cfg(test)]
    pub(super) fn with_root(root: &SealedRoot, boot_id: &str) -> Self {
        Self { mounts: RwLock::new(vec![SealedMount::of_root(root, boot_id)]), devices: None }
    }
}
