//! Whether the daemon sees changes at all: the canary, missed calls of programs, and what bypasses the programs.
//!
//! In: beats, records about the daemon's own watched objects. Out: gaps, and full verifications after writes to block devices.

use super::canary::{Canary, CanaryState, DEVICES_ID};
use super::device_checks::{DeviceChecks, device};
use super::reasons;
use super::reports::{AgentEvent, Subject};
use super::verdicts::Verdicts;
use super::verifier::Looker;
use crate::event::Change;
use crate::kernel::maps::MapsError;
use crate::kernel::recursion::Recursion;
use sensor_model::protocol::Scope;
use sensor_model::record::{Actor, RecordKind};
use std::path::Path;
use std::sync::Arc;

/// What shows whether changes are seen.
#[derive(Default)]
pub(super) struct Blindness {
    /// Absent on the fanotify backend.
    pub(super) canary: Option<Canary>,
    /// Present where the kernel can leave out a call of a program.
    pub(super) recursion: Option<Recursion>,
    /// The gap that is open while changes are not seen, and its reason.
    gap: Option<(u32, String)>,
    /// Writes to block devices, which no program sees.
    pub(super) devices: DeviceChecks,
}

/// What a beat of the canary found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beat {
    /// The loop goes on.
    GoesOn,
    /// The programs run, for the first time.
    BeginsToSee,
    /// The programs do not answer any more.
    Silent,
}

impl Blindness {
    /// With what the backend has.
    pub(super) fn new(canary: Option<Canary>, recursion: Option<Recursion>) -> Self {
        Self { canary, recursion, gap: None, devices: DeviceChecks::default() }
    }

    /// Whether changes are not seen.
    pub(super) fn is_blind(&self) -> bool {
        self.gap.is_some()
    }

    /// Why changes are not seen, for the next run of the loop.
    pub(super) fn take_reason(&mut self) -> Option<String> {
        self.gap.take().map(|(_, reason)| reason)
    }

    /// Changes may not be seen from now on.
    pub(super) fn blind(&mut self, reason: &str, verdicts: &mut Verdicts) {
        if self.gap.is_some() {
            return;
        }
        verdicts.reports.report(AgentEvent::NotReady(Subject::Canary, reason.to_owned()));
        let number = verdicts.open_lasting_gap(Scope::All, reason);
        self.gap = Some((number, reason.to_owned()));
    }

    /// Changes are seen again, and no process can switch the programs off without a record.
    fn see(&mut self, verdicts: &mut Verdicts) {
        let Some((number, _)) = self.gap.take() else { return };
        verdicts.reports.report(AgentEvent::Ready(Subject::Canary));
        verdicts.end_lasting_gap(number);
    }

    /// The canary's record arrived.
    pub(super) fn canary_received(&mut self) {
        if let Some(canary) = &mut self.canary {
            canary.received();
        }
    }

    /// Before the first look: a process may have opened `ftrace_enabled` while no daemon ran.
    pub(super) fn check_reach(&mut self, looker: &mut Looker, verdicts: &mut Verdicts) {
        let observer = Arc::clone(&looker.observer);
        if let (Some(witness), Some(canary)) = (looker.witness.as_mut(), self.canary.as_mut())
            && !canary.is_out_of_reach(&observer, witness)
        {
            self.blind(reasons::FTRACE_OPENED, verdicts);
        }
    }

    /// A call that a program was left out of may have been any change.
    pub(super) fn check_recursion(&mut self, verdicts: &mut Verdicts) -> std::io::Result<()> {
        if let Some(recursion) = &mut self.recursion
            && recursion.missed()? > 0
        {
            verdicts.missed(reasons::RECURSION_MISSED);
        }
        Ok(())
    }

    /// Changes the canary file. The ring is to be read before [`Blindness::check_canary`].
    pub(super) fn write_canary(&mut self, looker: &mut Looker) {
        let observer = Arc::clone(&looker.observer);
        if let (Some(witness), Some(canary)) = (looker.witness.as_mut(), self.canary.as_mut()) {
            canary.write(&observer, witness);
        }
    }

    /// Whether the canary's change arrived: opens or ends blindness.
    pub(super) fn check_canary(
        &mut self,
        looker: &mut Looker,
        verdicts: &mut Verdicts,
    ) -> Result<Beat, MapsError> {
        let observer = Arc::clone(&looker.observer);
        let (Some(witness), Some(canary)) = (looker.witness.as_mut(), self.canary.as_mut()) else {
            return Ok(Beat::GoesOn);
        };
        let mut state = canary.check(witness);
        if state == CanaryState::Alive {
            verdicts.reports.report(AgentEvent::CanarySeen);
            if !canary.is_out_of_reach(&observer, witness) {
                state = CanaryState::Blind(reasons::FTRACE_OPENED);
            }
        }
        if state == CanaryState::Alive && canary.begins_to_see(&observer, witness)? {
            return Ok(Beat::BeginsToSee);
        }
        let beat = if canary.is_unanswered() { Beat::Silent } else { Beat::GoesOn };
        match state {
            CanaryState::Alive => self.see(verdicts),
            CanaryState::RecordLost => self.blind(reasons::CANARY_NOT_HEARD, verdicts),
            CanaryState::Blind(reason) => self.blind(reason, verdicts),
        }
        Ok(beat)
    }

    /// Whether a number is that of the tunable that switches the programs off.
    pub(super) fn is_switch(&self, id: u32) -> bool {
        self.canary.as_ref().is_some_and(|canary| canary.is_switch(id))
    }

    /// The watched object of a change that could blind or bypass the sensor. `None` if an earlier daemon watched it.
    pub(super) fn opened(&self, change: &Change) -> Option<String> {
        let path = if change.record.id == DEVICES_ID {
            device(Path::new("/sys/dev/block"), change.record.detail)
        } else {
            self.canary.as_ref()?.tampered(change.record.id)?.to_owned()
        };
        Some(path.display().to_string())
    }

    /// An object that could blind or bypass the sensor was opened for writing.
    pub(super) fn tampered(&mut self, path: String, change: &Change, actor: Actor, verdicts: &mut Verdicts) {
        tracing::warn!(path, pid = actor.pid, exe = actor.exe, "A process opened it for writing.");
        let mut record = verdicts.new_record(RecordKind::Tamper);
        record.time = verdicts.wall(change.record.time_ns);
        record.monotonic_ns = change.record.time_ns;
        record.path = Some(path);
        record.operation = Some(change.operation.name().to_owned());
        record.actor = Some(actor);
        verdicts.records.push(record);
        if self.is_switch(change.record.id) {
            self.blind(reasons::FTRACE_OPENED, verdicts);
        } else {
            self.device_opened(verdicts);
        }
    }

    /// Verifies everything, now or soon: a process may write to a block device.
    pub(super) fn device_opened(&mut self, verdicts: &mut Verdicts) {
        let now = verdicts.now();
        // A raw write shows at once where the page cache is shared, and else when the file is read from the disk again.
        if self.devices.opened(now) {
            verdicts.detector.recheck(Scope::All, now);
        }
    }

    /// Verifies everything when that is due after a write to a block device.
    pub(super) fn follow_devices(&mut self, verdicts: &mut Verdicts) {
        let now = verdicts.now();
        if self.devices.is_due(now) {
            verdicts.detector.recheck(Scope::All, now);
        }
    }
}
