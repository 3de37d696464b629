//! Which policies a node gets.
//!
//! In: all policies, the facts and the pods of the node. Out: what the sensor is handed, if no policy has a fault or a conflict, and
//! what the report says of each policy that selects the node.

use super::node::NodeFacts;
use super::pods::{ENDED, NodePods};
use crate::api::{ActorNames, DriftPolicy, PolicyState, ReportedPolicy};
use crate::text::fit;
use kube::ResourceExt as _;
use sensor_model::drift_policy::{DriftPolicy as MergedPolicy, DriftPolicyFile};
use sensor_model::socket::{ALLOWED_NAMES, CLUSTER_POLICIES, ClusterPolicies, POLICIES_BYTES};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Bytes of the digest of a rule's names.
const DIGEST: usize = 16;

/// How many of the pods that ended keep their permission if those of all make the policies too large: first the newest ones, whose changes
/// the sensor may not have attributed yet, and then none.
const FEWER_ENDED: [usize; 2] = [32, 0];
/// Most bytes of a message.
const MESSAGE_BYTES: usize = 512;

/// The policies of one node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Evaluated {
    /// What the sensor gets; `None` while a policy has a fault or a conflict.
    pub(super) handed: Option<ClusterPolicies>,
    /// The policies that select the node, by name. All of those without a fault wait for the sensor. At most as many as a report may have:
    /// the API server refuses a report with more. The sensor refuses more, too, so the first ones say why none of them is in force.
    pub(super) reported: Vec<ReportedPolicy>,
    /// A policy asks for the taint.
    pub(super) taints: bool,
}

impl Evaluated {
    /// What the sensor said of the policies, for each that has no fault.
    pub(super) fn answered(&self, state: PolicyState, message: Option<&str>) -> Vec<ReportedPolicy> {
        let mut reported = self.reported.clone();
        for policy in reported.iter_mut().filter(|policy| policy.state == PolicyState::Waiting) {
            policy.state = state;
            policy.message = message.map(|message| fit(message, MESSAGE_BYTES));
        }
        reported
    }
}

/// Whether a policy that selects the node names pods, so that the pods of the node have to be known.
pub(super) fn names_pods<'a>(policies: impl IntoIterator<Item = &'a DriftPolicy>, node: &NodeFacts) -> bool {
    let names = |policy: &DriftPolicy| {
        policy.spec.rules.iter().any(|rule| {
            let ActorNames { pods, service_accounts, .. } = &rule.allowed_actors;
            !pods.is_empty() || !service_accounts.is_empty()
        })
    };
    policies.into_iter().any(|policy| names(policy) && node.is_selected(&policy.spec).unwrap_or_default())
}

/// The policies for one node. Each rule has the uids of all pods that it allows, so those of pods that ended are left out if the sensor would
/// otherwise refuse all policies for their size.
pub(super) fn evaluate<'a>(
    policies: impl IntoIterator<Item = &'a DriftPolicy>,
    node: &NodeFacts,
    pods: &NodePods,
) -> Evaluated {
    let policies: Vec<&DriftPolicy> = policies.into_iter().collect();
    let mut evaluated = evaluate_with(&policies, node, pods, ENDED);
    for ended in FEWER_ENDED {
        if pods.ended() > ended && evaluated.handed.as_ref().is_some_and(is_too_large) {
            evaluated = evaluate_with(&policies, node, pods, ended);
        }
    }
    evaluated
}

/// Whether the sensor refuses the policies for their size.
fn is_too_large(policies: &ClusterPolicies) -> bool {
    serde_json::to_vec(policies).is_ok_and(|body| body.len() > POLICIES_BYTES)
}

/// The policies with the uids of so many pods that ended.
fn evaluate_with(policies: &[&DriftPolicy], node: &NodeFacts, pods: &NodePods, ended: usize) -> Evaluated {
    let mut evaluated = Evaluated::default();
    let (mut files, mut numbers): (Vec<DriftPolicyFile>, Vec<usize>) = Default::default();
    let mut handed = Vec::new();
    for policy in policies {
        let number = evaluated.reported.len();
        let refused = match node.is_selected(&policy.spec) {
            Ok(false) => continue,
            Ok(true) => {
                let object = object(policy, pods, ended);
                let file = DriftPolicyFile::of_item(&object).map_err(|error| error.to_string());
                file.map(|file| {
                    files.push(file);
                    numbers.push(number);
                    handed.push(object);
                })
            }
            Err(error) => Err(format!("spec.nodeSelector: {error}")),
        };
        evaluated.taints |= policy.spec.taint_drifted_nodes;
        let state = if refused.is_err() { PolicyState::Refused } else { PolicyState::Waiting };
        evaluated.reported.push(ReportedPolicy {
            name: policy.name_any(),
            generation: policy.metadata.generation,
            state,
            message: refused.err().map(|message| fit(&message, MESSAGE_BYTES)),
        });
    }
    note_conflicts(&files, &numbers, &mut evaluated.reported);
    let is_usable = evaluated.reported.iter().all(|policy| policy.state == PolicyState::Waiting);
    let present_pods = pods.is_known().then(|| pods.present());
    evaluated.handed = is_usable.then_some(ClusterPolicies { policies: handed, present_pods });
    if evaluated.reported.len() > CLUSTER_POLICIES {
        // A fault must not be among those that are left out.
        evaluated.reported.sort_by_key(|policy| policy.state == PolicyState::Waiting);
        evaluated.reported.truncate(CLUSTER_POLICIES);
        evaluated.reported.sort_by(|one, other| one.name.cmp(&other.name));
    }
    evaluated
}

/// Notes both sides of each conflict: neither is more right than the other. `numbers` has the place of each file among the reported policies.
fn note_conflicts(files: &[DriftPolicyFile], numbers: &[usize], reported: &mut [ReportedPolicy]) {
    for (file, error) in MergedPolicy::contradictions(files) {
        let Some(policy) = numbers.get(file).and_then(|number| reported.get_mut(*number)) else { continue };
        policy.state = PolicyState::Conflict;
        policy.message = Some(fit(&error.to_string(), MESSAGE_BYTES));
    }
}

/// A policy in the form of the files of a node, with the uids of the pods that it allows.
fn object(policy: &DriftPolicy, pods: &NodePods, ended: usize) -> Value {
    let rules: Vec<Value> = policy
        .spec
        .rules
        .iter()
        .map(|rule| {
            // Types with texts and numbers always have a JSON.
            let mut value = serde_json::to_value(rule).unwrap_or_default();
            // A sensor of an earlier version refuses these keys.
            let keys = [
                ("closed", rule.closed),
                ("absent", rule.absent),
                ("image", rule.image),
                ("scan", rule.scan),
            ];
            for (key, is_set) in keys {
                if let (false, Some(fields)) = (is_set, value.as_object_mut()) {
                    fields.remove(key);
                }
            }
            let actors = &rule.allowed_actors;
            if !actors.is_empty() {
                value["allowedActors"] = json!({
                    "units": actors.units, "exes": actors.exes, "users": actors.users, "pods": pods.allowed(actors, ended),
                });
            }
            value
        })
        .collect();
    let mut metadata = json!({ "name": policy.name_any() });
    let names: Vec<Value> = policy.spec.rules.iter().map(|rule| pod_names(&rule.allowed_actors)).collect();
    if names.iter().any(|names| !names.is_null()) {
        metadata["annotations"] = json!({ ALLOWED_NAMES: names });
    }
    json!({
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "DriftPolicy",
        "metadata": metadata,
        "spec": { "precedence": policy.spec.precedence, "rules": rules },
    })
}

/// A digest of the names that the uids of a rule replace; `null` if the rule names no pods. The sensor only compares digests. The names themselves
/// could exceed the size of a request.
fn pod_names(ActorNames { pods, service_accounts, .. }: &ActorNames) -> Value {
    if pods.is_empty() && service_accounts.is_empty() {
        return Value::Null;
    }
    let names = json!({ "pods": pods, "serviceAccounts": service_accounts }).to_string();
    hex::encode(&Sha256::digest(names)[..DIGEST]).into()
}
