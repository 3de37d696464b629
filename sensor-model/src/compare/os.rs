//! Booted kernel arguments and OS image.
//!
//! In: the declared arguments or image, and the booted ones. Out: a difference with the Machine Config Operator's text.

use crate::{
    difference::{Difference, DifferenceKind},
    expectation::{KernelArgumentsExpectation, NotCarried, OsImageExpectation},
    os::{Deployment, arguments::missing},
    text::quote,
};
use std::fmt::Write as _;

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

/// Compares the booted image with the expected one, and with the config that it was built from.
pub(super) fn image(declared: &OsImageExpectation, booted: &Deployment) -> Vec<Difference> {
    let lacking = declared.not_carried.as_deref().map(not_carried);
    another_image(declared, booted).into_iter().chain(lacking).collect()
}

fn not_carried(lacking: &NotCarried) -> Difference {
    let mut paths = lacking.paths.join(", ");
    if lacking.more > 0 {
        // Writing to a string cannot fail.
        let _ = write!(paths, " and {} more", lacking.more);
    }
    let config = &lacking.config;
    Difference {
        kind: DifferenceKind::OsImage,
        expected: format!("the files of {config}"),
        text: format!(
            "the booted image was built from {config}, and does not have these files as {config} declares them: {paths}"
        ),
        found: paths,
    }
}

/// Compares the booted image with the one that the cluster built for the node. Without one it compares it with the config's. If the
/// cluster built one, the text of a difference also names the config's image. An image that the cluster built and that the next boot is into
/// is no difference: the Machine Config Operator's daemon names it before it reboots the node.
fn another_image(declared: &OsImageExpectation, booted: &Deployment) -> Option<Difference> {
    let built = booted.cluster_image.as_deref();
    let expected = built.unwrap_or(&declared.image);
    if booted.is(expected) || (built.is_some() && booted.cluster_image_is_staged) {
        return None;
    }
    let (expected, found) = (expected.to_owned(), booted.name().to_owned());
    let mut text = format!("expected target osImageURL {}, have {}", quote(&expected), quote(&found));
    if built.is_some() {
        text.push_str(": the cluster built the expected image for this node, and the node booted ");
        if booted.is(&declared.image) {
            text.push_str("the config's");
        } else {
            // Writing to a string cannot fail.
            let _ = write!(text, "neither that one nor the config's, {}", quote(&declared.image));
        }
    }
    Some(Difference { kind: DifferenceKind::OsImage, expected, found, text })
}
