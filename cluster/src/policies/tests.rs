use super::evaluate::{evaluate, names_pods};
use super::node::NodeFacts;
use super::pods::NodePods;
use crate::api::{DriftPolicy, PolicyState};
use kube::runtime::watcher::Event;
use sensor_model::socket::{ALLOWED_NAMES, POLICIES_BYTES};
use serde_json::{Value, json};

fn policy(name: &str, spec: &Value) -> DriftPolicy {
    let object = json!({
        "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy",
        "metadata": {"name": name, "generation": 3}, "spec": spec,
    });
    serde_json::from_value(object).unwrap()
}

fn rule(path: &str, action: &str) -> Value {
    json!({"path": path, "action": action})
}

fn states(policies: &[DriftPolicy]) -> Vec<(String, PolicyState, String)> {
    let evaluated = evaluate(policies, &NodeFacts::default(), &NodePods::default());
    let reported = evaluated.reported.into_iter();
    reported.map(|policy| (policy.name, policy.state, policy.message.unwrap_or_default())).collect()
}

#[test]
fn the_sensor_gets_the_policies_that_select_the_node_in_the_form_of_its_files() {
    let policies = [
        policy("all", &json!({"precedence": 5, "rules": [rule("/etc/a", "observe")]})),
        policy("others", &json!({"pools": ["infra"], "rules": [rule("/etc/a", "deny")]})),
        policy(
            "taints",
            &json!({"taintDriftedNodes": true, "rules": [
                {"path": "/etc/b", "action": "revert", "labels": "ignore", "reason": "x",
                 "allowedActors": {"units": ["a.service"], "users": ["ann"]}},
            ]}),
        ),
    ];
    let evaluated = evaluate(&policies, &NodeFacts::default(), &NodePods::default());
    assert!(evaluated.taints);
    let names: Vec<_> = evaluated.reported.iter().map(|policy| (&*policy.name, policy.generation)).collect();
    assert_eq!(names, [("all", Some(3)), ("taints", Some(3))]);
    let handed = evaluated.handed.unwrap().policies;
    assert_eq!(handed[0]["spec"], json!({"precedence": 5, "rules": [rule("/etc/a", "observe")]}));
    let actors = json!({"units": ["a.service"], "exes": [], "users": ["ann"], "pods": []});
    assert_eq!(
        handed[1]["spec"]["rules"][0],
        json!({"path": "/etc/b", "action": "revert", "labels": "ignore", "reason": "x",
               "allowedActors": actors})
    );
}

#[test]
fn a_sensor_of_an_earlier_version_gets_the_key_absent_only_of_a_rule_that_has_it() {
    let absent = json!({"path": "/etc/rc.local", "action": "revert", "absent": true});
    let policies = [policy("all", &json!({"rules": [rule("/etc/a", "observe"), absent]}))];
    let evaluated = evaluate(&policies, &NodeFacts::default(), &NodePods::default());
    let handed = evaluated.handed.unwrap().policies;
    assert_eq!(handed[0]["spec"]["rules"], json!([rule("/etc/a", "observe"), absent]));
}

#[test]
fn policies_of_one_precedence_with_different_actions_where_nothing_may_be_are_a_conflict() {
    let of = |name: &str, action: &str| {
        policy(name, &json!({"rules": [{"path": "/etc/rc.local", "action": action, "absent": true}]}))
    };
    let found = states(&[of("one", "observe"), of("other", "revert")]);
    assert!(found.iter().all(|(_, state, _)| *state == PolicyState::Conflict), "{found:?}");
    // A directory at the path cannot be named, whatever the CRD lets pass.
    let faulty =
        policy("faulty", &json!({"rules": [{"path": "/etc/a/", "action": "observe", "absent": true}]}));
    let found = states(&[faulty]);
    assert_eq!(found[0].1, PolicyState::Refused);
    assert!(found[0].2.contains("use closed: true"), "{found:?}");
}

#[test]
fn a_conflict_is_shown_on_both_sides_and_hands_nothing_to_the_sensor() {
    let of = |name: &str, precedence: i64, action: &str| {
        policy(name, &json!({"precedence": precedence, "rules": [rule("/etc/a", action)]}))
    };
    let policies = [of("one", 1, "observe"), of("other", 1, "deny"), of("third", 2, "degrade")];
    let states = states(&policies);
    assert_eq!(states[0].1, PolicyState::Conflict);
    assert_eq!(states[1].1, PolicyState::Conflict);
    assert_eq!(states[2].1, PolicyState::Waiting);
    assert!(states[0].2.contains("DriftPolicy \"other\" has another rule for \"/etc/a\""), "{}", states[0].2);
    assert!(states[1].2.contains("DriftPolicy \"one\" has another rule for \"/etc/a\""), "{}", states[1].2);
    assert_eq!(evaluate(&policies, &NodeFacts::default(), &NodePods::default()).handed, None);
    let same = [of("one", 1, "deny"), of("other", 1, "deny")];
    assert!(evaluate(&same, &NodeFacts::default(), &NodePods::default()).handed.is_some());
}

#[test]
fn a_policy_with_a_fault_is_named_with_its_field() {
    let faulty = policy("faulty", &json!({"rules": [rule("/etc/[", "observe")]}));
    let states = states(&[policy("good", &json!({"rules": [rule("/etc/a", "observe")]})), faulty]);
    assert_eq!((states[0].1, states[1].1), (PolicyState::Waiting, PolicyState::Refused));
    assert!(
        states[1].2.starts_with("drift policy DriftPolicy \"faulty\": spec.rules[0].path: "),
        "{}",
        states[1].2
    );
}

#[test]
fn pods_become_uids_and_other_policies_need_no_pods() {
    let by_account = policy(
        "pods",
        &json!({"rules": [{"path": "/etc/a", "action": "deny", "allowedActors": {"serviceAccounts": ["team/agent"]}}]}),
    );
    let names_pods = |policy: &DriftPolicy| names_pods([policy], &NodeFacts::default());
    assert!(names_pods(&by_account));
    assert!(!names_pods(&policy("none", &json!({"rules": [rule("/etc/a", "deny")]}))));
    let mut elsewhere = by_account.clone();
    elsewhere.spec.pools = vec!["infra".to_owned()];
    assert!(!names_pods(&elsewhere), "the policy of other nodes is none of this node's business");
    let mut pods = NodePods::default();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "team", "name": "x", "uid": "u-1"},
        "spec": {"serviceAccountName": "agent"}, "status": {"phase": "Running"},
    });
    pods.take(Event::Apply(serde_json::from_value(pod).unwrap()));
    let of = |policy: &DriftPolicy| evaluate([policy], &NodeFacts::default(), &pods).handed.unwrap().policies;
    let handed = of(&by_account);
    let names = |handed: &[Value]| handed[0]["metadata"]["annotations"][ALLOWED_NAMES].clone();
    assert_eq!(names(&handed), names(&of(&by_account)));
    let mut by_another = by_account.clone();
    by_another.spec.rules[0].allowed_actors.service_accounts = vec!["team/other".to_owned()];
    assert_ne!(names(&handed), names(&of(&by_another)));
    assert_eq!(handed[0].pointer("/spec/rules/0/allowedActors/pods"), Some(&json!(["u-1"])));
    assert_eq!(handed[0].pointer("/spec/rules/0/allowedActors/serviceAccounts"), None);
}

#[test]
fn the_sensor_gets_the_uids_of_the_pods_that_exist_once_they_are_listed() {
    let rule = json!({"path": "/etc/a", "action": "deny", "allowedActors": {"pods": ["team/a"]}});
    let policy = policy("pods", &json!({"rules": [rule, {"path": "/etc/b", "action": "deny"}]}));
    let pod = |name: &str| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"serviceAccountName": "x"},
            "metadata": {"namespace": "team", "name": name, "uid": format!("u-{name}")}});
        serde_json::from_value(pod).unwrap()
    };
    let mut pods = NodePods::default();
    let handed = |pods: &NodePods| evaluate([&policy], &NodeFacts::default(), pods).handed.unwrap();
    assert_eq!(handed(&pods).present_pods, None);
    for name in ["a", "b", "c"] {
        pods.take(Event::InitApply(pod(name)));
    }
    pods.take(Event::InitDone);
    pods.take(Event::Delete(pod("a")));
    let handed = handed(&pods);
    assert_eq!(handed.present_pods.unwrap(), ["u-b", "u-c"]);
    let names = &handed.policies[0]["metadata"]["annotations"][ALLOWED_NAMES];
    assert!(names[0].is_string() && names[1].is_null(), "one for each rule: {names}");
    assert_eq!(handed.policies[0].pointer("/spec/rules/0/allowedActors/pods"), Some(&json!(["u-a"])));
}

#[test]
fn a_report_names_no_more_policies_than_the_api_server_accepts_and_each_fault() {
    let spec = json!({"rules": [rule("/etc/a", "observe")]});
    let mut policies: Vec<_> = (0..101).map(|number| policy(&format!("p-{number:03}"), &spec)).collect();
    policies.push(policy("z-faulty", &json!({"rules": [rule("/etc/[", "observe")]})));
    let states = states(&policies);
    assert_eq!(states.len(), 100);
    assert_eq!((states[99].0.as_str(), states[99].1), ("z-faulty", PolicyState::Refused));
    assert!(states.is_sorted_by_key(|(name, _, _)| name.clone()), "{states:?}");
    policies.pop();
    let evaluated = evaluate(&policies, &NodeFacts::default(), &NodePods::default());
    assert_eq!(evaluated.handed.unwrap().policies.len(), 101, "the sensor says why it takes none of them");
}

#[test]
fn pods_that_ended_do_not_make_the_policies_too_large() {
    let mut pods = NodePods::default();
    let pod = |number: u32| {
        let uid = format!("2b6f1d3e-8c47-4d0a-9e51-{number:012}");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "team", "name": format!("x-{number}"), "uid": uid},
            "spec": {"serviceAccountName": "jobs"},
        });
        (serde_json::from_value(pod).unwrap(), uid)
    };
    for number in 0..256 {
        pods.take(Event::Apply(pod(number).0));
        pods.take(Event::Delete(pod(number).0));
    }
    pods.take(Event::Apply(pod(256).0));
    for (rules, known) in [(40, 257), (120, 33), (1200, 1)] {
        let rule = |number| json!({"path": format!("/etc/{number}"), "action": "deny", "allowedActors": {"serviceAccounts": ["team/jobs"]}});
        let rules: Vec<Value> = (0..rules).map(rule).collect();
        let policy = policy("jobs", &json!({"rules": rules}));
        let handed = evaluate([&policy], &NodeFacts::default(), &pods).handed.unwrap();
        let bytes = serde_json::to_vec(&handed).unwrap().len();
        assert!(bytes <= POLICIES_BYTES, "{} rules have {bytes} bytes", rules.len());
        let uids = handed.policies[0].pointer("/spec/rules/0/allowedActors/pods").unwrap();
        let newest: Vec<String> = (257 - known..257).map(|number| pod(number).1).collect();
        assert_eq!(*uids, json!(newest));
    }
}
