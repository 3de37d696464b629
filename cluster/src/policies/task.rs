//! The task that follows the policies of the cluster.
//!
//! In: watches on `DriftPolicies` and, if one that selects the node names pods, on the pods of the node; the newest metadata of the Node.
//! Out: the policies for the sensor whenever they change, and which of them it has taken. Before the first whole list nothing is handed in:
//! the sensor keeps the policies that it has.

use super::evaluate::{Evaluated, evaluate, names_pods};
use super::node::NodeFacts;
use super::pods::{AccountPod, NodePods};
use crate::api::{DriftPolicy, PolicyState, ReportedPolicy};
use crate::pods::resource;
use crate::publish::{NodeMetadata, PolicyStanding};
use crate::reads::Reads;
use crate::socket::{SensorError, SensorSocket};
use crate::watching::watched;
use futures_util::stream::{BoxStream, StreamExt as _};
use kube::ResourceExt as _;
use kube::api::Api;
use kube::runtime::watcher::Event;
use sensor_model::socket::{ClusterPolicies, SocketErrorReason};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Changes that come within this time are handed in together.
const TOGETHER: Duration = Duration::from_millis(500);
/// The pause after an attempt that failed.
const AGAIN: Duration = Duration::from_secs(5);
/// The same policies are handed in again after this time: the sensor may have lost its state directory.
const REPEAT: Duration = Duration::from_mins(1);
/// The wait for the pods after which the report shows it, as a number of attempts.
const SHOWN_WAIT: u32 = 3;
/// Why a policy that names pods is not in force.
const NO_PODS: &str = "not handed to the sensor: the API server has not listed this node's pods yet";
/// Why a policy without a fault of its own is not in force.
const OTHERS: &str =
    "not handed to the sensor: another policy that selects this node has a fault or a conflict";

type PodEvents = BoxStream<'static, Event<AccountPod>>;

/// Follows the policies for one node.
pub struct PolicyFollower {
    node: String,
    reads: Reads,
    socket: SensorSocket,
    policies: BTreeMap<String, DriftPolicy>,
    /// Those of the list that has not ended yet.
    listed: Option<BTreeMap<String, DriftPolicy>>,
    is_known: bool,
    newest_node: watch::Receiver<Option<NodeMetadata>>,
    /// Of the newest Node that was known.
    facts: Option<NodeFacts>,
    pods: NodePods,
    /// The last evaluation, and the revision of its pods. `None` after a change of the policies or the Node.
    evaluated: Option<(u64, Arc<Evaluated>)>,
    /// How often the policies waited for the pods.
    waits_for_pods: u32,
    standing: watch::Sender<Option<PolicyStanding>>,
}

impl fmt::Debug for PolicyFollower {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PolicyFollower").field("node", &self.node).finish_non_exhaustive()
    }
}

impl PolicyFollower {
    /// Nothing is asked yet. `newest_node` is the Node's metadata, from a watch.
    pub fn new(
        reads: Reads,
        node: &str,
        newest_node: watch::Receiver<Option<NodeMetadata>>,
        socket: SensorSocket,
        standing: watch::Sender<Option<PolicyStanding>>,
    ) -> Self {
        Self {
            node: node.to_owned(),
            reads,
            socket,
            policies: BTreeMap::new(),
            listed: None,
            is_known: false,
            newest_node,
            facts: None,
            pods: NodePods::default(),
            evaluated: None,
            waits_for_pods: 0,
            standing,
        }
    }

    /// Follows them until nothing takes the standing any more.
    pub async fn run(mut self) {
        let reads = self.reads.clone();
        let policies = move || Api::<DriftPolicy>::all(reads.account());
        let mut events = watched(policies, None, "DriftPolicies");
        let mut pods: Option<PodEvents> = None;
        // Nothing is due before the first whole list.
        let mut due: Option<Instant> = None;
        while !self.standing.is_closed() {
            let soon = |due: &mut Option<Instant>| *due = Some(Instant::now() + TOGETHER);
            tokio::select! {
                Some(event) = events.next() => if self.take(event) {
                    pods = self.pods_wanted(pods);
                    soon(&mut due);
                },
                Ok(()) = self.newest_node.changed() => if self.take_node() {
                    pods = self.pods_wanted(pods);
                    if self.is_known {
                        soon(&mut due);
                    }
                },
                Some(event) = next(&mut pods) => if self.pods.take(event) && self.is_known {
                    soon(&mut due);
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    due = Some(Instant::now() + self.hand_in().await);
                }
            }
        }
    }

    /// Takes an event of the watch on policies. Gives whether the policies are others now.
    fn take(&mut self, event: Event<DriftPolicy>) -> bool {
        self.evaluated = None;
        match event {
            Event::Init => self.listed = Some(BTreeMap::new()),
            Event::InitApply(policy) => {
                self.listed.get_or_insert_default().insert(policy.name_any(), policy);
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let is_other = !self.is_known || !is_same(&listed, &self.policies);
                self.is_known = true;
                self.policies = listed;
                return is_other;
            }
            Event::Apply(policy) => {
                let name = policy.name_any();
                let known = self.policies.insert(name, policy.clone());
                // A controller's writes to the status are no news.
                return known.is_none_or(|known| known.spec != policy.spec);
            }
            Event::Delete(policy) => return self.policies.remove(&policy.name_any()).is_some(),
        }
        false
    }

    /// The watch on the pods, which runs only while a policy that selects the node names pods.
    fn pods_wanted(&mut self, present: Option<PodEvents>) -> Option<PodEvents> {
        // The first read of the Node finds out in whose name the pods can be read.
        let facts = self.facts.as_ref()?;
        if !names_pods(self.policies.values(), facts) {
            self.pods.unwatched();
            return None;
        }
        present.or_else(|| {
            let reads = self.reads.clone();
            let pods = move || Api::<AccountPod>::all_with(reads.reading(), &resource());
            let here = format!("spec.nodeName={}", self.node);
            Some(watched(pods, Some(here), "this node's pods"))
        })
    }

    /// Hands the policies to the sensor. Gives the time until the next attempt.
    async fn hand_in(&mut self) -> Duration {
        let Some(facts) = self.facts.clone() else { return AGAIN };
        let evaluated = self.evaluated(&facts);
        if names_pods(self.policies.values(), &facts) && !self.pods.is_known() {
            self.waits_for_pods += 1;
            // A list takes a moment after each start.
            if self.waits_for_pods >= SHOWN_WAIT {
                let policies = evaluated.answered(PolicyState::Waiting, Some(NO_PODS));
                self.stand(policies, taints(&evaluated, false));
            }
            return AGAIN;
        }
        self.waits_for_pods = 0;
        let (policies, again) = match &evaluated.handed {
            Some(policies) => self.put(policies, &evaluated).await,
            None => (evaluated.answered(PolicyState::Waiting, Some(OTHERS)), REPEAT),
        };
        let is_taken =
            policies.iter().all(|policy| matches!(policy.state, PolicyState::InForce | PolicyState::Limited));
        self.stand(policies, taints(&evaluated, is_taken));
        again
    }

    /// The evaluated policies. The evaluation takes longer with more rules and pods, and it runs on the thread of the probes. So the follower keeps
    /// the last one.
    fn evaluated(&mut self, facts: &NodeFacts) -> Arc<Evaluated> {
        let revision = self.pods.revision();
        if let Some((known, evaluated)) = &self.evaluated
            && *known == revision
        {
            return Arc::clone(evaluated);
        }
        let evaluated = Arc::new(evaluate(self.policies.values(), facts, &self.pods));
        self.evaluated = Some((revision, Arc::clone(&evaluated)));
        evaluated
    }

    fn stand(&self, policies: Vec<ReportedPolicy>, taints: Option<bool>) {
        let standing = PolicyStanding { policies, taints };
        self.standing.send_if_modified(|known| {
            let is_other = known.as_ref() != Some(&standing);
            *known = Some(standing);
            is_other
        });
    }

    async fn put(
        &mut self,
        policies: &ClusterPolicies,
        evaluated: &Evaluated,
    ) -> (Vec<ReportedPolicy>, Duration) {
        match self.socket.put_policies(policies).await {
            Ok(taken) => {
                let mut reported = evaluated.answered(PolicyState::InForce, None);
                for limited in &taken.limited {
                    let policy = reported.iter_mut().find(|policy| policy.name == limited.policy);
                    if let Some(policy) = policy {
                        policy.state = PolicyState::Limited;
                        let rules =
                            crate::text::count(i64::try_from(limited.rules).unwrap_or(i64::MAX), "rule");
                        policy.message = Some(format!(
                            "{rules} with `revert` or `deny` act as `degrade` in the mode observe"
                        ));
                    }
                }
                (reported, REPEAT)
            }
            Err(SensorError::Refused { error, .. }) if is_final(error.reason) => {
                (evaluated.answered(PolicyState::Refused, Some(&error.error)), REPEAT)
            }
            Err(error) => {
                tracing::debug!(%error, "the sensor has not taken the policies yet");
                let present = self.standing.borrow().clone().unwrap_or_default().policies;
                let names = |policies: &[ReportedPolicy]| -> Vec<_> {
                    policies.iter().map(|policy| (policy.name.clone(), policy.generation)).collect()
                };
                // A sensor that restarts still has them.
                let is_same = names(&present) == names(&evaluated.reported);
                (if is_same { present } else { evaluated.reported.clone() }, AGAIN)
            }
        }
    }

    /// Takes the newest Node. Gives whether the selectors of policies may select it otherwise now. Without a Node those of before count.
    fn take_node(&mut self) -> bool {
        let Some(facts) = self.newest_node.borrow_and_update().as_ref().map(NodeFacts::of) else {
            return false;
        };
        let is_other = self.facts.as_ref() != Some(&facts);
        if is_other {
            self.evaluated = None;
        }
        self.facts = Some(facts);
        is_other
    }
}

/// Whether the node is to have the taint while drift degrades it. Policies that the sensor has not taken neither add the taint nor remove it:
/// the sensor keeps those of before, and they may have asked for it.
fn taints(evaluated: &Evaluated, is_taken: bool) -> Option<bool> {
    match (evaluated.taints, is_taken) {
        (false, _) => Some(false),
        (true, true) => Some(true),
        (true, false) => None,
    }
}

/// Whether the same policies would be refused again.
fn is_final(reason: SocketErrorReason) -> bool {
    use SocketErrorReason::{InvalidRequest, MethodNotAllowed, NotFound, NotManaged, Refused, TooLarge};
    matches!(reason, InvalidRequest | MethodNotAllowed | NotFound | NotManaged | Refused | TooLarge)
}

fn is_same(one: &BTreeMap<String, DriftPolicy>, other: &BTreeMap<String, DriftPolicy>) -> bool {
    one.len() == other.len()
        && one.iter().all(|(name, policy)| other.get(name).is_some_and(|known| known.spec == policy.spec))
}

/// The next event of a stream that may not exist. Without one it waits for ever.
async fn next(pods: &mut Option<PodEvents>) -> Option<Event<AccountPod>> {
    match pods {
        Some(pods) => pods.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;
