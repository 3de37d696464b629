//! Durable targets, before a record of the journal depends on them.
//!
//! In: the next record. Out: disks on which the edits before the record are durable. Each edit syncs its file and its directory,
//! but on some file systems a loss of power may still undo a rename.

use super::state::Driver;
use crate::apply::{error::ApplyError, preflight_checks::nearest};
use crate::sys::{self, CallError};
use sensor_model::journal::JournalRecord;
use std::collections::BTreeSet;

impl Driver<'_> {
    /// Makes the disks of all targets durable, if the record claims that edits before it are done.
    pub(super) fn make_durable(&mut self, record: &JournalRecord) -> Result<(), ApplyError> {
        // No edit precedes these records: the next start observes every target again.
        let claims = !matches!(record, JournalRecord::Begin(_) | JournalRecord::RollingBack { .. });
        if !claims || !self.unsynced {
            return Ok(());
        }
        let (mut parents, mut synced) = (BTreeSet::new(), BTreeSet::new());
        for target in self.begin.targets.iter().chain(self.again) {
            if !parents.insert(target.path.parent()) {
                continue;
            }
            let failed = |operation| move |errno| CallError::new(&target.path, operation, errno);
            let directory = nearest(self.observer, &target.path)?;
            let stat = nix::sys::stat::fstat(&directory).map_err(failed("stat"))?;
            if synced.insert(stat.st_dev) {
                sys::sync_all(&directory).map_err(failed("sync the file system"))?;
            }
        }
        self.unsynced = false;
        Ok(())
    }
}
