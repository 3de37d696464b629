//! `holdfast apply`: brings the host to a config, or back.

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
const NO_DRAIN: &str = "this host is applied to by itself, in no cluster: nothing is drained";

/// Where the host is and what is known of it.
#[derive(Debug, clap::Args)]
pub struct Place {
    /// Root of the host's file system.
    #[arg(long, default_value = "/", value_name = "DIRECTORY")]
    pub host_root: PathBuf,
    /// Where journal, history and originals are kept. [default: /var/lib/holdfast of that host]
    #[arg(long, value_name = "DIRECTORY")]
    pub state: Option<PathBuf>,
    /// How it is printed.
    #[command(flatten)]
    pub output: Output,
}

impl Place {
    /// Where journal, history and originals are.
    pub fn state(&self) -> PathBuf {
        state_directory(self.state.as_deref(), &self.host_root)
    }
}

/// How it is carried out.
#[expect(clippy::struct_excessive_bools, reason = "one for each option")]
#[derive(Debug, clap::Args)]
pub struct How {
    /// Disruption policies (`MachineConfiguration` or `DisruptionPolicy`): a file, or a directory of them; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub policy: Vec<PathBuf>,
    /// Drift policies: a file, or a directory of them; may be repeated. What they ignore or only observe neither keeps an
    /// apply from its beginning nor sends it back. [default: /etc/holdfast/policies of that host]
    #[arg(long, value_name = "PATH")]
    pub drift_policy: Vec<PathBuf>,
    /// The node's pool, for policies that are about certain pools. [default: that of NEW's name or role]
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Print the plan and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Begin without a question; `HOLDFAST_YES=1` says the same. Needed where there is no terminal.
    #[arg(short, long)]
    pub yes: bool,
    /// Consent to the reboot of a plan that has one; `HOLDFAST_REBOOT=1` says the same. Needed where there is no terminal.
    #[arg(long)]
    pub reboot: bool,
    /// Bring everything to its declared state, drift or not, and reboot.
    #[arg(long)]
    pub force: bool,
    /// Write and run nothing: no reload, no restart, no reboot. For a root that is not running.
    #[arg(long)]
    pub no_acts: bool,
    /// Write although the Machine Config Operator's daemon runs on this host.
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
    /// The config that the host has, where none was applied yet. May be repeated.
    #[arg(long, value_name = "PATH")]
    current: Vec<PathBuf>,
    /// Finish or give back an apply that was interrupted, with the reboot that it needs; begin nothing new.
    #[arg(long, conflicts_with_all = ["dry_run", "force", "current"])]
    resume: bool,
    /// With `--resume`: put again what an update of the OS took back, and do nothing else. For the unit that runs before services.
    #[arg(long, requires = "resume")]
    early: bool,
    /// Warn of unknown fields in configs instead of refusing them.
    #[arg(long)]
    allow_unknown: bool,
    /// Apply a config that declares nothing to a host whose config declares something: all of that goes.
    #[arg(long)]
    allow_empty: bool,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    place: Place,
}

impl Apply {
    /// Plans, asks, does it and reports.
    ///
    /// # Errors
    /// Bad input, and why nothing was begun. What happened later is in the report.
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

/// The host and everything that works on it.
pub(super) struct Site<'a> {
    observer: Arc<Observer>,
    state: PathBuf,
    how: &'a How,
    place: &'a Place,
    interrupts: Interrupts,
}

impl<'a> Site<'a> {
    pub(super) fn open(place: &'a Place, how: &'a How, screen: &mut Screen) -> anyhow::Result<Self> {
        // The exit code says what became of the host, and a reader that goes away does not change that.
        screen.outlive_readers();
        let observer = Observer::new(&place.host_root)
            .map_err(|error| BadInput::wrap(anyhow::Error::from(error).context("--host-root")))?;
        let interrupts = Interrupts::heed(say).context("take signals")?;
        Ok(Self { observer: Arc::new(observer), state: place.state(), how, place, interrupts })
    }

    /// What does it; makes the directories that it keeps things in.
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

    /// What was applied so far, if anything was.
    pub(super) fn store(&self) -> Result<Option<Store>, StoreError> {
        Store::look(&self.state)
    }

    /// The config that is current, and its number.
    pub(super) fn current(&self) -> Result<Option<(u64, PathBuf)>, StoreError> {
        Store::current_in(&self.state)
    }

    /// What the host is: the config that is current, but of the OS, unless it is so booted, that of the last apply with acts.
    ///
    /// # Errors
    /// A config that was kept and cannot be used.
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
        systemd.inhibit("a config is being applied").await;
        Box::new(systemd)
    }

    /// The policies that count for the new config's pool.
    fn policy(&self, new: &Rendered) -> anyhow::Result<Policy> {
        let files = disruption_policies(&self.how.policy).map_err(BadInput::wrap)?;
        let pool = self.how.pool.as_deref().or_else(|| new.pool());
        disruption_policy(&files, pool).map_err(BadInput::wrap)
    }

    /// The way from one config to another, on this host.
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
                say(&format!("number {id} is not over; it is finished or given back first"));
            }
            return self.print(screen, &plan, open.is_some());
        }
        if plan.is_empty() && !force && previous.is_some() {
            return self.unchanged(screen, &new, previous, plan);
        }
        // A plan that cannot be reconciled is refused below, with all its reasons.
        if plan.reconcilable && !self.may_begin(screen, &plan)? {
            return Ok(DRIFT);
        }
        if plan.drain {
            say(NO_DRAIN);
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
                    // It asked for one rewrite, and this was it.
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

    /// Both configs say the same; whether the host is so is another matter.
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

    /// Works off an apply that was interrupted, without a reboot. A dry run leaves it as it is.
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
                Some(reason) => Err(anyhow::anyhow!("{reason}; nothing new was begun")),
                None => Ok(()),
            },
        }
    }

    /// Puts again what an update of the OS took back. It runs before there is a bus to ask, and before a daemon.
    fn put_again(&self) -> anyhow::Result<u8> {
        if self.store()?.is_none() {
            return Ok(IN_SYNC);
        }
        let engine = self.engine()?;
        let recovered =
            runtime()?.block_on(engine.recover(&mut NoActs, ResumeLimit::BeforeServices, &mut say))?;
        match recovered {
            Recovered::Nothing => Ok(IN_SYNC),
            // Whoever goes on with it tells what went wrong, and goes back for it.
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
