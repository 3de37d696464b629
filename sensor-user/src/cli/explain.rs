//! `holdfast explain`: everything about one path.

use super::{
    describe,
    exit::{BadInput, DRIFT, IN_SYNC, runtime, told},
    log_errors,
    output::{Output, Screen, Tone, clean},
    sources::{Loaded, Sources, host_path},
    who::{self, Change},
};
use crate::{
    apply::STATE,
    observation::snapshot,
    repair::Restorer,
    report::forensic::{self, End},
};
use anyhow::Context as _;
use sensor_model::{
    difference::Difference,
    drift_policy::DriftAction,
    expectation::{Expectation, ExpectationSource, Expected, Thing},
    observation::Observation,
    record::RecordedState,
    verdict::VerdictKind,
    waiting::WaitingOutput,
};
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// The value of [`Report::schema`].
pub const SCHEMA: &str = "holdfast.explain/v1";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Explain {
    /// The path on the host; for a unit, the path of its file.
    #[arg(value_parser = host_path)]
    path: PathBuf,
    #[command(flatten)]
    sources: Sources,
    /// Directory of the forensic log.
    #[arg(long, default_value = super::agent::LOG, value_name = "DIRECTORY")]
    log: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// All that is known of a path.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(super) struct Report {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    schema: &'static str,
    /// Path on the host; for a unit that of its file.
    path: String,
    /// Whether a MachineConfig declares something at the path.
    managed: bool,
    /// The worst verdict of the things.
    verdict: VerdictKind,
    /// Each declared thing: a unit and its file share a path.
    things: Vec<Stands>,
    /// What the drift policy does about the path.
    policy: Policy,
    /// Kernel arguments that take effect with the next boot. They are no drift in this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<WaitingOutput>,
    /// The newest change in the forensic log; null if there is none.
    last_change: Option<Change>,
    /// Why a newer change may be missing from the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    doubt: Option<String>,
}

/// One declared thing and how it stands.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Stands {
    /// The thing.
    thing: Thing,
    /// The declared state, with a digest in place of a content.
    expected: Expected,
    /// The label that the host's SELinux policy has for it, if it is compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<Arc<str>>,
    /// The config that declares it.
    source: ExpectationSource,
    /// Its verdict.
    verdict: VerdictKind,
    /// Every difference.
    differences: Vec<Difference>,
    /// Metadata and digest; null if it is missing or cannot be read.
    #[schemars(with = "Option<RecordedState>")]
    found: Option<serde_json::Value>,
    #[serde(skip)]
    observation: Observation,
}

/// What is done about drift of the path.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Policy {
    /// What is done about drift.
    action: DriftAction,
    /// The rule's path; null for the default.
    rule: Option<String>,
    /// The file of the rule.
    origin: Option<String>,
    /// Whether the content is hidden.
    secret: bool,
    /// Why the rule is there; null if it does not say.
    reason: Option<String>,
}

impl Policy {
    fn of(loaded: &Loaded, path: &std::path::Path) -> Self {
        let decision = loaded.decision(path);
        Self {
            action: decision.action,
            rule: decision.rule.map(|(rule, _)| rule.path.clone()),
            origin: decision.rule.map(|(_, origin)| origin.to_owned()),
            secret: decision.secret,
            reason: decision.rule.and_then(|(rule, _)| rule.reason.clone()),
        }
    }
}

impl Explain {
    /// Looks and reports.
    ///
    /// # Errors
    /// Bad input.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let loaded = self.sources.load()?;
        let mut restorer = Restorer::new(Arc::clone(&loaded.observer), &loaded.root);
        let expectations = loaded.things_at(&self.path)?;
        let things = runtime()?.block_on(async {
            let mut things = Vec::new();
            for expectation in expectations {
                let (observation, differences) = restorer.look(&expectation, &loaded.desired().ids).await;
                let Expectation { thing, expected, label, source, .. } = expectation;
                things.push(Stands {
                    thing,
                    expected,
                    label,
                    source,
                    verdict: verdict(differences.is_empty()),
                    differences,
                    found: snapshot(&observation),
                    observation,
                });
            }
            things
        });
        let (last_change, doubt) = self.last_change();
        let is_of_arguments = *self.path == *Thing::KernelArguments.path();
        let report = Report {
            schema: SCHEMA,
            path: self.path.to_string_lossy().into_owned(),
            managed: !things.is_empty(),
            verdict: verdict(things.iter().all(|thing| thing.verdict == VerdictKind::Compliant)),
            things,
            policy: Policy::of(&loaded, &self.path),
            waiting: if is_of_arguments { loaded.waiting() } else { Vec::new() },
            last_change,
            doubt: doubt.as_ref().map_or_else(|error| Some(told(error)), Clone::clone),
        };
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        screen.flush()?;
        log_errors::doubted(doubt?, screen)?;
        Ok(if report.verdict == VerdictKind::Compliant { IN_SYNC } else { DRIFT })
    }
}

impl Explain {
    /// The newest change of the path, and why it need not be that one, or why the log cannot be read.
    fn last_change(&self) -> (Option<Change>, anyhow::Result<Option<String>>) {
        // The log is this machine's, also where another host's root is compared.
        let state = self.sources.state.as_deref().unwrap_or(Path::new(STATE));
        match who::checked(&self.log, state, &self.path, 1) {
            Ok((changes, doubt)) => (changes.into_iter().next(), Ok(doubt)),
            // Without a log nothing is known of changes, and the rest is still worth saying; unless there was one.
            Err(error) if error.is::<BadInput>() => {
                (None, forensic::cut(End::read(state, &self.log), 0).map_err(log_errors::unreadable))
            }
            Err(error) => (None, Err(error).context("the last change is not known")),
        }
    }
}

fn verdict(compliant: bool) -> VerdictKind {
    if compliant { VerdictKind::Compliant } else { VerdictKind::Drifted }
}

fn text(report: &Report, screen: &mut Screen) -> std::io::Result<()> {
    let path = clean(&report.path);
    if !report.managed {
        screen.line(&format!("{path} is not managed: no MachineConfig declares it"))?;
    }
    for stands in &report.things {
        let good = stands.verdict == VerdictKind::Compliant;
        let word =
            if good { screen.paint(Tone::Good, "as declared") } else { screen.paint(Tone::Bad, "drifted") };
        let thing = clean(&stands.thing.path().to_string_lossy());
        screen.line(&format!("{} {thing}: {word}", stands.expected.noun()))?;
        let source = format!("{} ({})", stands.source.name(), stands.source.origin());
        let mut rows = vec![(None, vec!["declared by".to_owned(), clean(&source)])];
        rows.extend(
            describe::expected(&stands.expected)
                .into_iter()
                .map(|(word, value)| (None, vec![word.to_owned(), value])),
        );
        if let Some(label) = &stands.label {
            rows.push((None, vec!["label".to_owned(), clean(label)]));
        }
        rows.push((None, vec!["found".to_owned(), describe::found(&stands.observation)]));
        rows.extend(
            stands
                .differences
                .iter()
                .map(|difference| (Some(Tone::Bad), vec!["differs".to_owned(), clean(&difference.text)])),
        );
        screen.table(2, &rows)?;
    }
    for waits in &report.waiting {
        screen.line(&format!("{}: {}", screen.paint(Tone::Notable, "waits"), clean(&waits.text)))?;
    }
    if report.managed {
        let action = serde_json::to_value(report.policy.action).unwrap_or_default();
        let action = action.as_str().unwrap_or_default();
        let by = match (&report.policy.rule, &report.policy.origin) {
            (Some(rule), Some(origin)) => clean(&format!("rule {rule} of {origin}")),
            _ => "the default".to_owned(),
        };
        let reason =
            report.policy.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", clean(reason)));
        screen.line(&format!("drift policy: {action}, by {by}{reason}"))?;
    }
    match &report.last_change {
        Some(change) => {
            screen.line("last change:")?;
            who::text(change, screen)
        }
        None if report.doubt.is_some() => screen.line("last change: not known"),
        None if report.managed => screen.line("last change: none in the log"),
        None => Ok(()),
    }
}
