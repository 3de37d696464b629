//! What the loop does besides following changes: full verifications, and the hooks on reads and writes.
//!
//! In: the detector's timers and tallies. Out: a verification begun or ended, readiness, hooks attached or
//! detached. It looks at nothing itself.

use super::{Agent, backend::Changes, service::notify};
use crate::kernel::{hooks::When, volumes};
use crate::labels;
use sensor_model::protocol::Scope;
use std::time::Duration;

/// How long a full verification goes on for things that cannot be decided.
const UNDECIDED_PATIENCE: Duration = Duration::from_secs(10);

/// The hooks on every read and write are attached when a managed file still has writers after this
/// long, so that an ordinary open, write and close never pays for attaching.
const WRITERS_PATIENCE: Duration = Duration::from_millis(200);

/// And detached when it has had none for this long.
const WRITERS_LINGER: Duration = Duration::from_secs(30);

/// A full verification in progress.
pub(super) struct Verification {
    pub(super) began: u64,
}

impl Agent {
    /// Btrfs is mounted, perhaps for the first time: the programs have to know its subvolumes before anything on it is
    /// enrolled.
    pub(super) fn learn_volumes(&mut self) -> anyhow::Result<()> {
        let Some(witness) = self.looker.witness.as_mut() else { return Ok(()) };
        if !witness.maps().has_volumes()?
            && let Some(volumes) = volumes::read()
        {
            witness.maps().set_volumes(volumes)?;
        }
        Ok(())
    }

    /// Ends a full verification once everything was looked at and decided.
    pub(super) fn finish_verification(&mut self) {
        let now = self.clock.boot_ns();
        let Some(verification) = &self.verification else { return };
        let took = Duration::from_nanos(now.saturating_sub(verification.began));
        let waiting = self.detector.next_deadline().is_some_and(|at| at <= now);
        // Without evidence (units) only a second look decides. What somebody never stops writing to may
        // stay undecided; that is no reason not to be ready, and the status says so.
        let undecided = self.blindness.is_none() && self.detector.undecided() > 0;
        if waiting || (undecided && took < UNDECIDED_PATIENCE) {
            return;
        }
        self.telemetry.verified_all(self.desired.expectations.len(), took, self.clock.now());
        let first = self.readiness.reasons().contains_key("verification");
        self.readiness.ready("verification");
        self.verification = None;
        self.changed = true;
        if first {
            // Whoever waited for us finds a status.
            self.write();
            notify(&[sd_notify::NotifyState::Ready]);
        }
    }

    /// Begins a full verification.
    pub(super) fn verify_everything(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        self.compare_mounts(changes)?;
        self.follow_labels();
        let now = self.clock.boot_ns();
        self.detector.recheck(Scope::All, now);
        self.verification = Some(Verification { began: now });
        Ok(())
    }

    /// Expects the labels of the SELinux policy as it is now. What follows is a look at everything.
    fn follow_labels(&mut self) {
        let observer = &self.looker.observer;
        let now = labels::version(observer);
        if now == self.desired.labels {
            return;
        }
        tracing::info!("The SELinux policy's files changed; labels are compared with what they say now.");
        let desired = &mut self.desired;
        desired.ids.customizable = labels::expect(&mut desired.expectations, &desired.policy, observer);
        desired.labels = now;
    }

    /// Attaches the hooks on reads and writes while a managed file stays open for writing.
    pub(super) fn follow_writers(&mut self) {
        let now = self.clock.boot_ns();
        let patience =
            |since: u64, limit: Duration| u128::from(now.saturating_sub(since)) >= limit.as_nanos();
        let wanted = if self.detector.wants_rw_hook() {
            self.no_writers_since = None;
            let since = *self.writers_since.get_or_insert(now);
            if !patience(since, WRITERS_PATIENCE) {
                return;
            }
            true
        } else {
            self.writers_since = None;
            let since = *self.no_writers_since.get_or_insert(now);
            if !patience(since, WRITERS_LINGER) {
                return;
            }
            false
        };
        self.need(When::Writers, wanted);
    }

    /// Attaches or detaches hooks that are needed only at times.
    pub(super) fn need(&mut self, when: When, needed: bool) {
        let Some(sensor) = &mut self.sensor else { return };
        match sensor.set(when, needed) {
            Ok(changed) => {
                for hook in changed {
                    tracing::debug!(hook, attached = needed, "This hook is needed only at times.");
                    self.telemetry.hook(hook, self.mode, needed);
                }
            }
            Err(error) => tracing::error!(%error, ?when, "Cannot attach hooks."),
        }
    }
}
