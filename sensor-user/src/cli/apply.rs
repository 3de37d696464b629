//! `holdfast apply`: brings the host to a config, or back.

mod asked;
mod planned;

use super::{
    BadInput, DRIFT, FAILURE, IN_SYNC, NOT_RECONCILABLE, agent,
    kept::{Manifests, generation, kept, merged, read},
    output::{Output, Screen, Tone, clean},
    people, runtime,
    sources::state_of,
    who,
};
use crate::{
    agent::desired,
    apply::{
        Actor, Applied, ApplyError, Back, Engine, Entry, FORCE_FILE, NoActs, Options, Reach, Recovered,
        Request, Store, Systemd, foreseen, os_is_there, waits,
    },
    observation::Observer,
};
use anyhow::Context as _;
use planned::left_out;
use sensor_model::{
    expectations::expectations,
    ignition::Purpose,
    journal::{
        Ended,
        machine::{LEFT, Rest},
    },
    merge::Rendered,
    node_disruption::{Policy, PolicyFile},
    os::waiting::Waits,
    plan::{Plan, plan},
    reconcile,
};
use serde::Serialize;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The value of [`Report::schema`].
pub const SCHEMA: &str = "holdfast.apply/v1";

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
        state_of(self.state.as_deref(), &self.host_root)
    }
}

/// How it is carried out.
#[expect(clippy::struct_excessive_bools, reason = "one for each option")]
#[derive(Debug, clap::Args)]
pub struct How {
    /// Disruption policies (`MachineConfiguration` or `DisruptionPolicy`): a file, or a directory of them; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub policy: Vec<PathBuf>,
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
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    place: Place,
}

/// What is wanted, and from where.
pub(super) struct Wanted {
    pub(super) manifests: Manifests,
    /// The config that the host has, and its number.
    pub(super) old: Rendered,
    pub(super) previous: Option<u64>,
    pub(super) new: Rendered,
    /// The generation that comes back.
    pub(super) rollback_to: Option<u64>,
}

/// What became of it.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    /// Number of the apply; null when there was nothing to do.
    id: Option<u64>,
    /// `done`, `unchanged`, `drifted`, `rebooting`, `rolled-back`, `abandoned`, `halted`.
    result: &'static str,
    /// Why it went back, could not go on, or reboots although no plan says so; empty when it did nothing of that.
    reason: String,
    /// What was left as somebody else wrote it, what failed on the way back, how the host differs.
    problems: Vec<String>,
    /// The plan that was followed; null after `--resume`.
    plan: Option<Plan>,
    /// Kernel arguments that wait for the next boot under the config that is current now.
    waiting: Vec<Waits>,
    /// The old config is there, or on its way.
    #[serde(skip)]
    goes_back: bool,
    /// What the comparison with it found.
    #[serde(skip)]
    back: Back,
}

impl Report {
    fn of(result: &'static str) -> Self {
        Self {
            schema: SCHEMA,
            id: None,
            result,
            reason: String::new(),
            problems: Vec::new(),
            plan: None,
            waiting: Vec::new(),
            goes_back: false,
            back: Back::No,
        }
    }
}

impl Apply {
    /// Plans, asks, does it and reports.
    ///
    /// # Errors
    /// Bad input, and why nothing was begun. What happened later is in the report.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let site = Site::open(&self.place, &self.how)?;
        if self.early {
            return site.put_again();
        }
        if self.resume {
            return site.resume(screen);
        }
        // Read once: what is planned is what is kept.
        let read = read(&self.new).map_err(BadInput::wrap)?;
        // What an earlier one left decides which config is the current one.
        site.recover()?;
        let compared = merged(&read, Purpose::Compare).map_err(BadInput::wrap)?;
        let current = site.current()?;
        if let (Some((id, _)), false) = (&current, self.current.is_empty()) {
            eprintln!("hint: `--current` does not count: the host has what was applied last, number {id}");
        }
        let old = match &current {
            Some((id, _)) => site.there(*id)?,
            None if self.current.is_empty() => Rendered::default(),
            None => desired::rendered(&self.current).map_err(BadInput::wrap)?,
        };
        // What cannot be reconciled is told with all its reasons, as by `plan`, and not as bad input.
        let possible = site.plan(&old, &compared)?.reconcilable;
        let new = if possible { merged(&read, Purpose::Verify).map_err(BadInput::wrap)? } else { compared };
        let previous = current.map(|(id, _)| id);
        site.apply(screen, Wanted { manifests: kept(read), old, previous, new, rollback_to: None })
    }
}

/// The host and everything that works on it.
pub(super) struct Site<'a> {
    observer: Arc<Observer>,
    state: PathBuf,
    how: &'a How,
    place: &'a Place,
}

impl<'a> Site<'a> {
    pub(super) fn open(place: &'a Place, how: &'a How) -> anyhow::Result<Self> {
        let observer = Observer::new(&place.host_root)
            .map_err(|error| BadInput::wrap(anyhow::Error::from(error).context("--host-root")))?;
        Ok(Self { observer: Arc::new(observer), state: place.state(), how, place })
    }

    /// What does it; makes the directories that it keeps things in.
    fn engine(&self) -> Result<Engine, ApplyError> {
        let options = Options {
            root: self.place.host_root.clone(),
            state: self.state.clone(),
            beside_mco: self.how.beside_mco,
            asks_daemon: true,
        };
        Engine::new(options, &self.observer)
    }

    /// What was applied so far, if anything was.
    pub(super) fn store(&self) -> Result<Option<Store>, ApplyError> {
        Store::look(&self.state)
    }

    /// The config that is current, and its number.
    pub(super) fn current(&self) -> Result<Option<(u64, PathBuf)>, ApplyError> {
        Ok(self.store()?.and_then(|store| store.current()))
    }

    /// What the host is: the config that is current, but of the OS, unless it is so booted, that of the last apply with acts.
    ///
    /// # Errors
    /// A config that was kept and cannot be used.
    pub(super) fn there(&self, id: u64) -> anyhow::Result<Rendered> {
        let Some(store) = self.store()? else { return Ok(Rendered::default()) };
        let mut rendered = generation(&store.config(id))?.1;
        let mut done = Some(id);
        while let Some(id) = done
            && let Some(entry) = store.history::<Entry>(id)?
            && entry.without_acts
        {
            done = entry.previous;
        }
        if done != Some(id) && !os_is_there(&rendered, &self.observer) {
            let of_os = done.map(|done| generation(&store.config(done))).transpose()?;
            rendered.take_os(of_os.map(|(_, of_os)| of_os).unwrap_or_default());
        }
        Ok(rendered)
    }

    async fn actor(&self) -> Box<dyn Actor> {
        if self.how.no_acts {
            return Box::new(NoActs);
        }
        let mut systemd = Systemd::new(&self.place.host_root);
        systemd.inhibit("a config is being applied").await;
        Box::new(systemd)
    }

    /// The policies that count for the new config's pool.
    fn policy(&self, new: &Rendered) -> anyhow::Result<Policy> {
        let mut files = Vec::new();
        for (name, bytes) in read(&self.how.policy).map_err(BadInput::wrap)? {
            files.extend(PolicyFile::parse(&name, &bytes).map_err(BadInput::wrap)?);
        }
        super::plan::policy(&files, self.how.pool.as_deref().or_else(|| new.pool()))
    }

    /// The way from one config to another, on this host.
    fn plan(&self, old: &Rendered, new: &Rendered) -> anyhow::Result<Plan> {
        let mut plan = plan(Some(old), Some(new), &self.policy(new)?).context("plan")?;
        if self.place.host_root == Path::new("/") {
            plan.refuse(reconcile::against_node(&super::plan::facts()?, new));
        }
        if self.forced() {
            plan.force();
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
                eprintln!("error: {}", clean(&error.to_string()));
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
        let problems = runtime()?.block_on(engine.confirm(new, previous, !self.how.no_acts))?;
        let result = if problems.is_empty() { "unchanged" } else { "drifted" };
        self.report(screen, Report { problems, plan: Some(plan), ..Report::of(result) })
    }

    /// Works off an apply that was interrupted, without a reboot. A dry run leaves it as it is.
    pub(super) fn recover(&self) -> anyhow::Result<()> {
        if self.how.dry_run {
            return Ok(());
        }
        let engine = self.engine()?;
        let recovered = runtime()?.block_on(async {
            let mut actor = self.actor().await;
            engine.recover(actor.as_mut(), Reach::NoReboot, &mut say).await
        })?;
        match recovered {
            Recovered::AtWork => Err(ApplyError::Locked(engine.store().path().join("lock")).into()),
            Recovered::Over(Applied { rest: Rest::Rebooting | Rest::Halted(_), id, reason, .. }) => {
                Err(ApplyError::Unfinished(format!("number {id}: {reason}")).into())
            }
            Recovered::Over(_) | Recovered::Nothing => Ok(()),
        }
    }

    /// Puts again what an update of the OS took back. It runs before there is a bus to ask, and before a daemon.
    fn put_again(&self) -> anyhow::Result<u8> {
        if self.store()?.is_none() {
            return Ok(IN_SYNC);
        }
        let engine = self.engine()?;
        let recovered = runtime()?.block_on(engine.recover(&mut NoActs, Reach::Early, &mut say))?;
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
            engine.recover(actor.as_mut(), Reach::End, &mut say).await
        })?;
        match recovered {
            Recovered::Nothing => self.report(screen, Report::of("unchanged")),
            Recovered::Over(applied) => self.told(screen, &applied, None),
            Recovered::AtWork => Err(ApplyError::Locked(engine.store().path().join("lock")).into()),
        }
    }

    fn told(&self, screen: &mut Screen, applied: &Applied, plan: Option<Plan>) -> anyhow::Result<u8> {
        let result = match &applied.rest {
            Rest::Closed(Ended::Done) => "done",
            Rest::Closed(Ended::RolledBack) => "rolled-back",
            Rest::Closed(Ended::Abandoned) => "abandoned",
            Rest::Rebooting => "rebooting",
            Rest::Halted(_) => "halted",
        };
        let Applied { id, goes_back, reason, problems, back, .. } = applied.clone();
        let of_apply = Report { id: Some(id), goes_back, reason, problems, plan, back, ..Report::of(result) };
        self.report(screen, of_apply)
    }

    fn report(&self, screen: &mut Screen, mut report: Report) -> anyhow::Result<u8> {
        // What became of the apply is told whatever can be read of this.
        report.waiting =
            waits(&self.place.state()).unwrap_or_default().into_iter().map(Waits::from).collect();
        let Report { result, reason, problems, waiting, .. } = &report;
        // A reboot with a reason is one on the way back, or in the place of an act that failed.
        let good = matches!(*result, "done" | "unchanged") || *result == "rebooting" && reason.is_empty();
        let code = match *result {
            _ if good => IN_SYNC,
            "drifted" => DRIFT,
            _ => FAILURE,
        };
        if self.place.output.is_json() {
            screen.json(&report)?;
            return Ok(code);
        }
        let tone = if good { Tone::Good } else { Tone::Bad };
        let number = report.id.map(|id| format!(" (number {id})")).unwrap_or_default();
        let text = match *result {
            "done" => "the host is as the new config says",
            "unchanged" => "there was nothing to do",
            "drifted" => {
                "this config is the current one, and the host is not as it says; `holdfast repair --all` or `--force` brings it there"
            }
            "rebooting" if good => "the reboot is under way; after it everything is compared",
            "rebooting" if report.goes_back => "the reboot is under way that brings the old OS back",
            "rebooting" => {
                "the reboot is under way; after it what failed is looked at, and everything is compared"
            }
            "rolled-back" => match report.back {
                Back::AsDeclared => "the host is as the old config says",
                Back::Differs => "what was written was given back, but the host differs from the old config",
                _ => "what was written was given back; the host was not compared with an old config",
            },
            "abandoned" => "nothing was written",
            _ => "it can go neither on nor back now; the next start tries again",
        };
        screen.line(&format!("{}{number}: {text}", screen.paint(tone, result)))?;
        if !reason.is_empty() {
            screen.line(&format!("  because: {}", clean(reason)))?;
        }
        // What is in the reason is said already, but not who did it.
        let is_news = |problem: &&String| !reason.contains(problem.as_str()) || problem.ends_with(LEFT);
        for problem in problems.iter().filter(is_news) {
            screen.line(&format!("  {}", clean(problem)))?;
            if let Some(who) = culprit(problem) {
                screen.line(&format!("    by {who}"))?;
            }
        }
        for waits in waiting {
            screen.line(&format!("  waits: {}", clean(&waits.text)))?;
        }
        Ok(code)
    }
}

/// Who wrote what was left, by the daemon's log; `None` where it says nothing.
fn culprit(problem: &str) -> Option<String> {
    let path = problem.strip_suffix(LEFT)?;
    let changes = who::changes(Path::new(agent::LOG), Path::new(path), 1).ok()?;
    Some(people::actor(changes.first()?.actor.as_ref()))
}

/// One line of progress.
fn say(line: &str) {
    eprintln!("{}", clean(line));
}
