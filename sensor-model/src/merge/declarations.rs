//! What owners of MachineConfigs declare, also once it is rendered.
//!
//! In a rendered MachineConfig nothing tells any more who said what. For those MachineConfigs whose owners
//! declare something, an annotation keeps it: the declaration and what it is about. Reading it comes here; a
//! rendered config with an annotation that cannot be read has no declarations, which never lessens anything.

use super::rendered::{Declaration, Rendered, Sourced};
use crate::expectation::Source;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The annotation by which the owner of a MachineConfig says which action its content needs.
pub const DISRUPTION_ANNOTATION: &str = "holdfast.dev/disruption";

/// The annotation of a rendered MachineConfig that keeps what owners declared: JSON by name.
pub const DECLARATIONS_ANNOTATION: &str = "holdfast.dev/declarations";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    disruption: String,
    labels: BTreeMap<String, String>,
    files: Vec<String>,
    directories: Vec<String>,
    links: Vec<String>,
    units: Vec<String>,
}

/// Takes what an annotation keeps into a config that was read as rendered already.
pub(super) fn restore(rendered: &mut Rendered, annotation: &str, origin: &str) {
    let Ok(kept) = serde_json::from_str::<BTreeMap<String, Kept>>(annotation) else { return };
    for (name, kept) in kept {
        let source = Source::new(name.as_str(), origin);
        again(&mut rendered.files, &kept.files, &source);
        again(&mut rendered.directories, &kept.directories, &source);
        again(&mut rendered.links, &kept.links, &source);
        for unit in kept.units {
            if let Some(unit) = rendered.units.get_mut(&unit) {
                unit.sources_mut().for_each(|part| part.clone_from(&source));
            }
        }
        rendered.sources.push(source);
        rendered.declarations.insert(name, Declaration { text: kept.disruption, labels: kept.labels });
    }
}

fn again<T>(things: &mut BTreeMap<String, Sourced<T>>, paths: &[String], source: &Source) {
    for path in paths {
        if let Some(thing) = things.get_mut(path) {
            thing.source.clone_from(source);
        }
    }
}
