//! The objects of one file of manifests.
//!
//! In: nothing. Out: the forms of a MachineConfig, of other objects and of a file.

use super::error::ManifestError;
use crate::{expectation::Source, ignition};
use serde_json::Value;
use std::collections::BTreeMap;

/// The version of the Machine Config Operator's API.
pub const API_VERSION: &str = "machineconfiguration.openshift.io/v1";

/// The label that names the pool of a MachineConfig.
pub const ROLE_LABEL: &str = "machineconfiguration.openshift.io/role";

/// Set on MachineConfigs that a controller generated. Those do not override the OS image.
pub const GENERATED_BY_ANNOTATION: &str = "machineconfiguration.openshift.io/generated-by-controller-version";

/// One MachineConfig, or one plain Ignition config that is used like one.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineConfig {
    /// Name and file.
    pub source: Source,
    /// The rules of the config; plain for an Ignition file without a manifest.
    pub dialect: ignition::Dialect,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `spec.config`; `None` when the MachineConfig has none.
    pub config: Option<ignition::spec::Config>,
    /// `spec.kernelArguments`.
    pub kernel_arguments: Vec<String>,
    /// `spec.kernelType`.
    pub kernel_type: Option<String>,
    /// `spec.extensions`.
    pub extensions: Vec<String>,
    /// `spec.fips`.
    pub fips: bool,
    /// `spec.osImageURL`.
    pub os_image_url: Option<String>,
    /// `spec.baseOSExtensionsContainerImage`.
    pub base_os_extensions_container_image: Option<String>,
    /// Unusual values; each text names the field.
    pub warnings: Vec<String>,
}

impl MachineConfig {
    /// The pool role from its label.
    pub fn role(&self) -> Option<&str> {
        self.labels.get(ROLE_LABEL).map(String::as_str)
    }
}

/// An object of another kind (a MachineConfigPool, a MachineConfiguration, …), uninterpreted.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherObject {
    /// `apiVersion`, empty when missing.
    pub api_version: String,
    /// `kind`.
    pub kind: String,
    /// `metadata.name`, empty when missing.
    pub name: String,
    /// The file it was read from.
    pub origin: String,
    /// The whole object.
    pub value: Value,
}

/// The content of one file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifest {
    /// MachineConfigs in the order of the file.
    pub machine_configs: Vec<MachineConfig>,
    /// Everything else in the order of the file.
    pub others: Vec<OtherObject>,
    /// Fields that MachineConfigs and Ignition configs do not have. Their content is ignored.
    pub unknown: Vec<ManifestError>,
}

impl Manifest {
    /// Refuses a file with an unknown field, because the author meant to declare something by it. Objects of an API server may
    /// have fields of a later version; their reader warns of [`Manifest::unknown`] instead.
    ///
    /// # Errors
    /// The first such field, with the nearest known one.
    pub fn refuse_unknown(&self) -> Result<(), ManifestError> {
        self.unknown.first().cloned().map_or(Ok(()), Err)
    }
}

/// The pool of a rendered MachineConfig, by its name `rendered-<pool>-<32 digits>`; `None` for any other name.
pub fn pool_of_rendered(name: &str) -> Option<&str> {
    let (pool, hash) = name.strip_prefix("rendered-")?.rsplit_once('-')?;
    let digits = hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    (digits && !pool.is_empty()).then_some(pool)
}
