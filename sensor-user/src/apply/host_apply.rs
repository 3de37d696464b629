//! An apply to one host, from its options to its end.
//!
//! In: options, and the files of the new config. Out: both configs, the plan between them on this host, and how the apply ended. An
//! interrupted apply is finished or rolled back before a new one starts. [`super::host_run`] has the order of these steps.

use super::{
    ActRunner, Applied, ApplyError, ApplyOptions, ApplyRequest, Differences, Engine, FORCE_FILE,
    GenerationError, Interrupts, NoActs, OperatorRule, PlanError, Recovered, ResumeLimit, Systemd,
    consent::ConsentError, foreseen, present_config, preview::plan_between, removed_by_force,
    request::Progress, rollback_target,
};
use crate::{
    desired::{self, DesiredError, Files, KeptConfig, StateSource, Unknown, as_kept, generation, merged},
    observation::{Observer, RootError, node},
    store::{Store, StoreError},
};
use sensor_model::{
    expectations::{ExpectationError, expectations},
    ignition::Purpose,
    journal::machine::MachineEnd,
    merge::Rendered,
    plan::Plan,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// How configs are applied to a host.
#[derive(Debug, Clone)]
pub struct HostApplyOptions {
    /// The host's root directory.
    pub root: PathBuf,
    /// The state directory.
    pub state: PathBuf,
    /// Disruption policies: files and directories.
    pub disruption_policies: Vec<PathBuf>,
    /// Drift policies: files and directories; none for those of the service.
    pub drift_policies: Vec<PathBuf>,
    /// The node's pool; `None`: the pool of the new config.
    pub pool: Option<String>,
    /// Whether every declared path is written, and the host reboots.
    pub force: bool,
    /// Whether the plan's acts are run. Without them only files are written.
    pub act: bool,
    /// When to write on a node of the Machine Config Operator's daemon.
    pub operator: OperatorRule,
}

#[cfg(test)]
impl HostApplyOptions {
    /// Those of a test: without policies and acts.
    pub(super) fn of_test(root: &Path, state: PathBuf) -> Self {
        Self {
            root: root.to_owned(),
            state,
            disruption_policies: Vec::new(),
            drift_policies: Vec::new(),
            pool: None,
            force: false,
            act: false,
            operator: OperatorRule::Never,
        }
    }
}

/// The new config of an apply, and the present one if none was applied yet.
#[derive(Debug, Clone)]
pub struct NewConfig<'a> {
    /// Files and directories of the new config.
    pub new: &'a [PathBuf],
    /// Files and directories of the present config, for a host without an applied one.
    pub current: &'a [PathBuf],
    /// What is done about unknown fields.
    pub unknown: Unknown,
    /// Whether the new config may declare nothing.
    pub allow_empty: bool,
}

/// The configs of an apply.
#[derive(Debug)]
pub struct ApplyConfigs {
    /// The files of the new config.
    pub manifests: Files,
    /// The present config.
    pub old: Rendered,
    /// Its number.
    pub previous: Option<u64>,
    /// The new config.
    pub new: Rendered,
    /// The generation that a rollback applies again.
    pub rollback_to: Option<u64>,
    /// Whether every declared path is written: the options or the force file ask for it.
    pub forced: bool,
    /// Whether the force file existed when the configs were read. A later one is for the next apply.
    pub has_force_file: bool,
}

impl ApplyConfigs {
    /// Whether the new config declares nothing, and the present one something.
    pub fn removes_everything(&self) -> bool {
        self.new.declares_nothing() && !self.old.declares_nothing()
    }

    /// Whether the plan between them has nothing to do: they are equal, and the present one was applied.
    pub(super) fn are_unchanged(&self, plan: &Plan) -> bool {
        plan.is_empty() && !self.forced && self.previous.is_some()
    }
}

/// Why an apply cannot start.
#[derive(Debug, thiserror::Error)]
pub enum HostApplyError {
    /// The root directory of the host cannot be opened.
    #[error("--host-root: {0}")]
    Root(RootError),
    /// A config or a policy cannot be used.
    #[error(transparent)]
    Config(#[from] DesiredError),
    /// The new config declares nothing after a config that declared something.
    #[error("{EMPTY}")]
    Empty,
    /// No config was applied yet.
    #[error("no config was applied yet, so there is none to go back to")]
    NothingApplied,
    /// The content of a declared file cannot be decoded.
    #[error("plan: {0}")]
    Plan(#[from] ExpectationError),
    /// A fact of the node cannot be read.
    #[error("read {path}: {error}", path = node::FIPS)]
    Facts {
        /// Why not.
        error: io::Error,
    },
    /// A config in the store cannot be used.
    #[error(transparent)]
    Generation(#[from] GenerationError),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The apply failed before its first write.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The operator has no answer to the question of consent.
    #[error(transparent)]
    Consent(#[from] ConsentError),
    /// A signal stopped the command after it had finished an earlier apply.
    #[error("{0}; no new apply was started")]
    Interrupted(String),
    /// The file that asks for a forced apply cannot be removed after it.
    #[error("remove {}: {error}", path.display())]
    ForceFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

/// Why an empty config is refused.
const EMPTY: &str = "NEW declares nothing, so everything that the present config declares would be removed; add `--allow-empty` if \
                         that is intended";

impl From<PlanError> for HostApplyError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Desired(error) => Self::Config(error),
            PlanError::Expectation(error) => Self::Plan(error),
            PlanError::Facts { error } => Self::Facts { error },
        }
    }
}

impl HostApplyError {
    /// Whether the mistake is in the arguments, the configs or the policies, and not on the host.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Root(_) | Self::Config(_) | Self::Empty | Self::NothingApplied | Self::Plan(_) => true,
            Self::Generation(error) => error.is_input(),
            Self::Consent(error) => matches!(error, ConsentError::NoTerminal(_)),
            Self::Facts { .. }
            | Self::Store(_)
            | Self::Apply(_)
            | Self::Interrupted(_)
            | Self::ForceFile { .. } => false,
        }
    }
}

/// Reads, plans and applies configs for `cli`; the engine does the work.
#[derive(Debug)]
pub struct HostApply {
    observer: Arc<Observer>,
    options: HostApplyOptions,
    interrupts: Interrupts,
}

impl HostApply {
    /// An apply to the host of the options. Signals stop it at a safe point.
    ///
    /// # Errors
    /// A root that cannot be opened.
    pub fn open(options: HostApplyOptions, interrupts: Interrupts) -> Result<Self, HostApplyError> {
        let observer = Arc::new(Observer::new(&options.root).map_err(HostApplyError::Root)?);
        Ok(Self { observer, options, interrupts })
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.options.state
    }

    /// Whether the plan's acts are run.
    pub(super) fn acts(&self) -> bool {
        self.options.act
    }

    /// The number of an interrupted apply.
    ///
    /// # Errors
    /// A store that cannot be read.
    pub(super) fn interrupted(&self) -> Result<Option<u64>, HostApplyError> {
        let Some(store) = self.store()? else { return Ok(None) };
        Ok(store.open_journal()?.map(|journal| journal.begin.id))
    }

    /// Reads the new config and the present one. Between them it finishes an interrupted apply or restores its old config;
    /// `dry_run` does neither. Gives notes on the arguments to `progress`.
    ///
    /// # Errors
    /// Bad input, or an earlier apply that cannot be finished.
    pub async fn configs(
        &self,
        wanted: NewConfig<'_>,
        dry_run: bool,
        progress: Progress<'_>,
    ) -> Result<ApplyConfigs, HostApplyError> {
        // The files are read once, so the store keeps exactly the files of the plan.
        let read = desired::read(wanted.new)?;
        let compared = merged(&read, Purpose::Compare, wanted.unknown)?;
        if !dry_run {
            // An interrupted apply ends with the new or the old config as the current one.
            self.finish_interrupted(progress).await?;
        }
        let current = Store::current_in(&self.options.state)?.map(|(id, _)| id);
        if let (Some(id), false) = (current, wanted.current.is_empty()) {
            progress(&format!(
                "hint: `--current` is ignored: apply number {id} decides which config is the present one"
            ));
        }
        let old = match current {
            Some(id) => self.present_config(id)?,
            None if wanted.current.is_empty() => Rendered::default(),
            None => desired::rendered(&StateSource::named(wanted.current.to_vec()), wanted.unknown)?,
        };
        let has_force_file = self.force_file().exists();
        let forced = self.options.force || has_force_file;
        // A config that is not reconcilable is refused with all its reasons, as `plan` prints them, and not as bad input.
        let new = if self.plan_between(&old, &compared, forced)?.reconcilable {
            // The read above has reported unknown fields.
            merged(&read, Purpose::Verify, Unknown::Ignore)?
        } else {
            compared
        };
        let configs = ApplyConfigs {
            manifests: as_kept(read),
            old,
            previous: current,
            new,
            rollback_to: None,
            forced,
            has_force_file,
        };
        if configs.removes_everything() && !wanted.allow_empty {
            return Err(HostApplyError::Empty);
        }
        Ok(configs)
    }

    /// The present config, and the config of an earlier apply as the new one: of the one before the current one by default.
    /// First it finishes an interrupted apply, unless this is a dry run.
    ///
    /// # Errors
    /// There is no such config, or an earlier apply cannot be finished.
    pub async fn rollback_configs(
        &self,
        to: Option<u64>,
        dry_run: bool,
        progress: Progress<'_>,
    ) -> Result<ApplyConfigs, HostApplyError> {
        if !dry_run {
            self.finish_interrupted(progress).await?;
        }
        let current = Store::current_in(&self.options.state)?.map(|(id, _)| id);
        let Some((current, store)) = current.zip(self.store()?) else {
            return Err(HostApplyError::NothingApplied);
        };
        let to = rollback_target(&store, current, to)?;
        let old = self.present_config(current)?;
        let kept = generation((to, store.config(to)).into()).map_err(GenerationError::from)?;
        let KeptConfig { manifests, rendered: new } = kept;
        let has_force_file = self.force_file().exists();
        Ok(ApplyConfigs {
            manifests,
            old,
            previous: Some(current),
            new,
            rollback_to: Some(to),
            forced: self.options.force || has_force_file,
            has_force_file,
        })
    }

    /// The plan from the present config to the new one on this host.
    ///
    /// # Errors
    /// Bad input, and facts of the host that cannot be read.
    pub(super) fn plan(&self, configs: &ApplyConfigs) -> Result<Plan, HostApplyError> {
        self.plan_between(&configs.old, &configs.new, configs.forced)
    }

    /// The plan to the new config on a host on which an open apply has ended with its own config.
    ///
    /// # Errors
    /// Its config cannot be read, and as [`HostApply::plan`].
    pub(super) fn plan_after(&self, open: u64, configs: &ApplyConfigs) -> Result<Plan, HostApplyError> {
        self.plan_between(&self.present_config(open)?, &configs.new, configs.forced)
    }

    fn plan_between(&self, old: &Rendered, new: &Rendered, forced: bool) -> Result<Plan, HostApplyError> {
        let (policies, pool) = (&self.options.disruption_policies, self.options.pool.as_deref());
        let is_this_host = self.options.root == Path::new("/");
        let mut plan = plan_between(old, new, policies, pool, is_this_host)?;
        if forced {
            plan.force();
            plan.removed_by_force =
                removed_by_force(&self.observer, &expectations(old)?, &expectations(new)?)?;
        }
        if self.options.act && plan.brings_an_image() {
            plan.overwritten = foreseen(&self.observer, &expectations(new)?);
        }
        Ok(plan)
    }

    /// Compares the host with a config that is equal to the present one, and makes it the current one.
    ///
    /// # Errors
    /// A store that cannot be written.
    pub(super) async fn confirm(&self, configs: &ApplyConfigs) -> Result<Differences, HostApplyError> {
        Ok(self.engine()?.confirm(&configs.new, configs.previous, self.options.act).await?)
    }

    /// Applies a config. The end of an apply is no error, also if it is a rollback.
    ///
    /// # Errors
    /// Why the apply did not start.
    pub(super) async fn apply(
        &self,
        configs: ApplyConfigs,
        plan: Plan,
        progress: Progress<'_>,
    ) -> Result<Applied, HostApplyError> {
        let ApplyConfigs { manifests, old, previous, new, rollback_to, forced: force, has_force_file } =
            configs;
        let act = self.options.act;
        let request = ApplyRequest { manifests, old, previous, new, plan, force, act, rollback_to };
        let mut runner = self.runner().await;
        let applied = self.engine()?.apply(request, runner.as_mut(), progress).await?;
        let path = self.force_file();
        if has_force_file && path.exists() {
            // The file asks for one apply.
            fs::remove_file(&path).map_err(|error| HostApplyError::ForceFile { path, error })?;
        }
        Ok(applied)
    }

    /// Finishes an interrupted apply or restores the old config, as far as the limit allows; see [`HostApply::resume`].
    /// `None` if no apply was interrupted.
    ///
    /// # Errors
    /// The interrupted apply cannot be continued, or another process has the lock of the store.
    pub(super) async fn finish(
        &self,
        limit: ResumeLimit,
        progress: Progress<'_>,
    ) -> Result<Option<Applied>, HostApplyError> {
        let mut runner = self.runner().await;
        self.continue_interrupted(runner.as_mut(), limit, progress).await
    }

    /// Writes again what an update of the OS replaced, before the bus and the daemon start. `None` if no apply was interrupted.
    ///
    /// # Errors
    /// The interrupted apply cannot be continued, or another process has the lock of the store.
    pub async fn rewrite_overwritten(
        &self,
        progress: Progress<'_>,
    ) -> Result<Option<Applied>, HostApplyError> {
        if self.store()?.is_none() {
            return Ok(None);
        }
        self.continue_interrupted(&mut NoActs, ResumeLimit::BeforeServices, progress).await
    }

    /// Finishes an interrupted apply or restores the old config, without a reboot.
    async fn finish_interrupted(&self, progress: Progress<'_>) -> Result<(), HostApplyError> {
        let mut runner = self.runner().await;
        match self.continue_interrupted(runner.as_mut(), ResumeLimit::NoReboot, progress).await? {
            Some(Applied { end: MachineEnd::Rebooting | MachineEnd::Halted(_), id, reason, .. }) => {
                Err(ApplyError::Unfinished { id, reason }.into())
            }
            Some(_) | None => match self.interrupts.reason() {
                Some(reason) => Err(HostApplyError::Interrupted(reason)),
                None => Ok(()),
            },
        }
    }

    async fn continue_interrupted(
        &self,
        runner: &mut dyn ActRunner,
        limit: ResumeLimit,
        progress: Progress<'_>,
    ) -> Result<Option<Applied>, HostApplyError> {
        let engine = self.engine()?;
        match engine.recover(runner, limit, progress).await? {
            Recovered::Nothing => Ok(None),
            Recovered::Over(applied) => Ok(Some(applied)),
            Recovered::AtWork => Err(ApplyError::Locked(engine.store().path().join("lock")).into()),
        }
    }

    /// The engine of applies. It makes its directories.
    fn engine(&self) -> Result<Engine, ApplyError> {
        let options = ApplyOptions {
            root: self.options.root.clone(),
            state: self.options.state.clone(),
            operator: self.options.operator,
            asks_daemon: true,
        };
        let engine = Engine::new(options, &self.observer)?.heeding(&self.interrupts);
        Ok(engine.with_policies(&self.options.drift_policies))
    }

    /// The store of applies; `None` if nothing was applied yet.
    fn store(&self) -> Result<Option<Store>, StoreError> {
        Store::open_existing(&self.options.state)
    }

    /// The present config of the host. For the OS it is the last config that was applied with acts, until the current one is
    /// booted.
    fn present_config(&self, id: u64) -> Result<Rendered, HostApplyError> {
        match self.store()? {
            Some(store) => Ok(present_config(&store, id, &self.observer)?),
            None => Ok(Rendered::default()),
        }
    }

    async fn runner(&self) -> Box<dyn ActRunner> {
        if !self.options.act {
            return Box::new(NoActs);
        }
        let mut systemd = Systemd::new(&self.options.root);
        systemd.inhibit("Holdfast applies a config").await;
        Box::new(systemd)
    }

    fn force_file(&self) -> PathBuf {
        self.options.root.join(FORCE_FILE.trim_start_matches('/'))
    }
}
