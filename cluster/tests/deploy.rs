//! The manifests agree with the program.

use holdfast_cluster::manage::OURS;
use holdfast_cluster::reports::CONDITIONS;
use std::fs;

fn manifest(path: &str) -> String {
    let path = format!("{}/../deploy/{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_admission_policy_lets_the_reporter_change_its_own_conditions() {
    let policy = manifest("admission/reporter.yaml");
    let ours = CONDITIONS.map(|kind| format!("'{kind}'")).join(", ");
    assert!(policy.contains(&format!("\"[{ours}]\"")), "the policy's list is not [{ours}]");
    let user = "system:serviceaccount:holdfast-system:holdfast-reporter";
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
fn prometheus_scrapes_a_port_of_the_reporter_with_a_role_that_the_base_has() {
    let monitor = manifest("kustomize/components/prometheus/podmonitor.yaml");
    let (_, port) = monitor.split_once("- port: ").expect("a port");
    let port = port.lines().next().unwrap_or_default();
    assert!(manifest("kustomize/base/daemonset.yaml").contains(&format!("{{name: {port}, ")), "{port}");
    let role = "name: holdfast-metrics-reader\n";
    assert!(manifest("kustomize/components/prometheus/access.yaml").contains(role));
    assert!(manifest("kustomize/base/rbac.yaml").contains(role));
}

#[test]
fn no_token_is_mounted_but_into_the_reporter() {
    let pod = manifest("kustomize/base/daemonset.yaml");
    assert!(pod.contains("automountServiceAccountToken: false"));
    let (sensor, reporter) = pod.split_once("- name: reporter\n").expect("a container for the reporter");
    assert!(!sensor.contains("volumeMounts"), "the sensor mounts nothing");
    assert_eq!(reporter.matches("{name: token, ").count(), 1);
}
