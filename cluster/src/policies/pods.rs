//! The pods of the node that policies allow, by their uids.
//!
//! In: the watch on the pods of the node. Out: the uids of the pods that a rule allows. The sensor knows a pod by its uid alone, which
//! the API never gives to another pod. So those of pods that ended stay: fewer changes of the policies, and no wrong permission.

use crate::api::ActorNames;
use crate::pods::static_uid;
use kube::api::{NotUsed, Object};
use kube::runtime::watcher::Event;
use sensor_model::drift_policy::ActorPatterns;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most pods that ended and still have their place.
pub(super) const ENDED: usize = 256;

/// The only field of a pod's spec that is read, so that the others take no memory.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodAccount {
    service_account_name: String,
}

/// A pod with its metadata and its service account.
pub(super) type AccountPod = Object<PodAccount, NotUsed>;

/// One pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NodePod {
    /// `NAMESPACE/NAME`.
    name: String,
    /// `NAMESPACE/NAME` of its service account.
    account: String,
}

/// The pods of the node.
#[derive(Debug, Default)]
pub(super) struct NodePods {
    by_uid: BTreeMap<String, NodePod>,
    /// Those of the list that has not ended yet.
    listed: Option<BTreeMap<String, NodePod>>,
    /// Pods that ended, the oldest first.
    ended: VecDeque<String>,
    /// A list is known.
    is_known: bool,
    /// Grows with each change of the pods that can change the evaluation of the policies.
    revision: u64,
}

impl NodePods {
    /// Takes an event of the watch. Gives whether the pods are others now.
    pub(super) fn take(&mut self, event: Event<AccountPod>) -> bool {
        match event {
            Event::Init => self.listed = Some(BTreeMap::new()),
            Event::InitApply(pod) => self.listed.get_or_insert_default().extend(entries(&pod)),
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let ended: Vec<String> =
                    self.by_uid.keys().filter(|uid| !listed.contains_key(*uid)).cloned().collect();
                for uid in ended {
                    self.end(uid);
                }
                let is_first = !std::mem::replace(&mut self.is_known, true);
                self.revision += u64::from(is_first);
                return self.add(listed) || is_first;
            }
            Event::Apply(pod) => return self.add(entries(&pod)),
            Event::Delete(pod) => {
                for uid in entries(&pod).into_keys() {
                    self.end(uid);
                }
            }
        }
        false
    }

    fn add(&mut self, pods: BTreeMap<String, NodePod>) -> bool {
        let mut is_other = false;
        for (uid, pod) in pods {
            // The API server's copy of a static pod may be made anew.
            if let Some(place) = self.ended.iter().position(|ended| *ended == uid) {
                self.ended.remove(place);
                self.revision += 1;
            }
            is_other |= self.by_uid.insert(uid, pod.clone()).as_ref() != Some(&pod);
        }
        self.revision += u64::from(is_other);
        is_other
    }

    fn end(&mut self, uid: String) {
        if self.ended.contains(&uid) {
            return;
        }
        self.revision += 1;
        self.ended.push_back(uid);
        if self.ended.len() > ENDED
            && let Some(oldest) = self.ended.pop_front()
        {
            self.by_uid.remove(&oldest);
        }
    }

    /// Nothing watches the pods any more: they are not known before the next list.
    pub(super) fn unwatched(&mut self) {
        self.revision += u64::from(self.is_known);
        self.is_known = false;
        self.listed = None;
    }

    /// The pods are known.
    pub(super) const fn is_known(&self) -> bool {
        self.is_known
    }

    /// The uids of those that exist.
    pub(super) fn present(&self) -> Vec<String> {
        let ended: BTreeSet<&String> = self.ended.iter().collect();
        self.by_uid.keys().filter(|uid| !ended.contains(uid)).cloned().collect()
    }

    /// The revision. While it is the same, the pods are the same.
    pub(super) const fn revision(&self) -> u64 {
        self.revision
    }

    /// How many pods ended and still have their place.
    pub(super) fn ended(&self) -> usize {
        self.ended.len()
    }

    /// The uids of the pods that these names allow. Of those that ended, only so many of the newest have a permission.
    pub(super) fn allowed(&self, actors: &ActorNames, ended: usize) -> Vec<String> {
        let left_out: BTreeSet<&String> = self.ended.iter().rev().skip(ended).collect();
        let named = ActorPatterns::of(&actors.pods);
        let is_allowed =
            |pod: &NodePod| actors.service_accounts.contains(&pod.account) || named.matches(&pod.name);
        let pods = self.by_uid.iter().filter(|(uid, pod)| !left_out.contains(uid) && is_allowed(pod));
        pods.map(|(uid, _)| uid.clone()).collect()
    }
}

/// A pod by the uids that its control group may have.
fn entries(pod: &AccountPod) -> BTreeMap<String, NodePod> {
    let metadata = &pod.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let full = |name: &str| format!("{namespace}/{name}");
    let node_pod = NodePod {
        name: full(metadata.name.as_deref().unwrap_or_default()),
        account: full(&pod.spec.service_account_name),
    };
    let uids = metadata.uid.iter().chain(static_uid(metadata));
    uids.map(|uid| (uid.clone(), node_pod.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, name: &str, account: &str) -> AccountPod {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "team", "name": name, "uid": uid},
            "spec": {"serviceAccountName": account, "containers": [{"name": "a", "image": "b"}]},
        }))
        .unwrap()
    }

    fn actors(pods: &[&str], accounts: &[&str]) -> ActorNames {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        ActorNames { pods: owned(pods), service_accounts: owned(accounts), ..ActorNames::default() }
    }

    #[test]
    fn pods_are_allowed_by_name_and_by_service_account_of_their_namespace() {
        let mut pods = NodePods::default();
        assert!(!pods.take(Event::Init));
        pods.take(Event::InitApply(pod("u-1", "agent-x", "agent")));
        pods.take(Event::InitApply(pod("u-2", "web", "default")));
        assert!(!pods.is_known());
        assert!(pods.take(Event::InitDone) && pods.is_known());
        assert_eq!(pods.allowed(&actors(&["team/agent-*"], &[]), ENDED), ["u-1"]);
        assert_eq!(pods.allowed(&actors(&[], &["team/default"]), ENDED), ["u-2"]);
        assert!(pods.allowed(&actors(&["other/agent-*"], &["other/default"]), ENDED).is_empty());
        pods.unwatched();
        assert!(!pods.is_known(), "what nothing watches grows old");
        assert!(pods.take(Event::InitDone) && pods.is_known());
    }

    #[test]
    fn a_pod_that_names_the_uid_of_another_one_gives_it_no_permission() {
        const OTHER: &str = "2b6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10";
        let mut pods = NodePods::default();
        pods.take(Event::Apply(pod(OTHER, "web", "default")));
        let claims = |uid: &str, claimed: &str| {
            let mut claims = pod(uid, "agent", "");
            let annotation = ("kubernetes.io/config.mirror".to_owned(), claimed.to_owned());
            claims.metadata.annotations = Some([annotation].into());
            claims
        };
        pods.take(Event::Apply(claims("u-2", OTHER)));
        assert_eq!(pods.allowed(&actors(&["team/agent"], &[]), ENDED), ["u-2"]);
        assert_eq!(pods.allowed(&actors(&[], &["team/default"]), ENDED), [OTHER]);
        let hash = "00ff".repeat(8);
        pods.take(Event::Apply(claims("u-3", &hash)));
        assert_eq!(pods.allowed(&actors(&["team/agent"], &[]), ENDED), [hash.as_str(), "u-2", "u-3"]);
    }

    #[test]
    fn a_pod_that_ended_keeps_its_permission_and_its_successor_gets_one_of_its_own() {
        let mut pods = NodePods::default();
        let allowed = |pods: &NodePods| pods.allowed(&actors(&["team/agent"], &[]), ENDED);
        assert!(pods.take(Event::Apply(pod("u-1", "agent", "a"))));
        assert!(!pods.take(Event::Delete(pod("u-1", "agent", "a"))), "nothing has to change at once");
        assert_eq!(allowed(&pods), ["u-1"]);
        assert!(pods.take(Event::Apply(pod("u-2", "agent", "a"))));
        assert_eq!(allowed(&pods), ["u-1", "u-2"]);
        for number in 0..=ENDED {
            let uid = format!("v-{number}");
            pods.take(Event::Apply(pod(&uid, "other", "a")));
            pods.take(Event::Delete(pod(&uid, "other", "a")));
        }
        assert_eq!(allowed(&pods), ["u-2"], "the number of those that ended is limited");
    }
}
