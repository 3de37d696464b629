//! `holdfast plan`: what changes between two configs, and which steps that needs.
//!
//! In: two MachineConfigs and policies, from files. Out: the differences, the steps, and why. The exit code shows whether there
//! is a change, and whether it is reconcilable. It changes nothing.

mod diff;
mod image;

use super::{
    exit::{BadInput, DRIFT, IN_SYNC, NOT_RECONCILABLE},
    output::{Output, Screen, Tone, clean, count},
};
use crate::{
    apply::{PlanContents, PlanReport, Preview, PreviewRequest, preview},
    desired::Unknown,
};
use sensor_model::{
    action::{Action, Fallback},
    changes::ChangeOperation,
    plan::{PlannedChange, Step},
};
use std::{io, path::PathBuf};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct PlanCommand {
    /// The present config of a node: a MachineConfig manifest, YAML or JSON. Several are merged as a pool's.
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The new config.
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Disruption policy, which says what action a change needs: a MachineConfiguration (operator.openshift.io/v1) or
    /// DisruptionPolicy (holdfast.dev/v1alpha1), merged over the shipped defaults; may be repeated.
    #[arg(long, value_name = "FILE")]
    policy: Vec<PathBuf>,
    /// The node's pool, for policies that apply to certain pools. [default: from NEW's name or role]
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Also check what this host cannot change to (another FIPS mode, a kernel of another architecture), and name its units whose programs
    /// the new OS image changes.
    #[arg(long)]
    node: bool,
    /// Drift policy, whose `secret: false` allows contents to be shown; may be repeated. [default: the shipped one]
    #[arg(long, value_name = "FILE")]
    drift_policy: Vec<PathBuf>,
    /// State directory, whose history has the duration of past applies, and whose indexes show what another OS image changes.
    #[arg(long, default_value = "/var/lib/holdfast", value_name = "DIRECTORY")]
    state: PathBuf,
    /// Log a warning about unknown fields in configs instead of refusing the configs.
    #[arg(long)]
    allow_unknown: bool,
    /// Show secret contents, too. Password hashes and ssh keys stay hidden.
    #[arg(long)]
    secrets: bool,
    #[command(flatten)]
    output: Output,
}

impl PlanCommand {
    /// Plans and reports.
    ///
    /// # Errors
    /// Bad input.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let Preview { report, old, new } =
            preview(self.request()).map_err(|error| BadInput::wrap_if(error.is_input(), error))?;
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            let contents = PlanContents::open(&old, &new, &self.drift_policy, self.secrets);
            text(&report, &contents.map_err(BadInput::wrap)?, screen)?;
        }
        Ok(match (report.plan.reconcilable, report.plan.is_empty()) {
            (false, _) => NOT_RECONCILABLE,
            (true, true) => IN_SYNC,
            (true, false) => DRIFT,
        })
    }

    fn request(&self) -> PreviewRequest<'_> {
        PreviewRequest {
            old: &self.old,
            new: &self.new,
            unknown: Unknown::allowed(self.allow_unknown),
            disruption_policies: &self.policy,
            pool: self.pool.as_deref(),
            for_this_host: self.node,
            state: &self.state,
        }
    }
}

fn text(report: &PlanReport, contents: &PlanContents<'_>, screen: &mut Screen) -> io::Result<()> {
    let plan = &report.plan;
    if plan.is_empty() {
        let word = screen.paint(Tone::Good, "no change");
        screen.line(&format!(
            "{word}: {} and {} declare the same",
            clean(&report.from),
            clean(&report.to)
        ))?;
        return Ok(());
    }
    let changes = count(plan.changes.len(), "change");
    screen.line(&format!("{} -> {}: {changes}", clean(&report.from), clean(&report.to)))?;
    for change in plan.removals_first() {
        screen.line("")?;
        one_change(change, contents, screen)?;
    }
    if let Some(update) = &report.image {
        screen.line("")?;
        image::print(update, screen)?;
    }
    screen.line("")?;
    for reason in &plan.overridden {
        screen.line(&format!("not changed on running nodes, by override: {}", clean(reason)))?;
    }
    if !plan.reconcilable {
        let word = screen.paint(Tone::Bad, "not reconcilable");
        screen.line(&format!("{word}: a running node cannot change to this config"))?;
        for reason in &plan.reasons {
            screen.line(&format!("  {}", clean(&reason.to_string())))?;
        }
        return Ok(());
    }
    screen.line("steps:")?;
    for (number, step) in plan.steps.iter().enumerate() {
        one_step(number + 1, step, screen)?;
    }
    let word = |yes: bool| if yes { "yes" } else { "no" };
    screen.line(&format!("drain: {}, reboot: {}", word(plan.drain), word(plan.reboot)))?;
    if !report.last_seconds.is_empty() {
        let took: Vec<String> = report.last_seconds.iter().map(|seconds| format!("{seconds} s")).collect();
        screen.line(&format!(
            "past applies with the same disruption took, the newest first: {}",
            took.join(", ")
        ))?;
    }
    Ok(())
}

fn one_change(change: &PlannedChange, contents: &PlanContents<'_>, screen: &mut Screen) -> io::Result<()> {
    let tone = match change.operation {
        ChangeOperation::Add => Tone::Good,
        ChangeOperation::Change => Tone::Notable,
        ChangeOperation::Remove => Tone::Bad,
    };
    let word = screen.paint(tone, change.operation.as_str());
    let source = screen.paint(Tone::Quiet, &clean(&format!("({})", change.source)));
    screen.line(&format!("{word} {} {} {source}", change.kind.as_str(), clean(&change.name)))?;
    let actions = change.actions.iter().map(|action| match &action.target {
        Some(unit) => format!("{} {unit}", action.action.as_str()),
        None => action.action.as_str().to_owned(),
    });
    let mut needs = actions.collect::<Vec<_>>().join(", ");
    if change.action == Action::None {
        needs.push_str("no action");
    }
    screen.line(&format!("  needs {}; {}", clean(&needs), clean(&change.policy)))?;
    for why in &change.explanation {
        screen.line(&format!("  {}", clean(why)))?;
    }
    for detail in &change.details {
        screen.line(&format!("  {}", clean(detail)))?;
    }
    contents.of(change).iter().try_for_each(|content| diff::print(content, screen))
}

fn one_step(number: usize, step: &Step, screen: &mut Screen) -> io::Result<()> {
    /// A longer list would hide the steps.
    const MOST_NAMES: usize = 5;
    let target = step.target.as_ref().map_or_else(String::new, |target| format!(" {target}"));
    let mut because: Vec<String> = step.because.iter().take(MOST_NAMES).map(|name| clean(name)).collect();
    if step.because.len() > MOST_NAMES {
        because.push(format!("{} more", step.because.len() - MOST_NAMES));
    }
    let timeout = step.timeout_seconds.map_or_else(String::new, |seconds| format!(", at most {seconds} s"));
    let fallback = match step.fallback {
        Some(Fallback::Reboot) => ", else reboot",
        Some(Fallback::Rollback) => ", else roll back",
        None => "",
    };
    let (word, target, because) = (step.action.as_str(), clean(&target), because.join(", "));
    screen.line(&format!("  {number}. {word}{target}{timeout}{fallback}: {because}"))
}
