//! `plan`: the changes, the steps, and the errors for bad input.

use crate::world::World;
use insta::assert_snapshot;
use serde_json::{Value, json};

/// A rendered config, as on a cluster.
fn config(number: u32, spec: &Value) -> String {
    let object = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": { "name": format!("rendered-worker-{number:032}"), "annotations": {
            "machineconfiguration.openshift.io/generated-by-controller-version": "abc",
        } },
        "spec": spec,
    });
    format!("{object:#}")
}

fn ignition(config: &Value) -> Value {
    let mut config = config.clone();
    config["ignition"] = json!({ "version": "3.4.0" });
    json!({ "osImageURL": "registry/os@sha256:1", "config": config })
}

fn one_file(path: &str, text: &str) -> Value {
    ignition(&json!({ "storage": { "files": [{
        "path": path, "contents": { "source": format!("data:,{text}") },
    }] } }))
}

/// Runs `plan` on two configs, with more arguments.
fn plan(world: &World, old: &Value, new: &Value, more: &[&str]) -> crate::world::RunResult {
    world.write("old.json", &config(1, old));
    world.write("new.json", &config(2, new));
    let at = |name: &str| world.at(name).display().to_string();
    let (old, new) = (at("old.json"), at("new.json"));
    let mut arguments = vec!["plan", old.as_str(), new.as_str()];
    arguments.extend(more);
    world.run(&arguments)
}

fn all_kinds(text: &str, user: &Value) -> Value {
    let encoded = format!("data:,server%20{text}%0Apool%20x%0A");
    let mut spec = ignition(&json!({
        "storage": {
            "files": [
                { "path": "/etc/chrony.conf", "contents": { "source": encoded } },
                { "path": "/var/lib/kubelet/config.json", "mode": 384, "contents": { "source": format!("data:,hunter{text}") } },
                { "path": "/etc/containers/policy.json", "contents": { "source": format!("data:,{text}") } },
            ],
            "directories": [{ "path": "/etc/d", "mode": if text == "a" { 493 } else { 448 } }],
            "links": [{ "path": "/etc/l", "target": text }],
        },
        "systemd": { "units": [{ "name": "iri-registry.service", "contents": format!("[Service]\nEnvironment=TOKEN=hunter{text}\n") }] },
        "passwd": { "users": [user] },
    }));
    spec["osImageURL"] = json!(format!("registry/os@sha256:{text}"));
    spec["kernelArguments"] = json!([format!("quiet={text}")]);
    spec
}

fn both() -> (Value, Value) {
    let user =
        |key: &str, hash: &str| json!({ "name": "core", "sshAuthorizedKeys": [key], "passwordHash": hash });
    (
        all_kinds("a", &user("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGhhbGxv one", "$6$hunter1")),
        all_kinds("b", &user("ssh-rsa AAAAB3NzaC1yc2EAAAADAQAB two", "$6$hunter2")),
    )
}

#[test]
fn it_shows_every_change_with_its_reason_and_the_steps_and_no_secret() {
    let world = World::new();
    let (old, new) = both();
    let result = plan(&world, &old, &new, &[]);
    assert!(!result.out.contains("hunter") && !result.out.contains("AAAA"), "{}", result.out);
    assert_snapshot!(result.golden());
}

#[test]
fn it_shows_secret_contents_only_when_asked_and_keys_never() {
    let world = World::new();
    let (old, new) = both();
    let result = plan(&world, &old, &new, &["--secrets"]);
    assert!(result.out.contains("+huntera") || result.out.contains("-huntera"), "{}", result.out);
    assert!(!result.out.contains("$6$") && !result.out.contains("AAAA"), "{}", result.out);
    world.write(
        "drift.yaml",
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: a}\nspec: {rules: [\
         {path: /etc/chrony.conf, action: degrade}, {path: /etc/containers/, action: degrade, secret: false}]}\n",
    );
    let drift = world.at("drift.yaml").display().to_string();
    let result = plan(&world, &old, &new, &["--drift-policy", &drift]);
    assert!(
        !result.out.contains("server a") && result.out.contains("+++ /etc/containers/policy.json"),
        "{}",
        result.out
    );
}

#[test]
fn it_prints_a_plan_that_keeps_its_schema() {
    let world = World::new();
    let (old, new) = both();
    let result = plan(&world, &old, &new, &["-o", "json"]);
    assert_eq!(result.code, 1, "{}", result.err);
    let value = result.json("plan");
    assert_eq!(value["pool"], "worker");
    let words: Vec<&str> =
        value["steps"].as_array().unwrap().iter().map(|step| step["action"].as_str().unwrap()).collect();
    assert_eq!(words, ["drain", "write", "reboot"]);
    let kinds: Vec<&str> =
        value["changes"].as_array().unwrap().iter().map(|change| change["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "file",
            "file",
            "file",
            "directory",
            "link",
            "unit",
            "ssh-key",
            "ssh-key",
            "password-hash",
            "kernel-argument",
            "kernel-argument",
            "os-image",
        ]
    );
}

#[test]
fn no_change_is_reported_with_exit_code_zero() {
    let world = World::new();
    let (old, _) = both();
    let result = plan(&world, &old, &old, &[]);
    assert_snapshot!(result.golden());
    let result = plan(&world, &old, &old, &["-o", "json"]);
    assert_eq!(result.code, 0);
    let value = result.json("plan");
    assert_eq!(
        (&value["changes"], &value["steps"], &value["reconcilable"]),
        (&json!([]), &json!([]), &json!(true))
    );
}

#[test]
fn a_change_that_is_not_reconcilable_is_four_with_every_reason_in_both_outputs() {
    let world = World::new();
    let old = one_file("/etc/a", "x");
    let mut new = ignition(&json!({
        "storage": {
            "disks": [{ "device": "/dev/a" }],
            "files": [{ "path": "/etc/a", "append": [{ "source": "data:,x" }] }],
        },
        "passwd": { "users": [{ "name": "bob" }] },
    }));
    new["fips"] = json!(true);
    let result = plan(&world, &old, &new, &[]);
    assert_snapshot!(result.golden());
    let result = plan(&world, &old, &new, &["-o", "json"]);
    assert_eq!(result.code, 4);
    let value = result.json("plan");
    assert_eq!(value["reasons"].as_array().unwrap().len(), 4);
    assert_eq!((&value["reconcilable"], &value["steps"]), (&json!(false), &json!([])));
}

#[test]
fn an_administrators_policy_decides_over_the_shipped_one() {
    let world = World::new();
    world.write(
        "policy.yaml",
        "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nmetadata: {name: cluster}\nspec:\n  \
         nodeDisruptionPolicy:\n    files:\n    - path: /etc/app\n      actions:\n      - type: Drain\n      \
         - {type: Reload, reload: {serviceName: app.service}}\n      \
         - {type: Restart, restart: {serviceName: app.socket}, timeout: 1m, fallback: rollback}\n",
    );
    let policy = world.at("policy.yaml").display().to_string();
    let (old, new) = (one_file("/etc/app/a", "x"), one_file("/etc/app/a", "y"));
    assert_snapshot!(plan(&world, &old, &new, &["--policy", &policy]).golden());
}

#[test]
fn policies_for_a_pool_apply_to_its_nodes() {
    let world = World::new();
    world.write(
        "policy.yaml",
        "apiVersion: holdfast.dev/v1alpha1\nkind: DisruptionPolicy\nmetadata: {name: infra}\n\
         spec: {pools: [infra], files: [{path: /etc/a, actions: [{type: None}]}]}\n",
    );
    let policy = world.at("policy.yaml").display().to_string();
    let (old, new) = (one_file("/etc/a", "x"), one_file("/etc/a", "y"));
    for (more, reboot) in [
        (&["--policy", policy.as_str(), "-o", "json"][..], true),
        (&["--policy", policy.as_str(), "--pool", "infra", "-o", "json"], false),
    ] {
        let value = plan(&world, &old, &new, more).json("plan");
        assert_eq!(value["reboot"], json!(reboot));
    }
}

#[test]
fn bad_input_names_file_field_and_reason_and_ends_with_two() {
    let world = World::new();
    let good = config(1, &one_file("/etc/a", "x"));
    world.write("good.json", &good);
    world.write("bad.json", &config(2, &one_file("etc/a", "x")));
    world.write("empty.yaml", "");
    world.write("broken.yaml", "{");
    world.write(
        "pool.yaml",
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfigPool\nmetadata: {name: worker}\n",
    );
    world.write(
        "explode.yaml",
        "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nmetadata: {name: cluster}\nspec:\n  \
         nodeDisruptionPolicy: {files: [{path: /etc/a, actions: [{type: Explode}]}]}\n",
    );
    let at = |name: &str| world.at(name).display().to_string();
    let good = at("good.json");
    let mut results = Vec::new();
    for name in ["bad.json", "empty.yaml", "broken.yaml", "pool.yaml", "missing.yaml"] {
        results.push(world.run(&["plan", &good, &at(name)]).golden());
        results.push(world.run(&["plan", &at(name), &good, "-o", "json"]).golden());
    }
    results.push(world.run(&["plan", &good, &good, "--policy", &at("explode.yaml")]).golden());
    results.push(world.run(&["plan", &good, &good, "--policy", &at("good.json")]).golden());
    assert_snapshot!(results.join("\n"));
}

#[test]
fn a_config_may_be_a_directory_and_is_merged_as_a_pools() {
    let world = World::new();
    for (name, text) in [("10-a", "x"), ("20-b", "y")] {
        let mut object: Value = serde_json::from_str(&config(1, &one_file("/etc/a", text))).unwrap();
        object["metadata"]["name"] = json!(name);
        world.write(&format!("many/{name}.json"), &object.to_string());
    }
    world.write(
        "one.json",
        &config(1, &{
            let mut spec = one_file("/etc/a", "y");
            // Generated configs repeat the cluster's image, which overrides nothing.
            spec.as_object_mut().unwrap().remove("osImageURL");
            spec
        }),
    );
    let at = |name: &str| world.at(name).display().to_string();
    assert_eq!(world.run(&["plan", &at("many"), &at("one.json")]).code, 0);
}

#[test]
fn the_duration_of_the_last_applies_is_shown_if_known() {
    let world = World::new();
    let (old, new) = (one_file("/etc/a", "x"), one_file("/etc/a", "y"));
    let made: Value = serde_json::from_str(&plan(&world, &old, &new, &["-o", "json"]).out).unwrap();
    let mut quiet = made.clone();
    quiet["drain"] = json!(false);
    quiet["reboot"] = json!(false);
    for (id, seconds, result, plan) in [
        (1, 50, json!("done"), &made),
        (2, 40, json!("done"), &made),
        (3, 30, json!("rolled-back"), &made),
        (10, 20, json!("done"), &made),
        (11, 10, json!("done"), &quiet),
        (12, 10, Value::Null, &made),
    ] {
        let entry = json!({
            "id": id, "began": "2026-01-01T00:00:00Z", "ended": format!("2026-01-01T00:00:{seconds}Z"),
            "result": result, "plan": plan, "paths": 1,
        });
        world.write(&format!("state/apply/generations/{id}/history.json"), &entry.to_string());
    }
    world.write("state/apply/generations/13/history.json", "{");
    let state = world.at("state").display().to_string();
    let result = plan(&world, &old, &new, &["--state", &state]);
    assert!(result.out.ends_with("took, the newest first: 20 s, 40 s, 50 s\n"), "{}", result.out);
    let value = plan(&world, &old, &new, &["--state", &state, "-o", "json"]).json("plan");
    assert_eq!(value["last_seconds"], json!([20, 40, 50]));
}
