//! The mounts of a host in which the kernel proves each file, and what an [`Observer`] does with that.
//!
//! In: the host's root. Out: its root mount, if that is a sealed composefs image; and the mounts of `/` and `/usr` on a device of dm-verity with
//! the root hash that the boot loader named. Whatever is uncertain is not sealed.

use super::{
    Observer,
    device_mapper::VerityDevices,
    host_mounts::{host_mounts, of_proc},
    object::{FailedOperation, stat_handle},
    os,
    resolve::{HANDLE, Root},
    sealed::SealedContents,
    sealed_mounts::{MountPoints, SealedMount, SealedMounts},
};
use crate::{clock::boot_id, desired::DeviceTables};
use nix::fcntl::OFlag;
use rustix::fs::StatxFlags;
use sensor_model::{
    expectation::{KERNEL_ARGUMENTS, SealedTree},
    host::mountinfo,
    observation::Observation,
    os::{VerityMount, verity_mounts},
};
use sha2::Digest as _;
use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::{Component, Path, PathBuf},
    sync::{Arc, PoisonError},
};

/// The sealed mounts of the host at `root`. The kernel's boot id is read from `proc`. `handed_over` are the verity devices that another process asked
/// for; without them, this one asks.
fn sealed_mounts(root: &Root, proc: &Path, handed_over: Option<Arc<VerityDevices>>) -> SealedMounts {
    let named = named_by_the_boot_loader(root);
    let ask = || VerityDevices::ask(root, named.iter().map(|mount| mount.device)).map(Arc::new);
    let devices = if named.is_empty() { None } else { handed_over.or_else(ask) };
    let found = SealedMounts::with_devices(devices);
    refresh(&found, root, proc);
    found
}

/// Looks again which mounts the kernel proves, after a mount or unmount. It asks for no device again.
fn refresh(known: &SealedMounts, root: &Root, proc: &Path) {
    let composefs =
        os::sealed(root).and_then(|sealed| Some(SealedMount::of_root(&sealed, &boot_id(proc).ok()?)));
    let named = if known.devices().is_some() { named_by_the_boot_loader(root) } else { Vec::new() };
    let verity = named.iter().filter_map(|mount| {
        let answers = known.devices()?;
        let device = answers.device(mount.device)?;
        if device.root_hash != mount.root_hash {
            tracing::debug!(
                mount = %mount.point.display(),
                "A verity device has another root hash than the one that the kernel's arguments name: its files are not sealed."
            );
            return None;
        }
        Some(SealedMount::on_device(mount, &device, answers, handle_on(root, mount)?))
    });
    known.set(composefs.into_iter().chain(verity).collect());
}

/// The mounts of a running host for which the kernel's arguments name a root hash.
fn named_by_the_boot_loader(root: &Root) -> Vec<VerityMount> {
    let Ok(arguments) = of_proc(root, Path::new(KERNEL_ARGUMENTS)) else { return Vec::new() };
    let Ok(table) = host_mounts(root) else { return Vec::new() };
    verity_mounts(&table, &String::from_utf8_lossy(&arguments))
}

/// Directories of a running host whose contents are not the image's: file systems of the kernel, and state. Mounts come and go there.
pub(crate) const OF_THE_HOST: [&str; 7] = ["/dev", "/proc", "/run", "/sys", "/sysroot", "/tmp", "/var"];

/// Whether a path is such a directory or below one.
pub(crate) fn is_of_host(path: &Path) -> bool {
    OF_THE_HOST.iter().any(|above| path.starts_with(above))
}

/// The mount points of a table that are wanted.
fn points(table: &[u8], is_wanted: impl Fn(&Path) -> bool) -> MountPoints {
    let wanted = mountinfo::mounts(table).filter(|mount| is_wanted(&mount.point));
    wanted.map(|mount| (mount.point, mount.id.to_vec())).collect()
}

/// The directory of the root directory that a path is in; `None` for such a directory itself.
fn top(path: &Path) -> Option<PathBuf> {
    let mut components = path.components();
    let (Some(Component::RootDir), Some(first), Some(_)) =
        (components.next(), components.next(), components.next())
    else {
        return None;
    };
    Some(Path::new("/").join(first))
}

/// A handle of the root of a mount, if the root of this host leads there.
fn handle_on(root: &Root, mount: &VerityMount) -> Option<OwnedFd> {
    let handle = root.open_at(mount.point, HANDLE | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW).ok()?;
    let stat = stat_handle(handle.as_fd(), StatxFlags::MNT_ID).ok()?;
    let is_there = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0
        && stat.stx_mnt_id == mount.mount
        && (stat.stx_dev_major, stat.stx_dev_minor) == mount.device;
    is_there.then_some(handle)
}

impl Observer {
    /// The same observer, which does not read a file again if the kernel proves that it still has a content that was read before.
    #[must_use]
    pub(crate) fn with_sealed(self, contents: SealedContents) -> Self {
        self.with_sealed_on(contents, None)
    }

    /// The same with the verity devices that another process asked for.
    #[must_use]
    pub(crate) fn with_sealed_on(
        mut self,
        contents: SealedContents,
        devices: Option<Arc<VerityDevices>>,
    ) -> Self {
        let mounts = sealed_mounts(&self.root, Path::new("/proc"), devices);
        self.reader.sealed = Some(Box::new(contents.with_mounts(mounts)));
        self
    }

    /// The contents of sealed files that were read.
    pub(crate) fn sealed(&self) -> Option<&SealedContents> {
        self.reader.sealed.as_deref()
    }

    /// What the kernel said of the host's verity devices, for processes that may not ask.
    pub(crate) fn device_tables(&self) -> Option<Arc<DeviceTables>> {
        let devices = self.sealed()?.mounts().devices()?;
        Some(Arc::new(DeviceTables { lines: devices.lines().collect(), control: devices.control().ok()? }))
    }

    /// The same observer, which finds sealed trees.
    #[must_use]
    pub(crate) fn with_trees(self) -> Self {
        Self { finds_trees: true, ..self }
    }

    /// Whether it finds sealed trees.
    pub(crate) fn finds_trees(&self) -> bool {
        self.finds_trees
    }

    /// The sealed tree that the object at a path is in: the directory below the root directory, if both are on one mount that the kernel proves.
    pub(crate) fn sealed_tree_of(&self, path: &Path) -> Option<(PathBuf, SealedTree)> {
        let top = top(path)?;
        let own = self.sealed_at(path)?;
        (self.sealed_at(&top)? == own).then_some((top, own))
    }

    /// What proves the object at a path.
    fn sealed_at(&self, path: &Path) -> Option<SealedTree> {
        let mounts = self.sealed()?.mounts();
        let handle = self.root.open_at(path, HANDLE | OFlag::O_NOFOLLOW).ok()?;
        let stat = stat_handle(handle.as_fd(), StatxFlags::MNT_ID | StatxFlags::INO).ok()?;
        let (by, image) = mounts.mount_of(&stat)?;
        Some(SealedTree { by, image })
    }

    /// Looks again which mounts the kernel proves.
    pub(super) fn refresh_seals(&self) {
        if let Some(contents) = self.sealed() {
            refresh(contents.mounts(), &self.root, Path::new("/proc"));
        }
    }

    /// Observes a sealed tree.
    pub(super) fn tree(&self, path: &Path) -> Result<Observation, FailedOperation> {
        self.refresh_seals();
        let sealed = self.sealed_at(path);
        let now = points(&host_mounts(&self.root)?, |point| point.starts_with(path) && point != path);
        // Each lock covers one operation of the map, so a panic elsewhere leaves it intact.
        let mut known = self.tree_mounts.lock().unwrap_or_else(PoisonError::into_inner);
        let first = known.entry(path.to_owned()).or_insert_with(|| now.clone());
        let over = now.into_iter().filter(|(point, mount)| first.get(point) != Some(mount));
        Ok(Observation::Tree { sealed, over: over.map(|(point, _)| point).collect() })
    }

    /// A digest of the mounts that the kernel proves, and of all mounts that may hide a part of them; `None` without such mounts.
    pub(crate) fn seals_version(&self) -> Option<[u8; 32]> {
        self.refresh_seals();
        let mut digest = self.sealed()?.mounts().digest()?;
        let table = host_mounts(&self.root).ok()?;
        for (point, mount) in points(&table, |point| !is_of_host(point)) {
            digest.update(point.as_os_str().as_encoded_bytes());
            digest.update([0]);
            digest.update(mount);
            digest.update([0]);
        }
        Some(digest.finalize().into())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use sensor_model::os::SealedRoot;
    use std::fs;

    /// An observer of a root whose mount counts as sealed, until mounts are looked at again.
    pub(crate) fn on_sealed_root(root: &Path) -> Observer {
        with_contents(root, SealedContents::new([]))
    }

    /// The same with contents that an earlier process read.
    pub(crate) fn with_contents(root: &Path, contents: SealedContents) -> Observer {
        let mut observer = Observer::new(root).unwrap();
        let stat = stat_handle(observer.root.directory().as_fd(), StatxFlags::MNT_ID).unwrap();
        let sealed = SealedRoot { mount: stat.stx_mnt_id, digest: vec![1; 32] };
        let contents = contents.with_mounts(SealedMounts::with_root(&sealed, "boot"));
        observer.reader.sealed = Some(Box::new(contents));
        observer.with_trees()
    }

    #[test]
    fn a_tree_is_a_directory_of_the_root_directory() {
        assert_eq!(top(Path::new("/usr/bin/a")), Some("/usr".into()));
        for path in ["/usr", "/", "usr/bin"] {
            assert_eq!(top(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn a_mount_that_came_after_the_first_observation_of_a_tree_hides_a_part_of_it() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/1")).unwrap();
        let table = |lines: &str| fs::write(root.path().join("proc/1/mountinfo"), lines).unwrap();
        let observer = Observer::new(root.path()).unwrap();
        let over = || match observer.tree(Path::new("/usr")).unwrap() {
            Observation::Tree { sealed: None, over } => over,
            other => panic!("{other:?}"),
        };
        let first = "20 1 8:1 / / rw - ext4 a rw\n21 20 8:1 / /usr/local rw - ext4 a rw\n22 20 0:3 / /run/x rw - tmpfs t rw\n";
        table(first);
        assert!(over().is_empty(), "what is there at first is part of the host");
        table(&format!(
            "{first}30 20 8:1 /evil /usr/bin/a rw - ext4 a rw\n31 20 0:9 / /var rw - tmpfs t rw\n"
        ));
        assert_eq!(over(), [Path::new("/usr/bin/a")]);
        table(&format!("{first}32 21 0:9 / /usr/local rw - tmpfs t rw\n"));
        assert_eq!(over(), [Path::new("/usr/local")], "another mount at a point that had one");
        table(first);
        assert!(over().is_empty());
    }
}
