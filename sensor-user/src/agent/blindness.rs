//! Whether changes arrive at all: the canary, missed calls of programs, and writes that bypass the programs.
//!
//! In: canary writes, records about the daemon's own watched objects. Out: gaps, and full verifications after writes to block
//! devices. It owns the canary, the counter of missed calls, the open gap, and the times of the verifications.

use super::canary::{Canary, CanaryState, DEVICES_ID};
use super::device_checks::{DeviceChecks, device};
use super::reports::{AgentReport, LossReason, LossStage, ReadinessSubject};
use super::verdicts::Verdicts;
use super::verifier::Verifier;
use crate::event::CheckedRecord;
use crate::kernel::maps::MapsError;
use crate::kernel::recursion::Recursion;
use sensor_model::protocol::{GapReason, Scope};
use sensor_model::record::{Actor, RecordKind};
use std::path::Path;

/// Tests whether changes arrive.
#[derive(Default)]
pub(super) struct Blindness {
    /// Absent on the fanotify backend.
    pub(super) canary: Option<Canary>,
    /// Absent on the fanotify backend.
    pub(super) recursion: Option<Recursion>,
    /// The open gap while changes do not arrive, and its reason.
    gap: Option<(u32, GapReason)>,
    /// Writes to block devices, which no program sees.
    pub(super) devices: DeviceChecks,
}

/// The result of a canary check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CanaryBeat {
    /// The run continues.
    Continues,
    /// The programs run for the first time.
    ProgramsBegan,
    /// The programs no longer answer.
    ProgramsStopped,
}

impl Blindness {
    /// Begins with the canary and the counter of the backend.
    pub(super) fn new(canary: Option<Canary>, recursion: Option<Recursion>) -> Self {
        Self { canary, recursion, gap: None, devices: DeviceChecks::default() }
    }

    /// Whether changes do not arrive.
    pub(super) fn is_blind(&self) -> bool {
        self.gap.is_some()
    }

    /// The reason of the open gap, for the next run of the loop.
    pub(super) fn take_reason(&mut self) -> Option<GapReason> {
        self.gap.take().map(|(_, reason)| reason)
    }

    /// Opens the gap: changes may not arrive from now on.
    pub(super) fn begin(&mut self, reason: GapReason, verdicts: &mut Verdicts) {
        if self.gap.is_some() {
            return;
        }
        verdicts.report(AgentReport::NotReady(ReadinessSubject::Canary, reason.to_string()));
        let number = verdicts.open_lasting_gap(Scope::All, reason);
        self.gap = Some((number, reason));
    }

    /// Ends the gap: changes arrive again, and no process can switch the programs off without a record.
    fn end(&mut self, verdicts: &mut Verdicts) {
        let Some((number, _)) = self.gap.take() else { return };
        verdicts.report(AgentReport::Ready(ReadinessSubject::Canary));
        verdicts.end_lasting_gap(number);
    }

    /// Whether the programs have answered. On a host whose programs run only later, those of an earlier daemon may be the only ones that do.
    pub(super) fn are_programs_running(&self) -> bool {
        self.canary.as_ref().is_some_and(|canary| !canary.has_begun_blind())
    }

    /// The canary's record arrived.
    pub(super) fn canary_received(&mut self) {
        if let Some(canary) = &mut self.canary {
            canary.received();
        }
    }

    /// Before the first verification: a process may have opened `ftrace_enabled` while no daemon ran.
    pub(super) fn check_switch_writers(&mut self, verifier: &mut Verifier, verdicts: &mut Verdicts) {
        if let (Some(kernel), Some(canary)) = (verifier.kernel.as_mut(), self.canary.as_mut())
            && !canary.has_no_switch_writer(kernel)
        {
            self.begin(GapReason::FtraceOpened, verdicts);
        }
    }

    /// Opens a gap if the kernel skipped a call of a program: that call may have been any change.
    pub(super) fn check_recursion(&mut self, verdicts: &mut Verdicts) -> std::io::Result<()> {
        let Some(recursion) = &mut self.recursion else { return Ok(()) };
        let skipped = recursion.skipped()?;
        if skipped.processes > 0 {
            let lost = AgentReport::ChangesLost(LossStage::Process, LossReason::Skipped, skipped.processes);
            verdicts.report(lost);
        }
        if skipped.changes > 0 || skipped.tampering > 0 {
            verdicts.changes_missed(GapReason::RecursionMissed);
        }
        if skipped.tampering > 0 {
            // It may have been the opening of a block device. Each canary beat looks for processes that have the tunable open.
            self.device_opened(verdicts);
        }
        Ok(())
    }

    /// Changes the canary file. The caller reads the ring before [`Blindness::check_canary`].
    pub(super) fn write_canary(&mut self, verifier: &mut Verifier) {
        if let (Some(kernel), Some(canary)) = (verifier.kernel.as_mut(), self.canary.as_mut()) {
            canary.write(kernel);
        }
    }

    /// Checks whether the canary's change arrived, and opens or ends the gap.
    pub(super) fn check_canary(
        &mut self,
        verifier: &mut Verifier,
        verdicts: &mut Verdicts,
    ) -> Result<CanaryBeat, MapsError> {
        let (Some(kernel), Some(canary)) = (verifier.kernel.as_mut(), self.canary.as_mut()) else {
            return Ok(CanaryBeat::Continues);
        };
        let mut state = canary.check(kernel);
        if state == CanaryState::Alive {
            verdicts.report(AgentReport::CanarySeen);
            if !canary.has_no_switch_writer(kernel) {
                state = CanaryState::Blind(GapReason::FtraceOpened);
            }
        }
        if state == CanaryState::Alive && canary.take_programs_began(kernel)? {
            return Ok(CanaryBeat::ProgramsBegan);
        }
        let beat = if canary.is_unanswered() { CanaryBeat::ProgramsStopped } else { CanaryBeat::Continues };
        match state {
            CanaryState::Alive => self.end(verdicts),
            CanaryState::RecordLost => self.begin(GapReason::CanaryNotReceived, verdicts),
            CanaryState::Blind(reason) => self.begin(reason, verdicts),
        }
        Ok(beat)
    }

    /// Whether a number belongs to the tunable that switches the programs off.
    pub(super) fn is_switch(&self, number: u32) -> bool {
        self.canary.as_ref().is_some_and(|canary| canary.is_switch(number))
    }

    /// The path of a watched object whose change could blind or bypass the sensor. `None` if only an earlier daemon watched it.
    pub(super) fn tampered_object(&self, change: &CheckedRecord) -> Option<String> {
        let path = if change.record.id == DEVICES_ID {
            device(Path::new("/sys/dev/block"), change.record.detail)
        } else {
            self.canary.as_ref()?.tampered(change.record.id)?.to_owned()
        };
        Some(path.display().to_string())
    }

    /// Records that a process opened for writing an object that could blind or bypass the sensor.
    pub(super) fn record_tampering(
        &mut self,
        path: String,
        change: &CheckedRecord,
        actor: Actor,
        verdicts: &mut Verdicts,
    ) {
        tracing::warn!(path, pid = actor.pid, exe = actor.exe, "A process opened this object for writing.");
        let mut record = verdicts.new_record(RecordKind::Tamper);
        record.time = verdicts.wall(change.record.time_ns);
        record.monotonic_ns = change.record.time_ns;
        record.path = Some(path);
        record.operation = Some(change.operation.name().to_owned());
        record.actor = Some(actor);
        verdicts.add_record(record);
        if self.is_switch(change.record.id) {
            self.begin(GapReason::FtraceOpened, verdicts);
        } else {
            self.device_opened(verdicts);
        }
    }

    /// Verifies everything, now or soon: a process may write to a block device.
    pub(super) fn device_opened(&mut self, verdicts: &mut Verdicts) {
        // A raw write shows at once if it shares the page cache, else when the kernel reads the file from the disk again.
        if self.devices.opened(verdicts.now()) {
            verdicts.verify_everything();
        }
    }

    /// Verifies everything when that is due after a write to a block device.
    pub(super) fn verify_after_device_writes(&mut self, verdicts: &mut Verdicts) {
        if self.devices.is_due(verdicts.now()) {
            verdicts.verify_everything();
        }
    }
}
