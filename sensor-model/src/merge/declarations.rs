//! The disruption that owners of MachineConfigs declare, read back from a rendered MachineConfig.
//!
//! In: an annotation of a rendered MachineConfig. Out: the declarations and the sources of their parts, added to the config. A
//! rendered MachineConfig does not keep which MachineConfig declares which part. For MachineConfigs with a declared disruption,
//! the annotation keeps the declaration and its parts. If it cannot be read, the config has no declarations, which never reduces
//! a disruption.

use super::rendered::{Declaration, Rendered, Sourced};
use crate::expectation::Source;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The annotation by which the owner of a MachineConfig declares the actions that its content needs.
pub const DISRUPTION_ANNOTATION: &str = "holdfast.dev/disruption";

/// The annotation of a rendered MachineConfig with the declarations of all owners: JSON, by the name of the MachineConfig.
pub const DECLARATIONS_ANNOTATION: &str = "holdfast.dev/declarations";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptDeclaration {
    disruption: String,
    labels: BTreeMap<String, String>,
    files: Vec<String>,
    directories: Vec<String>,
    links: Vec<String>,
    units: Vec<String>,
}

/// Adds the declarations of an annotation to a config that was read as rendered.
pub(super) fn restore(rendered: &mut Rendered, annotation: &str, origin: &str) {
    let Ok(kept) = serde_json::from_str::<BTreeMap<String, KeptDeclaration>>(annotation) else { return };
    for (name, kept) in kept {
        let source = Source::new(name.as_str(), origin);
        set_source(&mut rendered.files, &kept.files, &source);
        set_source(&mut rendered.directories, &kept.directories, &source);
        set_source(&mut rendered.links, &kept.links, &source);
        for unit in kept.units {
            if let Some(unit) = rendered.units.get_mut(&unit) {
                unit.sources_mut().for_each(|part| part.clone_from(&source));
            }
        }
        rendered.sources.push(source);
        rendered.declarations.insert(name, Declaration { text: kept.disruption, labels: kept.labels });
    }
}

fn set_source<T>(things: &mut BTreeMap<String, Sourced<T>>, paths: &[String], source: &Source) {
    for path in paths {
        if let Some(thing) = things.get_mut(path) {
            thing.source.clone_from(source);
        }
    }
}
