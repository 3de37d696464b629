//! What the observer does for other rooms: it opens what fanotify watches, and names users for actors.

use super::Observer;
use crate::attribution::Users;
use crate::fanotify::Open;
use nix::errno::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

impl Open for Observer {
    fn open_file(&self, path: &Path) -> Result<OwnedFd, Errno> {
        Self::open_file(self, path)
    }

    fn open_again(&self, handle: OwnedFd) -> Result<OwnedFd, Errno> {
        Self::open_again(self, handle)
    }
}

impl Users for Observer {
    fn user(&self, uid: u32) -> Option<String> {
        Self::user(self, uid)
    }
}
