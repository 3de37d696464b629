//! Reads of the API as the admin, within the process of the tests. A process of kubectl for each question takes more of a processor than the
//! API server's answer, and a test that waits asks five times a second.
//!
//! In: the admin's config, and what kubectl would be asked for. Out: the object, or the API server's error.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hyper::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// Longest time until an API server answers. One that was killed refuses the connection at once.
const ANSWER: Duration = Duration::from_secs(30);

/// A client of one API server.
pub(super) struct Reads {
    runtime: Runtime,
    client: Client,
}

impl Reads {
    /// With the config in this file.
    pub(super) fn new(config: &Path) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(async {
            let config = Kubeconfig::read_from(config)?;
            let mut config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
            config.read_timeout = Some(ANSWER);
            Client::try_from(config).map_err(anyhow::Error::from)
        })?;
        Ok(Self { runtime, client })
    }

    /// The answer to `GET` of a path.
    pub(super) fn get(&self, path: &str) -> Result<Value> {
        let request = Request::get(path).body(Vec::new())?;
        self.runtime.block_on(self.client.request(request)).with_context(|| format!("GET {path}"))
    }
}

/// The answer to a JSON patch of a path with the config in this file. kubectl would first read the object, which a reporter's account may not.
pub(super) fn json_patch(config: &Path, path: &str, operations: &Value) -> Result<Value> {
    let api = Reads::new(config)?;
    let request = Request::patch(path).header("content-type", "application/json-patch+json");
    let request = request.body(operations.to_string().into_bytes())?;
    api.runtime.block_on(api.client.request(request)).with_context(|| format!("PATCH {path}"))
}

/// The path of what `kubectl get` would be asked for; `None` for other questions, which kubectl asks.
pub(super) fn path(arguments: &[&str]) -> Option<String> {
    match *arguments {
        ["node", name] => Some(format!("/api/v1/nodes/{name}")),
        ["driftreport", name] => Some(format!("/apis/holdfast.dev/v1alpha1/driftreports/{name}")),
        ["driftpolicy", name] => Some(format!("/apis/holdfast.dev/v1alpha1/driftpolicies/{name}")),
        ["events", "--namespace", namespace, "--field-selector", selector] => {
            let selector = selector.replace('=', "%3D").replace(',', "%2C");
            Some(format!("/api/v1/namespaces/{namespace}/events?fieldSelector={selector}"))
        }
        _ => None,
    }
}
