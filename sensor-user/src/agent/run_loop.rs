//! The loop.
//!
//! In: changes, alarms, timers, signals, answers of other processes. Out: one turn after each of them, until a reason to end.

use super::backend::Changes;
use super::blindness::Beat;
use super::deadline_timer::Alarm;
use super::error::AgentError;
use super::overwritten;
use super::reasons::SENSOR_START;
use super::reports::AgentEvent;
use super::run_end::Ended;
use super::service::{Asked, Signals, notify, watchdog_pause};
use super::state::Agent;
use crate::kernel::hooks::When;
use crate::kernel::object::OBJECT_SHA256;
use crate::labels;
use sd_notify::NotifyState;
use sensor_model::protocol::Scope;
use sensor_model::record::RecordKind;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{MissedTickBehavior, interval};

impl Agent {
    /// Enrols everything, and records the start.
    pub(super) fn begin(&mut self, adopted: bool) -> Result<(), AgentError> {
        self.verdicts.reports.report(AgentEvent::NodeState(self.follow.standing()));
        let looker = &mut self.looks.looker;
        self.denials.know_counts(looker.witness.as_mut());
        self.denials.rules.begin(looker.witness.as_mut())?;
        self.refresh_allowed();
        let has_links = self.looks.looker.has_links();
        self.hooks.need(When::Links, has_links, &mut *self.verdicts.reports);
        self.looks.looker.enrol_all()?;
        // Actors that only earlier rules allow stay allowed until nothing is protected by those rules any more.
        self.denials.rules.begun();
        self.refresh_allowed();
        let verdicts = &mut self.verdicts;
        let now = verdicts.now();
        let things = verdicts.desired.expectations.len();
        verdicts.detector.reserve(things);
        for id in (0..).take(things) {
            verdicts.detector.add(id, now);
        }
        self.blindness.check_reach(&mut self.looks.looker, verdicts);
        self.looks.begin_verification(now, true);
        self.hooks.report(&mut *verdicts.reports);
        let mut start = verdicts.new_record(RecordKind::Start);
        start.detail.insert("version".into(), env!("CARGO_PKG_VERSION").into());
        start.detail.insert("object".into(), OBJECT_SHA256.into());
        start.detail.insert("backend".into(), self.hooks.mode.name().into());
        start.detail.insert("adopted".into(), adopted.into());
        start.detail.insert("things".into(), things.into());
        verdicts.records.push(start);
        overwritten::record(self.follow.overwritten(), verdicts);
        self.release();
        if !adopted {
            self.verdicts.open_gap(Scope::All, SENSOR_START);
        }
        Ok(())
    }

    /// Follows changes until there is a reason to end. Gives back where they are read.
    pub(super) async fn serve(
        &mut self,
        mut changes: Changes,
        signals: &mut Signals,
    ) -> Result<Changes, AgentError> {
        if let Changes::Fanotify(backend) = &mut changes {
            for id in 0..self.looks.looker.registry.len() {
                self.mark(backend, id);
            }
        }
        let alarms = changes.alarms().map_err(|source| AgentError::io("read the alarms", source))?;
        let unwatchable = |source: io::Error| AgentError::io("wait for changes", source);
        let mut alarms = alarms.map(watched).transpose().map_err(unwatchable)?;
        let mut changes = watched(changes).map_err(unwatchable)?;
        self.follow_begun(changes.get_mut())?;
        let mut canary = interval(self.options.canary_every);
        let mut verify = interval(self.options.verify_every);
        let mut watchdog = interval(watchdog_pause());
        for timer in [&mut canary, &mut verify, &mut watchdog] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            timer.reset();
        }
        let broken_timer = |source: io::Error| AgentError::io("use the timer", source);
        let mut alarm = Alarm::new().map_err(broken_timer)?;
        loop {
            // Records first, then the kernel's loss counter: so a loss before the last record is seen.
            self.read(changes.get_mut())?;
            self.turn(changes.get_mut()).await?;
            while self.verdicts.reports.is_full() {
                poll_fn(|context| self.verdicts.reports.poll_progress(context)).await?;
            }
            if self.ended.is_some() {
                break;
            }
            alarm.set(self.next_deadline()).map_err(broken_timer)?;
            let reports = &mut self.verdicts.reports;
            tokio::select! {
                // Changes come last: a process that makes them without end must not keep the other branches from their turn.
                // Each turn reads them at its top, whatever ended the wait.
                biased;
                asked = signals.next() => match asked {
                    Asked::Stop => self.ended = Some(Ended::Stopped),
                    Asked::Reload => self.reload(),
                },
                _ = watchdog.tick() => notify(&[NotifyState::Watchdog]),
                _ = canary.tick() => self.tick(changes.get_mut())?,
                _ = verify.tick() => self.verify_everything(changes.get_mut())?,
                said = self.writers.next() => self.writer(said, changes.get_mut())?,
                event = self.looks.workers.next() => self.worker_answered(event, changes.get_mut()).await?,
                written = poll_fn(|context| reports.poll_progress(context)) => written?,
                expired = alarm.expired() => expired.map_err(broken_timer)?,
                event = readable(&mut alarms) => event.map_err(unwatchable)?,
                guard = changes.readable_mut() => guard.map_err(unwatchable)?.clear_ready(),
            }
        }
        if matches!(self.ended, Some(Ended::Stopped)) {
            notify(&[NotifyState::Stopping]);
        }
        self.read(changes.get_mut())?;
        self.turn(changes.get_mut()).await?;
        self.record_counts(u64::MAX);
        let stop = self.verdicts.new_record(RecordKind::Stop);
        self.verdicts.records.push(stop);
        self.write();
        self.verdicts.reports.report(AgentEvent::RunEnded);
        Ok(changes.into_inner())
    }

    /// When the next turn is due, boot time.
    fn next_deadline(&self) -> Option<u64> {
        [
            self.verdicts.detector.next_deadline(),
            self.verdicts.reverts.next(),
            self.mounts.due,
            self.blindness.devices.due(),
            self.looks.workers.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// What is done every few seconds.
    fn tick(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        self.beat();
        self.follow_applies(changes)?;
        self.compare_mounts(changes)?;
        let Changes::Ring(ring) = changes else { return Ok(()) };
        self.refresh_allowed();
        self.looks.check_entries(&mut self.verdicts)?;
        self.blindness
            .check_recursion(&mut self.verdicts)
            .map_err(|source| AgentError::io("read the missed calls of the programs", source))?;
        self.blindness.write_canary(&mut self.looks.looker);
        self.drain(ring)?;
        match self.blindness.check_canary(&mut self.looks.looker, &mut self.verdicts)? {
            Beat::GoesOn => {}
            Beat::BeginsToSee => self.ended = Some(Ended::Seeing),
            Beat::Silent => self.ended = Some(Ended::Silent),
        }
        Ok(())
    }

    /// Begins a full verification.
    fn verify_everything(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        self.compare_mounts(changes)?;
        self.follow_labels();
        let now = self.verdicts.now();
        self.verdicts.detector.recheck(Scope::All, now);
        self.looks.begin_verification(now, false);
        Ok(())
    }

    /// Ends a full verification once everything was looked at and decided.
    pub(super) fn finish_verification(&mut self) {
        if self.looks.finish_verification(self.blindness.is_blind(), &mut self.verdicts) {
            // A unit that waited for this one finds a status.
            self.write();
            notify(&[NotifyState::Ready]);
        }
    }

    /// Expects the labels of the present SELinux policy. A look at everything follows.
    fn follow_labels(&mut self) {
        let (observer, desired) = (&self.looks.looker.observer, &mut self.verdicts.desired);
        let now = labels::version(observer);
        if now == desired.labels {
            return;
        }
        tracing::info!("The files of the SELinux policy changed: the daemon now expects their labels.");
        desired.ids.customizable = labels::expect(&mut desired.expectations, &desired.policy, observer);
        desired.labels = now;
    }
}

/// Waits for a descriptor to become readable.
fn watched<T: AsRawFd>(readable: T) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "the replacement is unsafe; what is watched owns its descriptor for as long as that"
    )]
    AsyncFd::with_interest(readable, Interest::READABLE)
}

/// Until a descriptor becomes readable; for ever where there is none.
async fn readable(descriptor: &mut Option<AsyncFd<OwnedFd>>) -> io::Result<()> {
    match descriptor {
        Some(descriptor) => descriptor.readable_mut().await.map(|mut guard| guard.clear_ready()),
        None => std::future::pending().await,
    }
}
