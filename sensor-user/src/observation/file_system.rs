//! Which file system a path is on.
//!
//! In: a path. Out: the file system of the path, or of its nearest existing directory, and whether a server answers for it. It opens
//! nothing for reading.

use super::{HANDLE, MOUNTS, Observer, Served, object::stat_handle};
use crate::bounded;
use nix::fcntl::OFlag;
use rustix::fs::StatxFlags;
use sensor_model::host::mountinfo;
use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

impl Observer {
    /// The file system that the observer did not access, because a server answers for it. It is the last one since the last
    /// call, or since the last observation began.
    pub fn take_left_to_worker(&self) -> Option<Served> {
        self.root.guard()?.take_left_to_worker()
    }

    /// Whether a path is on a file system that a server answers for. It does not resolve links in the path.
    pub(crate) fn is_served(&self, path: &Path) -> bool {
        self.root.guard().is_some_and(|guard| guard.served(path).is_some())
    }

    /// Reads the mount table again, after a mount or unmount.
    pub(crate) fn mounts_changed(&self) {
        if let Some(guard) = self.root.guard() {
            guard.refresh();
        }
        self.refresh_seals();
    }

    /// The magic number of the file system that a path, or else its nearest existing directory, is on.
    pub fn file_system(&self, path: &Path) -> Option<u64> {
        let magic = rustix::fs::fstatfs(self.nearest(path)?).ok()?.f_type;
        Some(magic.cast_unsigned() & u64::from(u32::MAX))
    }

    /// Whether a path, or else its nearest existing directory, is on an overlayfs with an upper directory. `true` also if the mount is
    /// unknown.
    pub fn has_upper_layer(&self, path: &Path) -> bool {
        let mount =
            self.nearest(path).and_then(|handle| stat_handle(handle.as_fd(), StatxFlags::MNT_ID).ok());
        let (Some(mount), Ok(table)) = (mount, bounded::read(Path::new(MOUNTS), bounded::TABLE)) else {
            return true;
        };
        let id = mount.stx_mnt_id.to_string();
        let mut mounts = mountinfo::mounts(&table);
        mounts.find(|mount| mount.id == id.as_bytes()).is_none_or(|mount| mount.has_option("upperdir"))
    }

    /// A handle of the object at a path, or else of its nearest existing directory.
    fn nearest(&self, path: &Path) -> Option<OwnedFd> {
        path.ancestors().find_map(|path| self.root.open_at(path, HANDLE | OFlag::O_NOFOLLOW).ok())
    }
}
