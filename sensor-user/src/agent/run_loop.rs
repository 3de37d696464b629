//! The loop: runs one turn, and waits until something starts the next one.
//!
//! In: changes, alarms, timers, signals, answers of other processes. Out: turns, until there is a reason to end. Between two
//! turns it also writes the canary, answers writers, and takes the answers of worker processes. It owns the timers of one run.

use super::blindness::CanaryBeat;
use super::changes::Changes;
use super::deadline_timer::DeadlineTimer;
use super::error::AgentError;
use super::overwritten;
use super::program_pages;
use super::reports::AgentReport;
use super::reverting::next_reverts;
use super::run_end::RunEnd;
use super::service::{SignalRequest, Signals, notify, watchdog_pause};
use super::state::Agent;
use crate::image::ScanFiles;
use crate::kernel::hooks::When;
use crate::kernel::object::OBJECT_SHA256;
use crate::labels;
use sd_notify::NotifyState;
use sensor_model::image::ScanProgress;
use sensor_model::protocol::{GapReason, Scope, ThingId};
use sensor_model::record::RecordKind;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{MissedTickBehavior, interval};

impl Agent {
    /// Enrols everything, and records the start.
    pub(super) fn enrol_and_record_start(&mut self, adopted: bool) -> Result<(), AgentError> {
        self.verdicts.report(AgentReport::NodeState(self.apply_tracker.standing()));
        let verifier = &mut self.verifications.verifier;
        self.denials.set_kernel_baseline(verifier.kernel.as_mut());
        self.denials.rules.keep_earlier(verifier.kernel.as_mut())?;
        self.refresh_allowed();
        let has_links = self.verifications.verifier.has_links();
        self.hooks.set_needed(When::Links, has_links, &mut *self.verdicts.reports);
        self.verifications.verifier.enrol_all()?;
        // Until here, earlier rules may protect inodes, so their actors stayed allowed.
        self.denials.rules.drop_earlier();
        self.refresh_allowed();
        if self.blindness.are_programs_running() {
            self.hooks.retire_earlier();
        }
        let verdicts = &mut self.verdicts;
        let now = verdicts.now();
        let things = verdicts.desired.expectations.len();
        verdicts.detector.reserve(things);
        for thing in (0..).map(ThingId).take(things) {
            verdicts.detector.add(thing, now);
        }
        self.blindness.check_switch_writers(&mut self.verifications.verifier, verdicts);
        self.verifications.begin_verification(now, true);
        self.hooks.report(&mut *verdicts.reports);
        let mut start = verdicts.new_record(RecordKind::Start);
        start.detail.insert("version".into(), env!("CARGO_PKG_VERSION").into());
        start.detail.insert("object".into(), OBJECT_SHA256.into());
        start.detail.insert("backend".into(), self.hooks.backend.as_str().into());
        start.detail.insert("adopted".into(), adopted.into());
        start.detail.insert("things".into(), things.into());
        verdicts.records.push(start);
        overwritten::record(self.apply_tracker.take_overwritten(), verdicts);
        self.close_undeclared_drifts();
        if !adopted {
            self.verdicts.open_gap(Scope::All, GapReason::SensorStart);
        }
        Ok(())
    }

    /// Runs turns until there is a reason to end. Returns the source of changes for the next run.
    pub(super) async fn serve(
        &mut self,
        mut changes: Changes,
        signals: &mut Signals,
    ) -> Result<Changes, AgentError> {
        if let Changes::Fanotify(backend) = &mut changes {
            for watch_id in 0..self.verifications.verifier.registry.len() {
                self.add_fanotify_mark(backend, watch_id);
            }
        }
        let alarms = changes.alarms().map_err(|source| AgentError::io("read the alarms", source))?;
        let unwatchable = |source: io::Error| AgentError::io("wait for changes", source);
        let mut alarms = alarms.map(readable_fd).transpose().map_err(unwatchable)?;
        let mut changes = readable_fd(changes).map_err(unwatchable)?;
        self.follow_open_apply(changes.get_mut())?;
        // A directory may have been made before it was watched.
        self.follow_directories();
        let mut canary = interval(self.options.canary_every);
        let mut verify = interval(self.options.verify_every);
        let mut watchdog = interval(watchdog_pause());
        for timer in [&mut canary, &mut verify, &mut watchdog] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            timer.reset();
        }
        let broken_timer = |source: io::Error| AgentError::io("use the timer", source);
        let mut deadline = DeadlineTimer::new().map_err(broken_timer)?;
        loop {
            self.turn(changes.get_mut()).await?;
            self.evaluate_when_due();
            while self.verdicts.reports.is_full() {
                poll_fn(|context| self.verdicts.reports.poll_progress(context)).await?;
            }
            if self.run_end.is_some() {
                break;
            }
            deadline.set(self.next_deadline()).map_err(broken_timer)?;
            let reports = &mut self.verdicts.reports;
            tokio::select! {
                // Changes come last, so that a process that makes them without end cannot block the other branches. Each turn
                // reads changes first, whichever branch ended the wait.
                biased;
                asked = signals.next() => match asked {
                    SignalRequest::Stop => self.run_end = Some(RunEnd::StopRequested),
                    SignalRequest::Reload => self.reload(),
                },
                _ = watchdog.tick() => notify(&[NotifyState::Watchdog]),
                _ = canary.tick() => self.canary_tick(changes.get_mut())?,
                _ = verify.tick() => self.verify_everything(changes.get_mut())?,
                update = self.holdfast_writers.next() => self.handle_writer_update(update, changes.get_mut())?,
                result = self.verifications.workers.next() => self.worker_answered(result, changes.get_mut()).await?,
                results = next_reverts(&mut self.revert_orders) => self.record_reverts(results),
                written = poll_fn(|context| reports.poll_progress(context)) => written?,
                expired = deadline.expired() => expired.map_err(broken_timer)?,
                readable = readable(&mut alarms) => readable.map_err(unwatchable)?,
                guard = changes.readable_mut() => guard.map_err(unwatchable)?.clear_ready(),
            }
        }
        if matches!(self.run_end, Some(RunEnd::StopRequested)) {
            notify(&[NotifyState::Stopping]);
        }
        self.turn(changes.get_mut()).await?;
        self.record_counts(u64::MAX);
        let stop = self.verdicts.new_record(RecordKind::Stop);
        self.verdicts.add_record(stop);
        self.end_turn();
        self.verdicts.report(AgentReport::RunEnded);
        Ok(changes.into_inner())
    }

    /// The boot time at which the next turn is due.
    fn next_deadline(&self) -> Option<u64> {
        [
            self.verdicts.detector.next_deadline(),
            self.next_revert(),
            self.mounts.due,
            self.evaluation.due(),
            self.blindness.devices.due(),
            self.verifications.workers.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Runs every few seconds: writes the canary, and checks everything that no event reports.
    pub(super) fn canary_tick(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        self.heartbeat();
        self.follow_applies(changes)?;
        self.follow_files();
        self.follow_directories();
        self.follow_image_indexing();
        self.follow_image_scan();
        self.compare_mounts(changes)?;
        self.verdicts.recheck_covered();
        let Changes::Ring(ring) = changes else { return Ok(()) };
        self.refresh_allowed();
        self.verifications.check_entries(&mut self.verdicts)?;
        self.blindness
            .check_recursion(&mut self.verdicts)
            .map_err(|source| AgentError::io("read the missed calls of the programs", source))?;
        self.blindness.write_canary(&mut self.verifications.verifier);
        self.read_ring_and_losses(ring)?;
        match self.blindness.check_canary(&mut self.verifications.verifier, &mut self.verdicts)? {
            CanaryBeat::Continues => {}
            CanaryBeat::ProgramsBegan => self.run_end = Some(RunEnd::ProgramsBegan),
            CanaryBeat::ProgramsStopped => self.run_end = Some(RunEnd::ProgramsStopped),
        }
        Ok(())
    }

    /// Starts the process that makes the index of the booted commit, if a rule needs that index. The name of the booted deployment proves
    /// each entry of it, so no admin has to approve it. No name proves the entries of packages and extensions.
    fn follow_image_indexing(&mut self) {
        let now = self.verdicts.now();
        let policy = &self.verdicts.desired.policy;
        let is_wanted = || policy.expects_image() || policy.undeclared().next().is_some();
        // The first verification has the disk for itself.
        let is_due = self.image_indexing.is_due(now) && !self.verifications.is_verifying() && is_wanted();
        let starts = is_due && self.verifications.verifier.observer.boots_images();
        if starts || self.image_indexing.is_running() {
            self.image_indexing.follow(&self.options.inputs, now);
        }
    }

    /// Has the scan of the image go on, and reports its progress.
    fn follow_image_scan(&mut self) {
        if !self.verdicts.desired.policy.scans_image() {
            // Without a rule that scans, the metric must not report a stale scan.
            self.image_scan.not_asked();
            self.verdicts.report(AgentReport::ImageScan(ScanProgress::default(), 0));
            return;
        }
        // The first verification has the disk for itself.
        if self.image_scan.is_running() || !self.verifications.is_verifying() {
            self.image_scan.follow(&self.options.inputs, self.verdicts.now());
        }
        let progress = ScanFiles::of(&self.options.inputs.state).progress();
        let stale_from = self.image_scan.stale_from(progress.last.as_ref().map(|last| last.ended));
        self.verdicts.report(AgentReport::ImageScan(progress, stale_from));
    }

    /// Begins a full verification.
    fn verify_everything(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        self.compare_mounts(changes)?;
        self.follow_labels();
        self.verdicts.verify_everything();
        self.verifications.begin_verification(self.verdicts.now(), false);
        Ok(())
    }

    /// Ends a full verification once every thing is verified and decided.
    pub(super) fn finish_verification(&mut self) {
        if self.verifications.finish_verification(self.blindness.is_blind(), &mut self.verdicts) {
            // The status exists before systemd starts the units that wait for this one.
            self.end_turn();
            notify(&[NotifyState::Ready]);
            if let Err(error) = program_pages::give_back() {
                tracing::debug!(%error, "The pages that only the start needed stay in memory.");
            }
        }
    }

    /// Expects the labels of the present SELinux policy. The caller verifies everything afterwards.
    fn follow_labels(&mut self) {
        let (observer, desired) = (&self.verifications.verifier.observer, &mut self.verdicts.desired);
        let now = labels::version(observer);
        if now == desired.labels {
            return;
        }
        tracing::info!("The files of the SELinux policy changed: the daemon now expects their labels.");
        desired.ids.customizable = labels::expect(&mut desired.expectations, &desired.policy, observer);
        desired.labels = now;
    }
}

/// Registers a descriptor, to wait until it is readable.
fn readable_fd<T: AsRawFd>(readable: T) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "the replacement is unsafe; the value owns its descriptor while it is registered"
    )]
    AsyncFd::with_interest(readable, Interest::READABLE)
}

/// Waits until a descriptor is readable; for ever without one.
async fn readable(descriptor: &mut Option<AsyncFd<OwnedFd>>) -> io::Result<()> {
    match descriptor {
        Some(descriptor) => descriptor.readable_mut().await.map(|mut guard| guard.clear_ready()),
        None => std::future::pending().await,
    }
}
