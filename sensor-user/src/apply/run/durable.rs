//! Making targets durable before the journal relies on them.
//!
//! In: the record that is due. Out: disks that hold what the record claims. Each step syncs its file and its directory, but on some
//! file systems a loss of power undoes a rename all the same.

use super::state::Run;
use crate::apply::{error::ApplyError, preflight::nearest};
use crate::sys;
use sensor_model::journal::JournalRecord;
use std::collections::BTreeSet;

impl Run<'_> {
    /// Makes the disks of all targets durable, if the record claims that steps before it are done.
    pub(super) fn make_durable(&mut self, record: &JournalRecord) -> Result<(), ApplyError> {
        // These records claim nothing: the next start looks at every target again.
        let claims = !matches!(record, JournalRecord::Begin(_) | JournalRecord::RollingBack { .. });
        if !claims || !self.unsynced {
            return Ok(());
        }
        let (mut parents, mut synced) = (BTreeSet::new(), BTreeSet::new());
        for target in self.begin.targets.iter().chain(self.again) {
            if !parents.insert(target.path.parent()) {
                continue;
            }
            let failed = |operation| move |errno| ApplyError::failed(&target.path, operation, errno);
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
