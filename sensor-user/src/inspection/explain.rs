//! Everything that is known of one path: its declaration, its present state, its drift policy and its last change.

use super::{
    DeclaredHost,
    check::verdict_of,
    image::{ExplainedImage, explain_by_images},
    pristine::{ExplainedPristine, explain_by_pristine},
};
use crate::{
    desired::DesiredError,
    image::{CoveredHierarchy, ImageError, ImageIndex},
    observation::{Observer, snapshot},
    report::forensic::{LogPlace, PathChange, ReadError},
};
use sensor_model::{
    difference::Difference,
    drift_policy::{DriftAction, DriftDecision},
    expectation::{Expectation, ExpectationSource, Expected, Thing},
    observation::Observation,
    record::RecordedState,
    verdict::VerdictKind,
    waiting::WaitingOutput,
};
use serde::Serialize;
use std::{path::Path, sync::Arc};

/// The value of [`ExplainReport::schema`].
const SCHEMA: &str = "holdfast.explain/v1";

/// All that is known of a path.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ExplainReport {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Path on the host; for a unit that of its file.
    pub path: String,
    /// Whether a MachineConfig declares something at the path.
    pub managed: bool,
    /// The worst verdict of the things; without a thing, the worst of the OS image and of the other sources that nothing overrules.
    pub verdict: VerdictKind,
    /// Each declared thing: a unit and its file share a path.
    pub things: Vec<ExplainedThing>,
    /// What the OS image, a package or a baseline has at the path; absent if no index was used. What a config declares wins over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ExplainedImage>,
    /// What the sources of lower precedence than `image` have at the path, the next one first. Sources without the path are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<ExplainedImage>,
    /// What the booted image ships at the path of `/etc`; absent for other paths, and on a host that keeps no such copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pristine: Option<ExplainedPristine>,
    /// What is mounted over the hierarchies of the OS that the path is in, and is not expected there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub over: Vec<CoveredHierarchy>,
    /// What the drift policy does about the path.
    pub policy: PathPolicy,
    /// Kernel arguments that take effect with the next boot. They are no drift in this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingOutput>,
    /// The newest change in the forensic log; null if there is none.
    pub last_change: Option<PathChange>,
    /// Why a newer change may be missing from the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
}

/// One declared thing and its present state.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ExplainedThing {
    /// The thing.
    pub thing: Thing,
    /// The declared state, with a digest in place of a content.
    pub expected: Expected,
    /// The label that the host's SELinux policy has for it, if it is compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<Arc<str>>,
    /// The config that declares it.
    pub source: ExpectationSource,
    /// Its verdict.
    pub verdict: VerdictKind,
    /// Every difference.
    pub differences: Vec<Difference>,
    /// Metadata and digest; null if it is missing or cannot be read.
    #[schemars(with = "Option<RecordedState>")]
    pub found: Option<serde_json::Value>,
    /// The same, as the observer has it.
    #[serde(skip)]
    pub observation: Observation,
}

/// What is done about drift of the path.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct PathPolicy {
    /// What is done about drift.
    pub action: DriftAction,
    /// The rule's path; null for the default.
    pub rule: Option<String>,
    /// The file of the rule.
    pub origin: Option<String>,
    /// Whether the content is hidden.
    pub secret: bool,
    /// The reason that the rule names; null if it names none.
    pub reason: Option<String>,
}

impl PathPolicy {
    fn of(decision: &DriftDecision<'_>) -> Self {
        Self {
            action: decision.action,
            rule: decision.rule.map(|(rule, _)| rule.path.clone()),
            origin: decision.rule.map(|(_, origin)| origin.to_owned()),
            secret: decision.secret,
            reason: decision.rule.and_then(|(rule, _)| rule.reason.clone()),
        }
    }
}

/// An answer about a path.
#[derive(Debug)]
pub struct Explanation {
    /// The answer.
    pub report: ExplainReport,
    /// Why the log is not sound, or why it cannot be read.
    pub doubt: Result<Option<String>, ReadError>,
}

/// Why a path cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// Contents that cannot be decoded.
    #[error(transparent)]
    Desired(#[from] DesiredError),
    /// The index of the OS image cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// Observes a path, and reads its last change from the log. `indexes` are those that may have the path, the strongest first.
///
/// # Errors
/// Contents that cannot be decoded, and an index that cannot be read.
pub async fn explain(
    host: &DeclaredHost,
    path: &Path,
    log: &LogPlace,
    indexes: &[ImageIndex],
) -> Result<Explanation, ExplainError> {
    let mut restorer = host.restorer();
    let mut things = Vec::new();
    let expectations = host.things_at(path)?;
    // A closed directory has a rule of its own, which is also that of an undeclared name in it.
    let decision =
        expectations.first().map_or_else(|| host.decision(path), |first| host.decision_about(first));
    let policy = PathPolicy::of(&decision);
    for expectation in expectations {
        let (observation, differences) =
            restorer.observe_and_compare(&expectation, &host.desired().ids).await;
        let verdict = verdict_of(&expectation, &differences);
        let Expectation { thing, expected, label, source, .. } = expectation;
        things.push(ExplainedThing {
            thing,
            expected,
            label,
            source,
            verdict,
            differences,
            found: snapshot(&observation),
            observation,
        });
    }
    let declares = |thing: &&ExplainedThing| {
        let is_of_config = matches!(thing.source, ExpectationSource::MachineConfig(_));
        is_of_config && thing.thing.is_object() && *thing.thing.path() == *path
    };
    let declared_by = things.iter().find(declares).map(|thing| thing.source.name().to_owned());
    let images = explain_by_images(indexes, &host.observer, &host.root, path, declared_by.as_deref())?;
    let verdict = worst(&things, &images);
    let mut images = images.into_iter();
    let last = log.last_change(path);
    let is_of_arguments = *path == *Thing::KernelArguments.path();
    let report = ExplainReport {
        schema: SCHEMA,
        path: path.to_string_lossy().into_owned(),
        managed: !things.is_empty(),
        verdict,
        things,
        image: images.next(),
        below: images.collect(),
        pristine: explain_by_pristine(&host.observer, path),
        over: Vec::new(),
        policy,
        waiting: if is_of_arguments { host.waiting() } else { Vec::new() },
        last_change: last.change,
        doubt: doubt(&last.doubt),
    };
    Ok(Explanation { report, doubt: last.doubt })
}

/// The same for a host for which nothing is declared.
///
/// # Errors
/// The index cannot be read.
pub fn explain_undeclared(
    observer: &Observer,
    root: &Path,
    path: &Path,
    log: &LogPlace,
    indexes: &[ImageIndex],
) -> Result<Explanation, ImageError> {
    let images = explain_by_images(indexes, observer, root, path, None)?;
    let verdict = worst(&[], &images);
    let mut images = images.into_iter();
    let last = log.last_change(path);
    let report = ExplainReport {
        schema: SCHEMA,
        path: path.to_string_lossy().into_owned(),
        managed: false,
        verdict,
        things: Vec::new(),
        image: images.next(),
        below: images.collect(),
        pristine: explain_by_pristine(observer, path),
        over: Vec::new(),
        policy: PathPolicy {
            action: DriftAction::Observe,
            rule: None,
            origin: None,
            secret: false,
            reason: None,
        },
        waiting: Vec::new(),
        last_change: last.change,
        doubt: doubt(&last.doubt),
    };
    Ok(Explanation { report, doubt: last.doubt })
}

/// The verdict of a path. What images have matters only if no config declares the path.
fn worst(things: &[ExplainedThing], images: &[ExplainedImage]) -> VerdictKind {
    let applying = images.iter().filter(|image| image.overruled_by.is_none());
    let of_images = applying.filter_map(|image| image.entry.as_ref()).map(|entry| entry.verdict);
    let declared = things.iter().map(|thing| thing.verdict).max().unwrap_or(VerdictKind::Compliant);
    match of_images.max() {
        Some(of_images) if declared == VerdictKind::Compliant => of_images,
        _ => declared,
    }
}

fn doubt(found: &Result<Option<String>, ReadError>) -> Option<String> {
    match found {
        Ok(doubt) => doubt.clone(),
        Err(error) => Some(format!("the last change is not known: {error}")),
    }
}
