//! Traits of rooms above, which [`Observer`] implements: it opens the objects that fanotify watches, and names the users of actors.

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
