//! The watches and the writes of the controller.

use super::status::status;
use crate::api::{DriftPolicy, DriftPolicyStatus, DriftReport, ReportedPolicy};
use crate::listen::{PageAddress, listen};
use crate::probes;
use crate::publish::{PublishError, limited};
use crate::watching::watched;
use futures_util::stream::StreamExt as _;
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::watcher::Event;
use kube::{Client, Config, Resource, ResourceExt as _};
use serde::Deserialize;
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The name under which the API server keeps which fields are the controller's.
const FIELD_MANAGER: &str = "holdfast-controller";
/// Changes within this time are one write.
const TOGETHER: Duration = Duration::from_secs(2);
/// The pause after a write that failed.
const AGAIN: Duration = Duration::from_secs(10);
/// Longest time to connect to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The options.
#[derive(Debug, Clone, Copy)]
pub struct ControllerOptions {
    /// The address of the health pages.
    pub probes: PageAddress,
}

/// Why the controller cannot run.
#[derive(Debug, Error)]
pub enum ControllerError {
    /// It does not know how to reach the API server.
    #[error("cannot find the API server: neither a service account's token nor a kubeconfig can be used")]
    Config(#[source] Box<kube::config::InferConfigError>),
    /// No client can be made.
    #[error("cannot make a client of the API server")]
    Client(#[source] Box<kube::Error>),
    /// The address of the health pages cannot be used.
    #[error("cannot listen on {address} for the health pages")]
    Listen {
        /// The address.
        address: PageAddress,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// The process cannot receive signals.
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
}

/// The only field of a report that is read, so that the others take no memory.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ReportPolicies {
    policies: Vec<ReportedPolicy>,
}

/// A report without what the controller does not need.
#[derive(Debug, Clone, Default, Deserialize)]
struct Report {
    metadata: ObjectMeta,
    #[serde(default)]
    status: ReportPolicies,
}

impl Resource for Report {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        DriftReport::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        DriftReport::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        DriftReport::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        DriftReport::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// Why it cannot begin. Later failures are logged, and what failed is tried again.
pub async fn run(options: ControllerOptions) -> Result<(), ControllerError> {
    let mut config = Config::infer().await.map_err(|error| ControllerError::Config(Box::new(error)))?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // A watch is silent for longer than any answer. Each write has a limit of its own.
    config.read_timeout = None;
    let client = Client::try_from(config).map_err(|error| ControllerError::Client(Box::new(error)))?;
    let address = options.probes;
    let listener = listen(address).map_err(|error| ControllerError::Listen { address, error })?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ControllerError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ControllerError::Signals)?;
    let (not_ready, ready) = watch::channel(Some("the lists of policies and reports are not known yet"));
    tracing::info!("The controller runs.");
    tokio::select! {
        () = Controller::new(client).follow(not_ready) => {}
        () = probes::serve(listener, move || *ready.borrow()) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("The controller ends.");
    Ok(())
}

/// The policies and the reports of the cluster.
struct Controller {
    client: Client,
    policies: Listed<DriftPolicy>,
    reported: Listed<Vec<ReportedPolicy>>,
}

/// The objects of one kind by their names, as far as the controller needs them.
struct Listed<T> {
    known: BTreeMap<String, T>,
    /// Those of the list that has not ended yet.
    next: Option<BTreeMap<String, T>>,
    is_known: bool,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), next: None, is_known: false }
    }
}

impl<T> Listed<T> {
    /// Takes an event of a watch.
    fn take<K: Resource<DynamicType = ()>>(&mut self, event: Event<K>, value: impl Fn(K) -> T) {
        match event {
            Event::Init => self.next = Some(BTreeMap::new()),
            Event::InitApply(object) => {
                self.next.get_or_insert_default().insert(object.name_any(), value(object));
            }
            Event::InitDone => {
                self.known = self.next.take().unwrap_or_default();
                self.is_known = true;
            }
            Event::Apply(object) => drop(self.known.insert(object.name_any(), value(object))),
            Event::Delete(object) => drop(self.known.remove(&object.name_any())),
        }
    }
}

impl Controller {
    fn new(client: Client) -> Self {
        Self { client, policies: Listed::default(), reported: Listed::default() }
    }

    /// Follows policies and reports for ever.
    async fn follow(mut self, not_ready: watch::Sender<Option<&'static str>>) {
        let [one, other] = [(); 2].map(|()| self.client.clone());
        let policies = move || Api::<DriftPolicy>::all(one.clone());
        let reports = move || Api::<Report>::all(other.clone());
        let mut policies = watched(policies, None, "DriftPolicies");
        let mut reports = watched(reports, None, "DriftReports");
        let mut due: Option<Instant> = None;
        loop {
            tokio::select! {
                Some(event) = policies.next() => self.policies.take(event, |policy| policy),
                Some(event) = reports.next() => self.reported.take(event, |report| report.status.policies),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let is_done = self.write().await;
                    due = (!is_done).then(|| Instant::now() + AGAIN);
                    continue;
                }
            }
            if self.policies.is_known && self.reported.is_known {
                not_ready.send_replace(None);
                due.get_or_insert_with(|| Instant::now() + TOGETHER);
            }
        }
    }

    /// Writes each status that is another one. Gives whether all of them are written.
    async fn write(&self) -> bool {
        let policies: Api<DriftPolicy> = Api::all(self.client.clone());
        let mut is_done = true;
        for (name, policy) in &self.policies.known {
            let wanted = status(name, policy.metadata.generation, &self.reported.known);
            if policy.status.as_ref() == Some(&wanted) {
                continue;
            }
            if let Err(error) = write_status(&policies, name, &wanted).await {
                // A policy that is gone needs no status.
                if !error.is_missing() {
                    tracing::warn!(%error, policy = name, "The status of a DriftPolicy is not written; trying again.");
                    is_done = false;
                }
            }
        }
        is_done
    }
}

async fn write_status(
    policies: &Api<DriftPolicy>,
    name: &str,
    status: &DriftPolicyStatus,
) -> Result<(), PublishError> {
    let patch = Patch::Apply(json!({
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "DriftPolicy",
        "metadata": {"name": name},
        "status": status,
    }));
    let ours = PatchParams::apply(FIELD_MANAGER).force();
    limited("DriftPolicy's status", policies.patch_status(name, &ours, &patch)).await.map(drop)
}
