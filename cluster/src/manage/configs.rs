//! The desired config from the API server.
//!
//! In: the name of a MachineConfig. Out: the MachineConfig and the cluster's disruption policy, as the sensor takes them.

use crate::publish::{PublishError, limited};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use sensor_model::socket::DesiredConfig;
use serde_json::Value;

/// The name of the only `MachineConfiguration`.
const CLUSTER: &str = "cluster";

/// The kinds of objects that a config consists of.
#[derive(Debug)]
pub(super) struct Configs {
    configs: Api<DynamicObject>,
    policies: Api<DynamicObject>,
}

impl Configs {
    /// Nothing is asked yet.
    pub(super) fn new(client: &Client) -> Self {
        let kind = |group: &str, kind: &str, plural: &str| ApiResource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            api_version: format!("{group}/v1"),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        let configs = kind("machineconfiguration.openshift.io", "MachineConfig", "machineconfigs");
        let policies = kind("operator.openshift.io", "MachineConfiguration", "machineconfigurations");
        Self {
            configs: Api::all_with(client.clone(), &configs),
            policies: Api::all_with(client.clone(), &policies),
        }
    }

    /// The config of this name; `None` if there is no such MachineConfig.
    ///
    /// # Errors
    /// Why the API server gives no answer.
    pub(super) async fn desired(&self, name: &str) -> Result<Option<DesiredConfig>, PublishError> {
        let Some(config) = present(limited("MachineConfig", self.configs.get(name)).await)? else {
            return Ok(None);
        };
        let policy = present(limited("MachineConfiguration", self.policies.get(CLUSTER)).await)?;
        Ok(Some(DesiredConfig { machine_config: plain(config), node_disruption: policy.map(plain) }))
    }
}

/// `None` for an object that does not exist, and for one of a kind that the cluster does not have.
fn present<T>(answer: Result<T, PublishError>) -> Result<Option<T>, PublishError> {
    match answer {
        Err(error) if error.is_missing() => Ok(None),
        answer => answer.map(Some),
    }
}

/// The object without the records of its writers, which may be larger than the config.
fn plain(mut object: DynamicObject) -> Value {
    object.metadata.managed_fields = None;
    // An object that was read from JSON always has one.
    serde_json::to_value(object).unwrap_or_default()
}
