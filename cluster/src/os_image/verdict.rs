//! Whether the opinions about a node's OS image agree.
//!
//! In: the opinions. Out: a verdict. Nothing is read here.

use super::opinions::{Opinions, Subject};
use super::sentences;

/// Whether the opinions agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// They agree, as far as they can be compared.
    InStep,
    /// An update is under way, so they may differ.
    Updating,
    /// One differs from the others. The sentence says which one.
    OutOfStep(String),
}

/// Compares the opinions.
pub fn verdict(subject: &Subject, opinions: &Opinions) -> Verdict {
    let bootc_node = opinions.bootc_node.as_ref();
    if subject.is_updating() || bootc_node.is_some_and(|bootc_node| !bootc_node.is_settled) {
        return Verdict::Updating;
    }
    let sentence = sentences::of_images(subject, bootc_node).or_else(|| of_builds(subject, opinions));
    sentence.map_or(Verdict::InStep, Verdict::OutOfStep)
}

/// Compares the configs from which the booted image was built, by its builds and its label, with the config of the node.
fn of_builds(subject: &Subject, opinions: &Opinions) -> Option<String> {
    let config = subject.current_config.as_deref()?;
    let origins = opinions.origins(subject);
    let first = origins.first().filter(|first| first.config != config)?;
    let booted = subject.image(opinions.bootc_node.as_ref());
    if let Some(own) = opinions.configs.get(config) {
        let known: Option<Vec<_>> =
            origins.iter().map(|origin| Some(own.differing(opinions.configs.get(origin.config)?))).collect();
        if let Some(differing) = known {
            let fields = differing.first().filter(|_| differing.iter().all(|fields| !fields.is_empty()))?;
            return Some(sentences::of_fields(subject, first, config, fields));
        }
    }
    // Without the configs: the operator builds an image for the node's config only if that config needs another one.
    let own = opinions.builds.iter().find(|build| {
        build.config == config && build.image.as_deref().and_then(|image| booted.is(image)) == Some(false)
    })?;
    Some(sentences::of_another_build(subject, first, own, config))
}
