//! `detach`.

use crate::world::World;
use std::fs;

#[test]
fn detach_lists_what_it_removes_and_what_stays() {
    let world = World::new();
    for path in ["pins/links-1-lsm/file_open", "pins/maps-v1/MANAGED", "run/agent.lock", "run/status.json"] {
        world.write(path, "");
    }
    let (pins, run) = (world.at("pins"), world.at("run"));
    let state = world.at("state");
    let state = state.to_str().unwrap();
    let arguments =
        ["detach", "--pins", pins.to_str().unwrap(), "--run", run.to_str().unwrap(), "--state", state];
    let result = world.run(&arguments);
    assert_eq!((result.code, result.err.as_str()), (0, ""));
    let removed = "detached 1 kernel program, removed 1 map\n\
                   removed [HERE]/pins/links-1-lsm\n\
                   removed [HERE]/pins/maps-v1\n\
                   removed [HERE]/pins\n\
                   removed [HERE]/run\n";
    let kept = "kept the forensic log in /var/log/holdfast and the state in [HERE]/state\n";
    assert_eq!(result.out, format!("{removed}{kept}"));
    assert!(!pins.exists() && !run.exists());
    let again = world.run(&arguments);
    assert_eq!(again.out, format!("detached 0 kernel programs, removed 0 maps\n{kept}"));
}

#[test]
fn after_the_removal_the_policies_of_the_cluster_are_not_in_force_any_more_and_stay_as_evidence() {
    let world = World::in_sync();
    let host = world.host("/");
    world.write(
        "root/etc/holdfast/machine-configs/a.yaml",
        &fs::read_to_string(world.at("config/99-worker-app.yaml")).unwrap(),
    );
    let policies = r#"{"apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicyList", "items": [
        {"apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": {"name": "of-the-cluster"},
         "spec": {"precedence": 10, "rules": [{"path": "/etc/app/app.conf", "action": "observe"}]}}]}"#;
    world.write("root/var/lib/holdfast/cluster-policies.json", policies);
    world.write("root/etc/app/app.conf", "changed");
    let root = format!("--host-root={}", host.display());
    let explain = || world.run(&["explain", "/etc/app/app.conf", &root, "-o", "json"]);
    let before = explain();
    assert!(before.out.contains(r#""action": "observe""#), "{}{}", before.out, before.err);

    let at = |name: &str| world.at(name).to_str().unwrap().to_owned();
    let (pins, run, state) = (at("pins"), at("run"), at("root/var/lib/holdfast"));
    let detached = world.run(&["detach", "--pins", &pins, "--run", &run, "--state", &state]);
    assert_eq!((detached.code, detached.err.as_str()), (0, ""));
    let aside = "put the drift policies of the cluster aside, as [HERE]/root/var/lib/holdfast/cluster-policies.detached.json\n";
    assert!(detached.out.contains(aside), "{}", detached.out);
    let after = explain();
    assert!(after.out.contains(r#""action": "degrade""#), "{}{}", after.out, after.err);
    assert_eq!(
        fs::read_to_string(world.at("root/var/lib/holdfast/cluster-policies.detached.json")).unwrap(),
        policies
    );
}

#[test]
fn a_purge_deletes_state_and_log_and_names_what_stays() {
    let world = World::new();
    for path in ["run/agent.lock", "state/canary", "state/order/holdfast", "state/mine", "log/forensic.jsonl"]
    {
        world.write(path, "");
    }
    let at = |name: &str| world.at(name).to_str().unwrap().to_owned();
    let (pins, run, state, log) = (at("pins"), at("run"), at("state"), at("log"));
    let places = ["--pins", &pins, "--run", &run, "--state", &state, "--log", &log];
    let result = world.run(&[&["detach", "--purge", "--purge-log"][..], &places].concat());
    assert_eq!((result.code, result.err.as_str()), (0, ""));
    let expected = "detached 0 kernel programs, removed 0 maps\n\
                    removed [HERE]/run\n\
                    deleted [HERE]/log/forensic.jsonl\n\
                    deleted [HERE]/log\n\
                    deleted [HERE]/state/canary\n\
                    deleted [HERE]/state/order\n\
                    kept [HERE]/state/mine: Holdfast did not make it, or another file system is mounted there\n";
    assert_eq!(result.out, expected);
    assert!(world.at("state/mine").exists() && !world.at("log").exists());
}

#[test]
fn a_refused_purge_leaves_the_kernel_programs_attached() {
    let world = World::new();
    for path in ["pins/links-1-lsm/file_open", "state/quarantine/1-1/object"] {
        world.write(path, "");
    }
    let at = |name: &str| world.at(name).to_str().unwrap().to_owned();
    let (pins, run, state) = (at("pins"), at("run"), at("state"));
    let result = world.run(&["detach", "--purge", "--pins", &pins, "--run", &run, "--state", &state]);
    assert_eq!(result.code, 3, "{}", result.out);
    assert!(result.err.contains("holdfast quarantine remove ID"), "{}", result.err);
    assert!(world.at("pins/links-1-lsm/file_open").exists());
    assert!(world.at("state/quarantine/1-1/object").exists());
}
