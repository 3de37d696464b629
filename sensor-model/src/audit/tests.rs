//! Matches of audit events with processes.

use super::*;
use serde_json::{Value, json};

const UID: &str = "2b6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).expect("a time")
}

fn pod() -> PodName {
    PodName { namespace: "shop".to_owned(), name: "web-0".to_owned() }
}

/// An event about `shop/web-0`, received at second 100.
fn event(subresource: &str, stage: &str, second: i64) -> Value {
    json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": "a-1",
        "stage": stage, "verb": "get",
        "requestURI": format!("/api/v1/namespaces/shop/pods/web-0/{subresource}?command=sh&container=app&stdin=true"),
        "user": {"username": "alice@example.com", "groups": ["system:authenticated"]},
        "sourceIPs": ["192.0.2.7"],
        "objectRef": {"resource": "pods", "namespace": "shop", "name": "web-0", "apiVersion": "v1", "subresource": subresource},
        "requestReceivedTimestamp": at(100).to_string(), "stageTimestamp": at(second).to_string(),
    })
}

fn with(mut event: Value, field: &str, value: Value) -> Value {
    event[field] = value;
    event
}

fn process(container: Option<&str>, started: i64, changed: i64) -> PodProcess {
    PodProcess {
        pod: pod(),
        container: container.map(str::to_owned),
        started: at(started),
        changed: at(changed),
    }
}

fn requests(events: &[Value]) -> AuditedRequests {
    let mut requests = AuditedRequests::about([pod()]);
    for event in events {
        assert!(requests.read(&event.to_string()), "{event}");
    }
    requests
}

fn names(events: &[Value], process: &PodProcess) -> Vec<(String, AuditedRequest)> {
    requests(events).users(process).into_iter().map(|user| (user.user, user.request)).collect()
}

#[test]
fn a_process_that_starts_in_an_exec_session_matches_its_user_also_after_the_session() {
    let session = [event("exec", "ResponseStarted", 100), event("exec", "ResponseComplete", 200)];
    let alice = vec![("alice@example.com".to_owned(), AuditedRequest::Exec)];
    for (container, started, changed, expected) in [
        (Some("app"), 101, 150, &alice),
        (None, 101, 150, &alice),
        (Some("app"), 150, 9000, &alice),
        (Some("app"), 97, 150, &alice),
        (Some("app"), 90, 150, &Vec::new()),
        (Some("app"), 206, 207, &Vec::new()),
        (Some("proxy"), 101, 150, &Vec::new()),
    ] {
        assert_eq!(
            names(&session, &process(container, started, changed)),
            *expected,
            "{container:?} {started}"
        );
    }
}

#[test]
fn a_session_without_an_end_matches_and_one_without_a_container_matches_each_container() {
    let uri = json!("/api/v1/namespaces/shop/pods/web-0/exec?command=sh");
    let open = with(event("exec", "ResponseStarted", 100), "requestURI", uri);
    let found = requests(&[open]).users(&process(Some("proxy"), 101, 150));
    assert_eq!((found[0].ended, found[0].container.as_deref(), found.len()), (None, None, 1));
}

#[test]
fn an_attached_user_matches_changes_during_the_session_however_old_the_process_is() {
    let session = [event("attach", "ResponseComplete", 200)];
    assert_eq!(names(&session, &process(Some("app"), 1, 150)).len(), 1);
    assert_eq!(names(&session, &process(Some("app"), 1, 50)), []);
    assert_eq!(names(&session, &process(Some("app"), 1, 250)), []);
}

#[test]
fn refused_requests_match_nothing_whichever_stage_tells_it() {
    let refused = with(event("exec", "ResponseComplete", 101), "responseStatus", json!({"code": 403}));
    let received = event("exec", "RequestReceived", 100);
    for events in [[received.clone(), refused.clone()], [refused, received]] {
        assert_eq!(names(&events, &process(Some("app"), 101, 150)), []);
    }
}

#[test]
fn an_ephemeral_container_matches_by_its_name_where_the_audit_level_shows_it() {
    let patch = with(event("ephemeralcontainers", "ResponseComplete", 100), "verb", json!("patch"));
    let patch = with(patch, "requestURI", json!("/api/v1/namespaces/shop/pods/web-0/ephemeralcontainers"));
    let object = json!({"spec": {"ephemeralContainers": [{"name": "debugger-x7"}]}});
    let detailed = with(patch.clone(), "requestObject", object);
    let seen = |event: &Value, container| {
        names(std::slice::from_ref(event), &process(Some(container), 103, 150)).len()
    };
    assert_eq!((seen(&detailed, "debugger-x7"), seen(&detailed, "app"), seen(&patch, "app")), (1, 0, 1));
}

#[test]
fn a_creator_is_named_only_without_a_session_and_only_if_it_is_a_user() {
    let created = with(event("", "ResponseComplete", 90), "verb", json!("create"));
    let created = with(created, "requestURI", json!("/api/v1/namespaces/shop/pods"));
    let created = with(created, "auditID", json!("a-0"));
    let session = event("attach", "ResponseStarted", 100);
    let seen = process(Some("app"), 100, 150);
    let alice = "alice@example.com".to_owned();
    assert_eq!(names(std::slice::from_ref(&created), &seen), [(alice.clone(), AuditedRequest::Create)]);
    assert_eq!(names(&[created.clone(), session], &seen), [(alice, AuditedRequest::Attach)]);
    let controller = json!({"username": "system:serviceaccount:kube-system:replicaset-controller"});
    assert_eq!(names(&[with(created, "user", controller)], &seen), []);
}

#[test]
fn of_two_sessions_the_one_nearest_to_the_start_of_the_process_comes_first() {
    let bob = with(event("exec", "ResponseStarted", 60), "user", json!({"username": "bob"}));
    let bob = with(with(bob, "requestReceivedTimestamp", json!(at(60).to_string())), "auditID", json!("a-2"));
    let found = names(&[bob, event("exec", "ResponseStarted", 100)], &process(Some("app"), 101, 150));
    let users: Vec<&str> = found.iter().map(|(user, _)| user.as_str()).collect();
    assert_eq!(users, ["alice@example.com", "bob"]);
}

#[test]
fn a_match_names_who_impersonated_the_user() {
    let seen = with(event("exec", "ResponseStarted", 100), "impersonatedUser", json!({"username": "carol"}));
    let found = requests(&[seen]).users(&process(Some("app"), 101, 150));
    assert_eq!(
        (found[0].user.as_str(), found[0].impersonated_by.as_deref()),
        ("carol", Some("alice@example.com"))
    );
}

#[test]
fn requests_about_other_pods_and_objects_are_left_out() {
    let other = json!({"resource": "pods", "namespace": "shop", "name": "web-1", "subresource": "exec"});
    let node = json!({"resource": "nodes", "name": "web-0", "subresource": "exec"});
    for reference in [other, node] {
        let events = [with(event("exec", "ResponseStarted", 100), "objectRef", reference)];
        assert_eq!(names(&events, &process(Some("app"), 101, 150)), []);
    }
}

#[test]
fn a_line_that_is_no_audit_event_is_told_apart() {
    let mut requests = AuditedRequests::about([pod()]);
    let cut = &event("exec", "ResponseStarted", 100).to_string()[..90];
    let other_version =
        with(event("exec", "ResponseStarted", 100), "apiVersion", json!("audit.k8s.io/v9")).to_string();
    for line in ["", "[]", "{}", cut, other_version.as_str(), r#"{"kind":"Pod","apiVersion":"v1"}"#] {
        assert!(!requests.read(line), "{line}");
    }
}

#[test]
fn an_event_tells_the_name_of_a_uid_from_its_reference_or_its_objects() {
    let reference = json!({"resource": "pods", "namespace": "shop", "name": "web-0", "uid": UID});
    let status =
        with(event("status", "ResponseComplete", 1), "requestObject", json!({"metadata": {"uid": UID}}));
    for event in [with(event("", "ResponseComplete", 1), "objectRef", reference), status] {
        assert_eq!(pod_of(&event.to_string()), Some((UID.to_owned(), pod())));
    }
    assert_eq!(pod_of(&event("exec", "ResponseStarted", 1).to_string()), None);
}

#[test]
fn a_process_entered_the_container_with_its_farthest_ancestor_in_it() {
    let inside = |start_ns| Actor {
        start_ns,
        container_id: Some("c".repeat(64)),
        pod_uid: Some(UID.to_owned()),
        ..Actor::default()
    };
    let runtime = Actor { start_ns: 1_000_000_000, ..Actor::default() };
    let mut actor = inside(50_000_000_000);
    assert_eq!(entered_container(&actor, at(60), 60_000_000_000), at(50));
    actor.ancestors = vec![inside(45_000_000_000), inside(40_000_000_000), runtime, inside(2_000_000_000)];
    assert_eq!(entered_container(&actor, at(60), 60_000_000_000), at(40));
}
