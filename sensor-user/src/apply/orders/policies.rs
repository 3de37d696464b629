//! The drift policies of the cluster, in the modes `observe` and `manage`.
//!
//! In: policies that the reporter hands in. Out: an implementation of [`PolicyOrders`], and the file that the daemon reads with the
//! policies of the node. A request with a fault, or with a rule that contradicts another one, changes nothing. The reporter is on the
//! network, so [`ActionLimits`] hold for each rule, also for those that a daemon in another mode took.

use super::{
    durable,
    earlier_pods::{KEPT, with_earlier_pods},
    refusal,
};
use crate::{
    desired::{Inputs, cluster_policies, drift_policies, read},
    report::socket::PolicyOrders,
};
use sensor_model::{
    drift_policy::{ActionLimits, DriftPolicyFile, LimitedPolicy},
    socket::{
        CLUSTER_POLICIES, ClusterPolicies, POLICIES_BYTES, SocketError, SocketErrorReason,
        TAKEN_POLICIES_SCHEMA, TakenPolicies,
    },
};
use serde_json::Value;
use std::{
    fs, io,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

/// Takes the policies of the cluster for one node.
#[derive(Debug)]
pub struct NodePolicies {
    file: PathBuf,
    /// The policies of the node: files and directories.
    of_node: Vec<PathBuf>,
    limits: ActionLimits,
    /// Only one request works at a time.
    working: Mutex<()>,
}

impl NodePolicies {
    /// For the node with these inputs. It changes nothing yet: [`super::ModeFiles`] limits the policies that the node has already.
    pub fn new(inputs: &Inputs, limits: ActionLimits) -> Self {
        Self {
            file: cluster_policies(&inputs.state),
            of_node: inputs.policies.clone(),
            limits,
            working: Mutex::new(()),
        }
    }

    /// Whether the policies can be used, alone and with those of the node.
    fn check(&self, list: &[u8]) -> Result<(), SocketError> {
        let of_node = read(&self.of_node).map_err(|error| {
            refusal(SocketErrorReason::NotReady, format!("the policies of the node: {error}"))
        })?;
        let refused = |error: &dyn std::fmt::Display| refusal(SocketErrorReason::Refused, error.to_string());
        drift_policies(&of_node).map_err(|error| {
            refusal(SocketErrorReason::NotReady, format!("the policies of the node: {error}"))
        })?;
        let of_cluster = (self.file.display().to_string(), list.to_vec());
        let all = of_node.into_iter().chain([of_cluster]).collect();
        drift_policies(&all).map(drop).map_err(|error| refused(&error))
    }

    /// The policies within the limits as the file has them, with as many of the uids of pods that they had `before` as there is room for.
    fn limited(
        &self,
        policies: &[Value],
        present: Option<&[String]>,
        before: Option<&[u8]>,
    ) -> serde_json::Result<(Vec<u8>, Vec<LimitedPolicy>)> {
        let encoded = |policies: &[Value]| {
            let (list, limited) = self.limits.list(policies);
            Ok((serde_json::to_vec(&list)?, limited))
        };
        let earlier = before.and_then(|list| serde_json::from_slice::<Value>(list).ok());
        let earlier = earlier.as_ref().and_then(|list| list.get("items")?.as_array());
        if let (Some(earlier), Some(present)) = (earlier, present) {
            let present = present.iter().map(String::as_str).collect();
            for most in KEPT {
                let found = encoded(&with_earlier_pods(policies, &present, earlier, most))?;
                if found.0.len() <= POLICIES_BYTES {
                    return Ok(found);
                }
            }
        }
        encoded(policies)
    }
}

impl PolicyOrders for NodePolicies {
    fn take(&self, policies: &[u8]) -> Result<TakenPolicies, SocketError> {
        let _one = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        let ClusterPolicies { policies, present_pods } =
            serde_json::from_slice(policies).map_err(|error| {
                let place = format!("line {}, column {}", error.line(), error.column());
                refusal(SocketErrorReason::Refused, format!("the body is no list of policies: {place}"))
            })?;
        if policies.len() > CLUSTER_POLICIES {
            let error =
                format!("{} policies select this node: at most {CLUSTER_POLICIES} may", policies.len());
            return Err(refusal(SocketErrorReason::Refused, error));
        }
        // A fault is named before the limits change an action.
        for policy in &policies {
            DriftPolicyFile::of_item(policy)
                .map_err(|error| refusal(SocketErrorReason::Refused, error.to_string()))?;
        }
        let kept = |error: io::Error| {
            tracing::error!(%error, path = %self.file.display(), "Cannot keep the policies of the cluster.");
            refusal(SocketErrorReason::NotReady, format!("the state directory cannot be written: {error}"))
        };
        let before = fs::read(&self.file).ok();
        let (list, limited) = self
            .limited(&policies, present_pods.as_deref(), before.as_deref())
            .map_err(|error| kept(error.into()))?;
        if policies.is_empty() {
            durable::remove(&self.file).map_err(kept)?;
        } else {
            self.check(&list)?;
            if before.as_deref() != Some(&list) {
                durable::replace(&self.file, &list).map_err(kept)?;
            }
        }
        Ok(TakenPolicies { schema: TAKEN_POLICIES_SCHEMA.to_owned(), limited })
    }
}

#[cfg(test)]
mod tests {
    use super::super::ModeFiles;
    use super::*;
    use crate::desired::{DaemonInputs, NamedSources};
    use sensor_model::drift_policy::DriftAction;
    use sensor_model::{drift_policy::PolicyActor, socket::ALLOWED_NAMES};
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    /// A node whose own policy has one rule, for `/etc/a` at the precedence 0.
    fn node() -> (tempfile::TempDir, Inputs) {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("own.json");
        fs::write(&own, policy("own", 0, "/etc/a", "degrade").to_string()).unwrap();
        let sources = NamedSources {
            root: root.path().to_owned(),
            state: Some(root.path().to_owned()),
            configs: Vec::new(),
            policies: vec![own],
            allow_unknown: false,
        };
        let options = DaemonInputs { allow_empty: false, with_cluster_policies: true };
        (root, sources.daemon_inputs(options, crate::apply::waits_or_none))
    }

    fn policy(name: &str, precedence: i64, path: &str, action: &str) -> Value {
        json!({
            "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": { "name": name },
            "spec": { "precedence": precedence, "rules": [{ "path": path, "action": action }] },
        })
    }

    fn take(node: &NodePolicies, policies: &[Value]) -> Result<TakenPolicies, SocketError> {
        node.take(json!({ "policies": policies }).to_string().as_bytes())
    }

    /// What the daemon would do about drift of a path.
    fn action(inputs: &Inputs, path: &str) -> DriftAction {
        let policy = drift_policies(&read(&inputs.all_policies()).unwrap()).unwrap();
        policy.decide(Path::new(path), None).action
    }

    #[test]
    fn the_policies_of_the_cluster_join_those_of_the_node_and_an_empty_list_takes_them_away() {
        let (root, inputs) = node();
        let policies = NodePolicies::new(&inputs, ActionLimits::MANAGE);
        let taken =
            take(&policies, &[policy("one", 1, "/etc/a", "observe"), policy("two", 0, "/etc/b", "deny")]);
        assert_eq!(taken.unwrap().limited, []);
        assert_eq!(action(&inputs, "/etc/a"), DriftAction::Observe, "the higher precedence");
        assert_eq!(action(&inputs, "/etc/b"), DriftAction::Deny);
        let mode = fs::metadata(cluster_policies(root.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        take(&policies, &[]).unwrap();
        assert_eq!(action(&inputs, "/etc/b"), DriftAction::Degrade);
        assert!(!cluster_policies(root.path()).exists());
    }

    #[test]
    fn a_policy_with_a_fault_or_a_conflict_with_the_node_changes_nothing() {
        let (_root, inputs) = node();
        let policies = NodePolicies::new(&inputs, ActionLimits::MANAGE);
        take(&policies, &[policy("one", 0, "/etc/b", "observe")]).unwrap();
        for (refused, reason) in [
            (
                policy("one", 0, "/etc/a", "observe"),
                "has another rule for \"/etc/a\" at the same precedence 0",
            ),
            (policy("one", 0, "etc/a", "observe"), "spec.rules[0].path"),
            (policy("one", 0, "/etc/a", "obserf"), "must be ignore, observe"),
            (json!({ "kind": "DriftPolicy" }), "is missing"),
        ] {
            let error = take(&policies, &[refused]).unwrap_err();
            assert_eq!(error.reason, SocketErrorReason::Refused, "{error:?}");
            assert!(error.error.contains(reason), "{error:?}");
        }
        let many = vec![policy("one", 0, "/etc/c", "observe"); CLUSTER_POLICIES + 1];
        assert_eq!(take(&policies, &many).unwrap_err().reason, SocketErrorReason::Refused);
        assert_eq!(policies.take(b"{").unwrap_err().reason, SocketErrorReason::Refused);
        assert_eq!(action(&inputs, "/etc/b"), DriftAction::Observe);
    }

    #[test]
    fn a_pod_that_ended_keeps_its_permission_when_a_new_reporter_knows_only_the_pods_that_exist() {
        let (_root, inputs) = node();
        let policies = NodePolicies::new(&inputs, ActionLimits::MANAGE);
        let hand_in = |account: &str, uids: &[&str], present: Option<&[&str]>| {
            let mut policy = policy("one", 1, "/etc/b", "revert");
            policy["metadata"]["annotations"] = json!({ALLOWED_NAMES: [{"serviceAccounts": [account]}]});
            policy["spec"]["rules"][0]["allowedActors"] = json!({"pods": uids});
            policies
                .take(json!({"policies": [policy], "present_pods": present}).to_string().as_bytes())
                .unwrap();
        };
        let is_allowed = |uid: &str| {
            let policy = drift_policies(&read(&inputs.all_policies()).unwrap()).unwrap();
            let subject = PolicyActor { pod_uid: Some(uid), ..PolicyActor::default() };
            policy.decide(Path::new("/etc/b"), Some(&subject)).allowed
        };
        hand_in("team/agent", &["u-1", "u-2"], Some(&["u-1", "u-2", "u-3"]));
        for _ in 0..2 {
            hand_in("team/agent", &["u-2"], Some(&["u-2", "u-3"]));
            assert!(is_allowed("u-1") && is_allowed("u-2") && !is_allowed("u-3"));
        }
        // An earlier reporter was taken over, and handed in the uid of a pod that the names do not allow.
        hand_in("team/agent", &["u-2", "u-3"], Some(&["u-2"]));
        hand_in("team/agent", &["u-2"], Some(&["u-2", "u-3"]));
        assert!(is_allowed("u-1") && !is_allowed("u-3"));
        // With so many pods that the policies would be too large, fewer are kept.
        let many: Vec<String> = (0..20_000).map(|number| format!("{number:036}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        hand_in("team/agent", &many, Some(&many));
        assert!(is_allowed("u-1"));
        hand_in("team/agent", &[], Some(&[]));
        assert_eq!(many.iter().filter(|uid| is_allowed(uid)).take(300).count(), 256);
        hand_in("team/other", &["u-2"], Some(&["u-2"]));
        assert!(is_allowed("u-2") && !is_allowed(many[0]), "the rule has other names");
        hand_in("team/other", &[], None);
        assert!(!is_allowed("u-2"), "nothing proves that it is no pod of now");
    }

    #[test]
    fn a_daemon_that_observes_limits_what_it_takes_and_what_one_that_manages_took() {
        let (_root, inputs) = node();
        take(&NodePolicies::new(&inputs, ActionLimits::MANAGE), &[policy("one", 1, "/etc/b", "deny")])
            .unwrap();
        assert_eq!(action(&inputs, "/etc/b"), DriftAction::Deny);
        let observing = NodePolicies::new(&inputs, ActionLimits::OBSERVE);
        assert_eq!(action(&inputs, "/etc/b"), DriftAction::Deny, "the daemon that took it may still run");
        ModeFiles::new(&inputs, Some(ActionLimits::OBSERVE), false).settle();
        assert_eq!(action(&inputs, "/etc/b"), DriftAction::Degrade);
        let taken = take(&observing, &[policy("one", 1, "/etc/b", "ignore")]).unwrap();
        assert_eq!((&*taken.limited[0].policy, taken.limited[0].rules), ("one", 1));
        assert_eq!(action(&inputs, "/etc/b"), DriftAction::Observe, "no drift is hidden from the log");
    }
}
