//! Pools: the MachineConfigs that a pool selects, and its rendered MachineConfig.
//!
//! In: objects of manifests. Out: the pool's rendered MachineConfig with its name. The rules and the texts of errors are the
//! Machine Config Operator's.

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

/// Reads the pools among a manifest's objects, in their order.
///
/// # Errors
/// The first invalid pool, or two pools of one name.
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
        check_name(&object.name).map_err(|error| fault("metadata.name", error.to_string()))?;
        if let Some(other) = pools.iter().find(|pool| pool.name == object.name) {
            return Err(fault("metadata.name", format!("it is in {} already", other.origin)));
        }
        let at = "spec.machineConfigSelector";
        let selector = Selector::read(object.value.pointer("/spec/machineConfigSelector"))
            .map_err(|error| fault(&format!("{at}{}", error.field), error.reason))?;
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

/// Why a pool's name is refused.
#[derive(Debug, thiserror::Error)]
enum PoolNameError {
    #[error("Required value")]
    Missing,
    #[error("{} is not a name of lower case letters, digits, '-' and '.'", quote(_0))]
    Form(String),
}

/// Checks a name by the API server's rules (RFC 1123 subdomain).
fn check_name(name: &str) -> Result<(), PoolNameError> {
    let fine = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        !part.is_empty()
            && part.bytes().all(|byte| inner(byte) || byte == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    if name.is_empty() {
        return Err(PoolNameError::Missing);
    }
    if name.len() > 200 || !name.split('.').all(fine) {
        return Err(PoolNameError::Form(name.to_owned()));
    }
    Ok(())
}
