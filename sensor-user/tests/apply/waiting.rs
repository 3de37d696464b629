//! Kernel arguments that wait for the next boot, and the configs applied after them.

use crate::world::World;
use serde_json::json;
use std::fs;

/// A config with these arguments and this content of a file.
fn config(world: &World, name: &str, arguments: &str, content: &str) {
    world.config(
        name,
        &format!(
            "    storage: {{files: [{{path: /etc/app, mode: 420, contents: {{source: 'data:,{content}'}}}}]}}\n  \
             kernelArguments: [{arguments}]\n"
        ),
    );
}

/// A host whose current config declares `rw a=1`, booted without `a=1`, which waits in the boot of this number.
fn world(boot_id: &str) -> World {
    let world = World::new();
    world.write("/proc/cmdline", "rw quiet\n");
    config(&world, "first", "rw, a=1", "one");
    config(&world, "second", "rw, a=1", "two");
    config(&world, "without", "rw", "three");
    assert_eq!(world.apply(&["first"], "").code, Some(0));
    let waiting = json!({"boot_id": boot_id, "config": "99-test", "arguments": [
        {"argument": "a=1", "operation": "add", "policy": "site.yaml: kernelArguments *"},
        {"argument": "quiet", "operation": "remove", "policy": "site.yaml: kernelArguments *"},
    ]});
    fs::write(world.state().join("apply/generations/1/waiting.json"), waiting.to_string()).unwrap();
    world
}

fn this_boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

/// The output of `check` for the current config.
fn check(world: &World) -> (Option<i32>, String) {
    let current = world.state().join("apply/current").display().to_string();
    let said = world.run(&["check", "--config", &current], "");
    (said.code, said.out + &said.err)
}

const WAITS: &str = "waits: kernel argument a=1: set for the next boot, the running kernel does not have it; \
                     policy site.yaml: kernelArguments *";

#[test]
fn a_waiting_argument_is_reported_and_is_no_drift_in_its_boot_alone() {
    let world = world(&this_boot());
    let (code, said) = check(&world);
    assert!(code == Some(0) && said.contains(WAITS), "{said}");
    assert!(said.contains("kernel argument quiet: removed at the next boot"), "{said}");
    let current = world.state().join("apply/current").display().to_string();
    let said = world.run(&["explain", "/proc/cmdline", "--config", &current], "");
    assert!(said.code == Some(0) && said.out.contains(WAITS), "{}{}", said.out, said.err);
    let other = self::world("another boot");
    let (code, said) = check(&other);
    assert!(code == Some(1) && said.contains("missing expected kernel arguments: [a=1]"), "{said}");
    assert!(!said.contains("waits:"), "{said}");
}

#[test]
fn an_apply_of_other_things_includes_waiting_arguments_and_reports_them() {
    let world = world(&this_boot());
    let said = world.apply(&["second"], "");
    assert!(said.code == Some(0) && said.out.contains(WAITS), "{}{}", said.out, said.err);
    assert_eq!(check(&world).0, Some(0));
    let said = world.apply(&["without", "-o", "json"], "");
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(report["waiting"].as_array().map(Vec::len), Some(1), "only what goes still waits: {report:#}");
    let (code, said) = check(&world);
    assert!(code == Some(0) && !said.contains("a=1"), "{said}");
    // A rollback to the config that declares it; nothing has staged it since.
    assert_eq!(world.run(&["rollback", "--no-acts"], "").code, Some(0));
    assert_eq!(check(&world).0, Some(1));
}

#[test]
fn a_waiting_order_is_kept_beside_added_and_removed_arguments_until_no_config_declares_it() {
    let world = World::new();
    world.write("/proc/cmdline", "rw host quiet\n");
    config(&world, "first", "quiet, rw, a=1", "one");
    config(&world, "second", "quiet, rw, a=1", "two");
    config(&world, "without", "quiet, rw", "three");
    config(&world, "back", "rw, quiet", "four");
    assert_eq!(world.apply(&["first"], "").code, Some(0));
    let policy = "site.yaml: kernelArguments *";
    let waiting = json!({"boot_id": this_boot(), "config": "99-test", "arguments": [
        {"argument": "a=1", "operation": "add", "policy": policy},
        {"argument": "quiet rw", "operation": "change", "policy": policy},
    ]});
    fs::write(world.state().join("apply/generations/1/waiting.json"), waiting.to_string()).unwrap();
    for (name, waits) in [("second", &["a=1", "quiet rw"][..]), ("without", &["quiet rw"]), ("back", &[])] {
        let said = world.apply(&[name, "-o", "json"], "");
        assert_eq!(said.code, Some(0), "{name}: {}{}", said.out, said.err);
        let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        let reported = report["waiting"].as_array().into_iter().flatten();
        let reported: Vec<&str> = reported.filter_map(|waits| waits["argument"].as_str()).collect();
        assert_eq!(reported, waits, "{name}: {report:#}");
        let (code, said) = check(&world);
        let is_said = said.contains("waits: kernel argument quiet rw: in this order from the next boot on");
        assert!(code == Some(0) && is_said == waits.contains(&"quiet rw"), "{name}: {said}");
    }
}

#[test]
fn the_current_config_applied_again_finds_no_drift_in_waiting_arguments() {
    for (boot_id, code, result) in [(this_boot().as_str(), 0, "unchanged"), ("another boot", 1, "drifted")] {
        let world = world(boot_id);
        // As if its actions had been run.
        let entry = world.state().join("apply/generations/1/history.json");
        let mut history: serde_json::Value = serde_json::from_slice(&fs::read(&entry).unwrap()).unwrap();
        assert_eq!(history["without_acts"].take(), true);
        history["without_acts"] = false.into();
        fs::write(&entry, history.to_string()).unwrap();
        let first = world.at("../first.yaml");
        let said = world.run(&["apply", first.to_str().unwrap(), "-o", "json"], "");
        assert_eq!(said.code, Some(code), "{}{}", said.out, said.err);
        let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!(report["result"], result, "{report:#}");
    }
}

#[cfg(feature = "fault-injection")]
#[test]
fn killed_at_any_call_the_waiting_arguments_are_those_of_the_current_config() {
    let calls = crate::faults::every(|number| {
        let world = world(&this_boot());
        let said = world.apply(&["second"], &format!("kill:{number}"));
        if !crate::faults::met(&said) {
            assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
            return false;
        }
        // Also before the recovery.
        let reported = |when: &str| {
            let (_, said) = check(&world);
            let fine = said.contains(WAITS) && !said.contains("missing expected kernel arguments");
            assert!(fine, "killed at call {number}, {when}: {said}");
        };
        reported("left as it was");
        world.resume("");
        reported("worked off");
        assert_eq!(check(&world).0, Some(0), "{number}");
        true
    });
    println!("killed at each of {calls} calls");
    assert!(calls > 40, "{calls}");
}
