//! Names of pods by their uids.
//!
//! In: uids that the sensor found in control groups. Out: namespace and name of each pod that the API server knows on this node.
//! Only an unknown uid causes a request. Without an answer a pod keeps its uid, and nothing else is delayed for long.

use crate::backoff::Backoff;
use crate::reads::Reads;
use crate::reports::{PodName, PodNames};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, PartialObjectMeta};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The annotation that the API server's copy of a static pod has: the uid in the pod's control group.
const STATIC_POD_UID: &str = "kubernetes.io/config.mirror";

/// Most pods of an answer. A kubelet runs 110 by default.
const PODS: u32 = 1000;

/// Most names that are kept, those of pods that ended included.
const NAMES: usize = 4096;

/// Longest wait for an answer. The report goes out without the names then.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Shortest time between two requests.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Longest pause between requests for the same unknown pods.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// The pods of the node.
#[derive(Debug)]
pub struct Pods {
    reads: Reads,
    node: String,
    names: PodNames,
    /// The unknown uids of the last request.
    unknown: BTreeSet<String>,
    backoff: Backoff,
    asked_at: Option<Instant>,
    again_at: Option<Instant>,
}

impl Pods {
    /// The pods of this node. Nothing is asked yet.
    pub fn new(reads: Reads, node: &str) -> Self {
        Self {
            reads,
            node: node.to_owned(),
            names: PodNames::new(),
            unknown: BTreeSet::new(),
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            asked_at: None,
            again_at: None,
        }
    }

    /// The known names, after one request if a uid is unknown and the last request is long enough ago.
    pub async fn names(&mut self, wanted: &BTreeSet<String>) -> &PodNames {
        let unknown = self.unknown_of(wanted);
        if unknown.is_empty() {
            self.again_at = None;
            return &self.names;
        }
        let now = Instant::now();
        let is_new = !unknown.is_subset(&self.unknown);
        let earliest = self.asked_at.map_or(now, |at| at + FIRST_PAUSE);
        let due = if is_new { earliest } else { self.again_at.unwrap_or(earliest).max(earliest) };
        if due > now {
            self.again_at = Some(due);
            return &self.names;
        }
        if is_new {
            self.backoff.reset();
        }
        self.ask(wanted).await;
        self.asked_at = Some(now);
        self.unknown = self.unknown_of(wanted);
        self.again_at = (!self.unknown.is_empty()).then(|| now + self.backoff.next_pause());
        &self.names
    }

    fn unknown_of(&self, wanted: &BTreeSet<String>) -> BTreeSet<String> {
        wanted.iter().filter(|uid| !self.names.contains_key(*uid)).cloned().collect()
    }

    /// When [`Self::names`] may know more; `None` if no uid is unknown.
    pub const fn again_at(&self) -> Option<Instant> {
        self.again_at
    }

    async fn ask(&mut self, wanted: &BTreeSet<String>) {
        let here = ListParams::default().fields(&format!("spec.nodeName={}", self.node)).limit(PODS);
        let here = &here;
        let list = self.reads.read(|client| async move { Api::<Pod>::all(client).list_metadata(here).await });
        match timeout(ANSWER_TIMEOUT, list).await {
            Ok(Ok(pods)) => {
                if self.names.len() > NAMES {
                    self.names.retain(|uid, _| wanted.contains(uid));
                }
                self.names.extend(pods.items.iter().flat_map(named));
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "The API server does not list this node's pods. Reports show their uids.");
            }
            Err(_) => tracing::warn!("The API server did not list this node's pods in time."),
        }
    }
}

/// The names of a pod by the uids that its control group may have.
fn named(pod: &PartialObjectMeta<Pod>) -> impl Iterator<Item = (String, PodName)> {
    let name = PodName { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() };
    let uids = [pod.uid(), pod.annotations().get(STATIC_POD_UID).cloned()];
    uids.into_iter().flatten().map(move |uid| (uid, name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::played_server::{PlayedAnswer, played};
    use serde_json::json;

    fn uids<const N: usize>(uids: [&str; N]) -> BTreeSet<String> {
        uids.into_iter().map(str::to_owned).collect()
    }

    fn list() -> serde_json::Value {
        json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": [
            {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
             "metadata": {"name": "debugger", "namespace": "default", "uid": "u-1"}},
            {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
             "metadata": {"name": "etcd-n1", "namespace": "kube-system", "uid": "u-9",
                          "annotations": {"kubernetes.io/config.mirror": "00ff"}}}]})
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_uid_causes_one_request_for_the_pods_of_this_node() {
        let (client, asked) = played(|_| PlayedAnswer::Json(list()));
        let mut pods = Pods::new(Reads::with(client.clone(), client), "n1");
        assert!(pods.names(&BTreeSet::new()).await.is_empty());
        let names = pods.names(&uids(["u-1", "00ff"])).await.clone();
        assert_eq!((names["u-1"].namespace.as_str(), names["u-1"].name.as_str()), ("default", "debugger"));
        assert_eq!(names["00ff"].name, "etcd-n1", "a static pod by the uid of its control group");
        pods.names(&uids(["u-1"])).await;
        assert_eq!(pods.again_at(), None);
        let asked = asked.take();
        assert_eq!(asked.len(), 1);
        assert!(asked[0].uri.contains("fieldSelector=spec.nodeName%3Dn1"), "{}", asked[0].uri);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_refuses_is_asked_less_and_less_and_the_uid_stays() {
        let (client, asked) = played(|_| PlayedAnswer::Code(403));
        let mut pods = Pods::new(Reads::with(client.clone(), client), "n1");
        for _ in 0..600 {
            assert!(pods.names(&uids(["u-1"])).await.is_empty());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let requests = asked.take().len();
        assert!((8..=24).contains(&requests), "{requests} requests of both readers in ten minutes");
        assert!(pods.again_at().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_delays_by_its_time_limit() {
        let (client, _asked) = played(|_| PlayedAnswer::Never);
        let mut pods = Pods::new(Reads::with(client.clone(), client), "n1");
        let start = Instant::now();
        assert!(pods.names(&uids(["u-1"])).await.is_empty());
        assert!(start.elapsed() <= ANSWER_TIMEOUT + Duration::from_millis(10));
    }
}
