//! The sentences that say which opinion about the OS image is out of step.

use super::opinions::{BootcNode, Build, Subject, digest_of};
use crate::text::fit;

/// Most bytes of one image's name in a sentence.
const IMAGE_BYTES: usize = 256;
/// Most bytes of a name of an object in a sentence.
const NAME_BYTES: usize = 128;

/// Compares the booted image, the annotation and the `BootcNode`; `None` if they agree, or cannot be compared.
pub(super) fn of_images(subject: &Subject, bootc_node: Option<&BootcNode>) -> Option<String> {
    let image = subject.image(bootc_node);
    let digest = || subject.booted_digest.as_deref().unwrap_or("an unknown image");
    let booted = short(image.name.as_deref().unwrap_or_else(digest));
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
pub(super) fn of_fields(build: &Build, config: &str, fields: &[&str]) -> String {
    format!(
        "{}; the node's config is {}, which differs in {}",
        built(build),
        object(config),
        fields.join(", ")
    )
}

/// There is another image for the node's config.
pub(super) fn of_another_build(build: &Build, own: &Build, config: &str) -> String {
    let image = short(own.image.as_deref().unwrap_or_default());
    let (name, config) = (object(&own.name), object(config));
    format!("{}; the node's config is {config}, from which MachineOSBuild {name} built {image}", built(build))
}

fn built(build: &Build) -> String {
    let image = short(build.image.as_deref().unwrap_or_default());
    format!("MachineOSBuild {} built the booted {image} from {}", object(&build.name), object(&build.config))
}

fn object(name: &str) -> String {
    fit(name, NAME_BYTES)
}

fn short(image: &str) -> String {
    fit(image, IMAGE_BYTES)
}
