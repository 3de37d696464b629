//! From the command line to a running loop, and from one config to the next.
//!
//! In: the options, and the traits that other rooms implement. Out: attached programs, given-up capabilities, and one run of the
//! loop for each config. The daemon loads the programs once, and each run passes them to the next.

use super::applies::Applies;
use super::apply_tracker::ApplyTracker;
use super::backend::{self, BackendParts};
use super::blindness::Blindness;
use super::canary::Canary;
use super::changes::Changes;
use super::denials::DenialRecorder;
use super::deny_rules::DenyRules;
use super::error::AgentError;
use super::expected_digests::ExpectedDigests;
use super::holdfast_writers::HoldfastWriters;
use super::hooks::Hooks;
use super::intake::Intake;
use super::mounts::{self, MountTracker};
use super::options::AgentOptions;
use super::ordered_reverts::RevertOrders;
use super::reload::CarriedState;
use super::reports::{AgentReport, BackendName, DaemonFacts, Reports, RunFacts};
use super::run_end::RunEnd;
use super::service::Signals;
use super::state::Agent;
use super::verdicts::Verdicts;
use super::verifications::Verifications;
use super::verifier::Verifier;
use super::workers::Workers;
use super::write_back::WriteBack;
use super::{lock, new_root, privileges};
use crate::attribution::Attributor;
use crate::clock::{Clock, SystemClock, boot_id};
use crate::desired::{self, Desired};
use crate::image::{self, Images};
use crate::kernel::recursion::Recursion;
use crate::observation::{Observer, sealed::SealedContents};
use sensor_model::expectation::{Expectation, Expected};
use sensor_model::protocol::{GapReason, ThingId};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// The traits of this room, as other rooms implement them.
pub struct Services {
    /// Removes or limits what a daemon in another mode left. It runs once no other daemon does.
    pub settle_mode: Box<dyn FnOnce()>,
    /// Takes what the loop reports.
    pub reports: Box<dyn Reports>,
    /// Reads and recovers applies on this host.
    pub applies: Box<dyn Applies>,
    /// Writes declared state back.
    pub write_back: Box<dyn WriteBack>,
    /// Has another process write declared state back, in the mode `manage` only.
    pub revert_orders: Option<Box<dyn RevertOrders>>,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}

/// The values that stay the same from one run to the next.
pub(super) struct RunEnvironment {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) observer: Arc<Observer>,
    pub(super) boot_id: String,
}

/// Expectations and policies. With a text: why the configs that the daemon was given are refused, so that the last usable ones
/// are in force.
type LoadedDesired = (Desired, Option<String>);

/// Runs the daemon until a signal stops it.
///
/// # Errors
/// A config or policy with a mistake, no backend that works, or a failure from which the loop cannot continue.
pub fn run(mut options: AgentOptions, services: Services) -> Result<(), AgentError> {
    // A huge page stays in memory as long as one allocation in it does.
    if let Err(error) = nix::sys::prctl::set_thp_disable(true) {
        tracing::info!(%error, "Cannot switch huge pages off for this process.");
    }
    for directory in [&options.inputs.state, &options.run] {
        make_directory(directory)?;
    }
    // This comes before any access to a resource that another daemon may use.
    let _locks = lock::take(&options)?;
    let Services { settle_mode, mut reports, applies, mut write_back, mut revert_orders } = services;
    settle_mode();
    let observer = Observer::guarded(&options.inputs.root)?.with_sealed(SealedContents::of_watched());
    let observer = Arc::new(observer);
    // The processes that read the configs have fewer capabilities than this one has now.
    options.inputs.root_image = observer.root_image_handle();
    options.inputs.device_tables = observer.device_tables();
    let runtime = self::runtime()?;
    let apply_tracker = ApplyTracker::new(applies);
    let (holdfast_writers, mut signals) = runtime.block_on(async {
        let signals = Signals::new().map_err(|source| AgentError::io("receive signals", source))?;
        Ok::<_, AgentError>((HoldfastWriters::listen(&options.inputs.state), signals))
    })?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let choose = |options: &AgentOptions, things| {
        let directories = [options.inputs.state.as_path(), options.run.as_path()];
        backend::choose(&directories, options.pins.as_deref(), things, &observer, &clock)
    };
    // A recovery writes, and pinned deny rules refuse every process that they do not know. So the kernel programs first learn
    // which process the daemon is. The daemon recovers the apply without a backend, too.
    let backend = apply_tracker.is_interrupted().then(|| choose(&options, None));
    let first = self::runtime()?;
    let apply_tracker = first.block_on(apply_tracker.start(&mut options, &observer));
    let loaded = load(&mut options, &observer)?;
    if options.writes_managed_paths {
        write_back.recover(&observer);
    }
    let boot_id = boot_id(Path::new("/proc")).map_err(|source| AgentError::io("read the boot id", source))?;
    let environment = RunEnvironment { clock: Arc::clone(&clock), boot_id, observer: Arc::clone(&observer) };
    reports.prepare()?;
    let things = map_entries(&loaded.0);
    let mut parts = BackendParts::of(backend.unwrap_or_else(|| choose(&options, Some(things)))?);
    let mut is_new_root = new_root::is_marked(&options.run);
    if let Some(kernel) = parts.kernel.as_mut().filter(|_| parts.adopted) {
        is_new_root |= new_root::is_new(kernel, &observer)?;
    }
    if parts.backend != BackendName::Fanotify {
        let recursion = Recursion::watch().map_err(io::Error::other);
        parts.recursion =
            Some(recursion.map_err(|source| AgentError::io("find the tracing programs", source))?);
    }
    // Capabilities belong to threads: this ends the threads of the first runtime, and the other one has none yet.
    drop(first);
    let capabilities = privileges::give_up(parts.backend, options.writes_managed_paths)?;
    tracing::info!(kept = capabilities.join(" "), "Gave up all other capabilities.");
    runtime.block_on(async {
        let facts =
            DaemonFacts { boot_id: environment.boot_id.clone(), capabilities, beat: options.canary_every };
        // Threads that this starts have only the capabilities that were kept.
        let log_is_cut = reports.open(facts)?.log_is_cut;
        if let Some(orders) = &mut revert_orders {
            orders.recover();
        }
        let mut carried = CarriedState::at_start(log_is_cut, is_new_root);
        if parts.canary.as_ref().is_some_and(Canary::has_begun_blind) {
            carried.begin_blind(GapReason::FtraceDisabled);
        }
        let state = RunState {
            options,
            parts,
            apply_tracker,
            holdfast_writers,
            carried,
            reports,
            write_back,
            revert_orders,
        };
        let run = AgentRun { loaded, state };
        run.keep_running(&environment, &mut signals).await
    })
}

/// Counts the things, and the entries of sealed trees: each may get an entry in the kernel's map once its tree is not sealed any more.
pub(super) fn map_entries(desired: &Desired) -> usize {
    let of = |expectation: &Expectation| match &expectation.expected {
        Expected::Tree(tree) => usize::try_from(tree.entries).unwrap_or(usize::MAX),
        _ => 1,
    };
    desired.expectations.iter().map(of).fold(0, usize::saturating_add)
}

/// A runtime with one thread, because the budgets count the memory of threads and each switch between them.
fn runtime() -> Result<Runtime, AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|source| AgentError::io("start the async runtime", source))
}

pub(super) fn make_directory(path: &Path) -> Result<(), AgentError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| AgentError::Directory { path: path.to_owned(), source })
}

/// Reads configs and policies, or the last usable ones.
pub(super) fn load(options: &mut AgentOptions, observer: &Observer) -> Result<LoadedDesired, AgentError> {
    let (desired, refused) = desired::start(&mut options.inputs, observer)?;
    Ok((desired, refused.map(|error| error.to_string())))
}

/// The input of one run of the loop.
pub(super) struct AgentRun {
    pub(super) loaded: LoadedDesired,
    pub(super) state: RunState,
}

/// What one run hands over to the next one.
pub(super) struct RunState {
    pub(super) options: AgentOptions,
    pub(super) parts: BackendParts,
    pub(super) apply_tracker: ApplyTracker,
    pub(super) holdfast_writers: HoldfastWriters,
    pub(super) carried: CarriedState,
    pub(super) reports: Box<dyn Reports>,
    pub(super) write_back: Box<dyn WriteBack>,
    pub(super) revert_orders: Option<Box<dyn RevertOrders>>,
}

impl AgentRun {
    /// Runs the loop again and again, until a signal stops it or the programs no longer answer.
    async fn keep_running(
        mut self,
        environment: &RunEnvironment,
        signals: &mut Signals,
    ) -> Result<(), AgentError> {
        loop {
            let (run_end, mut finished) = Box::pin(self.run_once(environment, signals)).await?;
            let loaded = match run_end {
                RunEnd::StopRequested => return finished.close().await,
                RunEnd::ProgramsStopped => {
                    let backend = finished.parts.backend.as_str();
                    finished.close().await?;
                    return Err(AgentError::ProgramsStopped { backend });
                }
                RunEnd::ApplyEnded => {
                    tracing::info!(
                        "An apply is over, or its process is gone: the daemon begins a new run with the current config."
                    );
                    finished.apply_tracker =
                        finished.apply_tracker.start(&mut finished.options, &environment.observer).await;
                    let loaded = load(&mut finished.options, &environment.observer)?;
                    finished.reports.report(AgentReport::ConfigsRead(loaded.1.is_none()));
                    loaded
                }
                RunEnd::ProgramsBegan => {
                    tracing::info!("The kernel programs run now: the daemon begins a new run with them.");
                    finished.parts.adopted = false;
                    load(&mut finished.options, &environment.observer)?
                }
                RunEnd::Reloaded(desired) => {
                    finished.options.inputs.restore();
                    (*desired, None)
                }
            };
            // The programs count changes between two runs, too.
            if let Some(kernel) = &mut finished.parts.kernel
                && let Err(outgrown) = kernel.maps().hold(map_entries(&loaded.0))
            {
                // Loading larger maps needs capabilities that the daemon gave up. The next start has them.
                finished.close().await?;
                return Err(outgrown.into());
            }
            self = Self { loaded, state: finished };
        }
    }

    /// Runs the loop until it ends. Gives why it ended, and the state for the next run.
    async fn run_once(
        self,
        environment: &RunEnvironment,
        signals: &mut Signals,
    ) -> Result<(RunEnd, RunState), AgentError> {
        let (mut agent, changes) = self.assemble(environment)?;
        let changes = agent.serve(changes, signals).await?;
        let mut carried = agent.carry();
        let Agent {
            options,
            intake,
            blindness,
            verifications,
            hooks,
            verdicts,
            holdfast_writers,
            apply_tracker,
            write_back,
            revert_orders,
            run_end,
            ..
        } = agent;
        carried.workers = Some(verifications.workers.end_all());
        let parts = BackendParts {
            backend: hooks.backend,
            sensor: hooks.sensor,
            kernel: verifications.verifier.kernel,
            canary: blindness.canary,
            recursion: blindness.recursion,
            processes: intake.processes,
            changes,
            backlog: Vec::new(),
            adopted: true,
        };
        let reports = verdicts.reports;
        let finished = RunState {
            options,
            parts,
            apply_tracker,
            holdfast_writers,
            carried,
            reports,
            write_back,
            revert_orders,
        };
        Ok((run_end.unwrap_or(RunEnd::StopRequested), finished))
    }

    /// Creates the loop's state: everything is enrolled, and nothing is verified yet.
    pub(super) fn assemble(self, environment: &RunEnvironment) -> Result<(Agent, Changes), AgentError> {
        let Self { loaded: (desired, refused), state } = self;
        let RunState {
            options,
            parts,
            apply_tracker,
            holdfast_writers,
            mut carried,
            mut reports,
            write_back,
            revert_orders,
        } = state;
        let (clock, observer) = (&environment.clock, &environment.observer);
        if refused.is_some() {
            reports.report(AgentReport::ConfigsRead(false));
        }
        reports.report(AgentReport::RunBegan(RunFacts {
            backend: parts.backend,
            sources: desired.sources.clone(),
            config: Some(desired.config(&options.inputs.source)),
            waiting: desired.waiting.clone(),
            refused,
            booted_image: image::booted_image(observer, &Images::of(&options.inputs.state)),
        }));
        for argument in &desired.waiting {
            tracing::info!("{}", argument.text());
        }
        let known = std::mem::take(&mut carried.rules);
        let mut rules = DenyRules::default();
        let mut kernel = parts.kernel;
        if parts.backend == BackendName::Lsm {
            let known = known.taken_over(kernel.as_mut())?;
            rules = known.renewed(&desired.policy, &desired.expectations);
        }
        let mut verifier = Verifier::new(Arc::clone(observer), &options.inputs.root, kernel, &desired);
        verifier.registry.set_rule_numbers(rules.numbers());
        let things = (0..).map(ThingId).take(desired.expectations.len());
        verifier.protect(things.filter_map(|thing| Some((thing, rules.rule_of(thing)?))))?;
        let (proc, root) = (Path::new("/proc"), &options.inputs.root);
        let (users, own_tgid) = (Arc::clone(observer), std::process::id());
        let attributor = Attributor::new(users, root, proc, own_tgid, Arc::clone(clock))?;
        let workers = carried.workers.take();
        let workers = workers.unwrap_or_else(|| Workers::new(options.inputs.root.clone(), Arc::clone(clock)));
        let budgets = std::mem::take(&mut carried.budgets);
        let kernel_counts = std::mem::take(&mut carried.kernel_counts);
        let mut agent = Agent {
            intake: Intake::new(parts.processes, attributor, carried.losses),
            mounts: MountTracker::new(Path::new(mounts::TABLE)),
            blindness: Blindness::new(parts.canary, parts.recursion),
            verifications: Verifications::new(verifier, workers),
            hooks: Hooks::new(parts.backend, parts.sensor),
            denials: DenialRecorder::new(rules, budgets, kernel_counts),
            verdicts: Verdicts::new(Arc::clone(clock), environment.boot_id.clone(), desired, reports),
            holdfast_writers,
            expected_digests: ExpectedDigests::default(),
            apply_tracker,
            write_back,
            revert_orders,
            image_indexing: std::mem::take(&mut carried.image_indexing),
            image_scan: std::mem::take(&mut carried.image_scan),
            evaluation: carried.evaluation,
            run_end: None,
            options,
        };
        agent.enrol_and_record_start(parts.adopted)?;
        agent.take_over(carried);
        for bytes in &parts.backlog {
            agent.handle_record(bytes)?;
        }
        Ok((agent, parts.changes))
    }
}

impl RunState {
    /// Writes all waiting reports, and ends.
    async fn close(mut self) -> Result<(), AgentError> {
        self.reports.close().await?;
        if let Some(kernel) = &mut self.parts.kernel
            && let Err(error) = kernel.maps().forget_agent()
        {
            tracing::warn!(%error, "Cannot remove the daemon's process from the maps: deny rules still allow it.");
        }
        Ok(())
    }
}
