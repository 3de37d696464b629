//! The daemon: the detect pipeline as one loop.
//!
//! In: ring records, timers, signals. Out: verdicts, as forensic records, metrics and the status file.
//! One thread; nothing in it waits for anything but the ring, a timer or the disk.

pub mod backend;
pub mod canary;
mod deny;
pub mod desired;
mod events;
mod follow;
pub mod look;
pub mod mounts;
pub mod registry;
mod reports;
mod revert;
mod service;
pub mod status;
mod ties;
mod transit;
mod upkeep;

use crate::attribution::{Attributor, ProcessTable};
use crate::clock::{Clock, SystemClock, boot_id, rfc3339};
use crate::forensic::{ForensicLog, Limits, Writer};
use crate::http::{self, Pages, Readiness};
use crate::kernel::hooks::{HOOKS, TRACEPOINTS, When};
use crate::kernel::load::{HookState, OBJECT_SHA256, Sensor};
use crate::kernel::maps::ProcessMaps;
use crate::kernel::recursion::Recursion;
use crate::metrics::{BuildInfo, HookMode, Telemetry};
use crate::observation::Observer;
use anyhow::Context;
use backend::{Changes, Parts};
use canary::Canary;
use desired::Desired;
use look::{Looker, Witness};
use mounts::{Announcements, MountTable};
use sensor_common::map::{Execution, Process};
use sensor_model::node_state::Standing;
use sensor_model::protocol::{Config, Detector, Scope};
use sensor_model::record::{Record, RecordKind};
use service::{notify, watchdog_pause};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// What the daemon is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// The host's root directory.
    pub root: PathBuf,
    /// MachineConfigs and Ignition configs: files and directories.
    pub configs: Vec<PathBuf>,
    /// Drift policies: files and directories.
    pub policies: Vec<PathBuf>,
    /// Where the canary lives.
    pub state: PathBuf,
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
    /// Another config is current: begin again with it.
    again: bool,
    mounts: MountTable,
    deny: deny::DenyRules,
    /// Records of this turn, written as one group.
    group: Vec<Record>,
    /// The newest change of each thing in an episode.
    changes: HashMap<u32, events::Noted>,
    drifts: HashMap<u32, reports::Open>,
    /// Drifts that were open when the last daemon stopped, by path.
    restored: HashMap<String, crate::metrics::OpenDrift>,
    /// Things to be written back this turn, and when each was before.
    reverts: Vec<u32>,
    reverted_at: HashMap<u32, Vec<u64>>,
    blindness: Option<(u32, String)>,
    lost_processes: u64,
    lost_records: u64,
    mounts_due: Option<u64>,
    announced: Announcements,
    writers_since: Option<u64>,
    no_writers_since: Option<u64>,
    verification: Option<upkeep::Verification>,
    changed: bool,
    /// How things stood when the status was last written.
    written: Option<reports::Standing>,
}

/// Runs the daemon until it is told to stop.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let mut kept = Kept { ties: ties::Ties::listen(&options.state), signals: service::Signals::new()? };
    // What is pinned goes on seeing in between, and writers go on waiting.
    while let Some(again) = Box::pin(run_once(options.clone(), kept)).await? {
        kept = again;
        tracing::info!("Another config was applied; the daemon begins again with it.");
    }
    Ok(())
}

/// What outlives a beginning with another config: nothing that comes in between is missed.
struct Kept {
    ties: ties::Ties,
    signals: service::Signals,
}

/// Runs with one config. Gives back what is kept when it shall begin again.
async fn run_once(mut options: Options, kept: Kept) -> anyhow::Result<Option<Kept>> {
    // Huge pages would hold what was given back between what is kept, and the kernel would work at making them.
    if let Err(error) = nix::sys::prctl::set_thp_disable(true) {
        tracing::info!(%error, "Huge pages stay on.");
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    for directory in [&options.state, &options.run] {
        make_directory(directory)?;
    }
    let observer = Arc::new(Observer::new(&options.root)?);
    let follow = follow::start(&mut options, &observer).await;
    let desired = desired::load(&options.configs, &options.policies, &observer)?;
    let boot_id = boot_id(Path::new("/proc")).context("read the boot id")?;
    let telemetry = Arc::new(Telemetry::new(
        BuildInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("HOLDFAST_COMMIT").unwrap_or("unknown").to_owned(),
            object: OBJECT_SHA256.to_owned(),
            kernel: nix::sys::utsname::uname()?.release().to_string_lossy().into_owned(),
        },
        clock.now(),
    ));
    let restored: HashMap<_, _> =
        crate::forensic::open_drifts(&options.log).unwrap_or_default().into_iter().collect();
    telemetry.restore(restored.clone());
    let log = ForensicLog::open(
        &options.log,
        Limits::default(),
        Arc::clone(&clock),
        boot_id.clone(),
        Arc::clone(&telemetry),
    )?;
    let backend = backend::choose(&options.state, options.pins.as_deref(), &observer, &clock)
        .map_err(|reasons| anyhow::anyhow!("no backend works on this host: {}", reasons.join("; ")))?;
    let parts = Parts::of(backend);
    let mut looker = Looker::new(Arc::clone(&observer), &options.root, parts.witness, &desired);
    let mut deny = deny::DenyRules::default();
    if parts.mode == HookMode::Lsm {
        deny = deny::DenyRules::new(&desired.policy, &desired.expectations);
    }
    for thing in (0..).take(desired.expectations.len()) {
        if let Some(rule) = deny.protects(thing) {
            looker.registry.protect(thing, rule);
        }
    }
    let attributor =
        Attributor::new(Arc::clone(&observer), &options.root, Path::new("/proc"), std::process::id())?;
    let recursion = match parts.mode {
        HookMode::Fentry => Some(Recursion::watch().context("find the fentry programs")?),
        _ => None,
    };
    let readiness = Readiness::default();
    readiness.not_ready("verification", "the first full verification is not finished");
    let mut agent = Agent {
        mounts: MountTable::read().unwrap_or_default(),
        deny,
        clock,
        boot_id,
        telemetry,
        readiness,
        desired,
        looker,
        detector: Detector::new(Config::default()),
        mode: parts.mode,
        sensor: parts.sensor,
        canary: parts.canary,
        recursion,
        processes: parts.processes,
        attributor,
        log: Writer::new(log),
        node: follow.standing(),
        follow,
        ties: kept.ties,
        again: false,
        group: Vec::new(),
        changes: HashMap::new(),
        drifts: HashMap::new(),
        restored,
        reverts: Vec::new(),
        reverted_at: HashMap::new(),
        blindness: None,
        lost_processes: 0,
        lost_records: 0,
        mounts_due: None,
        announced: Announcements::default(),
        writers_since: None,
        no_writers_since: None,
        verification: None,
        changed: true,
        written: None,
        options,
    };
    agent.begin(parts.adopted)?;
    for bytes in &parts.backlog {
        agent.record(bytes)?;
    }
    agent.serve(parts.changes, kept.signals).await
}

fn make_directory(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("make directory {}", path.display()))
}

impl Agent {
    /// Enrols everything, and says that we are here.
    fn begin(&mut self, adopted: bool) -> anyhow::Result<()> {
        if let Some(witness) = self.witness() {
            witness.maps().disallow_all()?;
        }
        self.refresh_allowed();
        self.need(When::Links, self.looker.has_links());
        self.looker.enrol_all()?;
        let now = self.clock.boot_ns();
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
                let attached = matches!(state, HookState::Attached | HookState::Adopted);
                let mode = if tracepoint { HookMode::Tracepoint } else { self.mode };
                self.telemetry.hook(*name, mode, attached);
                if let HookState::Off(reason) = state
                    && HOOKS.iter().any(|hook| hook.name == *name && hook.since.is_none())
                {
                    off += 1;
                    tracing::warn!(hook = name, reason, "This hook is off.");
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
        self.release();
        if !adopted {
            let told = self.detector.open_gap(Scope::All, "sensor-start", now);
            self.tell(told, None);
        }
        Ok(())
    }

    async fn serve(
        mut self,
        mut changes: Changes,
        mut signals: service::Signals,
    ) -> anyhow::Result<Option<Kept>> {
        if let Changes::Fanotify(backend) = &mut changes {
            for id in 0..self.looker.registry.len() {
                if let Some(watched) = self.looker.registry.get(id) {
                    events::watch(backend, &watched.path);
                }
            }
        }
        #[expect(
            deprecated,
            reason = "the replacement is unsafe; the ring owns its descriptor while it is watched"
        )]
        let changes = AsyncFd::with_interest(changes, Interest::READABLE);
        let mut changes = changes.context("watch for changes")?;
        self.follow_begun(changes.get_mut())?;
        let mut canary = interval(self.options.canary_every);
        let mut verify = interval(self.options.verify_every);
        let mut watchdog = interval(watchdog_pause());
        for timer in [&mut canary, &mut verify, &mut watchdog] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            timer.reset();
        }
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let server = self.start_pages(stopped).await?;
        loop {
            // Records first, then the kernel's loss counter: a loss before the last record is seen.
            self.read(changes.get_mut())?;
            self.turn(changes.get_mut()).await?;
            while self.log.is_full() {
                self.log.progress().await?;
            }
            self.follow_log();
            if self.again {
                break;
            }
            let next = self.detector.next_deadline().into_iter().chain(self.mounts_due).min();
            let deadline = next.map_or(Duration::from_mins(1), |at| {
                Duration::from_nanos(at.saturating_sub(self.clock.boot_ns()))
            });
            tokio::select! {
                biased;
                () = signals.stop() => break,
                guard = changes.readable_mut() => guard?.clear_ready(),
                _ = canary.tick() => self.tick(changes.get_mut())?,
                _ = verify.tick() => self.verify_everything(changes.get_mut())?,
                said = self.ties.next() => self.heard_of(said, changes.get_mut())?,
                written = self.log.progress() => written?,
                _ = watchdog.tick() => notify(&[sd_notify::NotifyState::Watchdog]),
                () = sleep(deadline) => {}
            }
        }
        if !self.again {
            notify(&[sd_notify::NotifyState::Stopping]);
        }
        self.read(changes.get_mut())?;
        self.turn(changes.get_mut()).await?;
        let stop_record = self.log.record(RecordKind::Stop);
        self.group.push(stop_record);
        self.write();
        self.log.finish().await?;
        stop.send_replace(true);
        if let Some(server) = server {
            server.await?;
        }
        Ok(self.again.then_some(Kept { ties: self.ties, signals }))
    }

    /// Reads what changed. `false` when there is more.
    fn read(&mut self, changes: &mut Changes) -> anyhow::Result<bool> {
        match changes {
            Changes::Ring(ring) => self.drain(ring),
            Changes::Fanotify(backend) => {
                self.happened(backend)?;
                Ok(!backend.has_waiting())
            }
        }
    }

    /// What is done every few seconds.
    fn tick(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        self.follow_applies(changes)?;
        self.compare_mounts(changes)?;
        match changes {
            Changes::Ring(ring) => self.check_canary(ring),
            Changes::Fanotify(_) => Ok(()),
        }
    }

    async fn start_pages(
        &self,
        mut stopped: tokio::sync::watch::Receiver<bool>,
    ) -> anyhow::Result<Option<tokio::task::JoinHandle<()>>> {
        let Some(address) = self.options.listen else { return Ok(None) };
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .with_context(|| format!("listen on {address} for metrics"))?;
        let pages = Pages { telemetry: Arc::clone(&self.telemetry), readiness: self.readiness.clone() };
        Ok(Some(tokio::spawn(async move {
            let shutdown = async move {
                // An error means that the daemon is gone, which is a shutdown as well.
                let _ = stopped.changed().await;
            };
            if let Err(error) = http::serve(listener, pages, shutdown).await {
                tracing::error!(%error, "The metrics page has ended.");
            }
        })))
    }

    /// Looks at what is due, and writes what came of it as one group.
    async fn turn(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        self.follow_mounts(changes)?;
        let due = self.detector.due(self.clock.boot_ns(), LOOKS_A_TURN);
        for id in due {
            let began = self.clock.boot_ns();
            let mut sight = self.looker.look(id, &self.desired).await?;
            if !sight.differences.is_empty() {
                self.excuse(id, &mut sight);
            }
            let now = self.clock.boot_ns();
            self.telemetry.verified(Duration::from_nanos(now.saturating_sub(began)));
            self.hear(changes)?;
            self.follow_mounts(changes)?;
            let conclusion = self.detector.conclude(id, now, &sight.outcome);
            if conclusion.decided {
                self.looker.decided(id, &sight);
            }
            self.settled(id, &sight);
            self.tell(conclusion.reports, Some(&sight));
            self.forget(id);
        }
        self.revert().await;
        self.finish_verification();
        self.follow_writers();
        self.write();
        // Let the metrics page answer between two turns of a long verification.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Writes the records of this turn, and the status if anything changed.
    fn write(&mut self) {
        self.log.append(self.group.drain(..));
        // A thing can be decided without anything to tell: the status has to follow all the same.
        let standing = self.standing();
        let moved = self.verification.is_none() && self.written != Some(standing);
        if std::mem::take(&mut self.changed) || moved {
            self.written = Some(standing);
            let status = self.status();
            if let Err(error) = status::write(&self.options.run, &status) {
                tracing::error!(%error, directory = %self.options.run.display(), "Cannot write the status.");
            }
        }
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
            self.deny.refresh(&self.options.root, &observer, witness, self.ties.processes());
        }
    }

    fn witness(&mut self) -> Option<&mut Witness> {
        self.looker.witness.as_mut()
    }
}
