//! Pools: which `MachineConfig`s are a pool's, and what they say together.
//!
//! Objects of manifests come in; out comes the pool's rendered MachineConfig with its name. The rules are the
//! Machine Config Operator's, and so are the texts of what is wrong. Nothing is written anywhere.

mod render;
mod selector;
#[cfg(test)]
mod tests;

pub use render::{RenderedMachineConfig, render};
pub use selector::Selector;

use crate::{
    machine_config::{API_VERSION, MachineConfig, ManifestError, OtherObject, ROLE_LABEL},
    merge::MergeError,
    text::quote,
};
use serde_json::Value;

/// Pools that stand for themselves; every other one is a custom pool.
const OWN_POOLS: [&str; 3] = ["arbiter", "master", "worker"];

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`, which a pool in a cluster has.
    pub uid: Option<String>,
    /// Which MachineConfigs are its own.
    pub selector: Selector,
    /// The file it was read from.
    pub origin: String,
}

/// What a cluster says of images, where nobody overrides them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterImages {
    /// The OS image.
    pub os_image_url: Option<String>,
    /// The image with extensions.
    pub extensions_image: Option<String>,
    /// Which release they are of.
    pub release_version: Option<String>,
}

/// Why there is no rendered config.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// Nothing is selected.
    #[error(
        "MachineConfigPool {}: spec.machineConfigSelector: no MachineConfigs found matching selector {selector}",
        quote(pool)
    )]
    NothingSelected {
        /// The pool.
        pool: String,
        /// Its selector.
        selector: String,
    },
    /// A MachineConfig is selected that says nothing of a role.
    #[error("{origin}: cannot find label in MachineConfig {name}")]
    NoRole {
        /// The MachineConfig.
        name: String,
        /// Its file.
        origin: String,
    },
    /// The selected MachineConfigs don't go together.
    #[error("MachineConfigPool {}: {reason}", quote(pool))]
    Merge {
        /// The pool.
        pool: String,
        /// Why.
        reason: MergeError,
    },
    /// What came of the merge could not be written.
    #[error("MachineConfigPool {}: rendered config: {reason}", quote(pool))]
    Unwritable {
        /// The pool.
        pool: String,
        /// Why.
        reason: String,
    },
}

/// Reads the pools among a manifest's objects, in their order.
///
/// # Errors
/// The first pool with a fault, and two pools of one name.
pub fn pools(objects: &[OtherObject]) -> Result<Vec<Pool>, ManifestError> {
    let mut pools: Vec<Pool> = Vec::new();
    for object in objects.iter().filter(|object| object.kind == "MachineConfigPool") {
        let fault = |field: &str, reason: String| ManifestError {
            origin: object.origin.clone(),
            object: format!("MachineConfigPool {}", quote(&object.name)),
            field: field.to_owned(),
            reason,
        };
        if object.api_version != API_VERSION {
            let reason = format!("{} is not supported: {API_VERSION} is", quote(&object.api_version));
            return Err(fault("apiVersion", reason));
        }
        check_name(&object.name).map_err(|reason| fault("metadata.name", reason))?;
        if let Some(other) = pools.iter().find(|pool| pool.name == object.name) {
            return Err(fault("metadata.name", format!("it is in {} already", other.origin)));
        }
        let at = "spec.machineConfigSelector";
        let selector = Selector::read(object.value.pointer("/spec/machineConfigSelector"))
            .map_err(|(field, reason)| fault(&format!("{at}{field}"), reason))?;
        if !OWN_POOLS.contains(&object.name.as_str()) && !selector.names(ROLE_LABEL, "worker") {
            let reason = "All custom MachineConfigPools must inherit from the worker pool and must have a \
                          machineConfigSelector that matches for a \
                          'machineconfiguration.openshift.io/role: worker' label";
            return Err(fault(at, reason.to_owned()));
        }
        let uid = object.value.pointer("/metadata/uid").and_then(Value::as_str);
        pools.push(Pool {
            name: object.name.clone(),
            uid: uid.map(str::to_owned),
            selector,
            origin: object.origin.clone(),
        });
    }
    Ok(pools)
}

/// Reads the cluster's images from a `ControllerConfig` among a manifest's objects.
pub fn cluster_images(objects: &[OtherObject]) -> ClusterImages {
    let mut images = ClusterImages::default();
    for object in objects.iter().filter(|object| object.kind == "ControllerConfig") {
        let said = |pointer: &str| {
            let text = object.value.pointer(pointer).and_then(Value::as_str);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        images.os_image_url = said("/spec/baseOSContainerImage").or_else(|| said("/spec/osImageURL"));
        images.extensions_image = said("/spec/baseOSExtensionsContainerImage");
        images.release_version =
            said("/metadata/annotations/machineconfiguration.openshift.io~1release-image-version");
    }
    images
}

/// The MachineConfigs of a pool, in the order of the input.
///
/// # Errors
/// None is selected, or one that says nothing of a role.
pub fn select(pool: &Pool, configs: &[MachineConfig]) -> Result<Vec<MachineConfig>, RenderError> {
    let selected: Vec<MachineConfig> =
        configs.iter().filter(|config| pool.selector.matches(&config.labels)).cloned().collect();
    if selected.is_empty() {
        return Err(RenderError::NothingSelected {
            pool: pool.name.clone(),
            selector: pool.selector.to_string(),
        });
    }
    match selected.iter().find(|config| config.role().is_none()) {
        Some(config) => Err(RenderError::NoRole {
            name: config.source.machine_config.to_string(),
            origin: config.source.origin.to_string(),
        }),
        None => Ok(selected),
    }
}

/// A name that the API server takes.
fn check_name(name: &str) -> Result<(), String> {
    let fine = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        !part.is_empty()
            && part.bytes().all(|byte| inner(byte) || byte == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    if name.is_empty() {
        return Err("Required value".to_owned());
    }
    if name.len() > 200 || !name.split('.').all(fine) {
        return Err(format!("{} is not a name of lower case letters, digits, '-' and '.'", quote(name)));
    }
    Ok(())
}
