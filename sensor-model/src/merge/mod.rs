//! Many MachineConfigs become one rendered config.
//!
//! In: parsed MachineConfigs, in any order. Out: their merge by the Machine Config Operator's rules, which extend Ignition's,
//! each part with the MachineConfig that declares it. Contents stay encoded. Disks, file systems, RAID and LUKS are created
//! once, at the first boot, so a running node cannot drift from them. The merge only carries them ([`Fixed`]), so that two
//! configs can be compared.

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

/// Merges MachineConfigs: those of role `worker` first, then all others, each group in the order of their names. A later one
/// overrides an earlier one.
///
/// # Errors
/// Two MachineConfigs of one name, or parts that contradict each other.
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

/// Reads one MachineConfig as an already rendered one: it declares everything itself, including the images, even if a
/// controller generated it.
///
/// # Errors
/// Parts that contradict each other.
pub fn rendered(mut config: MachineConfig) -> Result<Rendered, MergeError> {
    config.annotations.remove(GENERATED_BY_ANNOTATION);
    // Only the program that renders a pool sees the owners' annotations. In any other MachineConfig the annotation could claim
    // any owner.
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
