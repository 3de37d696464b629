mod properties;

use super::*;
use crate::{
    action::Fallback,
    changes::tests::{config, files, ignition},
    node_disruption::DisruptionPolicyFile,
    reconcile::Irreconcilable,
};
use serde_json::{Value, json};

fn policy(text: &str) -> DisruptionPolicy {
    DisruptionPolicy::merge(&DisruptionPolicyFile::parse("policy.yaml", text.as_bytes()).unwrap(), None)
        .unwrap()
}

/// A policy with one list of actions for `/etc/a`.
fn for_a(actions: &str) -> DisruptionPolicy {
    policy(&format!(
        "apiVersion: holdfast.dev/v1alpha1\nkind: DisruptionPolicy\nmetadata: {{name: a}}\n\
         spec: {{files: [{{path: /etc/a, actions: {actions}}}]}}\n"
    ))
}

fn planned_by(old: &Value, new: &Value, policy: &DisruptionPolicy) -> Plan {
    plan(Some(&config(old)), Some(&config(new)), policy).unwrap()
}

fn planned(old: &Value, new: &Value) -> Plan {
    planned_by(old, new, &DisruptionPolicy::shipped().unwrap())
}

fn at(path: &str, text: &str) -> Value {
    files(&json!([{ "path": path, "contents": { "source": format!("data:,{text}") } }]))
}

/// Files of these paths.
fn all(paths: &[&str]) -> Value {
    files(&paths.iter().map(|path| json!({ "path": path })).collect())
}

/// Steps as short words.
fn words(plan: &Plan) -> Vec<String> {
    plan.steps
        .iter()
        .map(|step| match &step.target {
            Some(target) => format!("{} {target}", step.action.as_str()),
            None => step.action.as_str().to_owned(),
        })
        .collect()
}

#[test]
fn equal_configs_have_no_steps() {
    for (old, new) in [(at("/etc/a", "x"), at("/etc/a", "x")), (json!({}), json!({}))] {
        let plan = planned(&old, &new);
        assert!(plan.is_empty() && plan.steps.is_empty() && plan.reconcilable && !plan.drain && !plan.reboot);
    }
    assert!(plan(None, None, &DisruptionPolicy::shipped().unwrap()).unwrap().is_empty());
}

#[test]
fn a_missing_config_is_an_empty_one() {
    let shipped = DisruptionPolicy::shipped().unwrap();
    let new = config(&at("/etc/a", "x"));
    assert_eq!(plan(None, Some(&new), &shipped), plan(Some(&config(&json!({}))), Some(&new), &shipped));
}

#[test]
fn each_kind_of_change_without_an_entry_drains_and_reboots() {
    for new in [
        at("/etc/a", "x"),
        ignition(&json!({ "storage": { "directories": [{ "path": "/etc/d" }] } })),
        ignition(&json!({ "storage": { "links": [{ "path": "/etc/l", "target": "a" }] } })),
        ignition(&json!({ "systemd": { "units": [{ "name": "a.service", "enabled": true }] } })),
        json!({ "kernelArguments": ["a"] }),
        json!({ "kernelType": "realtime" }),
        json!({ "extensions": ["usbguard"] }),
        json!({ "osImageURL": "registry/os@sha256:1" }),
    ] {
        for (old, new) in [(json!({}), &new), (new.clone(), &json!({}))] {
            let plan = planned(&old, new);
            assert_eq!(words(&plan), ["drain", "write", "reboot"], "{old} -> {new}");
            assert!(plan.drain && plan.reboot && plan.reconcilable);
            assert_eq!(plan.changes.len(), 1);
            assert_eq!(plan.changes[0].action, Action::Reboot);
        }
    }
}

#[test]
fn changes_that_need_no_action_are_only_written() {
    let user = |key: &str| json!({ "passwd": { "users": [{ "name": "core", "sshAuthorizedKeys": [key] }] } });
    let mut new = user("k2");
    new["storage"] = json!({ "files": [
        { "path": "/var/lib/kubelet/config.json" }, { "path": "/etc/nmstate/openshift/eth0.yml" },
    ] });
    let plan = planned(&ignition(&user("k1")), &ignition(&new));
    assert_eq!(words(&plan), ["write"]);
    assert!(!plan.drain && !plan.reboot);
    assert!(plan.changes.iter().all(|change| change.action == Action::None), "{plan:#?}");
    assert_eq!(plan.steps[0].because.len(), 4, "every change is written: {:?}", plan.steps[0].because);
}

#[test]
fn the_shipped_entries_lead_to_the_machine_config_operators_actions() {
    let restart_ca = ["write", "restart coreos-update-ca-trust.service", "restart crio.service"];
    for (path, expected) in [
        ("/var/lib/kubelet/config.json", &["write"][..]),
        ("/etc/machine-config-daemon/no-reboot/containers-gpg.pub", &["write", "reload crio.service"]),
        ("/etc/containers/policy.json", &["write", "reload crio.service"]),
        ("/etc/containers/registries.conf", &["write", "reload crio.service"]),
        ("/etc/containers/registries.d/a/b.yaml", &["write", "reload crio.service"]),
        ("/etc/crio/policies/ns.json", &["write", "reload crio.service"]),
        ("/etc/nmstate/openshift/a", &["write"]),
        ("/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt", &restart_ca),
        ("/etc/kubernetes/credential-providers/ecr.yaml", &["write", "restart kubelet.service"]),
        (
            "/etc/systemd/system/kubelet.service.d/40-kubelet-crio-image-credential-provider.conf",
            &["write", "daemon-reload", "restart kubelet.service"],
        ),
        ("/etc/iri-registry/a", &["write", "restart iri-registry.service"]),
        ("/usr/local/bin/load-registry-image.sh", &["write", "restart iri-registry.service"]),
        (
            "/etc/pki/ca-trust/source/anchors/iri-root-ca.crt",
            &["write", "restart coreos-update-ca-trust.service"],
        ),
        ("/etc/containers/registries.dd", &["drain", "write", "reboot"]),
        ("/etc/containers/policy.json.bak", &["drain", "write", "reboot"]),
    ] {
        assert_eq!(words(&planned(&json!({}), &all(&[path]))), expected, "{path}");
    }
    let unit =
        ignition(&json!({ "systemd": { "units": [{ "name": "iri-registry.service", "enabled": true }] } }));
    assert_eq!(
        words(&planned(&json!({}), &unit)),
        ["write", "daemon-reload", "restart iri-registry.service"]
    );
}

#[test]
fn steps_of_many_changes_come_once_and_in_order_with_all_their_causes() {
    let plan = planned(
        &json!({}),
        &all(&[
            "/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt",
            "/etc/pki/ca-trust/source/anchors/iri-root-ca.crt",
            "/etc/containers/policy.json",
            "/etc/containers/registries.d/x",
            "/etc/systemd/system/kubelet.service.d/40-kubelet-crio-image-credential-provider.conf",
            "/etc/kubernetes/credential-providers/x",
            "/var/lib/kubelet/config.json",
        ]),
    );
    let mut value = serde_json::to_value(&plan.steps).unwrap();
    value.sort_all_objects();
    insta::assert_json_snapshot!(value);
}

#[test]
fn a_reboot_makes_everything_but_the_drain_superfluous() {
    let plan = planned(&json!({}), &all(&["/etc/containers/policy.json", "/etc/unknown"]));
    assert_eq!(words(&plan), ["drain", "write", "reboot"]);
    assert_eq!(plan.steps[0].because, ["/etc/unknown"]);
    assert_eq!(plan.steps[1].because, ["/etc/containers/policy.json", "/etc/unknown"]);
    assert_eq!(plan.steps[2].because, ["/etc/unknown"]);
    // The plan still reports the actions that the change alone would need.
    assert_eq!(plan.changes[0].action, Action::Reload);
}

#[test]
fn an_entrys_actions_are_the_steps() {
    for (actions, expected) in [
        ("[{type: None}]", &["write"][..]),
        ("[{type: Drain}]", &["drain", "write"]),
        ("[{type: DaemonReload}]", &["write", "daemon-reload"]),
        ("[{type: Reboot}]", &["drain", "write", "reboot"]),
        (
            "[{type: Restart, restart: {serviceName: b.service}}, {type: Drain}, {type: DaemonReload}, \
              {type: Restart, restart: {serviceName: a.service}}, {type: Reload, reload: {serviceName: c.service}}]",
            &[
                "drain",
                "write",
                "daemon-reload",
                "reload c.service",
                "restart b.service",
                "restart a.service",
            ],
        ),
    ] {
        let plan = planned_by(&json!({}), &at("/etc/a", "x"), &for_a(actions));
        assert_eq!(words(&plan), expected, "{actions}");
        assert_eq!(plan.changes[0].policy, "policy.yaml: files /etc/a");
    }
}

#[test]
fn units_have_the_order_of_the_entries_and_not_that_of_their_names() {
    let policy = policy(
        "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nmetadata: {name: cluster}\nspec:\n \
         nodeDisruptionPolicy:\n  files:\n  - path: /etc/a\n    actions:\n    \
         - {type: Restart, restart: {serviceName: a.service}}\n  - path: /etc/b\n    actions:\n    \
         - {type: Restart, restart: {serviceName: z.service}}\n    \
         - {type: Restart, restart: {serviceName: a.service}}\n",
    );
    let plan = planned_by(&json!({}), &all(&["/etc/a", "/etc/b"]), &policy);
    assert_eq!(words(&plan), ["write", "restart z.service", "restart a.service"]);
    assert_eq!(plan.steps[2].because, ["/etc/a", "/etc/b"]);
}

#[test]
fn the_longest_limit_applies_and_a_rollback_only_if_no_entry_needs_the_reboot() {
    let restart = |more: &str| format!("[{{type: Restart, restart: {{serviceName: a.service}}{more}}}]");
    let with = |a: &str, b: &str| {
        policy(&format!(
            "apiVersion: holdfast.dev/v1alpha1\nkind: DisruptionPolicy\nmetadata: {{name: a}}\nspec:\n files:\n \
             - {{path: /etc/a, actions: {}}}\n - {{path: /etc/b, actions: {}}}\n",
            restart(a),
            restart(b)
        ))
    };
    for (a, b, timeout, fallback) in [
        ("", "", None, None),
        (
            ", timeout: 30s, fallback: rollback",
            ", timeout: 2m, fallback: rollback",
            Some(120),
            Some(Fallback::Rollback),
        ),
        (", fallback: rollback", ", timeout: 5", Some(ACT_SECONDS), None),
        ("", ", timeout: 2m", Some(120), None),
        (", fallback: rollback", ", fallback: reboot", None, Some(Fallback::Reboot)),
    ] {
        let plan = planned_by(&json!({}), &all(&["/etc/a", "/etc/b"]), &with(a, b));
        let step = &plan.steps[1];
        assert_eq!((step.timeout_seconds, step.fallback), (timeout, fallback), "{a} {b}");
    }
}

#[test]
fn a_config_that_no_running_node_takes_has_reasons_and_no_steps() {
    let mut plan = planned(&json!({}), &json!({ "fips": true, "kernelArguments": ["a"] }));
    assert!(!plan.reconcilable && plan.steps.is_empty() && !plan.drain && !plan.reboot && !plan.is_empty());
    assert_eq!(plan.changes.len(), 2);
    let before = plan.clone();
    plan.refuse(&[Irreconcilable::Fips]);
    assert_eq!(plan, before, "a reason is reported once");
}

#[test]
fn a_reason_of_the_node_itself_empties_the_plan() {
    let mut plan = planned(&json!({}), &at("/etc/a", "x"));
    plan.refuse(&[]);
    assert!(plan.reconcilable && plan.reboot);
    plan.refuse(&[Irreconcilable::Append("/etc/a".to_owned())]);
    assert!(!plan.reconcilable && plan.steps.is_empty() && !plan.drain && !plan.reboot);
}

#[test]
fn a_reason_is_its_text_in_a_kept_plan() {
    let plan = planned(&json!({}), &json!({ "fips": true }));
    let kept = serde_json::to_value(&plan).unwrap();
    assert_eq!(kept["reasons"], json!([Irreconcilable::Fips.to_string()]));
    let read: Plan = serde_json::from_value(kept.clone()).unwrap();
    assert_eq!(read.reasons, [PlanReason::Kept(Irreconcilable::Fips.to_string())]);
    assert_eq!(serde_json::to_value(&read).unwrap(), kept);
}

#[test]
fn an_overridden_reason_is_reported_and_is_no_step() {
    let policy = policy(
        "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nmetadata: {name: cluster}\n\
         spec: {irreconcilableValidationOverrides: {storage: [Disks]}}\n",
    );
    let new = ignition(&json!({ "storage": { "disks": [{ "device": "/dev/a" }] } }));
    let plan = planned_by(&json!({}), &new, &policy);
    assert!(plan.reconcilable && plan.steps.is_empty() && !plan.is_empty());
    assert_eq!(plan.overridden, ["ignition disks section contains changes"]);
}

fn registries(text: &str) -> Value {
    files(&json!([{
        "path": registries::PATH, "contents": { "source": crate::data_url::encode(text.as_bytes()) },
    }]))
}

#[test]
fn a_change_of_registries_drains_only_if_it_may_break_image_pulls() {
    let mirror = |pull: &str| {
        format!(
            "[[registry]]\nlocation = 'a'\n[[registry.mirror]]\nlocation = 'm'\npull-from-mirror = '{pull}'\n"
        )
    };
    let safe = planned(&registries(""), &registries(&mirror("digest-only")));
    assert_eq!(words(&safe), ["write", "reload crio.service"]);
    assert_eq!(
        safe.changes[0].explanation,
        ["rule 4: registry \"a\" is added, its mirrors are used only for digests: no drain"]
    );
    let unsafe_one = planned(&registries(""), &registries(&mirror("tag-only")));
    assert_eq!(words(&unsafe_one), ["drain", "write", "reload crio.service"]);
    assert_eq!(unsafe_one.changes[0].action, Action::Drain);
    let unreadable = planned(&registries(""), &registries("location ="));
    assert_eq!(words(&unreadable), ["drain", "write", "reboot"]);
}

#[test]
fn registries_are_read_through_their_compression() {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(b"[[registry]]\nlocation = 'a'\nmirror-by-digest-only = true\n").unwrap();
    let source = crate::data_url::encode(&encoder.finish().unwrap());
    let new = files(&json!([{
        "path": registries::PATH, "contents": { "source": source, "compression": "gzip" },
    }]));
    assert_eq!(words(&planned(&registries(""), &new)), ["write", "reload crio.service"]);
}

#[test]
fn an_unknown_action_leads_to_a_reboot() {
    let change = Change {
        kind: ChangeKind::File,
        name: "/etc/a".to_owned(),
        operation: ChangeOperation::Change,
        details: Vec::new(),
        source: config(&json!({})).sources[0].clone(),
        others: Vec::new(),
    };
    let decided = |request| Decided {
        change: change.clone(),
        actions: vec![EntryAction { request, timeout_seconds: None, fallback: None }],
        policy: String::new(),
        explanation: Vec::new(),
    };
    let steps = steps::steps(&[decided(PolicyRequest::Unknown("Explode".to_owned()))]);
    let actions: Vec<Action> = steps.iter().map(|step| step.action).collect();
    assert_eq!(actions, [Action::Drain, Action::Write, Action::Reboot]);
}

#[test]
fn a_forced_plan_writes_everything_and_reboots_even_if_nothing_changes() {
    let same = all(&["/etc/a"]);
    let mut plan = planned(&same, &same);
    assert!(plan.is_empty() && plan.steps.is_empty());
    plan.force();
    let actions: Vec<_> = plan.steps.iter().map(|step| step.action).collect();
    assert_eq!(actions, [Action::Drain, Action::Write, Action::Reboot]);
    assert!(plan.drain && plan.reboot);
    let mut refused = planned(&json!({}), &json!({ "fips": true }));
    refused.force();
    assert!(refused.steps.is_empty() && !refused.reboot);
}

#[test]
fn without_acts_only_changes_of_the_os_are_left_out_and_only_those_that_need_an_action() {
    let new = json!({
        "kernelArguments": ["a"],
        "kernelType": "realtime",
        "extensions": ["usbguard"],
        "osImageURL": "registry/os@sha256:1",
        "config": at("/etc/a", "x")["config"],
    });
    let mut plan = planned(&json!({}), &new);
    let left = |plan: &Plan| plan.left_without_acts().map(|change| change.kind).collect::<Vec<_>>();
    let of_os =
        [ChangeKind::KernelArgument, ChangeKind::KernelType, ChangeKind::Extension, ChangeKind::OsImage];
    assert_eq!((left(&plan), plan.changes.len()), (of_os.to_vec(), 5));
    plan.changes.iter_mut().for_each(|change| change.action = Action::None);
    assert_eq!(left(&plan), []);
}

#[test]
fn what_only_a_forced_apply_removes_is_among_the_removals() {
    let mut plan = planned(&at("/etc/a", "x"), &at("/etc/b", "x"));
    assert_eq!((plan.all_changes(), plan.all_removals()), (2, 1));
    plan.removed_by_force = vec![
        RemovedByForce { path: "/etc/d/other".into(), lines: None },
        RemovedByForce { path: "/home/core/.ssh/authorized_keys".into(), lines: Some(3) },
    ];
    assert_eq!((plan.all_changes(), plan.all_removals()), (6, 5));
}

#[test]
fn a_forced_plan_of_equal_configs_has_something_to_do() {
    let mut plan = planned(&json!({}), &json!({}));
    assert!(plan.has_nothing_to_do());
    plan.force();
    assert!(plan.is_empty() && !plan.has_nothing_to_do());
}
