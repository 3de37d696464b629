//! A local file of `/etc` that keeps a newer default of the image from taking effect.
//!
//! In: a path of `/etc` that differs from what the booted image ships. Out: an earlier deployment of the host that ships something else there
//! than the booted one. An update leaves a changed file of `/etc` alone. So the host keeps the local file while the image's default changes.

use super::deployment;
use crate::observation::Observer;
use sensor_model::{
    compare::{Ids, compare},
    difference::{Difference, DifferenceKind},
    expectation::{Expectation, ExpectationSource, Expected, Thing},
    os::PristineEtc,
};
use std::path::{Path, PathBuf};

/// The difference of a local file of `/etc` that holds back what the booted image ships; `None` if it does not, or an ostree host does not show
/// it. `differences`: how the host differs from the expectation.
pub(crate) fn held_back(
    observer: &Observer,
    expectation: &Expectation,
    differences: &[Difference],
) -> Option<Difference> {
    if !matches!(expectation.source, ExpectationSource::ImageLayer(_)) || !has_other_content(differences) {
        return None;
    }
    let path = expectation.thing.path();
    // Only a path of `/etc` has a place, and the deployments of other paths need not be read.
    PristineEtc::Ostree.place(&path)?;
    let earlier = deployment::earlier_deployments(observer);
    let other = shipping_another(&earlier, &path, |there| differs_there(observer, expectation, there))?;
    Some(Difference {
        kind: DifferenceKind::HeldBack,
        expected: "what the booted image ships".to_owned(),
        found: format!(
            "a local state, which updates keep; the earlier deployment {other} ships another content"
        ),
        text: format!(
            "{} \"{}\" holds back what the booted image ships: the earlier deployment {other} ships another content",
            expectation.thing.noun(),
            path.display()
        ),
    })
}

/// The name of the first of these deployments that ships something else at a path of `/etc`. `differs`: how what is at a place of a deployment
/// differs from what the booted one ships.
pub(super) fn shipping_another(
    earlier: &[PathBuf],
    path: &Path,
    differs: impl Fn(&Path) -> Vec<Difference>,
) -> Option<String> {
    let shipped = PristineEtc::Ostree.place(path)?;
    let shipped = shipped.strip_prefix("/").unwrap_or(&shipped);
    let other = earlier.iter().find(|deployment| has_other_content(&differs(&deployment.join(shipped))))?;
    Some(other.file_name()?.to_string_lossy().into_owned())
}

/// Whether the content is another one, and not only the mode or the owner.
fn has_other_content(differences: &[Difference]) -> bool {
    differences.iter().any(|difference| {
        matches!(difference.kind, DifferenceKind::Content | DifferenceKind::LinkTarget | DifferenceKind::Type)
    })
}

/// How the object at another place differs from an expectation.
fn differs_there(observer: &Observer, expectation: &Expectation, there: &Path) -> Vec<Difference> {
    let mut elsewhere = expectation.clone();
    elsewhere.thing = match &elsewhere.expected {
        Expected::File(_) => Thing::file(there),
        Expected::Directory(_) => Thing::directory(there),
        Expected::Link(_) => Thing::link(there),
        _ => return Vec::new(),
    };
    elsewhere.label = None;
    let found = observer.observe(&elsewhere).observation;
    compare(&elsewhere, &found, &Ids::default())
}
