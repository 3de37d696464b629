//! `holdfast apply`: brings the host to a config, or back.

use super::{
    BadInput, DRIFT, FAILURE, IN_SYNC, NOT_RECONCILABLE, agent,
    output::{Output, Screen, Tone, clean, count},
    people, runtime, who,
};
use crate::{
    agent::desired,
    apply::{
        Actor, Applied, ApplyError, Engine, FORCE_FILE, NoActs, Options, Recovered, Request, STATE, Systemd,
        exempted,
    },
    observation::Observer,
};
use anyhow::Context as _;
use sensor_model::{
    ignition::Purpose,
    journal::{
        Ended,
        machine::{LEFT, Rest},
    },
    merge::Rendered,
    node_disruption::{Policy, PolicyFile},
    plan::{Plan, StepAction, plan},
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
    /// Where journal, history and originals are kept.
    #[arg(long, default_value = STATE, value_name = "DIRECTORY")]
    pub state: PathBuf,
    /// How it is printed.
    #[command(flatten)]
    pub output: Output,
}

/// How it is carried out.
#[expect(clippy::struct_excessive_bools, reason = "one for each option")]
#[derive(Debug, clap::Args)]
pub struct How {
    /// Disruption policies (`MachineConfiguration` or `DisruptionPolicy`): a file, or a directory of them; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub policy: Vec<PathBuf>,
    /// Print the plan and change nothing.
    #[arg(long)]
    pub dry_run: bool,
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
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    place: Place,
}

/// Manifests as they are kept: file names and bytes.
type Manifests = Vec<(String, Vec<u8>)>;

/// What became of it.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    /// Number of the apply; null when there was nothing to do.
    id: Option<u64>,
    /// `done`, `unchanged`, `rebooting`, `rolled-back`, `abandoned`, `halted`.
    result: &'static str,
    /// Why it went back or could not go on; empty when it did neither.
    reason: String,
    /// What was left as somebody else wrote it, and what failed on the way back.
    problems: Vec<String>,
    /// The plan that was followed; null after `--resume`.
    plan: Option<Plan>,
}

impl Apply {
    /// Plans, asks nobody, does it and reports.
    ///
    /// # Errors
    /// Bad input, and why nothing was begun. What happened later is in the report.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let site = Site::open(&self.place, &self.how)?;
        if self.resume {
            return site.resume(screen);
        }
        let manifests = manifests(&self.new)?;
        if !self.how.dry_run {
            // What an earlier one left decides which config is the current one.
            site.recover()?;
        }
        let compared = desired::rendered_for(&self.new, Purpose::Compare).map_err(BadInput::wrap)?;
        let old = match site.engine.store().current() {
            Some((_, path)) => desired::rendered(&[path])?,
            None if self.current.is_empty() => Rendered::default(),
            None => desired::rendered(&self.current).map_err(BadInput::wrap)?,
        };
        // What cannot be reconciled is told with all its reasons, as by `plan`, and not as bad input.
        let possible =
            plan(Some(&old), Some(&compared), &site.policy(&compared)?).context("plan")?.reconcilable;
        let new = if possible { desired::rendered(&self.new).map_err(BadInput::wrap)? } else { compared };
        site.apply(screen, manifests, old, new, None)
    }
}

/// The manifests as they are kept: by a name that keeps their order, and their bytes.
fn manifests(paths: &[PathBuf]) -> anyhow::Result<Manifests> {
    let mut manifests = Vec::new();
    for (number, path) in desired::files(paths).map_err(BadInput::wrap)?.into_iter().enumerate() {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // Only files with a known ending are read again in a directory.
        let ending = if path.extension().is_some() { "" } else { ".yaml" };
        let bytes =
            fs::read(&path).with_context(|| format!("read {}", path.display())).map_err(BadInput::wrap)?;
        manifests.push((format!("{number:03}-{name}{ending}"), bytes));
    }
    Ok(manifests)
}

/// The host and everything that works on it.
pub(super) struct Site<'a> {
    pub(super) engine: Engine,
    how: &'a How,
    place: &'a Place,
}

impl<'a> Site<'a> {
    pub(super) fn open(place: &'a Place, how: &'a How) -> anyhow::Result<Self> {
        let observer = Observer::new(&place.host_root)
            .map_err(|error| BadInput::wrap(anyhow::Error::from(error).context("--host-root")))?;
        let observer = Arc::new(observer);
        let options = Options {
            root: place.host_root.clone(),
            state: place.state.clone(),
            beside_mco: how.beside_mco,
            asks_daemon: true,
        };
        let engine = Engine::new(options, &observer)?;
        Ok(Self { engine, how, place })
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
        for path in desired::files(&self.how.policy).map_err(BadInput::wrap)? {
            let bytes = fs::read(&path)
                .with_context(|| format!("read {}", path.display()))
                .map_err(BadInput::wrap)?;
            files.extend(PolicyFile::parse(&path.display().to_string(), &bytes).map_err(BadInput::wrap)?);
        }
        Policy::merge(&files, super::plan::pool_of(new).as_deref()).map_err(BadInput::wrap)
    }

    pub(super) fn apply(
        &self,
        screen: &mut Screen,
        manifests: Vec<(String, Vec<u8>)>,
        old: Rendered,
        new: Rendered,
        rollback_to: Option<u64>,
    ) -> anyhow::Result<u8> {
        let force_file = self.place.host_root.join(FORCE_FILE.trim_start_matches('/'));
        let force = self.how.force || force_file.exists();
        let plan = plan(Some(&old), Some(&new), &self.policy(&new)?).context("plan")?;
        if self.how.dry_run {
            return self.print(screen, &plan);
        }
        if plan.is_empty() && !force && self.engine.store().current().is_some() {
            return self.report(screen, None, "unchanged", None, Some(plan));
        }
        if plan.drain {
            say(NO_DRAIN);
        }
        let request =
            Request { manifests, old, new, plan: plan.clone(), force, act: !self.how.no_acts, rollback_to };
        let applied = runtime()?.block_on(async {
            let mut actor = self.actor().await;
            self.engine.apply(request, actor.as_mut(), &mut say).await
        });
        match applied {
            Ok(applied) => {
                if applied.rest != Rest::Closed(Ended::Abandoned) && force_file.exists() {
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

    /// Works off an apply that was interrupted, without a reboot.
    pub(super) fn recover(&self) -> anyhow::Result<Recovered> {
        Ok(runtime()?.block_on(async {
            let mut actor = self.actor().await;
            self.engine.recover(actor.as_mut(), false, &mut say).await
        })?)
    }

    fn resume(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let recovered = runtime()?.block_on(async {
            let mut actor = self.actor().await;
            self.engine.recover(actor.as_mut(), true, &mut say).await
        })?;
        match recovered {
            Recovered::Nothing => self.report(screen, None, "unchanged", None, None),
            Recovered::Over(applied) => self.told(screen, &applied, None),
            Recovered::AtWork => Err(ApplyError::Locked(self.engine.store().path().join("lock")).into()),
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
        self.report(screen, Some(applied.id), result, Some(applied), plan)
    }

    fn report(
        &self,
        screen: &mut Screen,
        id: Option<u64>,
        result: &'static str,
        applied: Option<&Applied>,
        plan: Option<Plan>,
    ) -> anyhow::Result<u8> {
        let reason = applied.map(|applied| applied.reason.clone()).unwrap_or_default();
        // A reboot with a reason is one on the way back.
        let good = matches!(result, "done" | "unchanged") || result == "rebooting" && reason.is_empty();
        let problems = applied.map(|applied| applied.problems.clone()).unwrap_or_default();
        if self.place.output.is_json() {
            screen.json(&Report { schema: SCHEMA, id, result, reason, problems, plan })?;
        } else {
            let tone = if good { Tone::Good } else { Tone::Bad };
            let number = id.map(|id| format!(" (number {id})")).unwrap_or_default();
            let text = match result {
                "done" => "the host is as the new config says",
                "unchanged" => "there was nothing to do",
                "rebooting" if good => "the reboot is under way; after it everything is compared",
                "rebooting" => "the reboot is under way that brings the old OS back",
                "rolled-back" => "the host is as the old config says",
                "abandoned" => "nothing was written",
                _ => "it can go neither on nor back now; the next start tries again",
            };
            screen.line(&format!("{}{number}: {text}", screen.paint(tone, result)))?;
            if !reason.is_empty() {
                screen.line(&format!("  because: {}", clean(&reason)))?;
            }
            for problem in problems.iter().filter(|problem| **problem != reason) {
                screen.line(&format!("  {}", clean(problem)))?;
                if let Some(who) = culprit(problem) {
                    screen.line(&format!("    by {who}"))?;
                }
            }
        }
        Ok(if good { IN_SYNC } else { FAILURE })
    }

    fn print(&self, screen: &mut Screen, plan: &Plan) -> anyhow::Result<u8> {
        if self.place.output.is_json() {
            screen.json(plan)?;
        } else {
            for change in &plan.changes {
                let (operation, kind) = (change.operation.word(), change.kind.word());
                let action = change.action.word();
                let name = clean(&change.name);
                screen.line(&format!("{operation} {kind} {name}: {action} ({})", clean(&change.policy)))?;
            }
            for reason in &plan.reasons {
                screen.line(&format!(
                    "{}: {}",
                    screen.paint(Tone::Bad, "not reconcilable"),
                    clean(reason)
                ))?;
            }
            for reason in exempted(plan) {
                screen.line(&format!("{}: {}", screen.paint(Tone::Bad, "refused"), clean(&reason)))?;
            }
            for (number, step) in plan.steps.iter().enumerate() {
                let target = step.target.as_deref().map(|unit| format!(" {unit}")).unwrap_or_default();
                let action = step.action.word();
                let note =
                    if step.action == StepAction::Drain { format!(" ({NO_DRAIN})") } else { String::new() };
                screen.line(&format!("step {}: {action}{}{note}", number + 1, clean(&target)))?;
            }
            screen.line(&format!(
                "{}; nothing was written",
                if plan.is_empty() { "no change".to_owned() } else { count(plan.changes.len(), "change") }
            ))?;
        }
        Ok(match plan {
            plan if !plan.reconcilable => NOT_RECONCILABLE,
            plan if plan.is_empty() => IN_SYNC,
            _ => DRIFT,
        })
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

/// The rendered config of a generation that is kept.
pub(super) fn generation(path: &Path) -> anyhow::Result<(Manifests, Rendered)> {
    let paths = [path.to_owned()];
    let mut kept = Vec::new();
    for file in desired::files(&paths)? {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        kept.push((name, fs::read(&file).with_context(|| format!("read {}", file.display()))?));
    }
    Ok((kept, desired::rendered(&paths)?))
}
