//! `holdfast apply`: applies a config to this host.

mod asked;
mod planned;
mod told;
mod wanted;

use super::{
    BadInput, DRIFT, FAILURE, IN_SYNC, NOT_RECONCILABLE,
    output::{Output, Screen, say},
    runtime,
};
use crate::{
    apply::{
        ActRunner, Applied, ApplyError, Differences, Engine, FORCE_FILE, Interrupts, NoActs, Options,
        Recovered, Request, ResumeLimit, Systemd, foreseen, os_is_there, removed_by_force,
    },
    desired::{disruption_policies, disruption_policy, generation, state_directory},
    observation::Observer,
    store::{Store, StoreError},
};
use anyhow::Context as _;
use planned::left_out;
use sensor_model::{
    expectations::expectations,
    journal::machine::Rest,
    merge::Rendered,
    node_disruption::Policy,
    plan::{Plan, plan},
    reconcile,
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};
use told::Report;
pub(super) use wanted::Wanted;

/// What is said of a step that only a cluster can take.
const NO_DRAIN: &str = "on a single host Holdfast does not drain; move workloads away first";

/// The host, and its state directory.
#[derive(Debug, clap::Args)]
pub struct Place {
    /// Root of the host's file system.
    #[arg(long, default_value = "/", value_name = "DIRECTORY")]
    pub host_root: PathBuf,
    /// State directory: journal, history and originals. [default: /var/lib/holdfast below the host's root]
    #[arg(long, value_name = "DIRECTORY")]
    pub state: Option<PathBuf>,
    /// Output format.
    #[command(flatten)]
    pub output: Output,
}

impl Place {
    /// The state directory.
    pub fn state(&self) -> PathBuf {
        state_directory(self.state.as_deref(), &self.host_root)
    }
}

/// Options of an apply.
#[expect(clippy::struct_excessive_bools, reason = "one for each option")]
#[derive(Debug, clap::Args)]
pub struct How {
    /// Disruption policies (`MachineConfiguration` or `DisruptionPolicy`): a file, or a directory of them; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub policy: Vec<PathBuf>,
    /// Drift policies: a file, or a directory of them; may be repeated. Drift that they ignore or only observe does not stop an
    /// apply. [default: /etc/holdfast/policies below the host's root]
    #[arg(long, value_name = "PATH")]
    pub drift_policy: Vec<PathBuf>,
    /// The node's pool, for policies that apply to certain pools. [default: from NEW's name or role]
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Print the plan and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Start without asking, as does `HOLDFAST_YES=1`. Required without a terminal.
    #[arg(short, long)]
    pub yes: bool,
    /// Allow the reboot of a plan that has one, as does `HOLDFAST_REBOOT=1`. Required without a terminal.
    #[arg(long)]
    pub reboot: bool,
    /// Write every declared path whether or not it has drifted, and reboot.
    #[arg(long)]
    pub force: bool,
    /// Write files only: no reload, no restart, no reboot. For the root of a host that is not running.
    #[arg(long)]
    pub no_acts: bool,
    /// Write even though the Machine Config Operator's daemon runs on this host.
    #[arg(long)]
    pub beside_mco: bool,
}

/// Arguments.
#[expect(clippy::struct_excessive_bools, reason = "one for each option")]
#[derive(Debug, clap::Args)]
pub struct Apply {
    /// The new config: MachineConfig manifests or Ignition configs, files or directories of them.
    #[arg(required_unless_present = "resume", conflicts_with = "resume", value_name = "NEW")]
    new: Vec<PathBuf>,
    /// The present config of a host to which none was applied yet; may be repeated.
    #[arg(long, value_name = "PATH")]
    current: Vec<PathBuf>,
    /// Finish an interrupted apply or restore the old config, with a reboot where that needs one; start nothing new.
    #[arg(long, conflicts_with_all = ["dry_run", "force", "current"])]
    resume: bool,
    /// With `--resume`: only write again the files that an update of the OS replaced. For the unit that runs before services.
    #[arg(long, requires = "resume")]
    early: bool,
    /// Log a warning about unknown fields in configs instead of refusing the configs.
    #[arg(long)]
    allow_unknown: bool,
    /// Apply a config that declares nothing, which removes everything that the present config declares.
    #[arg(long)]
    allow_empty: bool,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    place: Place,
}

impl Apply {
    /// Plans, asks, applies and reports.
    ///
    /// # Errors
    /// Bad input, and why the apply did not start. The report has what happened later.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let site = Site::open(&self.place, &self.how, screen)?;
        if self.early {
            return site.put_again();
        }
        if self.resume {
            return site.resume(screen);
        }
        let wanted = self.wanted(&site)?;
        site.apply(screen, wanted)
    }
}

/// The host, and the options of the apply.
pub(super) struct Site<'a> {
    observer: Arc<Observer>,
    state: PathBuf,
    how: &'a How,
    place: &'a Place,
    interrupts: Interrupts,
}

impl<'a> Site<'a> {
    pub(super) fn open(place: &'a Place, how: &'a How, screen: &mut Screen) -> anyhow::Result<Self> {
        // The exit code is that of the apply, also where the reader closes standard output.
        screen.outlive_readers();
        let observer = Observer::new(&place.host_root)
            .map_err(|error| BadInput::wrap(anyhow::Error::from(error).context("--host-root")))?;
        let interrupts = Interrupts::heed(say).context("take signals")?;
        Ok(Self { observer: Arc::new(observer), state: place.state(), how, place, interrupts })
    }

    /// The engine of applies. It makes its directories.
    fn engine(&self) -> Result<Engine, ApplyError> {
        let options = Options {
            root: self.place.host_root.clone(),
            state: self.state.clone(),
            beside_mco: self.how.beside_mco,
            asks_daemon: true,
        };
        let engine = Engine::new(options, &self.observer)?.heeding(&self.interrupts);
        Ok(engine.with_policies(&self.how.drift_policy))
    }

    /// The store of applies; `None` where nothing was applied yet.
    pub(super) fn store(&self) -> Result<Option<Store>, StoreError> {
        Store::look(&self.state)
    }

    /// The current config, and its number.
    pub(super) fn current(&self) -> Result<Option<(u64, PathBuf)>, StoreError> {
        Store::current_in(&self.state)
    }

    /// The present state of the host: the current config, and of the OS the last one that was applied with acts, unless the current
    /// one is booted.
    ///
    /// # Errors
    /// A damaged config in the store.
    pub(super) fn there(&self, id: u64) -> anyhow::Result<Rendered> {
        let Some(store) = self.store()? else { return Ok(Rendered::default()) };
        let kept = |id| generation((id, store.config(id)).into());
        let mut rendered = kept(id)?.rendered;
        let mut done = Some(id);
        while let Some(id) = done
            && let Some(entry) = store.history(id)?
            && entry.without_acts
        {
            done = entry.previous;
        }
        if done != Some(id) && !os_is_there(&rendered, &self.observer) {
            let of_os = done.map(kept).transpose()?;
            rendered.take_os(of_os.map(|kept| kept.rendered).unwrap_or_default());
        }
        Ok(rendered)
    }

    async fn actor(&self) -> Box<dyn ActRunner> {
        if self.how.no_acts {
            return Box::new(NoActs);
        }
        let mut systemd = Systemd::new(&self.place.host_root);
        systemd.inhibit("Holdfast applies a config").await;
        Box::new(systemd)
    }

    /// The disruption policy for the pool of the new config.
    fn policy(&self, new: &Rendered) -> anyhow::Result<Policy> {
        let files = disruption_policies(&self.how.policy).map_err(BadInput::wrap)?;
        let pool = self.how.pool.as_deref().or_else(|| new.pool());
        disruption_policy(&files, pool).map_err(BadInput::wrap)
    }

    /// The plan from one config to another, on this host.
    fn plan(&self, old: &Rendered, new: &Rendered) -> anyhow::Result<Plan> {
        let mut plan = plan(Some(old), Some(new), &self.policy(new)?).context("plan")?;
        if self.place.host_root == Path::new("/") {
            plan.refuse(reconcile::against_node(&super::plan::facts()?, new));
        }
        if self.forced() {
            plan.force();
            let (old, new) = (expectations(old).context("plan")?, expectations(new).context("plan")?);
            plan.removed_by_force = removed_by_force(&self.observer, &old, &new)?;
        }
        if !self.how.no_acts && plan.brings_an_image() {
            let declared = expectations(new).context("plan")?;
            plan.put_again = foreseen(&self.observer, &declared);
        }
        Ok(plan)
    }

    fn force_file(&self) -> PathBuf {
        self.place.host_root.join(FORCE_FILE.trim_start_matches('/'))
    }

    fn forced(&self) -> bool {
        self.how.force || self.force_file().exists()
    }

    pub(super) fn apply(&self, screen: &mut Screen, wanted: Wanted) -> anyhow::Result<u8> {
        let Wanted { manifests, old, previous, new, rollback_to } = wanted;
        let force = self.forced();
        let plan = self.plan(&old, &new)?;
        if self.how.dry_run {
            let open = self.store()?.map(|store| store.open_journal()).transpose()?.flatten();
            if let Some(journal) = &open {
                let id = journal.begin.id;
                say(&format!(
                    "note: apply number {id} was interrupted; Holdfast finishes it or restores the old config first"
                ));
            }
            return self.print(screen, &plan, open.is_some());
        }
        if plan.is_empty() && !force && previous.is_some() {
            return self.unchanged(screen, &new, previous, plan);
        }
        // The engine refuses a plan that is not reconcilable, with all its reasons.
        if plan.reconcilable && !self.may_begin(screen, &plan)? {
            return Ok(DRIFT);
        }
        if plan.drain {
            say(&format!("note: the plan has a drain; {NO_DRAIN}"));
        }
        if self.how.no_acts
            && let Some(left) = left_out(&plan)
        {
            say(&left);
        }
        let act = !self.how.no_acts;
        let request = Request { manifests, old, previous, new, plan: plan.clone(), force, act, rollback_to };
        let applied = runtime()?.block_on(async {
            let mut actor = self.actor().await;
            self.engine()?.apply(request, actor.as_mut(), &mut say).await
        });
        match applied {
            Ok(applied) => {
                let force_file = self.force_file();
                if force_file.exists() {
                    // The file asks for one rewrite.
                    fs::remove_file(&force_file)
                        .with_context(|| format!("remove {}", force_file.display()))?;
                }
                self.told(screen, &applied, Some(plan))
            }
            Err(error @ ApplyError::Unreconcilable(_)) => {
                say(&format!("error: {error}"));
                Ok(NOT_RECONCILABLE)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Both configs are equal; the host may still differ from them.
    fn unchanged(
        &self,
        screen: &mut Screen,
        new: &Rendered,
        previous: Option<u64>,
        plan: Plan,
    ) -> anyhow::Result<u8> {
        let engine = self.engine()?;
        let found = runtime()?.block_on(engine.confirm(new, previous, !self.how.no_acts))?;
        let result = if found.problems.is_empty() { "unchanged" } else { "drifted" };
        let Differences { problems, tolerated } = found;
        self.report(screen, Report { problems, tolerated, plan: Some(plan), ..Report::of(result) })
    }

    /// Finishes an interrupted apply or restores the old config, without a reboot. A dry run does nothing.
    pub(super) fn recover(&self) -> anyhow::Result<()> {
        if self.how.dry_run {
            return Ok(());
        }
        let engine = self.engine()?;
        let recovered = runtime()?.block_on(async {
            let mut actor = self.actor().await;
            engine.recover(actor.as_mut(), ResumeLimit::NoReboot, &mut say).await
        })?;
        match recovered {
            Recovered::AtWork => Err(ApplyError::Locked(engine.store().path().join("lock")).into()),
            Recovered::Over(Applied { rest: Rest::Rebooting | Rest::Halted(_), id, reason, .. }) => {
                Err(ApplyError::Unfinished(format!("number {id}: {reason}")).into())
            }
            Recovered::Over(_) | Recovered::Nothing => match self.interrupts.reason() {
                Some(reason) => Err(anyhow::anyhow!("{reason}; no new apply was started")),
                None => Ok(()),
            },
        }
    }

    /// Writes again what an update of the OS replaced. It runs before the bus and the daemon start.
    fn put_again(&self) -> anyhow::Result<u8> {
        if self.store()?.is_none() {
            return Ok(IN_SYNC);
        }
        let engine = self.engine()?;
        let recovered =
            runtime()?.block_on(engine.recover(&mut NoActs, ResumeLimit::BeforeServices, &mut say))?;
        match recovered {
            Recovered::Nothing => Ok(IN_SYNC),
            // The daemon or `--resume` reports the error, and restores the old config.
            Recovered::Over(applied) => Ok(if applied.goes_back { FAILURE } else { IN_SYNC }),
            Recovered::AtWork => Err(ApplyError::Locked(engine.store().path().join("lock")).into()),
        }
    }

    fn resume(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let engine = self.engine()?;
        let recovered = runtime()?.block_on(async {
            let mut actor = self.actor().await;
            engine.recover(actor.as_mut(), ResumeLimit::None, &mut say).await
        })?;
        match recovered {
            Recovered::Nothing => self.report(screen, Report::of("unchanged")),
            Recovered::Over(applied) => self.told(screen, &applied, None),
            Recovered::AtWork => Err(ApplyError::Locked(engine.store().path().join("lock")).into()),
        }
    }
}
