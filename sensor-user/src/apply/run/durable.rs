//! What was written is made durable before the journal builds on it.
//!
//! In: the record that is due. Out: nothing, once the disks have what it claims. Each step syncs its file and its directory;
//! on some file systems a cut of the power takes a rename back all the same.

use super::state::Run;
use crate::apply::{error::ApplyError, preflight::nearest};
use crate::sys;
use sensor_model::journal::Record;
use std::collections::BTreeSet;

impl Run<'_> {
    /// Makes the disks of all targets durable, where a record claims that something is written and steps came before it.
    pub(super) fn make_durable(&mut self, record: &Record) -> Result<(), ApplyError> {
        // What begins or goes on with a way back claims nothing: the next start looks at every target again.
        let claims = !matches!(record, Record::Begin(_) | Record::RollingBack { .. });
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
