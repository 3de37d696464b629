//! Directories that are watched for more than the things in them: units, globs, executions.
//!
//! In: their paths. Out: the watches that the caller enrols. It owns nothing. No I/O.

use super::{Inode, WatchRegistry};
use sensor_common::op::{ROLE_ANCESTOR, ROLE_DIRECTORY, ROLE_EXECUTIONS};
use std::path::{Path, PathBuf};

/// Most directories that are watched because a glob looks for names in them. New names in the others are found within seconds.
const MOST_SEARCHED: usize = 1024;

impl WatchRegistry {
    /// Watches a directory that holds units, or links that enable units. `opened`: the inode that a verification opened there. Gives
    /// the watch if it is new or leads to another inode; the caller enrols it.
    pub fn watch_units_in(&mut self, directory: &Path, opened: Option<Inode>) -> Option<u32> {
        let known = self.find(directory);
        let watch = known.map(|watch_id| &self.watches[watch_id as usize]).filter(|watch| watch.holds_units);
        if watch.is_some_and(|watch| opened.is_none() || watch.inode() == opened) {
            return None;
        }
        let watch = self.watch(directory, ROLE_DIRECTORY | ROLE_ANCESTOR);
        watch.holds_units = true;
        // Records of its name in its parent directory report when it appears or disappears.
        watch.on_a_route = true;
        self.find(directory)
    }

    /// Watches the directories in which globs look for names. Gives the watches that are new; the caller enrols them all,
    /// because each may lead to another inode.
    pub fn watch_searched(&mut self, directories: &[PathBuf]) -> Vec<u32> {
        let mut added = Vec::new();
        for directory in directories.iter().take(MOST_SEARCHED) {
            let watch = self.watch(directory, ROLE_DIRECTORY | ROLE_ANCESTOR);
            // Records of its name in its parent directory report when it appears or disappears.
            watch.on_a_route = true;
            if !std::mem::replace(&mut watch.is_searched, true) {
                added.extend(self.find(directory));
            }
        }
        added
    }

    /// Whether a glob looks for names in one of the directories of watches.
    pub fn is_searched(&self, watches: &[u32]) -> bool {
        watches.iter().filter_map(|watch_id| self.get(*watch_id)).any(|watch| watch.is_searched)
    }

    /// Has the kernel programs report executions of files in a watched directory that have no entry of their own. The caller enrols the
    /// directory afterwards.
    pub fn report_executions_in(&mut self, directory: &Path) {
        if let Some(watch_id) = self.find(directory) {
            self.watches[watch_id as usize].roles |= ROLE_EXECUTIONS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::Route;
    use sensor_common::map::InodeKey;
    use std::ffi::OsStr;

    #[test]
    fn a_directory_that_a_glob_searches_reports_its_names_and_is_opened_again_when_it_may_be_another_one() {
        let mut registry = WatchRegistry::new(&[], |_| Route::default(), |_| Vec::new());
        let searched = ["/etc", "/etc/systemd"].map(PathBuf::from);
        let added = registry.watch_searched(&searched);
        let [etc, systemd] = searched.each_ref().map(|path| registry.find(path).unwrap());
        assert_eq!(added, [etc, systemd]);
        assert!(registry.watch_searched(&searched).is_empty(), "they are watched already");
        assert!(registry.is_searched(&[etc]) && !registry.is_searched(&[]));
        let key = InodeKey { ino: 5, dev: 1, volume: 0 };
        let enrolled = registry.set_inode(etc, Some(Inode { key, generation: 0 }));
        assert_eq!(enrolled, [(key, Some((etc, ROLE_DIRECTORY | ROLE_ANCESTOR)))]);
        // It appears, or another one takes its place.
        let come = registry.concerned(&[etc], Some(OsStr::new("systemd")), false, false);
        assert_eq!(come.stale, [systemd]);
        let moved = registry.concerned(&[systemd], None, false, true);
        assert_eq!(moved.stale, [systemd]);
    }
}
