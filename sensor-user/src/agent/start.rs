//! From the command line to a running loop, and from one config to the next.
//!
//! In: what the daemon is told. Out: attached programs, given-up capabilities, and one run of the loop for each
//! config. The programs are loaded once; the runs hand them on to each other.

use super::backend::{self, Changes, Parts};
use super::canary::{Canary, FTRACE_DISABLED};
use super::deny::DenyRules;
use super::diff::Diffs;
use super::executions::Executions;
use super::look::Looker;
use super::mounts::{self, Announcements, MountTable};
use super::reload::{Carried, Ended};
use super::revert::Reverts;
use super::served::Workers;
use super::service::Signals;
use super::tamper::Beneath;
use super::ties::Ties;
use super::{Agent, Options, follow, lock, privileges};
use crate::attribution::Attributor;
use crate::clock::{Clock, SystemClock, boot_id};
use crate::desired::{self, Desired};
use crate::kernel::object::OBJECT_SHA256;
use crate::kernel::recursion::Recursion;
use crate::observation::Observer;
use crate::report::forensic::{ForensicLog, Limits, Writer};
use crate::report::http::Readiness;
use crate::report::metrics::{BuildInfo, HookMode, Telemetry};
use crate::report::status::StatusFile;
use anyhow::Context;
use follow::Follow;
use sensor_model::protocol::{Config, Detector};
use std::collections::HashMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// What stays the same from one config to the next.
pub(super) struct Host {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) observer: Arc<Observer>,
    pub(super) boot_id: String,
    /// Bound while every port may be bound.
    pub(super) listener: Option<TcpListener>,
    /// What was kept of the capabilities.
    pub(super) capabilities: Vec<String>,
    /// Counts on from one config to the next.
    pub(super) telemetry: Arc<Telemetry>,
}

/// What is heard from the first moment on and outlives a beginning with another config.
struct Kept {
    ties: Ties,
    signals: Signals,
}

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// A config or policy with a mistake, no backend that works, or a failure that the loop cannot go on from.
pub fn run(mut options: Options) -> anyhow::Result<()> {
    // Huge pages would hold what was given back between what is kept, and the kernel would work at making them.
    if let Err(error) = nix::sys::prctl::set_thp_disable(true) {
        tracing::info!(%error, "Huge pages stay on.");
    }
    for directory in [&options.inputs.state, &options.run] {
        make_directory(directory)?;
    }
    // Before anything that another daemon may be using is touched.
    let _locks = lock::take(&options)?;
    let observer = Arc::new(Observer::guarded(&options.inputs.root)?);
    let runtime = self::runtime()?;
    let kept = runtime.block_on(async {
        anyhow::Ok(Kept { ties: Ties::listen(&options.inputs.state), signals: Signals::new()? })
    })?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let choose = |options: &Options, things| {
        let directories = [&*options.inputs.state, &*options.run];
        backend::choose(&directories, options.pins.as_deref(), things, &observer, &clock)
            .map_err(|reasons| anyhow::anyhow!("no backend works on this host: {}", reasons.join("; ")))
    };
    // Deny rules that are pinned refuse whoever is not known to them, and to work off an apply is to write: the kernel
    // programs learn first which process the daemon is. Without a backend it is worked off all the same.
    let backend = follow::is_interrupted(&options).then(|| choose(&options, None));
    let first = self::runtime()?;
    let follow = first.block_on(follow::start(&mut options, &observer));
    let (desired, refused) = read(&mut options, &observer)?;
    let mut host = Host {
        clock: Arc::clone(&clock),
        boot_id: boot_id(Path::new("/proc")).context("read the boot id")?,
        listener: listener(&options)?,
        capabilities: Vec::new(),
        telemetry: self::telemetry()?,
        observer: Arc::clone(&observer),
    };
    let backend = backend.unwrap_or_else(|| choose(&options, Some(desired.expectations.len())))?;
    let mut parts = Parts::of(backend);
    if parts.mode == HookMode::Fentry {
        parts.recursion = Some(Recursion::watch().context("find the fentry programs")?);
    }
    // Its threads end with it, and the other one has none yet.
    drop(first);
    host.capabilities = privileges::give_up(parts.mode)?;
    tracing::info!(
        kept = host.capabilities.join(" "),
        "Capabilities that are not needed any more are given up."
    );
    runtime.block_on(keep_running(options, host, kept, parts, follow, (desired, refused)))
}

fn telemetry() -> anyhow::Result<Arc<Telemetry>> {
    let build = BuildInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: option_env!("HOLDFAST_COMMIT").unwrap_or("unknown").to_owned(),
        object: OBJECT_SHA256.to_owned(),
        kernel: nix::sys::utsname::uname()?.release().to_string_lossy().into_owned(),
    };
    Ok(Arc::new(Telemetry::new(build, SystemClock.now())))
}

/// One thread: the budget for memory and for a change's cost counts every switch.
fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// The desired state, and why it is not what the options name.
pub(super) fn read(options: &mut Options, observer: &Observer) -> anyhow::Result<(Desired, Option<String>)> {
    let (desired, refused) = desired::start(&mut options.inputs, observer)?;
    Ok((desired, refused.map(|error| error.to_string())))
}

async fn keep_running(
    mut options: Options,
    host: Host,
    kept: Kept,
    mut parts: Parts,
    mut follow: Follow,
    desired: (Desired, Option<String>),
) -> anyhow::Result<()> {
    let (mut desired, mut refused) = desired;
    let Kept { mut ties, mut signals } = kept;
    let mut carried = Carried::of_log(&options.log);
    if parts.canary.as_ref().is_some_and(Canary::is_blind) {
        carried.blind(FTRACE_DISABLED);
    }
    let mut log = ForensicLog::open(
        &options.log,
        Limits::default(),
        Arc::clone(&host.clock),
        host.boot_id.clone(),
        Arc::clone(&host.telemetry),
    )?;
    carried.log_was_cut = log.note_end(&options.inputs.state).is_some();
    loop {
        let run = Run { options: options.clone(), parts, follow, ties, desired, refused, carried, log };
        let (ended, back) = Box::pin(run.finish(&host, &mut signals)).await?;
        parts = back.parts;
        ties = back.ties;
        carried = back.carried;
        // What a disk refused waits in it.
        log = back.log;
        // What is loaded goes on seeing in between.
        (follow, (desired, refused)) = match ended {
            Ended::Stopped | Ended::Silent => {
                close(&mut log, &mut parts);
                anyhow::ensure!(
                    matches!(ended, Ended::Stopped),
                    "the kernel programs ({}) do not answer any more, which the canary shows: the daemon ends, and its next \
                     start takes the first backend that answers",
                    parts.mode.name()
                );
                return Ok(());
            }
            Ended::Applied => {
                tracing::info!(
                    "An apply is over, or was left by its process; the daemon begins again with the config that is current."
                );
                let follow = follow::start(&mut options, &host.observer).await;
                let desired = read(&mut options, &host.observer)?;
                host.telemetry.reloaded(desired.1.is_none());
                (follow, desired)
            }
            Ended::Seeing => {
                tracing::info!("The kernel programs run now; the daemon begins again with them.");
                parts.adopted = false;
                if let Some(sensor) = &parts.sensor {
                    sensor.retire_others();
                }
                (back.follow, read(&mut options, &host.observer)?)
            }
            Ended::Reloaded(desired) => {
                options.inputs.restore();
                (back.follow, (*desired, None))
            }
        };
        // Loading anew takes capabilities that were given up. What is attached counts changes until the next start.
        if let Some(witness) = &mut parts.witness
            && let Err(outgrown) = witness.maps().hold(desired.expectations.len())
        {
            close(&mut log, &mut parts);
            return Err(outgrown.into());
        }
    }
}

/// The end of a daemon whose programs stay attached.
fn close(log: &mut ForensicLog, parts: &mut Parts) {
    log.close();
    if let Some(witness) = &mut parts.witness
        && let Err(error) = witness.maps().forget_agent()
    {
        tracing::warn!(%error, "The kernel programs still know the daemon's process.");
    }
    let lost = log.pending().count();
    if lost > 0 {
        let reason = log.degraded();
        tracing::error!(lost, reason, "Records could not be written and are lost.");
    }
}

fn make_directory(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("make directory {}", path.display()))
}

fn listener(options: &Options) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = options.listen else { return Ok(None) };
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    Ok(Some(bound.with_context(|| format!("listen on {address} for metrics"))?))
}

/// What one run of the loop begins with.
pub(super) struct Run {
    pub(super) options: Options,
    pub(super) parts: Parts,
    pub(super) follow: Follow,
    pub(super) ties: Ties,
    pub(super) desired: Desired,
    /// Why the configs that were given are not in force; the last that could be used are.
    pub(super) refused: Option<String>,
    pub(super) carried: Carried,
    pub(super) log: ForensicLog,
}

/// What it leaves to the next one.
struct Back {
    parts: Parts,
    follow: Follow,
    ties: Ties,
    carried: Carried,
    log: ForensicLog,
}

impl Run {
    async fn finish(self, host: &Host, signals: &mut Signals) -> anyhow::Result<(Ended, Back)> {
        let (mut agent, changes) = self.begin(host)?;
        let changes = agent.serve(changes, host, signals).await?;
        let mut carried = agent.carry();
        let Agent {
            workers,
            mode,
            sensor,
            canary,
            recursion,
            processes,
            looker,
            follow,
            ties,
            ended,
            log,
            ..
        } = agent;
        carried.workers = Some(workers.let_go());
        let log = log.finish().await?;
        let parts = Parts {
            mode,
            sensor,
            witness: looker.witness,
            canary,
            recursion,
            processes,
            changes,
            backlog: Vec::new(),
            adopted: true,
        };
        Ok((ended.unwrap_or(Ended::Stopped), Back { parts, follow, ties, carried, log }))
    }

    /// The loop's state, with everything enrolled and nothing looked at.
    pub(super) fn begin(self, host: &Host) -> anyhow::Result<(Agent, Changes)> {
        let Self { options, parts, follow, ties, desired, refused, mut carried, log } = self;
        let (clock, observer) = (&host.clock, &host.observer);
        let (drifts, deny, [lost_records, lost_processes]) = carried.parts();
        let (budgets, untold) = (std::mem::take(&mut carried.budgets), std::mem::take(&mut carried.untold));
        host.telemetry.restore(drifts.for_metrics());
        let mut looker = Looker::new(Arc::clone(observer), &options.inputs.root, parts.witness, &desired);
        for argument in &desired.waiting {
            tracing::info!("{}", argument.text());
        }
        let mut rules = DenyRules::default();
        if parts.mode == HookMode::Lsm {
            rules = deny.renewed(&desired.policy, &desired.expectations);
        }
        looker.registry.number_by(rules.numbers());
        let things = (0..).take(desired.expectations.len());
        looker.protect(things.filter_map(|thing| Some((thing, rules.protects(thing)?))))?;
        let attributor = Attributor::new(
            Arc::clone(observer),
            &options.inputs.root,
            Path::new("/proc"),
            std::process::id(),
        )?;
        let readiness = Readiness::default();
        readiness.not_ready("verification", "the first full verification is not finished");
        if let Some(reason) = refused {
            readiness.not_ready(desired::CONFIG, reason);
            host.telemetry.reloaded(false);
        }
        let mut agent = Agent {
            mounts: MountTable::read(Path::new(mounts::TABLE)).unwrap_or_default(),
            mount_table: PathBuf::from(mounts::TABLE),
            deny: rules,
            clock: Arc::clone(clock),
            boot_id: host.boot_id.clone(),
            capabilities: host.capabilities.clone(),
            telemetry: Arc::clone(&host.telemetry),
            readiness,
            desired,
            looker,
            detector: Detector::new(Config::default()),
            mode: parts.mode,
            sensor: parts.sensor,
            canary: parts.canary,
            recursion: parts.recursion,
            processes: parts.processes,
            attributor,
            log: Writer::new(log),
            node: follow.standing(),
            follow,
            ties,
            ended: None,
            group: Vec::new(),
            executions: Executions::default(),
            denials: super::refusals::Denials::default(),
            budgets,
            untold,
            diffs: Diffs::default(),
            changes: HashMap::new(),
            drifts,
            reverts: Reverts::default(),
            blindness: None,
            lost_processes,
            lost_records,
            swept: super::sweep::Swept::default(),
            mounts_due: None,
            mounts_unread: None,
            beneath: Beneath::default(),
            announced: Announcements::default(),
            writers_since: None,
            no_writers_since: None,
            verification: None,
            workers: carried
                .workers
                .take()
                .unwrap_or_else(|| Workers::new(options.inputs.root.clone(), Arc::clone(clock))),
            hung: HashMap::new(),
            status_file: StatusFile::new(&options.run),
            changed: true,
            options,
        };
        agent.begin(parts.adopted)?;
        agent.take_over(carried);
        for bytes in &parts.backlog {
            agent.record(bytes)?;
        }
        Ok((agent, parts.changes))
    }
}
