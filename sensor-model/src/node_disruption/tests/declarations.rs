//! The declarations of owners, and the policies that allow them.

use super::*;
use crate::{
    changes::compare,
    machine_config,
    merge::{self, Rendered},
};

/// Two MachineConfigs of a pool, one with a declaration, before and after a change of everything that they declare.
fn declared(annotation: &str, rendered: bool) -> (Rendered, Rendered) {
    let side = |text: &str| {
        let config = |name: &str, annotations: &Value, spec: &Value| {
            json!({
                "apiVersion": machine_config::API_VERSION, "kind": "MachineConfig", "spec": spec,
                "metadata": { "name": name, "annotations": annotations, "labels": {
                    "team": "web", "machineconfiguration.openshift.io/role": "worker",
                } },
            })
        };
        let file = |path: &str| json!({ "path": path, "contents": { "source": format!("data:,{text}") } });
        let unit = json!({ "name": "app.service", "contents": text });
        let app = ignition(&json!({
            "storage": { "files": [
                file("/etc/app/a"), { "path": "/etc/app/b", "mode": 384 }, file("/etc/containers/policy.json"),
            ] },
            "systemd": { "units": [unit, { "name": "shared.service", "contents": text }] },
        }));
        let other = ignition(&json!({
            "storage": { "files": [file("/etc/app/b"), file("/etc/other")] },
            "systemd": { "units": [{ "name": "shared.service", "dropins": [{ "name": "a.conf", "contents": text }] }] },
        }));
        let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
            config("99-app", &json!({ "holdfast.dev/disruption": annotation }), &app),
            config("50-other", &json!({}), &other),
            { "apiVersion": machine_config::API_VERSION, "kind": "MachineConfigPool",
              "metadata": { "name": "worker" }, "spec": { "machineConfigSelector": {} } },
        ] });
        let bytes = serde_json::to_vec(&objects).unwrap();
        let manifest = machine_config::parse("configs.json", &bytes).unwrap();
        if !rendered {
            return merge::merge(manifest.machine_configs).unwrap();
        }
        let pools = crate::pool::pools(&manifest.others).unwrap();
        let images = crate::pool::ClusterImages::default();
        let made = crate::pool::render(&pools[0], &manifest.machine_configs, &images, "test").unwrap();
        let mut parsed = machine_config::parse("rendered.yaml", made.to_yaml().unwrap().as_bytes())
            .unwrap()
            .machine_configs;
        merge::rendered(parsed.remove(0)).unwrap()
    };
    (side("old"), side("new"))
}

fn declared_decisions(annotation: &str, policy: &DisruptionPolicy, rendered: bool) -> Vec<String> {
    let (old, new) = declared(annotation, rendered);
    let changes = compare(Some(&old), Some(&new), policy.overrides()).unwrap().changes;
    let decide =
        |change: &Change| format!("{}: {}", change.name, words(&policy.decide(change, &old, &new).actions));
    changes.iter().map(decide).collect()
}

const ALLOWED: &str = "{declarations: [{machineConfigs: ['99-app*'], matchLabels: {team: web}, \
                       paths: [/etc/app, '/etc/systemd/system/*.service'], \
                       actions: [None, Restart], units: ['app*.service']}]}";

#[test]
fn an_owners_declaration_decides_if_it_is_allowed_and_no_entry_matches() {
    let allowed = policy(&[own(ALLOWED)], None);
    for rendered in [false, true] {
        assert_eq!(
            declared_decisions("Restart app.service", &allowed, rendered),
            [
                "/etc/app/a: Restart(\"app.service\")",
                // Another MachineConfig declares its content.
                "/etc/app/b: Reboot",
                // An entry decides before any declaration.
                "/etc/containers/policy.json: Reload(\"crio.service\")",
                "/etc/other: Reboot",
                "app.service: Restart(\"app.service\")",
                // Another MachineConfig declares a part of it.
                "shared.service: Reboot",
            ],
            "rendered: {rendered}"
        );
    }
}

#[test]
fn holdfasts_own_actions_may_be_in_its_own_policies_and_in_allowed_declarations() {
    let said = own("{files: [{path: /etc/a, actions: \
                    [{type: ReloadOrRestart, reloadOrRestart: {serviceName: a@b.service}}]}]}");
    let decided = decided(&policy(&[said], None), ChangeKind::File, "/etc/a").1;
    assert_eq!(decided, "ReloadOrRestart(\"a@b.service\")");
    let allowed = policy(&[own(&ALLOWED.replace("Restart", "ReloadOrRestart"))], None);
    let decisions = declared_decisions("ReloadOrRestart app.service", &allowed, false);
    assert_eq!(decisions[0], "/etc/app/a: ReloadOrRestart(\"app.service\")");
    assert_eq!(declared_decisions("Restart app.service", &allowed, false)[0], "/etc/app/a: Reboot");
}

#[test]
fn a_declaration_that_is_not_allowed_or_invalid_leads_to_a_reboot() {
    let allowed = policy(&[own(ALLOWED)], None);
    for annotation in [
        "Drain",
        "Restart sshd.service",
        "Reload app.service",
        "ReloadOrRestart app.service",
        "None, Restart app.service",
        "none",
        "Explode",
        "",
        "Restart",
        "Restart app",
    ] {
        let decisions = declared_decisions(annotation, &allowed, false);
        assert_eq!(decisions[0], "/etc/app/a: Reboot", "{annotation:?}");
    }
    for spec in [
        "{}".to_owned(),
        ALLOWED.replace("99-app*", "98-app*"),
        ALLOWED.replace("team: web", "team: db"),
        ALLOWED.replace("[/etc/app, ", "[/etc/apps, "),
    ] {
        let decisions = declared_decisions("None", &policy(&[own(&spec)], None), false);
        assert_eq!(decisions[0], "/etc/app/a: Reboot", "{spec}");
    }
    let (old, new) = declared("Drain", false);
    let change = &compare(Some(&old), Some(&new), allowed.overrides()).unwrap().changes[0];
    let said = allowed.decide(change, &old, &new).policy;
    assert!(said.contains("99-app is not allowed by any policy"), "{said}");
}

#[test]
fn only_a_rendered_config_may_carry_declarations_of_others() {
    let allowed = policy(&[own("{declarations: [{machineConfigs: [trusted], actions: [None]}]}")], None);
    let declarations = json!({ "trusted": {
        "disruption": "None", "labels": {}, "files": ["/etc/a"], "directories": [], "links": [], "units": [],
    } });
    let decided = |name: &str| {
        let side = |text: &str| {
            let file = json!({ "path": "/etc/a", "contents": { "source": format!("data:,{text}") } });
            let object = json!({
                "apiVersion": machine_config::API_VERSION, "kind": "MachineConfig",
                "metadata": { "name": name, "annotations": {
                    "holdfast.dev/declarations": declarations.to_string(),
                } },
                "spec": files(&json!([file])),
            });
            let bytes = serde_json::to_vec(&object).unwrap();
            merge::rendered(machine_config::parse("a.json", &bytes).unwrap().machine_configs.remove(0))
                .unwrap()
        };
        let (old, new) = (side("a"), side("b"));
        let change = &compare(Some(&old), Some(&new), allowed.overrides()).unwrap().changes[0];
        words(&allowed.decide(change, &old, &new).actions)
    };
    assert_eq!(decided("99-mine"), "Reboot");
    assert_eq!(decided("rendered-worker-0123456789abcdef0123456789abcdef"), "None");
}

#[test]
fn a_single_config_may_declare_for_itself() {
    let allowed = policy(&[own("{declarations: [{machineConfigs: [mine], actions: [None]}]}")], None);
    let with = |text: &str| {
        let mut config = named(
            "mine",
            &files(&json!([{ "path": "/etc/a", "contents": { "source": format!("data:,{text}") } }])),
        );
        let declaration = merge::Declaration { text: "None".to_owned(), ..merge::Declaration::default() };
        config.declarations.insert("mine".to_owned(), declaration);
        config
    };
    let (old, new) = (with("a"), with("b"));
    let change = &compare(Some(&old), Some(&new), allowed.overrides()).unwrap().changes[0];
    assert_eq!(words(&allowed.decide(change, &old, &new).actions), "None");
}
