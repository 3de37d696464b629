//! The `revert` policy: the declared state is written back, and the log says so.
//!
//! In: things that drifted under a revert rule. Out: repaired things, `reverted` records. It gives up on
//! a thing that somebody else keeps changing, which then stays drifted and degrades.

use super::{Agent, desired};
use crate::repair::{Restored, Restorer};
use sensor_model::expectations::expectations;
use sensor_model::protocol::Scope;
use sensor_model::record::RecordKind;
use std::sync::Arc;

/// Reverts of one thing within [`WINDOW_NS`] before it is left alone.
const ATTEMPTS: usize = 3;

/// One minute.
const WINDOW_NS: u64 = 60_000_000_000;

impl Agent {
    /// Writes back everything that waits for it.
    pub(super) async fn revert(&mut self) {
        for id in std::mem::take(&mut self.reverts) {
            if self.follow.concerns(&self.desired.expectations[id as usize].thing) {
                // An apply brings it to one of its images; two writers would undo each other.
                continue;
            }
            let now = self.clock.boot_ns();
            let times = self.reverted_at.entry(id).or_default();
            times.retain(|at| now.saturating_sub(*at) < WINDOW_NS);
            if times.len() >= ATTEMPTS {
                let path = self.desired.expectations[id as usize].thing.path();
                tracing::error!(path = %path.display(), "Reverted too often; it is left as it is.");
                continue;
            }
            times.push(now);
            let result = self.restore(id).await;
            let path = self.desired.expectations[id as usize].thing.path().display().to_string();
            let mut record = self.log.record(RecordKind::Reverted);
            record.path = Some(path.clone());
            record.operation = Some("revert".to_owned());
            record.source = Some(self.desired.expectations[id as usize].source.machine_config.clone());
            match &result {
                Ok(restored) => {
                    record.differences.clone_from(&restored.before);
                    record.detail.insert("actions".into(), restored.actions.clone().into());
                    self.telemetry.reverted(&path, Ok(()));
                }
                Err(error) => {
                    record.detail.insert("error".into(), format!("{error:#}").into());
                    self.telemetry.reverted(&path, Err(error.as_ref()));
                }
            }
            self.group.push(record);
            // Our own observation opens took the dirty bit away; whoever wrote meanwhile is seen anyhow.
            self.detector.recheck(Scope::Thing(id), self.clock.boot_ns());
        }
    }

    async fn restore(&mut self, id: u32) -> anyhow::Result<Restored> {
        // Contents are not kept in memory: they are decoded again, and must still say the same.
        let rendered = desired::rendered(&self.options.configs)?;
        let expectation = &self.desired.expectations[id as usize];
        if !expectations(&rendered)?.contains(expectation) {
            anyhow::bail!("the MachineConfig no longer says what it said when the daemon started");
        }
        let mut restorer = Restorer::new(Arc::clone(&self.looker.observer), &self.options.root);
        Ok(restorer.restore(&rendered, expectation, &self.desired.ids).await?)
    }
}
