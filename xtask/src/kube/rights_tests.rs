//! What a token of a node's reporter can read, with the API server.
//!
//! In: clusters of other tests, and the tokens of two nodes. Out: failures, if a token reads too little or too much.

use super::assets::{IMPERSONATION, is_tested_before};
use super::control_plane::ClientPlace;
use super::installed::{self, NAMESPACE};
use super::reporter_tests::{Cluster, LIMIT, PlayedSensor, refused};
use crate::dist;
use crate::run::output;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What the reporter may do, in each namespace.
const REPORTER: [&str; 15] = [
    "impersonate:associated-node authentication.k8s.io/nodes",
    "impersonate-on:associated-node:get /nodes",
    "impersonate-on:associated-node:watch /nodes",
    "impersonate-on:associated-node:list /pods",
    "impersonate-on:associated-node:watch /pods",
    "list holdfast.dev/driftpolicies",
    "watch holdfast.dev/driftpolicies",
    "list machineconfiguration.openshift.io/machineosbuilds",
    "get node.bootc.dev/bootcnodes",
    "patch /nodes/status",
    "create holdfast.dev/driftreports",
    "patch holdfast.dev/driftreports",
    "patch holdfast.dev/driftreports/status",
    "create authentication.k8s.io/tokenreviews",
    "create authorization.k8s.io/subjectaccessreviews",
];
/// What the reporter of the mode `manage` may do besides.
pub(super) const MANAGE: [&str; 3] = [
    "patch /nodes",
    "get machineconfiguration.openshift.io/machineconfigs",
    "get operator.openshift.io/machineconfigurations",
];
/// What it may do besides with the component `plain-reads`.
const PLAIN_READS: [&str; 4] = ["get /nodes", "watch /nodes", "list /pods", "watch /pods"];
/// Namespaces, and what the reporter may do in each alone.
const NAMESPACES: [(&str, &[&str]); 3] = [
    (NAMESPACE, &["create coordination.k8s.io/leases", "patch coordination.k8s.io/leases"]),
    ("default", &["create events.k8s.io/events"]),
    ("kube-system", &[]),
];

/// What every account may read beside objects: the roles `system:discovery`, `system:public-info-viewer` and
/// `system:service-account-issuer-discovery` have it.
const PAGES: [&str; 12] = [
    "get /.well-known/openid-configuration",
    "get /api",
    "get /api/*",
    "get /apis",
    "get /apis/*",
    "get /healthz",
    "get /livez",
    "get /openapi",
    "get /openapi/*",
    "get /openid/v1/jwks",
    "get /readyz",
    "get /version",
];

/// The texts of an array.
fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Everything that the owner of a token may do in a namespace, by the API server's list.
struct Allowed {
    /// Verbs, with groups and resources, and with the names of objects if a right is limited to them.
    objects: BTreeSet<String>,
    /// Verbs, with paths that lead to no object.
    pages: BTreeSet<String>,
}

/// A right, with the names of the objects to which it is limited.
fn right(verb: &str, group: &str, resource: &str, names: &[&str]) -> String {
    let of = if names.is_empty() { String::new() } else { format!(" {}", names.join(",")) };
    format!("{verb} {group}/{resource}{of}")
}

#[test]
fn a_right_to_named_objects_is_another_than_the_right_to_all() {
    let all = right("use", "security.openshift.io", "securitycontextconstraints", &[]);
    let one = right("use", "security.openshift.io", "securitycontextconstraints", &["holdfast"]);
    assert_eq!(all, "use security.openshift.io/securitycontextconstraints");
    assert_eq!(one, format!("{all} holdfast"));
}

fn allowed(cluster: &Cluster, config: &Path, namespace: &str) -> Allowed {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": { "namespace": namespace },
    });
    let file = cluster.file("review.json", &review.to_string());
    // A token of the cluster reads no schemas of the API, which kubectl would compare the object with.
    let create = ["create", "--validate=false", "--output", "json", "-f", file.to_str().unwrap()];
    let answer: Value = serde_json::from_str(&cluster.kubectl_as(config, &create).unwrap()).unwrap();
    assert_ne!(answer["status"]["incomplete"], true, "the list has everything: {answer}");
    let (mut objects, mut pages) = (BTreeSet::new(), BTreeSet::new());
    for rule in answer["status"]["nonResourceRules"].as_array().unwrap() {
        for verb in texts(&rule["verbs"]) {
            pages.extend(texts(&rule["nonResourceURLs"]).iter().map(|path| format!("{verb} {path}")));
        }
    }
    for rule in answer["status"]["resourceRules"].as_array().unwrap() {
        for verb in texts(&rule["verbs"]) {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    objects.insert(right(verb, group, resource, &texts(&rule["resourceNames"])));
                }
            }
        }
    }
    Allowed { objects, pages }
}

/// What the controller may do, in each namespace.
const CONTROLLER: [&str; 5] = [
    "list holdfast.dev/driftpolicies",
    "watch holdfast.dev/driftpolicies",
    "list holdfast.dev/driftreports",
    "watch holdfast.dev/driftreports",
    "patch holdfast.dev/driftpolicies/status",
];

/// A token of a reporter has the rights of the lists above and these, those that every account has, and no others.
pub(super) fn no_other_right(cluster: &Cluster, config: &Path, more: &[&str]) {
    for (namespace, own) in NAMESPACES {
        let objects: Vec<&str> = REPORTER.iter().chain(own).chain(more).copied().collect();
        rights_are(cluster, config, namespace, &objects, &[]);
    }
}

/// The tokens of the controller and of the account whose token Prometheus gets have no other rights than they need.
pub(super) fn no_other_right_of_other_accounts(cluster: &Cluster) {
    let access = dist::root().join("deploy/kustomize/components/prometheus/access.yaml");
    output(cluster.plane.kubectl().args(["apply", "-f"]).arg(access)).unwrap();
    for (namespace, _) in NAMESPACES {
        let of = |account: &str| account_config(cluster, account);
        rights_are(cluster, &of("holdfast-controller"), namespace, &CONTROLLER, &[]);
        rights_are(cluster, &of("holdfast-metrics"), namespace, &[], &["get /metrics"]);
    }
}

/// A config with a token of a service account.
fn account_config(cluster: &Cluster, account: &str) -> PathBuf {
    let mut kubectl = cluster.plane.kubectl();
    let token = output(kubectl.args(["create", "token", account, "--namespace", NAMESPACE])).unwrap();
    let config = cluster.plane.config_with(account, token.trim(), ClientPlace::Host).unwrap();
    cluster.file(&format!("{account}.kubeconfig"), &config)
}

/// In a namespace a token has these rights, those that every account has, and no others.
fn rights_are(cluster: &Cluster, config: &Path, namespace: &str, objects: &[&str], pages: &[&str]) {
    if is_tested_before(IMPERSONATION) {
        return;
    }
    let any = account_config(cluster, "default");
    let (mut wanted, found) = (allowed(cluster, &any, namespace), allowed(cluster, config, namespace));
    let other = wanted.pages.iter().find(|page| !PAGES.contains(&page.trim_end_matches('/')));
    assert_eq!(other, None, "in the namespace {namespace}");
    wanted.objects.extend(objects.iter().map(|&right| right.to_owned()));
    wanted.pages.extend(pages.iter().map(|&page| page.to_owned()));
    assert_eq!(found.objects, wanted.objects, "{} in the namespace {namespace}", config.display());
    assert_eq!(found.pages, wanted.pages, "{} in the namespace {namespace}", config.display());
}

/// Reads a path of the API with a token, in the name of a node if there is one.
pub(super) fn read(cluster: &Cluster, config: &Path, node: Option<&str>, path: &str) -> Result<Value> {
    let mut arguments = vec!["get".to_owned(), "--raw".to_owned(), path.to_owned()];
    arguments.extend(node.map(|node| format!("--as=system:node:{node}")));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let text = cluster.kubectl_as(config, &arguments)?;
    serde_json::from_str(&text).with_context(|| format!("{path} is no object: {text}"))
}

/// Whether the API server refuses a read for want of a right.
fn no_read(cluster: &Cluster, config: &Path, node: Option<&str>, path: &str) {
    let answer = read(cluster, config, node, path).map(|answer| answer.to_string());
    refused(answer, "(Forbidden)").with_context(|| format!("{path} in the name of {node:?}")).unwrap();
}

/// The token of the reporter of n1 reads its Node and its pods in the name of n1, and nothing of n2 or of the rest of the cluster.
pub(super) fn only_the_own_reads(cluster: &Cluster, n1: &Path) {
    if is_tested_before(IMPERSONATION) {
        return;
    }
    let pods = |node: &str| format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
    let own = read(cluster, n1, Some("n1"), &pods("n1")).unwrap();
    let own = own["items"].as_array().unwrap();
    assert!(!own.is_empty() && own.iter().all(|pod| pod["spec"]["nodeName"] == "n1"), "{own:?}");
    let node = read(cluster, n1, Some("n1"), "/api/v1/nodes/n1").unwrap();
    assert_eq!(node["metadata"]["name"], "n1");

    let pod = own[0]["metadata"]["name"].as_str().unwrap();
    let pod = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}");
    let secrets = format!("/api/v1/namespaces/{NAMESPACE}/secrets");
    for path in [
        &pods("n2"),
        "/api/v1/pods",
        "/api/v1/nodes",
        "/api/v1/nodes/n2",
        // Node and pods have other parts, and the kubelet may read more.
        &pod,
        &format!("{pod}/log"),
        "/api/v1/nodes/n1/status",
        &secrets,
        &format!("{secrets}/x"),
        "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt",
        "/api/v1/services",
        "/api/v1/persistentvolumes",
        "/apis/holdfast.dev/v1alpha1/driftreports/n1",
    ] {
        no_read(cluster, n1, Some("n1"), path);
    }
    for path in [&pods("n1"), "/api/v1/nodes/n1", "/apis/holdfast.dev/v1alpha1/driftreports/n1", &secrets] {
        no_read(cluster, n1, None, path);
        no_read(cluster, n1, Some("n2"), path);
    }
    no_read(cluster, n1, Some("n2"), &pods("n2"));
    no_read(cluster, n1, Some("n2"), "/api/v1/nodes/n2");
    no_write_in_the_name_of_the_node(cluster, n1);
}

/// The kubelet may do all of this, and the admission policies would not see it.
fn no_write_in_the_name_of_the_node(cluster: &Cluster, n1: &Path) {
    let node = cluster.get(&["node", "n1"]).unwrap();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "n1", "namespace": "kube-node-lease" },
    });
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": { "name": "n1.x", "namespace": "default" },
        "involvedObject": { "kind": "Node", "name": "n1", "namespace": "default" },
    });
    let token = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "audiences": [] } });
    let accounts = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
    for (verb, path, object) in [
        ("replace", "/api/v1/nodes/n1", &node),
        ("replace", "/api/v1/nodes/n1/status", &node),
        ("create", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", &lease),
        ("create", "/api/v1/namespaces/default/events", &event),
        ("create", &format!("{accounts}/holdfast-reporter/token"), &token),
    ] {
        let file = cluster.file("object.json", &object.to_string());
        let arguments = [verb, "--raw", path, "--as=system:node:n1", "-f", file.to_str().unwrap()];
        refused(cluster.kubectl_as(n1, &arguments), "(Forbidden)")
            .with_context(|| format!("{verb} {path}"))
            .unwrap();
    }
}

/// A token of a reporter creates Events under names of its own node, and under none of a node whose name begins or ends as its own.
pub(super) fn only_events_of_the_own_name(cluster: &Cluster, n1: &Path) {
    let long = format!("{}-{}", "n".repeat(199), "m".repeat(20));
    let long_begin = format!("{}-x", "n".repeat(199));
    for name in ["n1.log-1", &long] {
        cluster.create(&installed::node(name));
    }
    let dotted = cluster.until_reporter_config("n1.log-1");
    let longest = cluster.until_reporter_config(&long);
    for (config, node, name, is_allowed) in [
        (n1, "n1", "n1.18c3f00dcafe", true),
        (n1, "n1", "n1.log-00ff", true),
        (n1, "n1", "n1.log-1.18c3f00dcafe", false),
        (n1, "n1", "n1.log-1.log-00ff", false),
        (n1, "n1", "n2.log-00ff", false),
        (n1, "n1", "n11.log-00ff", false),
        (n1, "n1", "n1", false),
        (&dotted, "n1.log-1", "n1.log-1.log-00ff", true),
        (&dotted, "n1.log-1", "n1.log-00fe", false),
        (&dotted, "n1.log-1", "n1.log-1", false),
        (&longest, &long, &format!("{long_begin}.log-00ff"), true),
        (&longest, &long, &format!("{long}.log-00ff"), false),
        (n1, "n1", &format!("{long_begin}.log-00ff"), false),
    ] {
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": { "name": name, "namespace": "default" },
            "regarding": { "apiVersion": "v1", "kind": "Node", "name": node },
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "reason": "X", "action": "X", "note": "x", "type": "Normal",
            "reportingController": "holdfast.dev/reporter", "reportingInstance": "test",
        });
        let event = cluster.file("event.json", &event.to_string());
        let create = ["create", "--validate=false", "-f", event.to_str().unwrap()];
        let answer = cluster.kubectl_as(config, &create);
        let answer = if is_allowed {
            answer.map(drop)
        } else {
            refused(answer, &format!("the name of an Event of the reporter of {node} is "))
        };
        answer.with_context(|| format!("{node} creates {name}")).unwrap();
    }
}

/// The token of the reporter of n1 watches its Node in the name of n1, and no other one.
pub(super) fn only_the_own_watch(cluster: &Cluster, n1: &Path) {
    if is_tested_before(IMPERSONATION) {
        return;
    }
    let watch = |node: &str| {
        format!("/api/v1/nodes?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3D{node}")
    };
    // While its cache is behind its storage, the API server answers 504, or begins the watch and ends it with an event of this error.
    cluster
        .plane
        .until(LIMIT, || {
            let first = cluster.kubectl_as(n1, &["get", "--raw", &watch("n1"), "--as=system:node:n1"])?;
            ensure!(first.contains("\"type\":\"ADDED\"") && first.contains("\"name\":\"n1\""), "{first}");
            Ok(())
        })
        .unwrap();
    for (node, path) in [(Some("n1"), watch("n2")), (None, watch("n1")), (Some("n2"), watch("n2"))] {
        no_read(cluster, n1, node, &path);
    }
    no_read(cluster, n1, Some("n1"), "/api/v1/nodes?watch=true&timeoutSeconds=1");
}

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn an_api_server_without_constrained_impersonation_is_read_with_the_rights_of_the_component_plain_reads() {
    let gate = ["--feature-gates=ConstrainedImpersonation=false"];
    let cluster = Cluster::start_with("plain-reads", "base", &gate);
    let _sensor = PlayedSensor::start(cluster.folder.path());
    let config = cluster.until_reporter_config("n1");
    no_read(&cluster, &config, Some("n1"), "/api/v1/nodes/n1");
    let log = cluster.plane.log("reporter");
    let reporter = cluster.start_reporter("reporter.sock", &config, &[], &log);
    let logged = |text: &str| -> Result<usize> {
        let found = std::fs::read_to_string(&log)?.matches(text).count();
        ensure!(found > 0, "the reporter has not logged `{text}` yet");
        Ok(found)
    };
    reporter.until(LIMIT, || logged("components/plain-reads").map(drop)).unwrap();
    assert!(cluster.get(&["driftreport", "n1"]).is_err(), "without the Node's uid nothing is reported");

    let rights = dist::root().join("deploy/kustomize/components/plain-reads/rbac.yaml");
    output(cluster.plane.kubectl().args(["apply", "-f"]).arg(rights)).unwrap();
    reporter.until(LIMIT, || cluster.state("n1", "InSync", "False").map(drop)).unwrap();
    assert_eq!(logged("Node and pods are read with the rights").unwrap(), 1, "a note is enough");
    no_other_right(&cluster, &config, &PLAIN_READS);
    cluster.plane.check().unwrap();
    reporter.check().unwrap();
}
