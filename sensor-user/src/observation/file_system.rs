//! What a path lies on.
//!
//! In: a path. Out: the file system that it, or else its nearest directory, is on, and whether that is one that a server
//! answers for. It opens nothing for reading.

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
    /// Where something was not touched since the last call, or since the last look began: on which file system that a
    /// server answers for.
    pub fn refused(&self) -> Option<Served> {
        self.root.guard()?.take_refused()
    }

    /// Whether a path is one on a file system that a server answers for, links on the way left aside.
    pub(crate) fn is_served(&self, path: &Path) -> bool {
        self.root.guard().is_some_and(|guard| guard.served(path).is_some())
    }

    /// Something was mounted or unmounted.
    pub(crate) fn mounts_changed(&self) {
        if let Some(guard) = self.root.guard() {
            guard.refresh();
        }
    }

    /// The magic number of the file system that a path, or else its nearest directory, lies on.
    pub fn file_system(&self, path: &Path) -> Option<u64> {
        let magic = rustix::fs::fstatfs(self.nearest(path)?).ok()?.f_type;
        Some(magic.cast_unsigned() & u64::from(u32::MAX))
    }

    /// Whether a path, or else its nearest directory, lies on layers (overlayfs) of which one is written to. `true`
    /// also where that is not known.
    pub fn has_upper_layer(&self, path: &Path) -> bool {
        let mount = self.nearest(path).and_then(|there| stat_handle(there.as_fd(), StatxFlags::MNT_ID).ok());
        let (Some(mount), Ok(table)) = (mount, bounded::read(Path::new(MOUNTS), bounded::TABLE)) else {
            return true;
        };
        let id = mount.stx_mnt_id.to_string();
        let mut mounts = mountinfo::mounts(&table);
        mounts.find(|mount| mount.id == id.as_bytes()).is_none_or(|mount| mount.has_option("upperdir"))
    }

    /// A handle of what a path leads to, or else of its nearest directory.
    fn nearest(&self, path: &Path) -> Option<OwnedFd> {
        path.ancestors().find_map(|path| self.root.open_at(path, HANDLE | OFlag::O_NOFOLLOW).ok())
    }
}
