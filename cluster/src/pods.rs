//! Names of pods by their uids, and of their containers by their ids.
//!
//! In: uids and ids that the sensor found in control groups. Out: namespace and name of each pod that the API server knows on this
//! node, and the name of each wanted container. Only an unknown uid or id causes a request. Without an answer it stays alone in the
//! report, and nothing else is delayed for long. The kubelet writes the id of a new container some seconds after its start.

use crate::backoff::Backoff;
use crate::reads::Reads;
use crate::reports::{PodName, PodNames};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, ListParams, NotUsed, Object};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The annotation that the API server's copy of a static pod has: the uid in the pod's control group.
const STATIC_POD_UID: &str = "kubernetes.io/config.mirror";

/// The uid of the static pod of which a pod is the copy. Whoever may create pods may set the annotation, so it is believed only with a
/// uid that no pod of the API has: the kubelet makes 32 hexadecimal digits of the pod's manifest, and the API server makes a UUID.
pub(crate) fn static_uid(metadata: &ObjectMeta) -> Option<&String> {
    let uid = metadata.annotations.as_ref()?.get(STATIC_POD_UID)?;
    let is_hash = uid.len() == 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then_some(uid)
}

/// Most pods of an answer, which has whole pods. A kubelet runs 110 by default.
const PAGE: u32 = 250;

/// Most answers for one list.
const PAGES: usize = 4;

/// Most names of pods that are kept, those of pods that ended included. Of containers only the wanted ones have their names kept.
const NAMES: usize = 4096;

/// Longest wait for an answer. The report goes out without the names then.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Shortest time between two requests.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Longest pause between requests for the same unknown pods.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// The type of pods in the API.
pub(crate) fn resource() -> ApiResource {
    ApiResource::erase::<Pod>(&())
}

/// The only fields of a pod's status that are read, so that the others take no memory.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct PodContainers {
    #[serde(rename = "containerStatuses")]
    main: Vec<ContainerIds>,
    #[serde(rename = "initContainerStatuses")]
    init: Vec<ContainerIds>,
    #[serde(rename = "ephemeralContainerStatuses")]
    ephemeral: Vec<ContainerIds>,
}

/// One container of a pod: its present run and the one before.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerIds {
    name: String,
    /// `RUNTIME://ID`; absent until the runtime has created the container.
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    last_state: LastState,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LastState {
    terminated: Option<LastRun>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct LastRun {
    #[serde(rename = "containerID")]
    container_id: Option<String>,
}

/// A pod with its metadata and its containers.
type ContainersPod = Object<NotUsed, PodContainers>;

/// The pods of the node.
#[derive(Debug)]
pub struct Pods {
    reads: Reads,
    node: String,
    names: PodNames,
    /// The unknown uids and ids of the last request.
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
            names: PodNames::default(),
            unknown: BTreeSet::new(),
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            asked_at: None,
            again_at: None,
        }
    }

    /// The known names, after one request if a wanted uid or id is unknown and the last request is long enough ago.
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
        wanted.iter().filter(|id| !self.names.has(id)).cloned().collect()
    }

    /// When [`Self::names`] may know more; `None` if no uid and no id is unknown.
    pub const fn again_at(&self) -> Option<Instant> {
        self.again_at
    }

    async fn ask(&mut self, wanted: &BTreeSet<String>) {
        self.names.containers.retain(|id, _| wanted.contains(id));
        if self.names.pods.len() > NAMES {
            self.names.pods.retain(|uid, _| wanted.contains(uid));
        }
        match timeout(ANSWER_TIMEOUT, self.list(wanted)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "The API server does not list this node's pods. Reports show their uids.");
            }
            Err(_) => tracing::warn!("The API server did not list this node's pods in time."),
        }
    }

    /// Reads the pods of the node page by page, until each wanted uid and id has its name.
    async fn list(&mut self, wanted: &BTreeSet<String>) -> kube::Result<()> {
        let mut page = ListParams::default().fields(&format!("spec.nodeName={}", self.node)).limit(PAGE);
        for _ in 0..PAGES {
            let this = &page;
            let read =
                |client| async move { Api::<ContainersPod>::all_with(client, &resource()).list(this).await };
            let answer = self.reads.read(read).await?;
            for pod in &answer.items {
                self.names.pods.extend(named(pod));
                let containers = containers(pod).filter(|(id, _)| wanted.contains(*id));
                self.names.containers.extend(containers.map(|(id, name)| (id.to_owned(), name.to_owned())));
            }
            let next = answer.metadata.continue_.filter(|token| !token.is_empty());
            let Some(next) = next.filter(|_| !self.unknown_of(wanted).is_empty()) else { break };
            page = page.continue_token(&next);
        }
        Ok(())
    }
}

/// The names of a pod by the uids that its control group may have.
fn named(pod: &ContainersPod) -> impl Iterator<Item = (String, PodName)> {
    let name = PodName { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() };
    let uids = [pod.uid(), static_uid(&pod.metadata).cloned()];
    uids.into_iter().flatten().map(move |uid| (uid, name.clone()))
}

/// The containers of a pod: ids as control groups have them, and names. A container that ran before under the same name is among them.
fn containers(pod: &ContainersPod) -> impl Iterator<Item = (&str, &str)> {
    let all = pod.status.iter().flat_map(|status| [&status.main, &status.init, &status.ephemeral]);
    all.flatten().flat_map(|container| {
        let last = container.last_state.terminated.as_ref().and_then(|run| run.container_id.as_deref());
        let ids = [container.container_id.as_deref(), last].into_iter().flatten();
        ids.filter_map(|id| Some((id.split_once("://")?.1, container.name.as_str())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::played_server::{PlayedAnswer, played};
    use serde_json::json;

    fn uids<const N: usize>(uids: [&str; N]) -> BTreeSet<String> {
        uids.into_iter().map(str::to_owned).collect()
    }

    /// The uid of a static pod.
    const STATIC: &str = "00ff00ff00ff00ff00ff00ff00ff00ff";

    /// Ids as a control group has them.
    fn id(digit: char) -> String {
        digit.to_string().repeat(64)
    }

    /// A pod with a container that was restarted, an init container and an ephemeral one; and a static pod.
    fn list() -> serde_json::Value {
        let run = |name: &str, runtime: &str, digit| json!({"name": name, "containerID": format!("{runtime}://{}", id(digit))});
        let mut app = run("app", "containerd", 'a');
        app["lastState"] =
            json!({"terminated": {"exitCode": 1, "containerID": format!("containerd://{}", id('b'))}});
        json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [
            {"metadata": {"name": "debugger", "namespace": "default", "uid": "u-1"},
             "spec": {"containers": [{"name": "app"}]},
             "status": {"phase": "Running",
                "containerStatuses": [app, {"name": "waits", "state": {"waiting": {}}, "containerID": null}],
                "initContainerStatuses": [run("setup", "cri-o", 'c')],
                "ephemeralContainerStatuses": [run("debugger-x7k2p", "containerd", 'd')]}},
            {"metadata": {"name": "etcd-n1", "namespace": "kube-system", "uid": "u-9",
                          "annotations": {"kubernetes.io/config.mirror": STATIC}},
             "spec": {}, "status": {}}]})
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_uid_causes_one_request_for_the_pods_of_this_node() {
        let (client, asked) = played(|_| PlayedAnswer::Json(list()));
        let mut pods = Pods::new(Reads::with(client.clone(), client), "n1");
        assert_eq!(*pods.names(&BTreeSet::new()).await, PodNames::default());
        let names = pods.names(&uids(["u-1", STATIC])).await.pods.clone();
        assert_eq!((names["u-1"].namespace.as_str(), names["u-1"].name.as_str()), ("default", "debugger"));
        assert_eq!(names[STATIC].name, "etcd-n1", "a static pod by the uid of its control group");
        pods.names(&uids(["u-1"])).await;
        assert_eq!(pods.again_at(), None);
        let asked = asked.take();
        assert_eq!(asked.len(), 1);
        assert!(asked[0].uri.contains("fieldSelector=spec.nodeName%3Dn1"), "{}", asked[0].uri);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_names_the_uid_of_another_one_takes_no_name_from_it() {
        const OTHER: &str = "2b6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10";
        let (client, _asked) = played(|_| {
            let mut pods = list();
            pods["items"][0]["metadata"]["uid"] = json!(OTHER);
            pods["items"][1]["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!(OTHER);
            PlayedAnswer::Json(pods)
        });
        let mut pods = Pods::new(Reads::with(client.clone(), client), "n1");
        assert_eq!(pods.names(&uids([OTHER])).await.pods[OTHER].name, "debugger");
    }

    #[tokio::test(start_paused = true)]
    async fn containers_of_each_kind_have_their_names_and_only_the_wanted_ones_are_kept() {
        let (client, asked) = played(|_| PlayedAnswer::Json(list()));
        let mut pods = Pods::new(Reads::with(client.clone(), client), "n1");
        let wanted: BTreeSet<String> = ['a', 'b', 'c', 'd', 'e'].map(id).into();
        let names = pods.names(&wanted).await.containers.clone();
        let expected = [('a', "app"), ('b', "app"), ('c', "setup"), ('d', "debugger-x7k2p")];
        assert_eq!(names, expected.map(|(digit, name)| (id(digit), name.to_owned())).into());
        assert!(pods.again_at().is_some(), "an unknown container is asked for again");
        tokio::time::advance(FIRST_PAUSE).await;
        pods.names(&[id('a'), id('f')].into()).await;
        tokio::time::advance(FIRST_PAUSE).await;
        let names = pods.names(&[id('a')].into()).await.containers.clone();
        assert_eq!(names, [(id('a'), "app".to_owned())].into());
        assert_eq!((asked.take().len(), pods.again_at()), (2, None));
    }

    #[tokio::test(start_paused = true)]
    async fn further_pages_are_read_until_everything_wanted_has_its_name() {
        let (client, asked) = played(|asked| {
            let mut page = list();
            if !asked.uri.contains("continue=") {
                page["metadata"]["continue"] = json!("second");
                page["items"].as_array_mut().unwrap().remove(0);
            }
            PlayedAnswer::Json(page)
        });
        let mut pods = Pods::new(Reads::with(client.clone(), client), "n1");
        assert_eq!(pods.names(&uids([STATIC])).await.pods.len(), 2, "the first page has the pod by two uids");
        assert_eq!(asked.take().len(), 1);
        tokio::time::advance(FIRST_PAUSE).await;
        assert_eq!(pods.names(&[id('d')].into()).await.containers[&id('d')], "debugger-x7k2p");
        let asked = asked.take();
        assert!(asked.len() == 2 && asked[1].uri.contains("continue=second"), "{asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_refuses_is_asked_less_and_less_and_the_uid_stays() {
        let (client, asked) = played(|_| PlayedAnswer::Code(403));
        let mut pods = Pods::new(Reads::with(client.clone(), client), "n1");
        for _ in 0..600 {
            assert!(pods.names(&uids(["u-1"])).await.pods.is_empty());
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
        assert!(pods.names(&uids(["u-1"])).await.pods.is_empty());
        assert!(start.elapsed() <= ANSWER_TIMEOUT + Duration::from_millis(10));
    }
}
