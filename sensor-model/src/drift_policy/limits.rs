//! What a policy of the cluster may ask of a node.
//!
//! In: a checked policy, and the limits of the daemon's mode. Out: the policy with each action within the limits. The policy comes from
//! the node's reporter, which is on the network and reads the log. So it can neither hide drift from the log, nor write to a node that
//! is only observed, nor have contents written to the log.

use super::{
    DriftAction,
    parse::{API_VERSION, LIST_KIND},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The actions that a policy of the cluster may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActionLimits {
    /// The mildest. A milder one becomes this one.
    pub least: DriftAction,
    /// The strictest. A stricter one becomes this one.
    pub most: DriftAction,
}

/// How many rules of a policy have another action on this node, because of the limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitedPolicy {
    /// The name of the policy.
    pub policy: String,
    /// The number of rules.
    pub rules: usize,
}

impl ActionLimits {
    /// A daemon that observes: drift is in the log, and Holdfast writes and refuses nothing.
    pub const OBSERVE: Self = Self { least: DriftAction::Observe, most: DriftAction::Degrade };
    /// A daemon that manages its node.
    pub const MANAGE: Self = Self { least: DriftAction::Observe, most: DriftAction::Deny };

    /// A list of checked policies as a `DriftPolicyList`, with each action within the limits. Gives the policies with another action.
    pub fn list(self, policies: &[Value]) -> (Value, Vec<LimitedPolicy>) {
        let mut items = policies.to_vec();
        let mut limited = Vec::new();
        for item in &mut items {
            let rules = self.limit(item);
            if rules > 0 {
                let name = item.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                limited.push(LimitedPolicy { policy: name.to_owned(), rules });
            }
        }
        (json!({ "apiVersion": API_VERSION, "kind": LIST_KIND, "items": items }), limited)
    }

    /// Puts each action of a policy within the limits, and hides contents. Gives the number of rules that changed.
    fn limit(self, policy: &mut Value) -> usize {
        let rules = policy.pointer_mut("/spec/rules").and_then(Value::as_array_mut);
        let rules = rules.into_iter().flatten().filter_map(Value::as_object_mut);
        let limited = rules.map(|rule| {
            // Without the field contents are secret.
            let shows = rule.remove("secret") == Some(Value::Bool(false));
            rule.get_mut("action").is_some_and(|action| self.limit_action(action)) || shows
        });
        limited.map(usize::from).sum()
    }

    fn limit_action(self, action: &mut Value) -> bool {
        let Some(known) = DriftAction::ALL.iter().find(|known| action == known.as_str()) else {
            return false;
        };
        let within = (*known).clamp(self.least, self.most);
        *action = within.as_str().into();
        within != *known
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DriftPolicy, DriftPolicyFile};
    use super::*;
    use std::path::Path;

    fn policy(action: &str) -> Value {
        json!({
            "apiVersion": API_VERSION, "kind": "DriftPolicy", "metadata": { "name": "one" },
            "spec": { "rules": [{ "path": "/etc/a", "action": action }, { "path": "/etc/b", "action": "degrade" }] },
        })
    }

    fn action(limits: ActionLimits, wanted: &str) -> (DriftAction, usize) {
        let (list, limited) = limits.list(&[policy(wanted)]);
        let files = DriftPolicyFile::parse_all("list", list.to_string().as_bytes()).unwrap();
        assert_eq!(files[0].origin, "DriftPolicy \"one\"");
        let merged = DriftPolicy::merge(&files).unwrap();
        (merged.decide(Path::new("/etc/a"), None).action, limited.iter().map(|one| one.rules).sum())
    }

    #[test]
    fn no_policy_of_the_cluster_hides_drift_and_none_writes_to_a_node_that_is_observed() {
        for (wanted, observes, manages) in [
            ("ignore", DriftAction::Observe, DriftAction::Observe),
            ("observe", DriftAction::Observe, DriftAction::Observe),
            ("degrade", DriftAction::Degrade, DriftAction::Degrade),
            ("revert", DriftAction::Degrade, DriftAction::Revert),
            ("deny", DriftAction::Degrade, DriftAction::Deny),
        ] {
            for (limits, expected) in [(ActionLimits::OBSERVE, observes), (ActionLimits::MANAGE, manages)] {
                let (found, changed) = action(limits, wanted);
                assert_eq!(found, expected, "{wanted}");
                assert_eq!(changed, usize::from(expected.as_str() != wanted), "{wanted}");
            }
        }
    }

    #[test]
    fn no_policy_of_the_cluster_has_contents_shown() {
        let mut shows = policy("degrade");
        shows["spec"]["rules"][0]["secret"] = false.into();
        let (list, limited) = ActionLimits::MANAGE.list(&[shows]);
        assert_eq!(limited, [LimitedPolicy { policy: "one".to_owned(), rules: 1 }]);
        let files = DriftPolicyFile::parse_all("list", list.to_string().as_bytes()).unwrap();
        assert!(DriftPolicy::merge(&files).unwrap().decide(Path::new("/etc/a"), None).secret);
    }

    #[test]
    fn a_fault_in_a_list_names_the_policy_and_its_field() {
        let (mut list, _) = ActionLimits::MANAGE.list(&[policy("observe"), policy("observe")]);
        list["items"][1]["metadata"]["name"] = "two".into();
        list["items"][1]["spec"]["rules"][0]["acton"] = "deny".into();
        let error = DriftPolicyFile::parse_all("list", list.to_string().as_bytes()).unwrap_err();
        assert!(
            error.to_string().starts_with("drift policy DriftPolicy \"two\": spec.rules[0]: "),
            "{error}"
        );
        let error = DriftPolicyFile::parse_all("list", br#"{"kind":"DriftPolicyList"}"#).unwrap_err();
        assert_eq!((error.field.as_str(), error.origin.as_str()), ("items", "list"));
    }
}
