//! The overlay `openshift`, compared with its own `SecurityContextConstraints`. The plugin that admits pods on OpenShift is not here,
//! so the test compares the fields that the plugin compares.

use super::KubeAssets;
use super::assets::tested;
use crate::cache::Cache;
use crate::dist;
use crate::run::output;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The objects that kubectl makes of a folder.
fn built(folder: &Path) -> Vec<Value> {
    let assets = KubeAssets::cached(&Cache::open().unwrap(), &tested()).unwrap();
    let text = output(Command::new(&assets.kubectl).arg("kustomize").arg(folder)).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is_wanted = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    objects.iter().find(is_wanted).unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"].into_iter().filter_map(|list| pod[list].as_array()).flatten()
}

fn texts(list: &Value) -> BTreeSet<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The kinds of the pod's volumes: the keys beside the name.
fn volumes(pod: &Value) -> BTreeSet<&str> {
    let fields = pod["volumes"].as_array().into_iter().flatten().filter_map(Value::as_object);
    fields.flat_map(|fields| fields.keys()).map(String::as_str).filter(|field| *field != "name").collect()
}

fn capabilities(pod: &Value) -> BTreeSet<&str> {
    containers(pod)
        .flat_map(|container| texts(&container["securityContext"]["capabilities"]["add"]))
        .collect()
}

/// What no constraints of ours allow: each container says so itself, and the pod uses nothing else of the host.
fn asks_for_no_more(pod: &Value) {
    for field in ["hostNetwork", "hostIPC"] {
        assert!(pod[field].is_null(), "{field}: {pod}");
    }
    for container in containers(pod) {
        let context = &container["securityContext"];
        assert!(context["privileged"].is_null() || context["privileged"] == false, "{container}");
        assert_eq!(context["allowPrivilegeEscalation"], false, "{container}");
        assert_eq!(context["readOnlyRootFilesystem"], true, "{container}");
        assert_eq!(context["seccompProfile"], json!({ "type": "RuntimeDefault" }), "{container}");
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{container}");
        let ports = container["ports"].as_array().into_iter().flatten();
        assert!(ports.into_iter().all(|port| port["hostPort"].is_null()), "{container}");
    }
}

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn the_constraints_of_openshift_allow_what_the_pods_ask_for_and_nothing_else() {
    let kustomize = dist::root().join("deploy/kustomize");
    let objects = built(&kustomize.join("overlays/openshift"));
    let constraints = object(&objects, "SecurityContextConstraints", "holdfast");
    for field in [
        "allowPrivilegedContainer",
        "allowPrivilegeEscalation",
        "defaultAllowPrivilegeEscalation",
        "allowHostIPC",
        "allowHostNetwork",
        "allowHostPorts",
    ] {
        assert_eq!(constraints[field], false, "{field}");
    }
    assert_eq!(constraints["readOnlyRootFilesystem"], true);
    assert_eq!(constraints["seccompProfiles"], json!(["runtime/default"]));

    let template = &object(&objects, "DaemonSet", "holdfast")["spec"]["template"];
    let pod = &template["spec"];
    asks_for_no_more(pod);
    assert_eq!(constraints["allowHostPID"], pod["hostPID"]);
    assert_eq!(capabilities(pod), texts(&constraints["allowedCapabilities"]));
    assert_eq!(volumes(pod), texts(&constraints["volumes"]));
    assert_eq!(constraints["allowHostDirVolumePlugin"], volumes(pod).contains("hostPath"));
    // The account of the pod, and no other, may use them, and the pod asks for them by name.
    assert_eq!(template["metadata"]["annotations"]["openshift.io/required-scc"], "holdfast");
    let role = object(&objects, "ClusterRole", "holdfast-scc");
    assert_eq!(
        role["rules"],
        json!([{ "apiGroups": ["security.openshift.io"], "resources": ["securitycontextconstraints"],
                 "resourceNames": [constraints["metadata"]["name"]], "verbs": ["use"] }])
    );
    let bound = object(&objects, "RoleBinding", "holdfast-scc");
    assert_eq!(bound["roleRef"]["name"], role["metadata"]["name"]);
    let account = json!([{ "kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "holdfast-system" }]);
    assert_eq!(bound["subjects"], account);
    assert_eq!((&constraints["users"], &constraints["groups"]), (&json!([]), &json!([])));

    // The constraints restricted-v2 of each OpenShift give the controller its user.
    let template = &object(&objects, "Deployment", "holdfast-controller")["spec"]["template"];
    asks_for_no_more(&template["spec"]);
    assert_eq!(template["metadata"]["annotations"]["openshift.io/required-scc"], "restricted-v2");
    assert!(
        template["spec"]["hostPID"].is_null() && capabilities(&template["spec"]).is_empty(),
        "{template}"
    );
    assert_eq!(volumes(&template["spec"]), BTreeSet::from(["projected"]));
    for container in containers(&template["spec"]) {
        let context = &container["securityContext"];
        assert!(context["runAsUser"].is_null() && context["runAsGroup"].is_null(), "{container}");
    }
}

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn the_constraints_of_openshift_allow_the_pod_of_the_last_rollout() {
    let kustomize = dist::root().join("deploy/kustomize");
    // Kustomize takes relative paths only.
    let work = tempfile::tempdir_in(&kustomize).unwrap();
    for name in ["remove", "purge"] {
        let text = json!({ "resources": ["../overlays/openshift"], "components": [format!("../components/{name}")] });
        std::fs::write(work.path().join("kustomization.yaml"), text.to_string()).unwrap();
        let objects = built(work.path());
        let constraints = object(&objects, "SecurityContextConstraints", "holdfast");
        let template = &object(&objects, "DaemonSet", "holdfast")["spec"]["template"];
        let pod = &template["spec"];
        asks_for_no_more(pod);
        assert_eq!(template["metadata"]["annotations"]["openshift.io/required-scc"], "holdfast");
        assert!(capabilities(pod).is_subset(&texts(&constraints["allowedCapabilities"])), "{name}: {pod}");
        assert!(volumes(pod).is_subset(&texts(&constraints["volumes"])), "{name}: {pod}");
        let bound = object(&objects, "RoleBinding", "holdfast-scc");
        assert_eq!(bound["subjects"][0]["name"], pod["serviceAccountName"], "{name}");
    }
}
