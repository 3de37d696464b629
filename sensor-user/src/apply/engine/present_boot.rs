//! The present boot, and whether it is the one that a journal asked for.
//!
//! In: a runner of acts, and a journal. Out: the boot, and whether the reboot has happened.

use super::state::Engine;
use crate::apply::{act_runner::ActRunner, os};
use sensor_model::journal::{Boot, Brings, JournalRecord, codec::ParsedJournal};

impl Engine {
    /// The present boot: the kernel's boot id, the number of soft reboots since, and the deployment.
    pub(super) async fn boot(&self, runner: &mut dyn ActRunner) -> Boot {
        let soft_reboots = runner.soft_reboots().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "Cannot read the count of soft reboots.");
            None
        });
        Boot { boot_id: self.boot_id.clone(), soft_reboots, deployment: os::deployment(&self.observer) }
    }
}

/// Whether the journal asked for a reboot, and it has happened.
pub(super) fn rebooted(parsed: &ParsedJournal, now: &Boot) -> bool {
    let brings = Brings::of(parsed.begin.os.as_ref());
    matches!(parsed.records.last(),
        Some(JournalRecord::RebootRequested { boot } | JournalRecord::ReturnRequested { boot }) if boot.is_over(now, brings))
}
