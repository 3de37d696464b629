//! The manifests agree with the program.

#![expect(clippy::unwrap_used, reason = "a manifest without an expected field is a failed test")]

use holdfast_cluster::listen::{PROBES_PORT, SECURE_PORT};
use holdfast_cluster::manage::OURS;
use holdfast_cluster::reports::{CONDITIONS, SENSOR_READY};
use sensor_model::socket::METRICS;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

fn manifest(path: &str) -> String {
    let path = format!("{}/../deploy/{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A manifest with one object.
fn object(path: &str) -> Value {
    serde_saphyr::from_str(&manifest(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The element of a list that has this name.
fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let mut list = list.as_array().unwrap().iter();
    list.find(|element| element["name"] == name).unwrap_or_else(|| panic!("nothing has the name {name}"))
}

/// The reporter's container of the base.
fn reporter() -> Value {
    let pod = object("kustomize/base/daemonset.yaml");
    named(&pod["spec"]["template"]["spec"]["containers"], "reporter").clone()
}

#[test]
fn the_admission_policy_lets_the_reporter_change_its_own_conditions() {
    let policy = manifest("admission/reporter.yaml");
    let ours = CONDITIONS.map(|kind| format!("'{kind}'")).join(", ");
    assert!(policy.contains(&format!("\"[{ours}]\"")), "the policy's list is not [{ours}]");
    let user = "username.matches('^system:serviceaccount:[^:]+:holdfast-reporter$')";
    assert_eq!(policy.matches(user).count(), 2, "both policies are about the reporter's account");
    assert_eq!(policy.matches("validationActions: [\"Deny\"]").count(), 2, "both policies are bound");
}

#[test]
fn the_admission_policy_of_mode_manage_has_the_annotations_of_that_mode_and_that_of_observe_has_none() {
    let observe = manifest("admission/reporter.yaml");
    assert!(observe.contains("- name: ourAnnotations\n    expression: \"[]\"\n"));
    let manage = manifest("kustomize/overlays/manage/kustomization.yaml");
    let (_, list) = manage.split_once("path: /spec/variables/2/expression").expect("the policy's list");
    let list: Vec<&str> = list.split('\'').skip(1).step_by(2).collect();
    assert_eq!(list, OURS);
}

#[test]
fn the_sensor_serves_the_user_that_the_reporter_is() {
    let pod = manifest("kustomize/base/daemonset.yaml");
    assert!(pod.contains("\"--reporter-uid\", \"64837\""), "{pod}");
    assert!(pod.contains("runAsUser: 64837") && pod.contains("runAsGroup: 64837"), "{pod}");
}

#[test]
fn the_allocator_of_the_sensor_has_the_settings_of_the_service() {
    let (pod, service) = (manifest("kustomize/base/daemonset.yaml"), manifest("systemd/holdfast.service"));
    let settings = service.lines().filter_map(|line| line.strip_prefix("Environment=")?.split_once('='));
    let settings: Vec<String> =
        settings.map(|(name, value)| format!("{{name: {name}, value: \"{value}\"}}")).collect();
    assert!(!settings.is_empty() && settings.iter().all(|setting| pod.contains(setting)), "{settings:?}");
}

/// The names in the lines `- NAME` that follow a line, which may have comments behind them.
fn names_after<'a>(text: &'a str, line: &str) -> Vec<&'a str> {
    let (_, rows) = text.split_once(line).unwrap_or_else(|| panic!("no line {line:?}"));
    let rows = rows.lines().skip(1).map_while(|row| row.trim().strip_prefix("- "));
    rows.filter_map(|row| row.split_whitespace().next()).collect()
}

#[test]
fn the_constraints_of_openshift_allow_the_capabilities_of_the_sensor_and_no_others() {
    let pod = manifest("kustomize/base/daemonset.yaml");
    let constraints = manifest("kustomize/overlays/openshift/scc.yaml");
    let needed = names_after(&pod, "            add:");
    assert!(needed.contains(&"BPF"), "{needed:?}");
    assert_eq!(names_after(&constraints, "allowedCapabilities:"), needed);
}

#[test]
fn prometheus_scrapes_the_page_of_the_reporter_with_a_role_that_the_base_has() {
    let monitor = object("kustomize/components/prometheus/podmonitor.yaml");
    let [endpoint] = &monitor["spec"]["podMetricsEndpoints"].as_array().unwrap()[..] else {
        panic!("{monitor}")
    };
    // The pages of this port are over TLS, and need a token.
    let reporter = reporter();
    let port = named(&reporter["ports"], endpoint["port"].as_str().unwrap());
    assert_eq!(port["containerPort"], SECURE_PORT);
    assert_eq!((&endpoint["scheme"], &endpoint["path"]), (&"https".into(), &METRICS.into()));
    assert_eq!(endpoint["authorization"]["type"], "Bearer");
    let pod = object("kustomize/base/daemonset.yaml");
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], pod["spec"]["template"]["metadata"]["labels"]);
    assert_eq!(monitor["metadata"]["namespace"], pod["metadata"]["namespace"]);
    let role = "name: holdfast-metrics-reader\n";
    assert!(manifest("kustomize/components/prometheus/access.yaml").contains(role));
    assert!(manifest("kustomize/base/rbac.yaml").contains(role));
}

#[test]
fn ports_and_probes_are_those_at_which_the_programs_listen_on_all_addresses() {
    let controller = manifest("kustomize/base/controller.yaml");
    let controller: Vec<Value> =
        controller.split("\n---\n").map(|text| serde_saphyr::from_str(text).unwrap()).collect();
    let deployment = controller.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let controller = &deployment["spec"]["template"]["spec"]["containers"][0];
    for container in [controller, &reporter()] {
        assert_eq!(named(&container["ports"], "probes")["containerPort"], PROBES_PORT);
        for probe in ["livenessProbe", "readinessProbe"] {
            let get = container[probe]["httpGet"].as_object().unwrap();
            // A host here would be an address of one family.
            assert_eq!((&get["port"], get.get("host")), (&"probes".into(), None), "{probe}");
        }
        let arguments = container["args"].to_string();
        assert!(!arguments.contains("--probes") && !arguments.contains("--secure"), "{arguments}");
    }
}

#[test]
fn each_node_has_one_sensor_whatever_its_taints_and_during_an_update_too() {
    let pod = object("kustomize/base/daemonset.yaml");
    let update = &pod["spec"]["updateStrategy"];
    assert_eq!((&update["type"], &update["rollingUpdate"]["maxSurge"]), (&"RollingUpdate".into(), &0.into()));
    let spec = &pod["spec"]["template"]["spec"];
    // Without a key it tolerates every taint of every effect.
    assert_eq!(spec["tolerations"], serde_json::json!([{ "operator": "Exists" }]));
    assert_eq!(spec["priorityClassName"], "system-node-critical");
}

#[test]
fn the_namespace_allows_what_the_sensor_needs_and_its_network_the_pages_over_tls_alone() {
    let namespace = object("kustomize/base/namespace.yaml");
    for use_of in ["enforce", "audit", "warn"] {
        let level = &namespace["metadata"]["labels"][format!("pod-security.kubernetes.io/{use_of}")];
        assert_eq!(level, "privileged", "{use_of}");
    }
    let network = object("kustomize/base/networkpolicy.yaml");
    let pod = object("kustomize/base/daemonset.yaml");
    assert_eq!(network["metadata"]["namespace"], namespace["metadata"]["name"]);
    assert_eq!(network["spec"]["podSelector"]["matchLabels"], pod["spec"]["template"]["metadata"]["labels"]);
    assert_eq!(network["spec"]["policyTypes"], serde_json::json!(["Ingress"]));
    let open: Vec<&Value> = network["spec"]["ingress"].as_array().unwrap().iter().collect();
    let [rule] = open[..] else { panic!("one rule: {open:?}") };
    let ports: Vec<&str> =
        rule["ports"].as_array().unwrap().iter().filter_map(|port| port["port"].as_str()).collect();
    assert_eq!(ports, ["secure"]);
}

/// The largest number with this unit in a row of the page about performance.
fn measured(row: &str, unit: &str) -> f64 {
    let page = format!("{}/../docs/performance.md", env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(page).unwrap();
    let lines = page.lines().filter(|line| line.starts_with(&format!("| {row}")));
    let cells =
        lines.flat_map(|line| line.split('|').skip(2).filter_map(|cell| cell.trim().strip_suffix(unit)));
    let numbers = cells.filter_map(|cell| cell.replace(',', "").parse::<f64>().ok());
    let largest = numbers.fold(0.0, f64::max);
    assert!(largest > 0.0, "no row {row:?}");
    largest
}

#[test]
fn the_containers_ask_for_the_memory_that_was_measured() {
    let pod = object("kustomize/base/daemonset.yaml");
    let containers = &pod["spec"]["template"]["spec"]["containers"];
    for name in ["sensor", "reporter"] {
        let memory = &named(containers, name)["resources"]["requests"]["memory"];
        let memory: f64 = memory.as_str().unwrap().strip_suffix("Mi").unwrap().parse().unwrap();
        let row = measured(&format!("memory of the {name} "), " MiB");
        assert!(memory >= row, "{name} asks for {memory} MiB, and {row} MiB were measured");
    }
}

#[test]
fn the_containers_ask_for_the_cpu_time_that_an_idle_node_needs() {
    let pod = object("kustomize/base/daemonset.yaml");
    let containers = &pod["spec"]["template"]["spec"]["containers"];
    let asked = ["sensor", "reporter"].map(|name| {
        let cpu = &named(containers, name)["resources"]["requests"]["cpu"];
        cpu.as_str().unwrap().strip_suffix('m').unwrap().parse::<f64>().unwrap()
    });
    // The bench's CPU executes 10^9 instructions a second, so a thousandth of it executes 10^6.
    let needed = measured("nothing happens for a second, all CPU work", "") / 1e6;
    let asked: f64 = asked.iter().sum();
    assert!(asked >= needed, "they ask for {asked} thousandths of a CPU, and {needed} were measured");
}

/// The values that JSON patches of a kustomization set at a path.
fn patched(kustomization: &Value, path: &str) -> Vec<Value> {
    let patches = kustomization["patches"].as_array().unwrap().iter();
    let operations = patches.flat_map(|patch| -> Vec<Value> {
        serde_saphyr::from_str(patch["patch"].as_str().unwrap()).unwrap()
    });
    operations
        .filter(|operation| operation["path"] == path && operation["op"] != "test")
        .map(|operation| operation["value"].clone())
        .collect()
}

#[test]
fn a_pod_that_applies_has_ten_minutes_to_end_and_one_that_reports_half_a_minute() {
    let pod = object("kustomize/base/daemonset.yaml");
    assert_eq!(pod["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], 30);
    let manage = object("kustomize/overlays/manage/kustomization.yaml");
    let grace = "/spec/template/spec/terminationGracePeriodSeconds";
    assert_eq!(patched(&manage, grace), [Value::from(600)]);
    // The patches name containers by their numbers.
    let containers = &pod["spec"]["template"]["spec"]["containers"];
    assert_eq!((&containers[0]["name"], &containers[1]["name"]), (&"sensor".into(), &"reporter".into()));
    for overlay in ["openshift", "vanilla"] {
        let text = manifest(&format!("kustomize/overlays/{overlay}/kustomization.yaml"));
        assert!(!text.contains("terminationGracePeriodSeconds"), "{overlay}");
    }
}

/// The names of an object's fields.
fn fields(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Fails if an object has a field that a schema does not have, lacks one that it requires, or has a value that it does not list.
fn conforms(object: &Value, schema: &Value, place: &str) {
    if let Some(values) = schema["enum"].as_array() {
        assert!(values.contains(object), "{place}: {object} is none of {values:?}");
    }
    match schema["type"].as_str() {
        Some("object") if schema["properties"].is_object() => {
            let properties = &schema["properties"];
            for required in schema["required"].as_array().into_iter().flatten() {
                assert!(object.get(required.as_str().unwrap()).is_some(), "{place} has no {required}");
            }
            for field in fields(object) {
                assert!(properties.get(field).is_some(), "{place}.{field} is no field of the API");
                conforms(&object[field], &properties[field], &format!("{place}.{field}"));
            }
        }
        Some("object") => assert!(object.is_object(), "{place}"),
        Some("array") => {
            for element in object.as_array().unwrap_or_else(|| panic!("{place} is no list")) {
                conforms(element, &schema["items"], place);
            }
        }
        Some("string") => assert!(object.is_string(), "{place}: {object} is no text"),
        Some("boolean") => assert!(object.is_boolean(), "{place}: {object} is neither true nor false"),
        kind => panic!("{place}: the type {kind:?}"),
    }
}

#[test]
fn the_example_of_a_readiness_rule_waits_for_the_reporters_condition_and_has_the_fields_of_its_api() {
    let rule = object("examples/node-readiness-rule.yaml");
    let definition = format!("{}/tests/data/nodereadinessrules.yaml", env!("CARGO_MANIFEST_DIR"));
    let definition: Value = serde_saphyr::from_str(&fs::read_to_string(definition).unwrap()).unwrap();
    let [version] = &definition["spec"]["versions"].as_array().unwrap()[..] else { panic!("{definition}") };
    let group = definition["spec"]["group"].as_str().unwrap();
    assert_eq!(rule["apiVersion"], format!("{group}/{}", version["name"].as_str().unwrap()));
    assert_eq!(rule["kind"], definition["spec"]["names"]["kind"]);
    assert_eq!(fields(&rule), BTreeSet::from(["apiVersion", "kind", "metadata", "spec"]));
    conforms(&rule["spec"], &version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec");

    let conditions = rule["spec"]["conditions"].as_array().unwrap();
    let conditions: Vec<(&Value, &Value)> =
        conditions.iter().map(|condition| (&condition["type"], &condition["requiredStatus"])).collect();
    assert_eq!(conditions, [(&SENSOR_READY.into(), &"True".into())]);
    // The definition's own rules about the taint, of which the schema says nothing.
    let taint = &rule["spec"]["taint"];
    let key = taint["key"].as_str().unwrap();
    assert!(key.strip_prefix("readiness.k8s.io/").is_some_and(|name| !name.contains('/')), "{key}");
    assert_eq!(taint["effect"], "NoSchedule", "an example evicts nothing");
    let said = fs::read_to_string(format!("{}/../docs/kubernetes.md", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let taint = format!("{key}={}:NoSchedule", taint["value"].as_str().unwrap());
    assert_eq!(said.matches(&taint).count(), 2, "the text names the taint {taint}");
}

#[test]
fn no_token_is_mounted_but_into_the_reporter() {
    let pod = manifest("kustomize/base/daemonset.yaml");
    assert!(pod.contains("automountServiceAccountToken: false"));
    let (sensor, reporter) = pod.split_once("- name: reporter\n").expect("a container for the reporter");
    assert!(!sensor.contains("volumeMounts"), "the sensor mounts nothing");
    assert_eq!(reporter.matches("{name: token, ").count(), 1);
}
