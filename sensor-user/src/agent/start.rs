//! From the command line to a running loop, and from one config to the next.
//!
//! In: the options, and what other rooms implement. Out: attached programs, given-up capabilities, and one run of the loop for
//! each config. The programs are loaded once; the runs hand them on to each other.

use super::applies::Applies;
use super::apply_tracker::Follow;
use super::backend::{self, Changes, Parts};
use super::blindness::Blindness;
use super::canary::Canary;
use super::denials::Denials;
use super::deny_rules::DenyRules;
use super::error::AgentError;
use super::holdfast_writers::Writers;
use super::hooks::Hooks;
use super::intake::Intake;
use super::mounts::{self, Mounts};
use super::options::Options;
use super::reasons::FTRACE_DISABLED;
use super::reload::Carried;
use super::reports::{AgentEvent, DaemonFacts, HookMode, Reports, RunFacts};
use super::run_end::Ended;
use super::service::Signals;
use super::state::Agent;
use super::verdicts::Verdicts;
use super::verifications::Looks;
use super::verifier::Looker;
use super::workers::Workers;
use super::write_back::WriteBack;
use super::{lock, privileges};
use crate::attribution::Attributor;
use crate::clock::{Clock, SystemClock, boot_id};
use crate::desired::{self, Desired};
use crate::kernel::recursion::Recursion;
use crate::observation::Observer;
use sensor_model::expectation::{Expectation, Expected};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// What the daemon starts in other rooms.
pub struct Services {
    /// Takes what the loop reports.
    pub reports: Box<dyn Reports>,
    /// The applies of this host.
    pub applies: Box<dyn Applies>,
    /// Writes declared state back.
    pub write_back: Box<dyn WriteBack>,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}

/// What stays the same from one config to the next.
pub(super) struct Host {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) observer: Arc<Observer>,
    pub(super) boot_id: String,
}

/// Expectations and policies, and why they are not those that the daemon was given.
type Loaded = (Desired, Option<String>);

/// Runs the daemon until a signal stops it.
///
/// # Errors
/// A config or policy with a mistake, no backend that works, or a failure from which the loop cannot go on.
pub fn run(mut options: Options, services: Services) -> Result<(), AgentError> {
    // Huge pages would keep memory that was freed between allocations that stay.
    if let Err(error) = nix::sys::prctl::set_thp_disable(true) {
        tracing::info!(%error, "Cannot switch huge pages off for this process.");
    }
    for directory in [&options.inputs.state, &options.run] {
        make_directory(directory)?;
    }
    // Before anything that another daemon may be using is touched.
    let _locks = lock::take(&options)?;
    let observer = Arc::new(Observer::guarded(&options.inputs.root)?);
    let runtime = self::runtime()?;
    let Services { mut reports, applies, write_back } = services;
    let follow = Follow::new(applies);
    let (writers, mut signals) = runtime.block_on(async {
        let signals = Signals::new().map_err(|source| AgentError::io("receive signals", source))?;
        Ok::<_, AgentError>((Writers::listen(&options.inputs.state), signals))
    })?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let choose = |options: &Options, things| {
        let directories = [options.inputs.state.as_path(), options.run.as_path()];
        backend::choose(&directories, options.pins.as_deref(), things, &observer, &clock)
    };
    // Pinned deny rules refuse every process that they do not know, and a recovery writes: so the kernel programs first learn
    // which process the daemon is. Without a backend the apply is recovered all the same.
    let backend = follow.is_interrupted().then(|| choose(&options, None));
    let first = self::runtime()?;
    let follow = first.block_on(follow.start(&mut options, &observer));
    let loaded = load(&mut options, &observer)?;
    let boot_id = boot_id(Path::new("/proc")).map_err(|source| AgentError::io("read the boot id", source))?;
    let host = Host { clock: Arc::clone(&clock), boot_id, observer: Arc::clone(&observer) };
    reports.prepare()?;
    let things = inodes(&loaded.0);
    let mut parts = Parts::of(backend.unwrap_or_else(|| choose(&options, Some(things)))?);
    if parts.mode == HookMode::Fentry {
        let recursion = Recursion::watch().map_err(io::Error::other);
        parts.recursion =
            Some(recursion.map_err(|source| AgentError::io("find the fentry programs", source))?);
    }
    // Its threads end with it, and the other one has none yet.
    drop(first);
    let capabilities = privileges::give_up(parts.mode)?;
    tracing::info!(kept = capabilities.join(" "), "Gave up all other capabilities.");
    runtime.block_on(async {
        let facts = DaemonFacts { boot_id: host.boot_id.clone(), capabilities, beat: options.canary_every };
        // This may start threads, which have only the capabilities that were kept.
        let log_is_cut = reports.open(facts)?.log_is_cut;
        let mut carried = Carried::at_start(log_is_cut);
        if parts.canary.as_ref().is_some_and(Canary::is_blind) {
            carried.blind(FTRACE_DISABLED);
        }
        let run = Run { options, parts, follow, writers, loaded, carried, reports, write_back };
        run.keep_running(&host, &mut signals).await
    })
}

/// Things, and entries of sealed trees that are watched live: each may have an entry in the kernel's map.
fn inodes(desired: &Desired) -> usize {
    let of = |expectation: &Expectation| match &expectation.expected {
        Expected::Tree(tree) if tree.live => usize::try_from(tree.entries).unwrap_or(usize::MAX),
        _ => 1,
    };
    desired.expectations.iter().map(of).fold(0, usize::saturating_add)
}

/// One thread: the budgets for memory and for a change's cost count every switch.
fn runtime() -> Result<Runtime, AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|source| AgentError::io("start the async runtime", source))
}

fn make_directory(path: &Path) -> Result<(), AgentError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| AgentError::Directory { path: path.to_owned(), source })
}

/// Reads configs and policies, or the last usable ones.
pub(super) fn load(options: &mut Options, observer: &Observer) -> Result<Loaded, AgentError> {
    let (desired, refused) = desired::start(&mut options.inputs, observer)?;
    Ok((desired, refused.map(|error| error.to_string())))
}

/// What one run of the loop begins with.
pub(super) struct Run {
    pub(super) options: Options,
    pub(super) parts: Parts,
    pub(super) follow: Follow,
    pub(super) writers: Writers,
    pub(super) loaded: Loaded,
    pub(super) carried: Carried,
    pub(super) reports: Box<dyn Reports>,
    pub(super) write_back: Box<dyn WriteBack>,
}

/// What it leaves to the next one.
struct Left {
    options: Options,
    parts: Parts,
    follow: Follow,
    writers: Writers,
    carried: Carried,
    reports: Box<dyn Reports>,
    write_back: Box<dyn WriteBack>,
}

impl Run {
    /// Runs the loop again and again, until a signal stops it or the programs no longer answer.
    async fn keep_running(mut self, host: &Host, signals: &mut Signals) -> Result<(), AgentError> {
        loop {
            let (ended, mut left) = Box::pin(self.finish(host, signals)).await?;
            let loaded = match ended {
                Ended::Stopped => return left.close().await,
                Ended::Silent => {
                    let mode = left.parts.mode.name();
                    left.close().await?;
                    return Err(AgentError::Silent { mode });
                }
                Ended::Applied => {
                    tracing::info!(
                        "An apply is over, or its process is gone: the daemon begins a new run with the current config."
                    );
                    left.follow = left.follow.start(&mut left.options, &host.observer).await;
                    let loaded = load(&mut left.options, &host.observer)?;
                    left.reports.report(AgentEvent::ConfigsRead(loaded.1.is_none()));
                    loaded
                }
                Ended::Seeing => {
                    tracing::info!("The kernel programs run now: the daemon begins a new run with them.");
                    left.parts.adopted = false;
                    if let Some(sensor) = &left.parts.sensor {
                        sensor.retire_others();
                    }
                    load(&mut left.options, &host.observer)?
                }
                Ended::Reloaded(desired) => {
                    left.options.inputs.restore();
                    (*desired, None)
                }
            };
            // The programs go on counting changes in between.
            if let Some(witness) = &mut left.parts.witness
                && let Err(outgrown) = witness.maps().hold(inodes(&loaded.0))
            {
                // Loading larger maps takes capabilities that the daemon gave up; the next start has them.
                left.close().await?;
                return Err(outgrown.into());
            }
            let Left { options, parts, follow, writers, carried, reports, write_back } = left;
            self = Self { options, parts, follow, writers, loaded, carried, reports, write_back };
        }
    }

    async fn finish(self, host: &Host, signals: &mut Signals) -> Result<(Ended, Left), AgentError> {
        let (mut agent, changes) = self.begin(host)?;
        let changes = agent.serve(changes, signals).await?;
        let mut carried = agent.carry();
        let Agent {
            options,
            intake,
            blindness,
            looks,
            hooks,
            verdicts,
            writers,
            follow,
            write_back,
            ended,
            ..
        } = agent;
        carried.workers = Some(looks.workers.end_all());
        let parts = Parts {
            mode: hooks.mode,
            sensor: hooks.sensor,
            witness: looks.looker.witness,
            canary: blindness.canary,
            recursion: blindness.recursion,
            processes: intake.processes,
            changes,
            backlog: Vec::new(),
            adopted: true,
        };
        let reports = verdicts.reports;
        let left = Left { options, parts, follow, writers, carried, reports, write_back };
        Ok((ended.unwrap_or(Ended::Stopped), left))
    }

    /// The loop's state, with everything enrolled and nothing looked at.
    pub(super) fn begin(self, host: &Host) -> Result<(Agent, Changes), AgentError> {
        let Self { options, parts, follow, writers, loaded, mut carried, mut reports, write_back } = self;
        let (desired, refused) = loaded;
        let (clock, observer) = (&host.clock, &host.observer);
        if refused.is_some() {
            reports.report(AgentEvent::ConfigsRead(false));
        }
        reports.report(AgentEvent::RunBegan(RunFacts {
            mode: parts.mode,
            sources: desired.sources.clone(),
            waiting: desired.waiting.clone(),
            refused,
        }));
        for argument in &desired.waiting {
            tracing::info!("{}", argument.text());
        }
        let mut looker = Looker::new(Arc::clone(observer), &options.inputs.root, parts.witness, &desired);
        let known = std::mem::take(&mut carried.rules);
        let mut rules = DenyRules::default();
        if parts.mode == HookMode::Lsm {
            rules = known.renewed(&desired.policy, &desired.expectations);
        }
        looker.registry.number_by(rules.numbers());
        let things = (0..).take(desired.expectations.len());
        looker.protect(things.filter_map(|thing| Some((thing, rules.protects(thing)?))))?;
        let (proc, root) = (Path::new("/proc"), &options.inputs.root);
        let attributor = Attributor::new(Arc::clone(observer), root, proc, std::process::id())?;
        let workers = carried.workers.take();
        let workers = workers.unwrap_or_else(|| Workers::new(options.inputs.root.clone(), Arc::clone(clock)));
        let budgets = std::mem::take(&mut carried.budgets);
        let in_kernel = std::mem::take(&mut carried.in_kernel);
        let mut agent = Agent {
            intake: Intake::new(parts.processes, attributor, carried.losses),
            mounts: Mounts::new(Path::new(mounts::TABLE)),
            blindness: Blindness::new(parts.canary, parts.recursion),
            looks: Looks::new(looker, workers),
            hooks: Hooks::new(parts.mode, parts.sensor),
            denials: Denials::new(rules, budgets, in_kernel),
            verdicts: Verdicts::new(Arc::clone(clock), host.boot_id.clone(), desired, reports),
            writers,
            follow,
            write_back,
            ended: None,
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

impl Left {
    /// Writes what waits, and ends.
    async fn close(mut self) -> Result<(), AgentError> {
        self.reports.close().await?;
        if let Some(witness) = &mut self.parts.witness
            && let Err(error) = witness.maps().forget_agent()
        {
            tracing::warn!(%error, "Cannot remove the daemon's process from the maps: deny rules still let it through.");
        }
        Ok(())
    }
}
