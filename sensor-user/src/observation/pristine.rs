//! The `/etc` that the booted image ships.
//!
//! In: the host's root. Out: where this host keeps it, as a root and a directory in that. A host whose root is a composefs image mounts the
//! present `/etc` over that of the image. A copy of the root mount alone shows the image's. It takes `CAP_SYS_ADMIN` to make the copy, which
//! no path leads to.

use super::{
    host_mounts::host_mounts,
    resolve::{HANDLE, Root},
};
use nix::fcntl::OFlag;
use rustix::mount::{OpenTreeFlags, open_tree};
use sensor_model::{
    expectation::OSTREE_BOOTED,
    os::{PristineEtc, has_root_image},
};
use std::path::{Path, PathBuf};

/// A host of ostree has one of these: the file that ostree makes while it boots a deployment, and the link to its repository.
const OF_OSTREE: [&str; 2] = [OSTREE_BOOTED, "/ostree"];

/// The `/etc` that the booted image ships.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pristine<'a> {
    kind: PristineEtc,
    root: &'a Root,
}

impl<'a> Pristine<'a> {
    /// The one that the host keeps in its own tree, or below `root_image`.
    pub(super) fn of(root: &'a Root, root_image: &'a RootImage) -> Option<Self> {
        let kept = |kind: &PristineEtc| {
            let directory = HANDLE | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
            // Distributions without ostree ship defaults in `/usr/etc`, too, which are no first state of `/etc`.
            let exists = |path: &str| root.open_at(Path::new(path), HANDLE | OFlag::O_NOFOLLOW).is_ok();
            root.open_at(kind.directory(), directory).is_ok()
                && (*kind != PristineEtc::Ostree || OF_OSTREE.into_iter().any(exists))
        };
        match root_image {
            RootImage::Open(image) => Some(Self { kind: PristineEtc::RootImage, root: image }),
            RootImage::Unavailable => None,
            RootImage::None => {
                let kind = [PristineEtc::Ostree, PristineEtc::Flatcar].into_iter().find(kept)?;
                Some(Self { kind, root })
            }
        }
    }

    /// The kind of host that keeps it.
    pub(crate) fn kind(&self) -> PristineEtc {
        self.kind
    }

    /// The root in which [`Self::place`] is a path.
    pub(crate) fn root(&self) -> &'a Root {
        self.root
    }

    /// Where a path of `/etc` is; `None` for other paths.
    pub(crate) fn place(&self, path: &Path) -> Option<PathBuf> {
        self.kind.place(path)
    }
}

/// The image that is the host's root, without what is mounted over it.
#[derive(Debug)]
pub(super) enum RootImage {
    /// The host's root is no such image.
    None,
    /// It is one, and this process cannot see what the mounts over it hide.
    Unavailable,
    /// It is one.
    Open(Root),
}

impl RootImage {
    /// The image of a host.
    pub(super) fn of(root: &Root) -> Self {
        if !host_mounts(root).is_ok_and(|table| has_root_image(&table)) {
            return Self::None;
        }
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        match open_tree(root.directory(), "", flags) {
            Ok(copy) => Self::Open(Root::of(copy)),
            Err(error) => {
                tracing::debug!(%error, "Cannot open the root image without the mounts over it.");
                Self::Unavailable
            }
        }
    }

    /// The image by the path of a handle that another process of Holdfast holds.
    pub(super) fn at(handle: &Path) -> Self {
        match Root::open(handle) {
            Ok(image) => Self::Open(image),
            Err(error) => {
                tracing::warn!(%error, handle = %handle.display(), "Cannot open the root image by the daemon's handle.");
                Self::Unavailable
            }
        }
    }
}
