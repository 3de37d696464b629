//! The host on which an apply works, and the options of the apply.

use crate::{
    apply::{
        ActRunner, ApplyError, ApplyOptions, Engine, FORCE_FILE, Interrupts, NoActs, Systemd, foreseen,
        present_config, removed_by_force,
    },
    cli::{
        exit::BadInput,
        output::{Output, Screen, say},
    },
    desired::{disruption_policies, disruption_policy, state_directory},
    observation::{Observer, node},
    store::{Store, StoreError},
};
use anyhow::Context as _;
use sensor_model::{
    expectations::expectations,
    merge::Rendered,
    node_disruption::DisruptionPolicy,
    plan::{Plan, plan},
    reconcile,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// The note on a step that only a cluster can take.
pub(super) const NO_DRAIN: &str = "on a single host Holdfast does not drain; move workloads away first";

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

/// The host, and the options of the apply.
pub(in crate::cli) struct Site<'a> {
    pub(super) observer: Arc<Observer>,
    pub(super) state: PathBuf,
    pub(super) how: &'a How,
    pub(super) place: &'a Place,
    pub(super) interrupts: Interrupts,
}

impl<'a> Site<'a> {
    pub(in crate::cli) fn open(place: &'a Place, how: &'a How, screen: &mut Screen) -> anyhow::Result<Self> {
        // The exit code is that of the apply, also where the reader closes standard output.
        screen.outlive_readers();
        let observer = Observer::new(&place.host_root)
            .map_err(|error| BadInput::wrap(anyhow::Error::from(error).context("--host-root")))?;
        let interrupts = Interrupts::heed(say).context("take signals")?;
        Ok(Self { observer: Arc::new(observer), state: place.state(), how, place, interrupts })
    }

    /// The engine of applies. It makes its directories.
    pub(super) fn engine(&self) -> Result<Engine, ApplyError> {
        let options = ApplyOptions {
            root: self.place.host_root.clone(),
            state: self.state.clone(),
            beside_mco: self.how.beside_mco,
            asks_daemon: true,
        };
        let engine = Engine::new(options, &self.observer)?.heeding(&self.interrupts);
        Ok(engine.with_policies(&self.how.drift_policy))
    }

    /// The store of applies; `None` where nothing was applied yet.
    pub(in crate::cli) fn store(&self) -> Result<Option<Store>, StoreError> {
        Store::open_existing(&self.state)
    }

    /// The current config, and its number.
    pub(in crate::cli) fn current(&self) -> Result<Option<(u64, PathBuf)>, StoreError> {
        Store::current_in(&self.state)
    }

    /// The present state of the host: the current config, and of the OS the last one that was applied with acts, unless the current
    /// one is booted.
    ///
    /// # Errors
    /// A damaged config in the store.
    pub(in crate::cli) fn there(&self, id: u64) -> anyhow::Result<Rendered> {
        match self.store()? {
            Some(store) => Ok(present_config(&store, id, &self.observer)?),
            None => Ok(Rendered::default()),
        }
    }

    pub(super) async fn actor(&self) -> Box<dyn ActRunner> {
        if self.how.no_acts {
            return Box::new(NoActs);
        }
        let mut systemd = Systemd::new(&self.place.host_root);
        systemd.inhibit("Holdfast applies a config").await;
        Box::new(systemd)
    }

    /// The disruption policy for the pool of the new config.
    pub(super) fn policy(&self, new: &Rendered) -> anyhow::Result<DisruptionPolicy> {
        let files = disruption_policies(&self.how.policy).map_err(BadInput::wrap)?;
        let pool = self.how.pool.as_deref().or_else(|| new.pool());
        disruption_policy(&files, pool).map_err(BadInput::wrap)
    }

    /// The plan from one config to another, on this host.
    pub(super) fn plan(&self, old: &Rendered, new: &Rendered) -> anyhow::Result<Plan> {
        let mut plan = plan(Some(old), Some(new), &self.policy(new)?).context("plan")?;
        if self.place.host_root == Path::new("/") {
            let facts = node::facts().with_context(|| format!("read {}", node::FIPS))?;
            plan.refuse(&reconcile::against_node(&facts, new));
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

    pub(super) fn force_file(&self) -> PathBuf {
        self.place.host_root.join(FORCE_FILE.trim_start_matches('/'))
    }

    pub(super) fn forced(&self) -> bool {
        self.how.force || self.force_file().exists()
    }
}
