//! Pools: the MachineConfigs that a pool selects, and its rendered MachineConfig.
//!
//! In: objects of manifests. Out: the pool's rendered MachineConfig with its name. The rules and the texts of errors are the
//! Machine Config Operator's.

mod render;
mod selector;
#[cfg(test)]
mod tests;

pub use render::{RenderedMachineConfig, render};
pub use selector::{Selector, SelectorFault};

use crate::{
    machine_config::{API_VERSION, MachineConfig, OtherObject, ROLE_LABEL},
    merge::MergeError,
    text::quote,
};
use serde_json::Value;

/// The built-in pools; every other one is a custom pool.
const OWN_POOLS: [&str; 3] = ["arbiter", "master", "worker"];

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`, which a pool in a cluster has.
    pub uid: Option<String>,
    /// Selects the pool's MachineConfigs.
    pub selector: Selector,
    /// The file it was read from.
    pub origin: String,
}

/// The cluster's images, for pools whose MachineConfigs override none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterImages {
    /// The OS image.
    pub os_image_url: Option<String>,
    /// The image with extensions.
    pub extensions_image: Option<String>,
    /// The release that the images are from.
    pub release_version: Option<String>,
}

/// Why there is no rendered config.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The pool selects no MachineConfig.
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
    /// The pool selects a MachineConfig without a role.
    #[error("{origin}: cannot find label in MachineConfig {name}")]
    NoRole {
        /// The MachineConfig.
        name: String,
        /// Its file.
        origin: String,
    },
    /// The selected MachineConfigs cannot be merged.
    #[error("MachineConfigPool {}: {reason}", quote(pool))]
    Merge {
        /// The pool.
        pool: String,
        /// Why.
        reason: MergeError,
    },
    /// The merge could not be written as an object.
    #[error("MachineConfigPool {}: rendered config: {reason}", quote(pool))]
    Unwritable {
        /// The pool.
        pool: String,
        /// Why.
        reason: String,
    },
}

/// A pool that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: MachineConfigPool {}: {field}: {reason}", quote(pool))]
pub struct PoolError {
    /// The file.
    pub origin: String,
    /// `metadata.name`.
    pub pool: String,
    /// The field, as a path from the object's root.
    pub field: String,
    /// What is wrong with it.
    pub reason: PoolFault,
}

/// What is wrong with a field of a pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolFault {
    /// The version is not supported.
    #[error("{} is not supported: {API_VERSION} is", quote(_0))]
    ApiVersion(String),
    /// The pool has no name.
    #[error("Required value")]
    NoName,
    /// The name is not one that an API server accepts.
    #[error("{} is not a name of lower case letters, digits, '-' and '.'", quote(_0))]
    Name(String),
    /// Another file has a pool of this name.
    #[error("it is in {0} already")]
    Twice(String),
    /// The selector is invalid.
    #[error(transparent)]
    Selector(#[from] SelectorFault),
    /// A custom pool does not select the MachineConfigs of workers. The text is the Machine Config Operator's.
    #[error(
        "All custom MachineConfigPools must inherit from the worker pool and must have a \
         machineConfigSelector that matches for a \
         'machineconfiguration.openshift.io/role: worker' label"
    )]
    NotOfWorkers,
}

/// Reads the pools among a manifest's objects, in their order.
///
/// # Errors
/// The first invalid pool, or two pools of one name.
pub fn pools(objects: &[OtherObject]) -> Result<Vec<Pool>, PoolError> {
    let mut pools: Vec<Pool> = Vec::new();
    for object in objects.iter().filter(|object| object.kind == "MachineConfigPool") {
        let error = |field: &str, reason: PoolFault| PoolError {
            origin: object.origin.clone(),
            pool: object.name.clone(),
            field: field.to_owned(),
            reason,
        };
        if object.api_version != API_VERSION {
            return Err(error("apiVersion", PoolFault::ApiVersion(object.api_version.clone())));
        }
        check_name(&object.name).map_err(|reason| error("metadata.name", reason))?;
        if let Some(other) = pools.iter().find(|pool| pool.name == object.name) {
            return Err(error("metadata.name", PoolFault::Twice(other.origin.clone())));
        }
        let at = "spec.machineConfigSelector";
        let selector = Selector::read(object.value.pointer("/spec/machineConfigSelector"))
            .map_err(|wrong| error(&format!("{at}{}", wrong.field), wrong.reason.into()))?;
        if !OWN_POOLS.contains(&object.name.as_str()) && !selector.names(ROLE_LABEL, "worker") {
            return Err(error(at, PoolFault::NotOfWorkers));
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
        let text_at = |pointer: &str| {
            let text = object.value.pointer(pointer).and_then(Value::as_str);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        images.os_image_url = text_at("/spec/baseOSContainerImage").or_else(|| text_at("/spec/osImageURL"));
        images.extensions_image = text_at("/spec/baseOSExtensionsContainerImage");
        images.release_version =
            text_at("/metadata/annotations/machineconfiguration.openshift.io~1release-image-version");
    }
    images
}

/// The MachineConfigs of a pool, in the order of the input.
///
/// # Errors
/// No MachineConfig is selected, or one without a role.
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

/// Checks a name by the API server's rules (RFC 1123 subdomain).
fn check_name(name: &str) -> Result<(), PoolFault> {
    let fine = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        !part.is_empty()
            && part.bytes().all(|byte| inner(byte) || byte == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    if name.is_empty() {
        return Err(PoolFault::NoName);
    }
    if name.len() > 200 || !name.split('.').all(fine) {
        return Err(PoolFault::Name(name.to_owned()));
    }
    Ok(())
}
