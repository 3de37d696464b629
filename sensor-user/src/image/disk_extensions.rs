//! The extensions of a host that are disk images.
//!
//! In: the files of the images. Out: the directory in which this thread alone sees what an image has. The program `mount` reads the file system
//! of the image, or those of its partitions. systemd has mounted the same file already, so the kernel reads nothing new.

mod partitions;
mod programs;

use super::images::Images;
use crate::{
    observation::{Observer, resolve::HANDLE},
    sys::{self, CallError},
};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::stat::{fstat, stat},
};
use partitions::Partition;
use programs::printed;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

/// The program that mounts.
const MOUNT: &str = "mount";
/// The program that makes loop devices.
const LOSETUP: &str = "losetup";
/// Options of each mount.
const OPTIONS: &str = "ro,nodev,nosuid";
/// The name of the directory for mounts, beside the indexes.
const PLACE: &str = "extension";

/// Mounts that only one thread sees. The kernel removes them when the thread ends, also when it is killed.
pub(super) struct OwnMounts {
    /// The host, as the thread sees it.
    pub(super) observer: Observer,
    place: PathBuf,
}

impl OwnMounts {
    /// Runs `work` in a thread with mounts of its own.
    ///
    /// # Errors
    /// The kernel gives the thread no mounts of its own.
    pub(super) fn with<T: Send>(
        images: &Images,
        work: impl FnOnce(&Self) -> T + Send,
    ) -> Result<T, CallError> {
        let place = images.path().join(PLACE);
        sys::make_directory(&place).map_err(|errno| CallError::new(&place, "make the directory", errno))?;
        let run = || {
            let mounts = Self::new(&place)?;
            Ok(work(&mounts))
        };
        let done = thread::scope(|scope| match scope.spawn(run).join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        // It is empty, and another index makes it again.
        let _ = fs::remove_dir(&place);
        done
    }

    fn new(place: &Path) -> Result<Self, CallError> {
        let failed = |errno| {
            CallError::new(Path::new("/"), "keep the mounts of extensions from other processes", errno)
        };
        unshare(CloneFlags::CLONE_NEWNS).map_err(failed)?;
        let (none, slave) = (None::<&Path>, MsFlags::MS_REC | MsFlags::MS_SLAVE);
        mount(none, Path::new("/"), none, slave, none).map_err(failed)?;
        // Another observer would see the mounts of the process.
        let observer = Observer::new(Path::new("/"))
            .map_err(|error| CallError::new(Path::new("/"), "open", std::io::Error::other(error)))?;
        Ok(Self { observer, place: place.to_owned() })
    }

    /// Mounts an image read-only and gives the directory with its files. An earlier image there is hidden.
    ///
    /// # Errors
    /// Why `mount` did not do it, in its own words, or what is wrong with the table of partitions.
    pub(super) fn of_image(&self, image: &Path) -> Result<&Path, String> {
        let Some(partitions) = partitions::of_image(image)? else {
            self.mount(image, &format!("{OPTIONS},loop"), "")?;
            return Ok(&self.place);
        };
        if partitions.iter().all(|partition| !partition.place.is_empty()) {
            self.directory_for(&partitions)?;
        }
        for partition in partitions {
            self.mount_partition(image, partition)?;
        }
        Ok(&self.place)
    }

    /// Mounts a partition by a loop device of its own. While systemd has the image merged, `mount` refuses to make one that overlaps with systemd's.
    fn mount_partition(
        &self,
        image: &Path,
        Partition { place, start, size }: Partition,
    ) -> Result<(), String> {
        let (start, size) = (start.to_string(), size.to_string());
        let options = ["--find", "--show", "--read-only", "--offset", &start, "--sizelimit", &size, "--"];
        let device = printed(Command::new(LOSETUP).args(options).arg(image))?;
        let device = Path::new(device.trim());
        let mounted = self.mount(device, OPTIONS, place);
        // The kernel removes a device that is mounted with the mount.
        let detached = printed(Command::new(LOSETUP).arg("--detach").arg(device));
        mounted.and(detached.map(drop))
    }

    /// Mounts an image or a device at a place below the directory.
    fn mount(&self, what: &Path, options: &str, place: &str) -> Result<(), String> {
        let mut command = Command::new(MOUNT);
        printed(command.args(["-o", options, "--"]).args([what, &self.place.join(place)])).map(drop)
    }

    /// Makes an empty root directory with the places of partitions, for an image without a partition for it.
    fn directory_for(&self, partitions: &[Partition]) -> Result<(), String> {
        let flags = MsFlags::MS_NODEV | MsFlags::MS_NOSUID;
        mount(Some("tmpfs"), &self.place, Some("tmpfs"), flags, Some("mode=755"))
            .map_err(|errno| format!("no empty directory can be mounted: {}", errno.desc()))?;
        partitions.iter().try_for_each(|Partition { place, .. }| {
            fs::create_dir(self.place.join(place)).map_err(|error| format!("cannot make /{place}: {error}"))
        })
    }
}

/// Whether an observer reads this process's own root directory, so that mounts of this process are those of the host.
pub(super) fn is_own_root(observer: &Observer) -> bool {
    let root = observer.root().open_at(Path::new("/"), HANDLE).and_then(|handle| fstat(&handle));
    let id = |stat: nix::sys::stat::FileStat| (stat.st_dev, stat.st_ino);
    root.map(id).ok().is_some_and(|root| stat("/").map(id) == Ok(root))
}
