mod declarations;

use super::*;
use crate::changes::{
    Change, ChangeKind, ChangeOperation, compare,
    tests::{config, files, ignition, named},
};
use serde_json::{Value, json};

const MCO_HEAD: &str =
    "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nmetadata: {name: cluster}\n";
const OWN_HEAD: &str = "apiVersion: holdfast.dev/v1alpha1\nkind: DisruptionPolicy\nmetadata: {name: site}\n";

fn parse(text: &str) -> Result<Vec<DisruptionPolicyFile>, DisruptionPolicyError> {
    DisruptionPolicyFile::parse("policy.yaml", text.as_bytes())
}

fn mco(body: &str) -> String {
    format!("{MCO_HEAD}spec: {{nodeDisruptionPolicy: {body}}}\n")
}

fn own(spec: &str) -> String {
    format!("{OWN_HEAD}spec: {spec}\n")
}

fn policy(texts: &[String], pool: Option<&str>) -> DisruptionPolicy {
    let mut files = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        files.extend(DisruptionPolicyFile::parse(&format!("{number}.yaml"), text.as_bytes()).unwrap());
    }
    DisruptionPolicy::merge(&files, pool).unwrap()
}

/// The policy entry and the actions for a change of that kind and name.
fn decided(policy: &DisruptionPolicy, kind: ChangeKind, name: &str) -> (String, String) {
    let nothing = config(&json!({}));
    let change = Change {
        kind,
        name: name.to_owned(),
        operation: ChangeOperation::Change,
        details: Vec::new(),
        source: nothing.sources[0].clone(),
        others: Vec::new(),
    };
    let decision = policy.decide(&change, &nothing, &nothing);
    (decision.policy, words(&decision.actions))
}

fn words(actions: &[EntryAction]) -> String {
    let word = |action: &EntryAction| match &action.request {
        PolicyRequest::Act { action, unit: Some(unit) } => format!("{action:?}({unit:?})"),
        PolicyRequest::Act { action, unit: None } => format!("{action:?}"),
        other => format!("{other:?}"),
    };
    actions.iter().map(word).collect::<Vec<_>>().join(", ")
}

#[test]
fn each_fault_is_reported_with_object_field_and_reason() {
    let many = |count: usize| {
        let entries: Vec<String> =
            (0..count).map(|n| format!("{{path: /etc/{n}, actions: [{{type: None}}]}}")).collect();
        format!("{{files: [{}]}}", entries.join(","))
    };
    let actions = |actions: &str| mco(&format!("{{files: [{{path: /etc/a, actions: {actions}}}]}}"));
    let service = |name: &str| actions(&format!("[{{type: Reload, reload: {{serviceName: {name}}}}}]"));
    let ten = "{type: DaemonReload},".repeat(11);
    let texts = [
        String::new(),
        "a: [".to_owned(),
        "kind: MachineConfigPool\napiVersion: machineconfiguration.openshift.io/v1".to_owned(),
        "apiVersion: operator.openshift.io/v2\nkind: MachineConfiguration\nmetadata: {name: cluster}"
            .to_owned(),
        MCO_HEAD.replace("cluster", "other"),
        format!("{MCO_HEAD}spec: {{nodeDisruptionPolicies: {{}}}}"),
        mco("{file: []}"),
        mco("[]"),
        mco("{files: {}}"),
        mco("{files: [{path: /etc/a}]}"),
        mco("{files: [{actions: [{type: None}]}]}"),
        mco("{files: [{path: etc/a, actions: [{type: None}]}]}"),
        mco("{files: [{path: /etc/../a, actions: [{type: None}]}]}"),
        mco("{files: [{path: '/etc/[a', actions: [{type: None}]}]}"),
        mco("{files: [{path: /etc/a, actions: [{type: None}]}, {path: /etc/a/, actions: [{type: None}]}]}"),
        mco(&many(51)),
        actions("[]"),
        actions(&format!("[{ten}]")),
        actions("[{}]"),
        actions("[{type: Explode}]"),
        actions("[{type: Special}]"),
        actions("[{type: none}]"),
        actions("[{type: Reload}]"),
        actions("[{type: Restart, reload: {serviceName: a.service}}]"),
        actions("[{type: Restart}]"),
        actions("[{type: None, restart: {serviceName: a.service}}]"),
        actions("[{type: ReloadOrRestart, reloadOrRestart: {serviceName: a.service}}]"),
        actions("[{type: Reboot}, {type: Drain}]"),
        actions("[{type: Drain}, {type: None}]"),
        actions("[{type: Drain, serviceName: a.service}]"),
        actions("[{type: Drain, timeout: soon}]"),
        actions("[{type: Drain, timeout: 0}]"),
        actions("[{type: Drain, timeout: 25h}]"),
        actions("[{type: Drain, fallback: pray}]"),
        service("crio"),
        service("crio.exe"),
        service(".service"),
        service("'a b.service'"),
        service("a@b.service"),
        service(&format!("{}.service", "a".repeat(250))),
        mco("{units: [{name: kubelet, actions: [{type: None}]}]}"),
        mco(
            "{units: [{name: a.service, actions: [{type: None}]}, {name: a.service, actions: [{type: None}]}]}",
        ),
        mco("{sshkey: {actions: []}}"),
        mco("{sshkey: {paths: []}}"),
        mco("{kernelArguments: [{name: 'a b', actions: [{type: None}]}]}"),
        format!("{MCO_HEAD}spec: {{irreconcilableValidationOverrides: {{storage: [Luks]}}}}"),
        own("{pools: []}"),
        own("{files: 1}"),
        own(
            "{files: [{path: /etc/a, actions: [{type: ReloadOrRestart, reload: {serviceName: a.service}}]}]}",
        ),
        own("{files: [{path: /etc/a, actions: [{type: Explode}]}]}"),
        own("{declarations: [{actions: [None]}]}"),
        own("{declarations: [{machineConfigs: [a], actions: [Restart]}]}"),
        own("{declarations: [{machineConfigs: [a], actions: [Explode]}]}"),
        own("{declarations: [{machineConfigs: ['[a'], actions: [None]}]}"),
        own("{declarations: [{machineConfigs: [a], matchLabels: {a: 1}, actions: [None]}]}"),
    ];
    let faults: Vec<String> = texts
        .iter()
        .map(|text| match parse(text) {
            Ok(_) => format!("accepted: {text}"),
            Err(error) => error.to_string(),
        })
        .collect();
    assert!(!faults.iter().any(|fault| fault.starts_with("accepted")), "{faults:#?}");
    insta::assert_snapshot!(faults.join("\n"));
}

#[test]
fn other_fields_of_a_clusters_object_are_ignored() {
    let text = format!(
        "{MCO_HEAD}spec:\n  managementState: Managed\n  logLevel: Normal\n  operatorLogLevel: Normal\n  \
         managedBootImages: {{}}\n  nodeDisruptionPolicy:\n    sshkey: {{}}\nstatus: {{observedGeneration: 3}}\n"
    );
    let files = parse(&text).unwrap();
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].entries, []);
}

#[test]
fn an_administrators_entry_replaces_the_whole_shipped_one_in_its_place() {
    let shipped = DisruptionPolicy::shipped().unwrap();
    let changed = policy(
        &[mco("{files: [{path: /etc/containers/policy.json, actions: [{type: None}]}, \
              {path: /etc/mine, actions: [{type: Drain}]}], sshkey: {actions: [{type: Drain}]}}")],
        None,
    );
    assert_eq!(changed.entries().len(), shipped.entries().len() + 1);
    for (before, after) in shipped.entries().iter().zip(changed.entries()) {
        assert_eq!((before.subject, &before.pattern), (after.subject, &after.pattern));
    }
    for (kind, name, expected) in [
        (
            ChangeKind::File,
            "/etc/containers/policy.json",
            ("0.yaml: files /etc/containers/policy.json", "None"),
        ),
        (ChangeKind::File, "/etc/mine", ("0.yaml: files /etc/mine", "Drain")),
        (ChangeKind::SshKey, "core SHA256:x", ("0.yaml: sshkey", "Drain")),
        (ChangeKind::PasswordHash, "core", ("0.yaml: sshkey", "Drain")),
        (
            ChangeKind::File,
            "/etc/nmstate/openshift/a",
            ("shipped default: files /etc/nmstate/openshift", "None"),
        ),
    ] {
        assert_eq!(decided(&changed, kind, name), (expected.0.to_owned(), expected.1.to_owned()));
    }
}

#[test]
fn the_most_exact_entry_decides() {
    let policy = policy(
        &[own(
            "{files: [
              {path: /etc/mco/f1, actions: [{type: None}]},
              {path: /etc/mco, actions: [{type: Drain}]},
              {path: '/etc/mco/*.conf', actions: [{type: DaemonReload}]},
              {path: '/etc/mco/a.*', actions: [{type: Reload, reload: {serviceName: a.service}}]},
              {path: '/etc/**/deep', actions: [{type: Restart, restart: {serviceName: d.service}}]},
              {path: /etc/mco/dir/, actions: [{type: None}]},
            ], directories: [{path: /etc/mco/d, actions: [{type: None}]}],
              links: [{path: '/etc/mco/l*', actions: [{type: None}]}],
              units: [{name: 'app-*.service', actions: [{type: DaemonReload}]},
                      {name: app-1.service, actions: [{type: None}]},
                      {name: 'instance@1.service', actions: [{type: None}]}],
              kernelArguments: [{name: vm.swappiness, actions: [{type: None}]},
                                {name: 'sysctl.*', actions: [{type: Restart, restart: {serviceName: systemd-sysctl.service}}]}]}",
        )],
        None,
    );
    for (kind, name, expected) in [
        (ChangeKind::File, "/etc/mco/f1", "None"),
        (ChangeKind::File, "/etc/mco/f1/below", "None"),
        (ChangeKind::File, "/etc/mco/f10", "Drain"),
        (ChangeKind::File, "/etc/mcof1", "Reboot"),
        (ChangeKind::File, "/etc/mco/x.conf", "DaemonReload"),
        (ChangeKind::File, "/etc/mco/a.conf", "Reload(\"a.service\")"),
        (ChangeKind::File, "/etc/mco/x/y.conf", "Drain"),
        (ChangeKind::File, "/etc/other/deep", "Restart(\"d.service\")"),
        (ChangeKind::File, "/etc/mco/deep", "Drain"),
        (ChangeKind::File, "/etc/mco/dir/x", "None"),
        (ChangeKind::Directory, "/etc/mco/d", "None"),
        (ChangeKind::Directory, "/etc/mco/e", "Drain"),
        (ChangeKind::Link, "/etc/mco/link", "None"),
        (ChangeKind::Link, "/etc/mco/other", "Drain"),
        (ChangeKind::Unit, "app-1.service", "None"),
        (ChangeKind::Unit, "app-2.service", "DaemonReload"),
        (ChangeKind::Unit, "instance@1.service", "None"),
        (ChangeKind::Unit, "other.service", "Reboot"),
        (ChangeKind::KernelArgument, "vm.swappiness=10", "None"),
        (ChangeKind::KernelArgument, "sysctl.vm.swappiness=10", "Restart(\"systemd-sysctl.service\")"),
        (ChangeKind::KernelArgument, "nosmt", "Reboot"),
        (ChangeKind::KernelArgument, "vm.swappiness=10 nosmt", "Reboot"),
        (ChangeKind::KernelArgument, "vm.swappiness=10 sysctl.vm.swappiness=10", "Reboot"),
        (ChangeKind::KernelArgument, "vm.swappiness=10 vm.swappiness=20", "None"),
        (ChangeKind::OsImage, "x", "Reboot"),
    ] {
        assert_eq!(decided(&policy, kind, name).1, expected, "{kind:?} {name}");
    }
}

#[test]
fn a_file_for_a_pool_replaces_one_for_every_pool_which_replaces_the_clusters() {
    let entry = |kind: &str| format!("files: [{{path: /etc/a, actions: [{{type: {kind}}}]}}]");
    let texts = [
        own(&format!("{{pools: [infra, gpu], {}}}", entry("None"))),
        own(&format!("{{{}}}", entry("DaemonReload"))),
        mco(&format!("{{{}}}", entry("Drain"))),
    ];
    for (texts, pool, expected) in [
        (&texts[..], Some("infra"), "None"),
        (&texts[..], Some("gpu"), "None"),
        (&texts[..], Some("worker"), "DaemonReload"),
        (&texts[..], None, "DaemonReload"),
        (&texts[2..], Some("infra"), "Drain"),
        (&texts[..1], None, "Reboot"),
    ] {
        assert_eq!(decided(&policy(texts, pool), ChangeKind::File, "/etc/a").1, expected, "{pool:?}");
    }
}

#[test]
fn two_files_that_contradict_each_other_are_refused() {
    let entry = |kind: &str| own(&format!("{{files: [{{path: /etc/a, actions: [{{type: {kind}}}]}}]}}"));
    let both = |a: &str, b: &str| {
        let mut files = DisruptionPolicyFile::parse("a.yaml", entry(a).as_bytes()).unwrap();
        files.extend(DisruptionPolicyFile::parse("b.yaml", entry(b).as_bytes()).unwrap());
        DisruptionPolicy::merge(&files, None).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(both("None", "None"), Ok(()));
    assert_eq!(
        both("None", "Drain"),
        Err("b.yaml: policy: files /etc/a: a.yaml has other actions for the same".to_owned())
    );
}

#[test]
fn a_change_that_no_config_writes_needs_no_action() {
    let side = |text: &str| {
        let path = "/etc/kubernetes/kubelet-ca.crt";
        named("a", &files(&json!([{ "path": path, "contents": { "source": format!("data:,{text}") } }])))
    };
    let (old, new) = (side("a"), side("b"));
    let change = &compare(Some(&old), Some(&new), Overrides::default()).unwrap().changes[0];
    assert_eq!(words(&policy(&[], None).decide(change, &old, &new).actions), "None");
}

#[test]
fn the_shipped_policy_and_the_documented_examples_match_the_schema() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../policies/schema/node-disruption.schema.json")).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let faults = |text: &str| -> Vec<String> {
        let value: Value = serde_saphyr::from_str(text).unwrap();
        validator.iter_errors(&value).map(|error| error.to_string()).collect()
    };
    for text in [
        // Only the shipped file may have this type.
        include_str!("../../../policies/node-disruption/default.yaml").replace("type: Special", "type: None"),
        include_str!("../../../policies/node-disruption/example.yaml").to_owned(),
        include_str!("../../fuzz/seeds/node_disruption/own.yaml").to_owned(),
        include_str!("../../fuzz/seeds/node_disruption/cluster.yaml").to_owned(),
    ] {
        assert_eq!(faults(&text), Vec::<String>::new(), "{text}");
        assert!(parse(&text).is_ok(), "{text}");
    }
    for text in [
        mco("{files: [{path: /etc/a, actions: [{type: Explode}]}]}"),
        mco("{files: [{path: /etc/a, actions: [{type: Reload}]}]}"),
        mco("{file: []}"),
        own("{declarations: [{actions: [None]}]}"),
    ] {
        assert!(!faults(&text).is_empty() && parse(&text).is_err(), "{text}");
    }
}

#[test]
fn an_unknown_action_in_a_clusters_status_leads_to_a_reboot() {
    let status = |kind: &str| {
        let entry = json!({ "path": "/etc/containers/policy.json", "actions": [{ "type": kind }] });
        let policies = json!({ "files": [entry], "sshkey": { "actions": [{ "type": "None" }] } });
        let object = json!({ "status": { "nodeDisruptionPolicyStatus": { "clusterPolicies": policies } } });
        let file = DisruptionPolicyFile::from_status("cluster", &object).unwrap();
        let policy = DisruptionPolicy::merge(&[file], None).unwrap();
        let side = |text: &str| {
            config(&files(&json!([{
                "path": "/etc/containers/policy.json", "contents": { "source": format!("data:,{text}") },
            }])))
        };
        crate::plan::plan(Some(&side("a")), Some(&side("b")), &policy).unwrap()
    };
    let unknown = status("Hibernate");
    assert!(unknown.reboot && unknown.drain, "{unknown:?}");
    assert_eq!(unknown.changes[0].explanation, ["action \"Hibernate\" is unknown to this version: reboot"]);
    assert!(!status("Drain").reboot);
    let none = DisruptionPolicyFile::from_status("cluster", &json!({})).unwrap();
    assert_eq!(none.entries, []);
    let bad = json!({ "status": { "nodeDisruptionPolicyStatus": { "clusterPolicies": { "files": [{}] } } } });
    assert_eq!(
        DisruptionPolicyFile::from_status("cluster", &bad).unwrap_err().to_string(),
        "cluster: MachineConfiguration \"cluster\": status.nodeDisruptionPolicyStatus.clusterPolicies.files[0].path: \
         Required value"
    );
}
