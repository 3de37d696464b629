//! The pods that rules of the cluster's policies allowed before.
//!
//! In: the policies that the reporter hands in, the uids of the pods that exist, and the policies of the request before. Out: the policies, in which
//! each rule keeps uids that it had under the same names. A reporter that restarts knows only the pods that exist, and the drift that an ended
//! pod left open stays allowed. No pod gets the uid of another one, so what is kept allows no pod that the names do not allow: a pod that exists
//! and is not handed in loses its place.

use sensor_model::socket::ALLOWED_NAMES;
use serde_json::Value;
use std::collections::BTreeSet;

/// How many uids each rule keeps besides those that it is handed: the first number with which the policies are not too large, or none.
pub(super) const KEPT: [usize; 2] = [256, 32];

/// The keys of a rule that make it another kind of rule for the same path.
const KINDS: [&str; 3] = ["closed", "absent", "image"];

/// The policies, each rule with so many of the uids that it had in `earlier`.
pub(super) fn with_earlier_pods(
    policies: &[Value],
    present: &BTreeSet<&str>,
    earlier: &[Value],
    most: usize,
) -> Vec<Value> {
    let mut policies = policies.to_vec();
    for policy in &mut policies {
        let Some(before) = earlier.iter().find(|before| name(before) == name(policy)) else { continue };
        for number in 0..rules(policy).len() {
            let kept = kept(policy, number, before, present, most);
            let pods = policy.pointer_mut(&format!("/spec/rules/{number}/allowedActors/pods"));
            if let Some(pods) = pods.and_then(Value::as_array_mut) {
                pods.extend(kept);
            }
        }
    }
    policies
}

/// The uids that the rule of this number had before. Those that it was handed last come before those that it had kept.
fn kept(policy: &Value, number: usize, before: &Value, present: &BTreeSet<&str>, most: usize) -> Vec<Value> {
    let rule = &rules(policy)[number];
    let same = rules(before).iter().enumerate().find(|(_, earlier)| is_about_the_same(earlier, rule));
    let names = allowed_names(policy, number);
    let Some((_, earlier)) =
        same.filter(|(place, _)| names.is_some() && allowed_names(before, *place) == names)
    else {
        return Vec::new();
    };
    let handed: BTreeSet<&str> = pods(rule).collect();
    let kept = pods(earlier).filter(|uid| !handed.contains(uid) && !present.contains(uid));
    kept.take(most).map(Value::from).collect()
}

fn name(policy: &Value) -> Option<&Value> {
    policy.pointer("/metadata/name")
}

fn rules(policy: &Value) -> &[Value] {
    policy.pointer("/spec/rules").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn pods(rule: &Value) -> impl Iterator<Item = &str> {
    let pods = rule.pointer("/allowedActors/pods").and_then(Value::as_array);
    pods.into_iter().flatten().filter_map(Value::as_str)
}

/// The digest of the names of a rule's pods.
fn allowed_names(policy: &Value, number: usize) -> Option<&Value> {
    policy.pointer("/metadata/annotations")?.get(ALLOWED_NAMES)?.get(number).filter(|names| !names.is_null())
}

/// Whether two rules have the same path and the same kind.
fn is_about_the_same(one: &Value, other: &Value) -> bool {
    let is_set = |rule: &Value, key: &str| rule.get(key) == Some(&Value::Bool(true));
    one.get("path") == other.get("path") && KINDS.iter().all(|key| is_set(one, key) == is_set(other, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::slice::from_ref;

    fn policy(names: &Value, uids: &[&str]) -> Value {
        json!({
            "metadata": {"name": "one", "annotations": {ALLOWED_NAMES: [null, names]}},
            "spec": {"rules": [{"path": "/etc/b"}, {"path": "/etc/a", "allowedActors": {"pods": uids}}]},
        })
    }

    /// The uids after a request with these, in the place of `earlier`.
    fn uids(handed: &Value, present: &[&str], earlier: &Value) -> Vec<String> {
        let present = present.iter().copied().collect();
        let policies = with_earlier_pods(from_ref(handed), &present, from_ref(earlier), 2);
        pods(&rules(&policies[0])[1]).map(str::to_owned).collect()
    }

    #[test]
    fn a_rule_keeps_the_newest_uids_of_before_while_its_names_and_its_kind_are_the_same() {
        let names = json!({"pods": ["team/agent"]});
        let earlier = policy(&names, &["u-1", "u-2", "u-3"]);
        let handed = policy(&names, &["u-2"]);
        assert_eq!(uids(&handed, &["u-2"], &earlier), ["u-2", "u-1", "u-3"]);
        assert_eq!(uids(&policy(&names, &["u-4"]), &["u-4"], &earlier), ["u-4", "u-1", "u-2"], "at most two");
        assert_eq!(uids(&handed, &["u-2", "u-1"], &earlier), ["u-2", "u-3"], "the names do not allow u-1");
        let others = json!({"pods": ["team/other"]});
        assert_eq!(uids(&policy(&others, &["u-2"]), &["u-2"], &earlier), ["u-2"]);
        assert_eq!(uids(&policy(&Value::Null, &["u-2"]), &["u-2"], &earlier), ["u-2"], "without names");
        for (key, value) in [("path", json!("/etc/c")), ("closed", json!(true)), ("absent", json!(true))] {
            let mut other = handed.clone();
            other["spec"]["rules"][1][key] = value;
            assert_eq!(uids(&other, &["u-2"], &earlier), ["u-2"], "{key}");
        }
        let mut moved = handed.clone();
        moved["spec"]["rules"].as_array_mut().unwrap().swap(0, 1);
        moved["metadata"]["annotations"][ALLOWED_NAMES].as_array_mut().unwrap().swap(0, 1);
        let policies = with_earlier_pods(&[moved], &BTreeSet::new(), &[earlier], 2);
        assert_eq!(pods(&rules(&policies[0])[0]).count(), 3, "the number of the rule is another one");
    }
}
