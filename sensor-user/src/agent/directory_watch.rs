//! The directories in which the globs of closed directories look for names.
//!
//! In: their paths. Out: a descriptor that is readable when one of them gets a name. The events prove nothing: they only have the globs
//! evaluated again, which happens every few seconds besides.

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// Most directories that are watched.
const MOST: usize = 1024;

/// Watches directories of a root; `None` if there are none, or the kernel refuses.
pub(super) fn watch(root: &Path, directories: &[PathBuf]) -> Option<OwnedFd> {
    if directories.is_empty() {
        return None;
    }
    let opened = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).inspect_err(|error| {
        tracing::warn!(%error, "Cannot watch for new closed directories; the daemon looks for them every few seconds.");
    });
    let opened = opened.ok()?;
    for directory in directories.iter().take(MOST) {
        let path = root.join(directory.strip_prefix("/").unwrap_or(directory));
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        if let Err(error) = inotify::add_watch(&opened, &path, flags) {
            tracing::debug!(path = %path.display(), %error, "Cannot watch a directory for new closed directories.");
        }
    }
    Some(opened)
}

/// Takes all events.
pub(super) fn drain(watch: &OwnedFd) {
    let mut buffer = [0; 4096];
    while nix::unistd::read(watch, &mut buffer).is_ok_and(|length| length > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::{fs, os::fd::AsFd as _};

    fn has_events(watch: &OwnedFd) -> bool {
        let mut polled = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO).unwrap() > 0
    }

    #[test]
    fn a_new_directory_and_one_moved_there_are_events_and_other_directories_are_none() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc/deep")).unwrap();
        let watch = watch(root.path(), &["/etc".into(), "/none".into()]).unwrap();
        fs::create_dir(root.path().join("etc/deep/new")).unwrap();
        assert!(!has_events(&watch));
        fs::create_dir(root.path().join("etc/new.d")).unwrap();
        assert!(has_events(&watch));
        drain(&watch);
        assert!(!has_events(&watch));
        fs::rename(root.path().join("etc/deep"), root.path().join("etc/moved.d")).unwrap();
        assert!(has_events(&watch));
        assert!(super::watch(root.path(), &[]).is_none());
    }
}
