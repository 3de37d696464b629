//! Booted kernel arguments and OS image.
//!
//! In: the declared arguments or image, and the booted ones. Out: a difference with the Machine Config Operator's text.

use crate::{
    difference::{Difference, DifferenceKind},
    expectation::{KernelArgumentsExpectation, OsImageExpectation},
    os::{Deployment, arguments::missing},
    text::quote,
};

/// Declared arguments that the kernel was not booted with, without those that wait for the next boot. Further arguments of the
/// kernel are no difference.
pub(super) fn arguments(declared: &KernelArgumentsExpectation, found: &[String]) -> Vec<Difference> {
    let waits = |word: &&str| !missing(&[(*word).to_owned()], &declared.waiting).is_empty();
    let missing = missing(&declared.arguments, found).into_iter().filter(waits).collect::<Vec<_>>().join(" ");
    if missing.is_empty() {
        return Vec::new();
    }
    vec![Difference {
        kind: DifferenceKind::KernelArgument,
        text: format!("missing expected kernel arguments: [{missing}]"),
        expected: missing,
        found: "missing".to_owned(),
    }]
}

pub(super) fn image(declared: &OsImageExpectation, booted: &Deployment) -> Vec<Difference> {
    if booted.is(&declared.image) {
        return Vec::new();
    }
    let (expected, found) = (declared.image.clone(), booted.name().to_owned());
    let text = format!("expected target osImageURL {}, have {}", quote(&expected), quote(&found));
    vec![Difference { kind: DifferenceKind::OsImage, expected, found, text }]
}
