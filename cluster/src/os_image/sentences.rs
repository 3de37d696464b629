//! The sentences that say which opinion about the OS image is out of step.

use super::opinions::{BootcNode, Build, Origin, Subject, digest_of};
use crate::text::fit;

/// Most bytes of one image's name in a sentence.
const IMAGE_BYTES: usize = 256;
/// Most bytes of a name of an object in a sentence.
const NAME_BYTES: usize = 128;

/// Compares the booted image, the annotation and the `BootcNode`; `None` if they agree, or cannot be compared.
pub(super) fn of_images(subject: &Subject, bootc_node: Option<&BootcNode>) -> Option<String> {
    let image = subject.image(bootc_node);
    let booted = booted(subject);
    let bootc = format!("BootcNode {}", fit(&subject.node, NAME_BYTES));
    let desired = subject.desired_image.as_deref();
    let wanted = bootc_node.map(|bootc_node| bootc_node.desired.as_str());
    let is = |other: Option<&str>| other.and_then(|other| image.is(other));
    let name = |other: Option<&str>| short(other.unwrap_or_default());
    let different = match (desired.and_then(digest_of), wanted.and_then(digest_of)) {
        (Some(desired), Some(wanted)) => desired != wanted,
        _ => false,
    };
    let (annotated, wants) = (name(desired), name(wanted));
    match (is(desired), is(wanted)) {
        (Some(false), Some(false)) if different => Some(format!(
            "the node booted {booted}; the annotation desiredImage names {annotated}, and {bootc} wants {wants}"
        )),
        (Some(false), Some(false)) => Some(format!(
            "the node booted {booted}; the annotation desiredImage and {bootc} name {annotated}"
        )),
        (Some(false), Some(true)) => Some(format!(
            "the annotation desiredImage names {annotated}; the node booted {booted}, and {bootc} wants the same image"
        )),
        (Some(false), None) => {
            Some(format!("the node booted {booted}; the annotation desiredImage names {annotated}"))
        }
        (Some(true), Some(false)) => Some(format!(
            "{bootc} wants {wants}; the node booted {booted}, and its annotation desiredImage names the same image"
        )),
        (None, Some(false)) => Some(format!("the node booted {booted}; {bootc} wants {wants}")),
        (None, None) if different => {
            Some(format!("{bootc} wants {wants}; the node's annotation desiredImage names {annotated}"))
        }
        _ => {
            let reported = bootc_node?.booted.as_deref();
            let other = name(reported);
            let is_other = is(reported) == Some(false);
            is_other.then(|| format!("{bootc} reports {other} as booted; the node booted {booted}"))
        }
    }
}

/// The booted image was built from a config that needs another image.
pub(super) fn of_fields(subject: &Subject, origin: &Origin<'_>, config: &str, fields: &[&str]) -> String {
    let config = object(config);
    format!(
        "{}; the node's config is {config}, which differs in {}",
        built(subject, origin),
        fields.join(", ")
    )
}

/// There is another image for the node's config.
pub(super) fn of_another_build(subject: &Subject, origin: &Origin<'_>, own: &Build, config: &str) -> String {
    let image = short(own.image.as_deref().unwrap_or_default());
    let (name, config) = (object(&own.name), object(config));
    format!(
        "{}; the node's config is {config}, from which MachineOSBuild {name} built {image}",
        built(subject, origin)
    )
}

fn built(subject: &Subject, origin: &Origin<'_>) -> String {
    let (booted, config) = (booted(subject), object(origin.config));
    match origin.build {
        Some(build) => format!("MachineOSBuild {} built the booted {booted} from {config}", object(build)),
        None => format!("the label of the booted {booted} says that it was built from {config}"),
    }
}

fn booted(subject: &Subject) -> String {
    let digest = || subject.booted_digest.as_deref().unwrap_or("an unknown image");
    short(subject.booted.as_deref().unwrap_or_else(digest))
}

fn object(name: &str) -> String {
    fit(name, NAME_BYTES)
}

fn short(image: &str) -> String {
    fit(image, IMAGE_BYTES)
}
