//! The daemon: the detect pipeline as one loop.
//!
//! In: ring records, timers, signals. Out: verdicts, as forensic records, metrics and the status file.
//! One thread; nothing in it waits for anything but the ring, a timer or the disk.

mod alarm;
pub mod backend;
mod budgets;
pub mod canary;
mod deny;
mod diff;
mod open_drift;
mod episode;
mod events;
mod executions;
mod follow;
mod lock;
pub mod look;
pub mod mounts;
pub mod numbers;
pub mod privileges;
mod refusals;
pub mod registry;
mod reload;
pub(crate) mod verdicts;
mod revert;
mod served;
mod service;
mod start;
mod sweep;
mod taken_back;
mod tamper;
mod ties;
mod transit;
mod upkeep;
mod windows;

use crate::attribution::{Attributor, ProcessTable};
use crate::clock::{Clock, rfc3339};
use crate::desired::{Desired, Inputs};
use crate::kernel::hooks::{FUNCTIONS, TRACEPOINTS, When, hidden};
use crate::kernel::load::{HookState, Sensor};
use crate::kernel::maps::ProcessMaps;
use crate::kernel::object::OBJECT_SHA256;
use crate::kernel::recursion::Recursion;
use crate::report::forensic::Writer;
use crate::report::http::{self, Pages, Readiness};
use crate::report::metrics::{HookMode, Telemetry};
use alarm::Alarm;
use anyhow::Context;
use backend::Changes;
use canary::Canary;
use look::{Looked, Looker, Witness};
use mounts::{Announcements, MountTable};
use reload::Ended;
use sensor_common::map::{Execution, Process};
use sensor_model::node_state::Standing;
use sensor_model::protocol::{Detector, Scope};
use sensor_model::record::{Record, RecordKind};
use service::{Asked, Signals, notify, watchdog_pause};
use start::Host;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{MissedTickBehavior, interval};

pub use start::run;

/// What the daemon is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// What declares the expected state, and how it is read. Its state directory also holds the canary.
    pub inputs: Inputs,
    /// Where the status file goes.
    pub run: PathBuf,
    /// Where the forensic log goes.
    pub log: PathBuf,
    /// Where links and maps are pinned; `None` keeps nothing beyond the process.
    pub pins: Option<PathBuf>,
    /// Address of the metrics page; `None` for none.
    pub listen: Option<SocketAddr>,
    /// Pause between full verifications.
    pub verify_every: Duration,
    /// Pause between canaries.
    pub canary_every: Duration,
}

/// Things looked at before the loop turns to new records again.
const LOOKS_A_TURN: usize = 64;

impl ProcessTable for ProcessMaps {
    fn process(&self, tgid: u32) -> Option<Process> {
        Self::process(self, tgid)
    }

    fn execution(&self, exec_id: u64) -> Option<Execution> {
        Self::execution(self, exec_id)
    }

    fn group(&self, id: u64) -> Option<String> {
        Self::group(self, id)
    }
}

/// The running daemon.
struct Agent {
    options: Options,
    clock: Arc<dyn Clock>,
    boot_id: String,
    /// What was kept of the capabilities.
    capabilities: Vec<String>,
    telemetry: Arc<Telemetry>,
    readiness: Readiness,
    desired: Desired,
    looker: Looker,
    detector: Detector,
    mode: HookMode,
    /// Absent on the fanotify backend, like the canary.
    sensor: Option<Sensor>,
    canary: Option<Canary>,
    /// Where the programs are of the kind that can be left out.
    recursion: Option<Recursion>,
    processes: Box<dyn ProcessTable>,
    attributor: Attributor,
    log: Writer,
    /// Applies of configs beside us.
    follow: follow::Follow,
    /// Writers beside us.
    ties: ties::Ties,
    /// How the node stands with its config.
    node: Option<Standing>,
    /// Why the loop ends, once it does.
    ended: Option<reload::Ended>,
    mounts: MountTable,
    /// Where it is read.
    mount_table: PathBuf,
    deny: deny::DenyRules,
    /// Records of this turn, written as one group.
    group: Vec<Record>,
    /// Executions that are only counted.
    executions: executions::Executions,
    /// Refusals that are only counted.
    denials: refusals::Denials,
    /// Room for entries of what anybody may cause.
    budgets: budgets::Budgets,
    untold: refusals::KernelsCounts,
    /// When a diff may be made again.
    diffs: diff::Diffs,
    /// The newest change of each thing in an episode.
    changes: HashMap<u32, episode::Noted>,
    drifts: open_drift::Drifts,
    /// Things to be written back, and when each was before.
    reverts: revert::Reverts,
    blindness: Option<(u32, String)>,
    lost_processes: u64,
    lost_records: u64,
    swept: sweep::Swept,
    mounts_due: Option<u64>,
    /// The gap that is open while the mount table cannot be read.
    mounts_unread: Option<u32>,
    beneath: tamper::Beneath,
    announced: Announcements,
    writers_since: Option<u64>,
    no_writers_since: Option<u64>,
    verification: Option<upkeep::Verification>,
    /// Look where this process may not.
    workers: served::Workers,
    /// Things that could not be looked at, with the number of the gap of those that have one of their own.
    hung: HashMap<u32, Option<u32>>,
    status_file: crate::report::status::StatusFile,
    /// What the status says is new.
    changed: bool,
}

impl Agent {
    /// Enrols everything, and says that we are here.
    fn begin(&mut self, adopted: bool) -> anyhow::Result<()> {
        self.know_untold();
        self.deny.begin(self.looker.witness.as_mut())?;
        self.refresh_allowed();
        self.need(When::Links, self.looker.has_links());
        self.looker.enrol_all()?;
        // What only rules of before allowed is taken away when nothing is protected by them any more.
        self.deny.begun();
        self.refresh_allowed();
        self.telemetry.begins();
        let now = self.clock.boot_ns();
        self.detector.reserve(self.desired.expectations.len());
        for id in (0..).take(self.desired.expectations.len()) {
            self.detector.add(id, now);
        }
        self.check_reach();
        self.verification = Some(upkeep::Verification { began: now });
        let mut off = crate::fanotify::BLIND_SPOTS.len();
        if let Some(sensor) = &self.sensor {
            off = 0;
            for (name, state) in &sensor.hooks {
                let tracepoint = TRACEPOINTS.iter().any(|(_, tracepoint)| tracepoint == name);
                let function = FUNCTIONS.iter().any(|function| function.name == *name);
                let attached = matches!(state, HookState::Attached | HookState::Adopted);
                let mode = match (tracepoint, function) {
                    (true, _) => HookMode::Tracepoint,
                    (_, true) => HookMode::Fentry,
                    _ => self.mode,
                };
                self.telemetry.hook(*name, mode, attached);
                if let HookState::Off(reason) = state
                    && let Some(unseen) = hidden(name, reason)
                {
                    off += 1;
                    tracing::warn!(hook = name, ?reason, unseen, "This hook is off.");
                }
            }
        }
        self.telemetry.backend(self.mode, off);
        let mut start = self.log.record(RecordKind::Start);
        start.detail.insert("version".into(), env!("CARGO_PKG_VERSION").into());
        start.detail.insert("object".into(), OBJECT_SHA256.into());
        start.detail.insert("backend".into(), self.mode.name().into());
        start.detail.insert("adopted".into(), adopted.into());
        start.detail.insert("things".into(), self.desired.expectations.len().into());
        self.group.push(start);
        self.taken_back();
        self.release();
        if !adopted {
            let told = self.detector.open_gap(Scope::All, "sensor-start", now);
            self.tell(told, None);
        }
        Ok(())
    }

    /// Follows changes until there is a reason to end. Gives back where they are read.
    async fn serve(
        &mut self,
        mut changes: Changes,
        host: &Host,
        signals: &mut Signals,
    ) -> anyhow::Result<Changes> {
        if let Changes::Fanotify(backend) = &mut changes {
            for id in 0..self.looker.registry.len() {
                self.watch(backend, id);
            }
        }
        let mut alarms = changes.alarms()?.map(watched).transpose().context("watch for alarms")?;
        let mut changes = watched(changes).context("watch for changes")?;
        self.follow_begun(changes.get_mut())?;
        let mut canary = interval(self.options.canary_every);
        let mut verify = interval(self.options.verify_every);
        let mut watchdog = interval(watchdog_pause());
        for timer in [&mut canary, &mut verify, &mut watchdog] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            timer.reset();
        }
        let mut alarm = Alarm::new().context("make a timer")?;
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let server = self.start_pages(host, stopped)?;
        loop {
            // Records first, then the kernel's loss counter: a loss before the last record is seen.
            self.read(changes.get_mut())?;
            self.turn(changes.get_mut()).await?;
            while self.log.is_full() {
                self.log.progress().await?;
            }
            self.follow_log();
            if self.ended.is_some() {
                break;
            }
            let due = self.mounts_due.into_iter().chain(self.beneath.due()).chain(self.reverts.next());
            let due = due.chain(self.workers.next_deadline());
            let next = self.detector.next_deadline().into_iter().chain(due).min();
            alarm.set(next)?;
            tokio::select! {
                // Changes come last: whoever may make them without end must not keep the rest from its time.
                // They are read at the top of every turn, whatever ended the last one.
                biased;
                asked = signals.next() => match asked {
                    Asked::Stop => self.ended = Some(Ended::Stopped),
                    Asked::Reload => self.reload(),
                },
                _ = watchdog.tick() => notify(&[sd_notify::NotifyState::Watchdog]),
                _ = canary.tick() => self.tick(changes.get_mut())?,
                _ = verify.tick() => self.verify_everything(changes.get_mut())?,
                said = self.ties.next() => self.heard_of(said, changes.get_mut())?,
                heard = self.workers.next() => self.heard_of_worker(heard, changes.get_mut()).await?,
                written = self.log.progress() => written?,
                rung = alarm.rings() => rung?,
                heard = readable(&mut alarms) => heard?,
                guard = changes.readable_mut() => guard?.clear_ready(),
            }
        }
        if matches!(self.ended, Some(Ended::Stopped)) {
            notify(&[sd_notify::NotifyState::Stopping]);
        }
        self.read(changes.get_mut())?;
        self.turn(changes.get_mut()).await?;
        self.tell_counted(u64::MAX);
        let stop_record = self.log.record(RecordKind::Stop);
        self.group.push(stop_record);
        self.write();
        stop.send_replace(true);
        if let Some(server) = server {
            // Connections have a few seconds to finish.
            let joined = tokio::task::spawn_blocking(move || server.join()).await?;
            if joined.is_err() {
                tracing::error!("The thread of the metrics page has panicked.");
            }
        }
        Ok(changes.into_inner())
    }

    /// Reads what changed. `false` when there is more.
    fn read(&mut self, changes: &mut Changes) -> anyhow::Result<bool> {
        match changes {
            Changes::Ring(ring) => self.drain(ring),
            Changes::Fanotify(backend) => {
                self.happened(backend)?;
                Ok(!backend.has_waiting())
            }
            #[cfg(test)]
            Changes::Told => Ok(true),
        }
    }

    /// What is done every few seconds.
    fn tick(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        self.beat();
        self.follow_applies(changes)?;
        self.compare_mounts(changes)?;
        match changes {
            Changes::Ring(ring) => self.check_canary(ring),
            Changes::Fanotify(_) => Ok(()),
            #[cfg(test)]
            Changes::Told => Ok(()),
        }
    }

    fn start_pages(
        &self,
        host: &Host,
        stopped: tokio::sync::watch::Receiver<bool>,
    ) -> anyhow::Result<Option<std::thread::JoinHandle<()>>> {
        let Some(listener) = &host.listener else { return Ok(None) };
        let pages = Pages { telemetry: Arc::clone(&self.telemetry), readiness: self.readiness.clone() };
        let serving = http::serve_apart(listener.try_clone()?, pages, stopped);
        Ok(Some(serving.context("start the thread of the metrics page")?))
    }

    /// Looks at what is due, and writes what came of it as one group.
    async fn turn(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        self.follow_mounts(changes)?;
        self.follow_devices();
        self.follow_workers();
        let due = self.detector.due(self.clock.boot_ns(), LOOKS_A_TURN);
        for id in due {
            let began = self.clock.boot_ns();
            let sight = match self.looker.look(id, &self.desired).await? {
                Looked::Seen(sight) => *sight,
                Looked::Served(served) => {
                    self.ask_worker(id, served);
                    continue;
                }
            };
            let took = self.clock.boot_ns().saturating_sub(began);
            self.telemetry.verified(Duration::from_nanos(took));
            self.looked(id, sight, changes)?;
        }
        // While what was found is still there.
        self.add_diffs();
        self.revert().await;
        self.finish_verification();
        self.follow_writers();
        self.write();
        // Let other tasks run between two turns of a long verification.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Writes the records of this turn, and the status if anything changed.
    fn write(&mut self) {
        self.log.append(self.group.drain(..));
        if std::mem::take(&mut self.changed) {
            self.status_file.outdate();
        }
        // A thing can be decided without anything to tell: the status has to follow all the same.
        let standing = self.standing();
        if self.status_file.is_due(standing, self.verification.is_none()) {
            let status = self.status();
            self.status_file.write(standing, &status);
        }
    }

    /// Shows readers of the status that the loop turns, and ends what is counted over a time.
    fn beat(&mut self) {
        if self.status_file.beat() {
            let (standing, status) = (self.standing(), self.status());
            self.status_file.write(standing, &status);
        }
        self.tell_counted(self.clock.boot_ns());
    }

    /// Not ready while the records of what happened cannot be written.
    fn follow_log(&self) {
        match self.log.degraded() {
            Some(reason) => self.readiness.not_ready("forensic-log", reason),
            None => self.readiness.ready("forensic-log"),
        }
    }

    fn wall(&self, boot_ns: u64) -> String {
        rfc3339(self.clock.wall_at(boot_ns))
    }

    /// Tells the kernel whom deny rules allow now.
    fn refresh_allowed(&mut self) {
        let observer = Arc::clone(&self.looker.observer);
        if let Some(witness) = self.looker.witness.as_mut() {
            self.deny.refresh(&self.options.inputs.root, &observer, witness, self.ties.processes());
        }
    }

    fn witness(&mut self) -> Option<&mut Witness> {
        self.looker.witness.as_mut()
    }
}

/// Waits for a descriptor to become readable.
fn watched<T: AsRawFd>(readable: T) -> std::io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "the replacement is unsafe; what is watched owns its descriptor for as long as that"
    )]
    AsyncFd::with_interest(readable, Interest::READABLE)
}

/// Until a descriptor becomes readable; for ever where there is none.
async fn readable(descriptor: &mut Option<AsyncFd<OwnedFd>>) -> std::io::Result<()> {
    match descriptor {
        Some(descriptor) => descriptor.readable_mut().await.map(|mut guard| guard.clear_ready()),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
