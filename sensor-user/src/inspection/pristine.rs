//! What the booted image ships at a path of `/etc`, beside the present object.
//!
//! In: an observer and a path. Out: where the host keeps the shipped object, what it is, and how the present one departs from it. It says
//! nothing about a verdict: an admin may change `/etc`, and on ostree and Flatcar no digest proves the shipped object.

use crate::observation::{Observer, snapshot};
use sensor_model::{
    difference::DifferenceKind,
    observation::{ObjectObservation, Observation},
    record::RecordedState,
};
use serde::Serialize;
use std::path::Path;

/// What the booted image ships at a path of `/etc`.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ExplainedPristine {
    /// Where the host keeps it: a path of the host, or of the root image below the mounts over it.
    pub path: String,
    /// How the present object departs from it; empty if both have the same type, content, target, mode and owner.
    pub differences: Vec<DifferenceKind>,
    /// Metadata and digest; null if the image ships nothing there, or it cannot be read.
    #[schemars(with = "Option<RecordedState>")]
    pub found: Option<serde_json::Value>,
    /// The same, as the observer has it.
    #[serde(skip)]
    pub observation: Observation,
}

/// Explains a path by the pristine `/etc`. `None` for other paths, on a host that keeps none, and if neither the image nor the host has
/// something there.
pub(super) fn explain_by_pristine(observer: &Observer, path: &Path) -> Option<ExplainedPristine> {
    let (place, shipped) = observer.shipped(path)?;
    let differences = departures(&shipped, &observer.present(path))?;
    Some(ExplainedPristine {
        path: place.to_string_lossy().into_owned(),
        differences,
        found: snapshot(&shipped),
        observation: shipped,
    })
}

/// How the present object departs from the shipped one; `None` if there is neither.
fn departures(shipped: &Observation, present: &Observation) -> Option<Vec<DifferenceKind>> {
    Some(match (shipped, present) {
        (Observation::Missing, Observation::Missing) => return None,
        (Observation::Missing, Observation::Object(_)) => vec![DifferenceKind::Unexpected],
        (Observation::Object(_), Observation::Missing) => vec![DifferenceKind::Missing],
        (Observation::Object(shipped), Observation::Object(present)) => of_objects(shipped, present),
        _ => vec![DifferenceKind::Unreadable],
    })
}

fn of_objects(shipped: &ObjectObservation, present: &ObjectObservation) -> Vec<DifferenceKind> {
    if shipped.file_type != present.file_type {
        return vec![DifferenceKind::Type];
    }
    let owner = |object: &ObjectObservation| (object.uid, object.gid);
    let departs = [
        (shipped.sha256 != present.sha256, DifferenceKind::Content),
        (shipped.target != present.target, DifferenceKind::LinkTarget),
        (shipped.mode != present.mode, DifferenceKind::Mode),
        (owner(shipped) != owner(present), DifferenceKind::Owner),
    ];
    departs.into_iter().filter_map(|(departs, kind)| departs.then_some(kind)).collect()
}
