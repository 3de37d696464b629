//! The image that the host booted, as an [`Observer`] shows it.
//!
//! In: an observer. Out: the deployments, what is mounted over the hierarchies of the OS, and the `/etc` that the image ships, beside what the
//! host has at its paths.

use super::{
    Observer, commit, hierarchy,
    object::{FailedOperation, Want, without_access_time},
    os,
    pristine::{Pristine, RootImage},
    resolve::{HANDLE, Root},
};
use nix::{errno::Errno, fcntl::OFlag};
use sensor_model::{
    observation::Observation,
    os::{Deployment, hierarchy::Cover},
    ostree::Commit,
};
use std::{
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    sync::OnceLock,
};

impl Observer {
    /// The paths in the directories of ostree's deployments: each deployment, and the file with its origin.
    pub(crate) fn deployments(&self) -> Vec<PathBuf> {
        os::deployments(&self.root)
    }

    /// The deployments of ostree by their origin files, and whether each of them is staged for the next boot.
    pub(crate) fn ostree_deployments(&self) -> Vec<(Deployment, bool)> {
        os::ostree_deployments(&self.root)
    }

    /// A commit of the host's ostree repository, verified by its checksum. `None` if the host does not have it, or it is damaged.
    pub(crate) fn commit(&self, checksum: &str) -> Option<Commit> {
        commit::commit(&self.root, checksum)
    }

    /// Whether the host's ostree repository still has a commit. One that cannot be looked up counts as there.
    pub(crate) fn has_commit(&self, checksum: &str) -> bool {
        commit::has_commit(&self.root, checksum)
    }

    /// What is mounted over each hierarchy of the OS.
    ///
    /// # Errors
    /// The host's mount table cannot be read. The text says why.
    pub(crate) fn hierarchies(&self) -> Result<Vec<(&'static Path, Vec<Cover>)>, String> {
        hierarchy::all(&self.root)
            .map_err(|failed| format!("{} its hierarchies: {}", failed.operation, failed.errno.desc()))
    }

    /// Whether the host booted a deployment of an image, also if its files do not say which one.
    pub(crate) fn boots_images(&self) -> bool {
        os::boots_images(&self.root)
    }

    /// The `/etc` that the booted image ships; `None` on a host that keeps none, and if this process may not see it.
    pub(crate) fn pristine(&self) -> Option<Pristine<'_>> {
        Pristine::of(&self.root, self.root_image())
    }

    /// Where the pristine `/etc` has a path, and what it has there. `None` for paths outside `/etc`, and on a host without a
    /// [`Self::pristine`] one.
    pub(crate) fn shipped(&self, path: &Path) -> Option<(PathBuf, Observation)> {
        let pristine = self.pristine()?;
        let place = pristine.place(path)?;
        let shipped = self.whole_object(pristine.root(), &place);
        Some((place, shipped))
    }

    /// What the host has at a path, with the digest of its content. Nothing says what it should be.
    pub(crate) fn present(&self, path: &Path) -> Observation {
        self.whole_object(&self.root, path)
    }

    /// An object below a root, with the digest of its content, however long it is.
    fn whole_object(&self, root: &Root, path: &Path) -> Observation {
        let open = |flags| root.open_at(path, flags | OFlag::O_NOFOLLOW);
        let read = || {
            let handle = match open(HANDLE) {
                Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(Observation::Missing),
                opened => opened.map_err(FailedOperation::at("open"))?,
            };
            let found = self.reader.find_handle(handle, || without_access_time(open))?;
            let want = Want { size: Some(found.stat.stx_size), ..Want::default() };
            Ok(Observation::Object(Box::new(self.reader.read(&found, want)?)))
        };
        read().unwrap_or_else(|failed: FailedOperation| Observation::Unreadable {
            error: format!("{} {}: {}", failed.operation, path.display(), failed.errno.desc()),
        })
    }

    /// The same observer with the root image by a path from [`Self::root_image_handle`] of another process.
    #[must_use]
    pub(crate) fn with_root_image(self, handle: &Path) -> Self {
        Self { root_image: OnceLock::from(RootImage::at(handle)), ..self }
    }

    /// A path by which another process of Holdfast opens the image that is the host's root; `None` on other hosts. Call it while this
    /// process has `CAP_SYS_ADMIN`.
    pub(crate) fn root_image_handle(&self) -> Option<PathBuf> {
        match self.root_image() {
            RootImage::Open(image) => Some(PathBuf::from(format!(
                "/proc/{}/fd/{}",
                std::process::id(),
                image.directory().as_raw_fd()
            ))),
            RootImage::None | RootImage::Unavailable => None,
        }
    }

    fn root_image(&self) -> &RootImage {
        self.root_image.get_or_init(|| RootImage::of(&self.root))
    }
}
