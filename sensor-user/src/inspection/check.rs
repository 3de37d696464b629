//! The comparison of a host with all its expectations.

use super::DeclaredHost;
use sensor_model::{
    difference::{Difference, DifferenceKind, all_unreadable},
    expectation::Expectation,
    strength::Strength,
    verdict::VerdictKind,
    waiting::WaitingOutput,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// The value of [`CheckReport::schema`].
const SCHEMA: &str = "holdfast.check/v1";

/// What was found.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct CheckReport {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// The worst verdict: drifted, unknown if nothing drifted and something could not be read, or compliant.
    pub verdict: VerdictKind,
    /// How many things were compared.
    pub checked: usize,
    /// Things that differ from their expectation.
    pub drifted: Vec<DifferingThing>,
    /// Things whose verdict is unknown: they could not be read, or only an index of the booted image would tell which names are the image's.
    pub unreadable: Vec<DifferingThing>,
    /// What the configuration declares and Holdfast does not compare.
    pub not_checked: Vec<&'static str>,
    /// Why each of those is not compared.
    pub not_checked_because: BTreeMap<&'static str, String>,
    /// Kernel arguments that take effect with the next boot. They are no drift in this one.
    pub waiting: Vec<WaitingOutput>,
}

/// A thing that differs from its expectation or cannot be read.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct DifferingThing {
    /// Path on the host; for a unit that of its file.
    pub path: String,
    /// Every difference.
    pub differences: Vec<Difference>,
    /// What declares it: a MachineConfig, a layer or package, or the rule that closes the directory.
    pub source: String,
    /// The file of that MachineConfig, the image, or the file of the drift policy.
    pub origin: String,
    /// What the verdict rests on, if the source is a layer, a package, an extension or a baseline; absent for other sources.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strength: Option<Strength>,
    /// Undeclared names in a closed directory, or where nothing may be, which may be those of the booted image, because that has no index.
    #[serde(skip)]
    pub may_be_of_image: bool,
}

/// The verdict on a thing with these differences.
pub(super) fn verdict_of(expectation: &Expectation, differences: &[Difference]) -> VerdictKind {
    if differences.is_empty() {
        VerdictKind::Compliant
    } else if all_unreadable(differences) || may_be_of_image(expectation, differences) {
        VerdictKind::Unknown
    } else {
        VerdictKind::Drifted
    }
}

/// Whether all differences are undeclared names that may be the booted image's.
fn may_be_of_image(expectation: &Expectation, differences: &[Difference]) -> bool {
    expectation.source.is_uncertain()
        && differences.iter().all(|difference| difference.kind == DifferenceKind::Unexpected)
}

/// Compares the host with every expectation, and waits a few seconds for each network file system.
pub async fn check(host: &DeclaredHost) -> CheckReport {
    let mut restorer = host.restorer();
    restorer.wait_for_servers();
    let desired = host.desired();
    let mut differing = Vec::new();
    for expectation in &desired.expectations {
        let (_, differences) = restorer.observe_and_compare(expectation, &desired.ids).await;
        if !differences.is_empty() {
            differing.push(DifferingThing {
                may_be_of_image: may_be_of_image(expectation, &differences),
                path: expectation.thing.path().to_string_lossy().into_owned(),
                differences,
                source: expectation.source.name().to_owned(),
                origin: expectation.source.origin().to_owned(),
                strength: expectation.source.strength(),
            });
        }
    }
    let (unreadable, drifted): (Vec<_>, Vec<_>) =
        differing.into_iter().partition(|thing| thing.may_be_of_image || all_unreadable(&thing.differences));
    let not_checked = host.not_checked();
    CheckReport {
        schema: SCHEMA,
        verdict: match (drifted.is_empty(), unreadable.is_empty()) {
            (false, _) => VerdictKind::Drifted,
            (true, false) => VerdictKind::Unknown,
            (true, true) => VerdictKind::Compliant,
        },
        checked: desired.expectations.len(),
        drifted,
        unreadable,
        not_checked: not_checked.iter().map(|not| not.field).collect(),
        not_checked_because: not_checked.into_iter().map(|not| (not.field, not.reason)).collect(),
        waiting: host.waiting(),
    }
}
