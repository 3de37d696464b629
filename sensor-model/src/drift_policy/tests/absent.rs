//! Rules of paths where nothing may be.

use super::*;
use crate::{
    absent::absent_paths,
    closed::{HostDirectories, closed_directories},
};
use serde_json::{Value, json};

fn of(rules: &Value) -> Value {
    json!({
        "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": { "name": "test" },
        "spec": { "rules": rules },
    })
}

#[test]
fn absent_takes_one_path_and_no_other_key_about_undeclared_things_and_the_schema_agrees() {
    let schema = schema();
    for (rule, field, reason) in [
        (json!({ "path": "/etc/a/", "absent": true }), "path", "use closed: true"),
        (json!({ "path": "/", "absent": true }), "path", "name one path"),
        (json!({ "path": "/etc/*", "absent": true }), "path", "without wildcards"),
        (json!({ "path": "/etc/[ab]", "absent": true }), "path", "without wildcards"),
        (
            json!({ "path": "/etc/a", "absent": true, "closed": true }),
            "absent",
            "absent: true or closed: true",
        ),
        (
            json!({ "path": "/etc/a/", "absent": true, "closed": true }),
            "absent",
            "absent: true or closed: true",
        ),
        (json!({ "path": "/etc/a", "absent": true, "image": true }), "absent", "absent: true or image: true"),
        (json!({ "path": "/etc/a", "absent": 1 }), "absent", "true or false"),
    ] {
        let mut rule = rule;
        rule["action"] = "observe".into();
        let policy = of(&json!([rule]));
        let error = DriftPolicyFile::of_object("bad.yaml", &policy).unwrap_err();
        assert_eq!(error.field, format!("spec.rules[0].{field}"), "{rule}: {error}");
        assert!(error.reason.to_string().contains(reason), "{rule}: {error}");
        assert!(!schema.is_valid(&policy), "the schema takes {rule}");
    }
    for except in [json!({ "except": ["a"] }), json!({ "exceptLinks": [{ "name": "a", "target": "b" }] })] {
        let mut rule = json!({ "path": "/etc/a", "absent": true, "action": "observe" });
        rule.as_object_mut().unwrap().extend(except.as_object().unwrap().clone());
        let error = DriftPolicyFile::of_object("bad.yaml", &of(&json!([rule]))).unwrap_err();
        assert!(error.reason.to_string().contains("only a rule with closed: true has exceptions"), "{error}");
    }
    for action in DriftAction::ALL {
        let policy = of(&json!([{ "path": "/etc/a", "absent": true, "action": action.as_str() }]));
        assert!(schema.is_valid(&policy) && DriftPolicyFile::of_object("a", &policy).is_ok(), "{policy}");
    }
}

#[test]
fn a_reader_that_drops_the_key_expects_nothing_of_the_path_and_closes_no_directory() {
    let (_, text) = SHIPPED.iter().find(|(name, _)| *name == "closed.yaml").unwrap();
    let mut policy: Value = serde_saphyr::from_str(text).unwrap();
    let merged = |policy: &Value| {
        DriftPolicy::merge(&[DriftPolicyFile::of_object("closed.yaml", policy).unwrap()]).unwrap()
    };
    let closed = |policy: &Value| {
        let found = closed_directories(&[], &merged(policy), &HostDirectories::default());
        found.iter().map(|one| one.thing.path().to_path_buf()).collect::<Vec<_>>()
    };
    let before = closed(&policy);
    assert!(!absent_paths(&[], &[], &merged(&policy), &HostDirectories::default()).is_empty());
    for rule in policy["spec"]["rules"].as_array_mut().unwrap() {
        rule.as_object_mut().unwrap().remove("absent");
    }
    assert_eq!(closed(&policy), before);
    assert_eq!(absent_paths(&[], &[], &merged(&policy), &HostDirectories::default()), []);
}

#[test]
fn a_rule_about_an_undeclared_object_does_not_decide_about_a_declared_one_at_the_path() {
    let policy = merged(
        "
    - {path: /etc/rc.local, absent: true, action: observe, allowedActors: {units: [a.service]}}
    - {path: /etc/rc.local, action: deny}
",
    );
    let path = Path::new("/etc/rc.local");
    assert_eq!(policy.decide(path, None).action, DriftAction::Deny);
    let [absent] = &absent_paths(&[], &[], &policy, &HostDirectories::default())[..] else {
        panic!("{policy:?}")
    };
    let a = PolicyActor { unit: Some("a.service"), ..PolicyActor::default() };
    for (actor, allowed) in [(None, false), (Some(&a), true)] {
        let decision = policy.decide_about(absent, actor);
        assert_eq!((decision.action, decision.allowed), (DriftAction::Observe, allowed));
    }
    assert_eq!(policy.closed().count(), 0);
    // Also after a way through JSON, which the process that reads configs goes.
    let text = serde_json::to_string(&policy).unwrap();
    assert_eq!(serde_json::from_str::<DriftPolicy>(&text).unwrap(), policy);
}

#[test]
fn two_policies_of_one_precedence_with_different_rules_about_one_undeclared_object_contradict_each_other() {
    let rule = |action: &str| policy(&format!("    - {{path: /etc/a, absent: true, action: {action}}}\n"));
    let declared = policy("    - {path: /etc/a, action: deny}\n");
    let mut other = rule("revert");
    other.origin = "other.yaml".to_owned();
    assert_eq!(DriftPolicy::contradictions(&[rule("observe"), other.clone()]).len(), 2);
    assert!(DriftPolicy::merge(&[rule("observe"), other.clone()]).is_err());
    assert!(DriftPolicy::merge(&[rule("revert"), declared, other]).is_ok(), "another kind of rule");
}
