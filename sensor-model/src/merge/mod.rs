//! Many MachineConfigs become one rendered config.
//!
//! Parsed MachineConfigs come in, in any order; out comes what they say together, by the Machine
//! Config Operator's rules (which rest on Ignition's), with the MachineConfig that each part came
//! from. Contents stay in their encoded form. Disks, file systems, RAID, LUKS and the like are made once,
//! at the first boot, and are not what a running node can drift from: they are carried as they are
//! ([`Fixed`]), to be compared.

mod covers;
mod declarations;
mod error;
mod fixed;
mod rendered;
mod rules;

#[cfg(test)]
mod tests;

pub use declarations::{DECLARATIONS_ANNOTATION, DISRUPTION_ANNOTATION};
pub use error::MergeError;
pub use fixed::{Fixed, Section};
pub use rendered::{Declaration, Rendered, RenderedFile, RenderedUnit, RenderedUser, Sourced};

use crate::{
    expectation::Source,
    machine_config::{GENERATED_BY_ANNOTATION, MachineConfig, pool_of_rendered},
};
use std::collections::BTreeMap;

/// Merges MachineConfigs: those of role `worker` first, then all others, each group by name; a later
/// one wins.
///
/// # Errors
/// Two MachineConfigs of one name, parts that cannot stand together.
pub fn merge(mut configs: Vec<MachineConfig>) -> Result<Rendered, MergeError> {
    configs.sort_by(|a, b| rules::order(a).cmp(&rules::order(b)));
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for config in &configs {
        let Source { machine_config, origin } = &config.source;
        if let Some(first) = names.insert(machine_config, origin) {
            return Err(MergeError::DuplicateName {
                name: machine_config.to_string(),
                first: first.to_owned(),
                second: origin.to_string(),
            });
        }
    }
    let mut rendered = Rendered::default();
    for config in configs {
        rendered.roles.extend(config.role().map(str::to_owned));
        rules::add(&mut rendered, config);
    }
    rules::check(&rendered)?;
    Ok(rendered)
}

/// Takes one MachineConfig as rendered already: it says everything itself, the images included, also where
/// a controller made it.
///
/// # Errors
/// Parts that cannot stand together.
pub fn rendered(mut config: MachineConfig) -> Result<Rendered, MergeError> {
    config.annotations.remove(GENERATED_BY_ANNOTATION);
    // Only what renders a pool knows what its owners declared; anybody else could say anything of anybody.
    let is_rendered = pool_of_rendered(&config.source.machine_config).is_some();
    let kept = config.annotations.remove(DECLARATIONS_ANNOTATION).filter(|_| is_rendered);
    let origin = config.source.origin.clone();
    let mut rendered = Rendered::default();
    rendered.roles.extend(config.role().map(str::to_owned));
    rules::add(&mut rendered, config);
    rules::check(&rendered)?;
    if let Some(kept) = kept {
        declarations::restore(&mut rendered, &kept, &origin);
    }
    Ok(rendered)
}
