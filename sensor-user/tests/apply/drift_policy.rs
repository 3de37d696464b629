//! How an apply handles drift that the drift policy tolerates.

use crate::{
    recovery::{PreparedHost, act, begin, interrupted, recover, this_boot},
    world::World,
};
use holdfast::apply::ResumeLimit;
use sensor_model::journal::{Action, ApplyEnd, Fallback, JournalRecord, machine::MachineEnd};
use serde_json::Value;
use std::fs;

/// A policy of the service, with one rule for each path.
fn policy(world: &World, rules: &[(&str, &str)]) {
    let mut text =
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: a}\nspec:\n  rules:\n"
            .to_owned();
    for (path, action) in rules {
        text.extend(["  - {path: ", path, ", action: ", action, "}\n"]);
    }
    if !rules.is_empty() {
        world.write("/etc/holdfast/policies/a.yaml", &text);
    }
}

const STAYS: &str = "/etc/app/stays";
const CHANGES: &str = "/etc/app/changes";

fn report(out: &str) -> Value {
    serde_json::from_str(out).unwrap()
}

#[test]
fn tolerated_drift_stops_no_apply_and_is_reported() {
    for action in ["ignore", "observe"] {
        let world = World::old();
        policy(&world, &[(STAYS, action)]);
        world.write(STAYS, "drift");
        let said = world.apply(&["new", "-o", "json"], "");
        assert_eq!(said.code, Some(0), "{action}: {}{}", said.out, said.err);
        let report = report(&said.out);
        assert_eq!((&report["result"], &report["problems"]), (&"done".into(), &Value::Array(Vec::new())));
        let reported = report["tolerated"][0].as_str().unwrap();
        for part in ["content mismatch", STAYS, action, "a.yaml"] {
            assert!(reported.contains(part), "{part}: {reported}");
        }
        assert!(said.err.contains("left alone: "), "before the first write: {}", said.err);
        assert_eq!(world.read(STAYS), "drift", "no config says anything else of it than before");
        let again = world.apply(&["new"], "");
        assert_eq!(again.code, Some(0), "{}{}", again.out, again.err);
        assert!(again.out.starts_with("unchanged") && again.out.contains("left alone: "), "{}", again.out);
    }
}

#[test]
fn other_drift_stops_an_apply() {
    for rules in [&[][..], &[(STAYS, "degrade")], &[(STAYS, "revert")], &[("/etc/app/mode", "ignore")]] {
        let world = World::old();
        policy(&world, rules);
        world.write(STAYS, "drift");
        let said = world.apply(&["new"], "");
        assert_eq!(said.code, Some(3), "{rules:?}: {}{}", said.out, said.err);
        assert!(said.err.contains(STAYS), "{rules:?}: {}", said.err);
    }
}

#[test]
fn a_tolerated_path_is_written_if_the_new_config_changes_it() {
    let world = World::old();
    policy(&world, &[(CHANGES, "ignore"), ("/etc/app/hard", "ignore")]);
    world.write(CHANGES, "drift");
    let said = world.apply(&["new"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert_eq!(world.read(CHANGES), "new");
}

#[test]
fn tolerated_drift_causes_no_rollback() {
    for (rules, ended) in [
        (&[][..], ApplyEnd::RolledBack),
        (&[(STAYS, "observe")], ApplyEnd::Done),
        (&[(STAYS, "ignore")], ApplyEnd::Done),
    ] {
        let world = interrupted(begin(&this_boot(), Vec::new()), &[]);
        policy(&world, rules);
        world.write(STAYS, "drift");
        let applied = recover(&world, &mut PreparedHost::default(), ResumeLimit::Unlimited);
        assert_eq!(applied.end, MachineEnd::Closed(ended), "{rules:?}: {applied:?}");
        assert_eq!(applied.tolerated.len(), usize::from(ended == ApplyEnd::Done), "{applied:?}");
    }
}

#[test]
fn an_apply_that_changes_the_os_is_not_done_without_it_whatever_the_policy_says() {
    for (kind, ended) in [(Action::Os, ApplyEnd::RolledBack), (Action::Restart, ApplyEnd::Done)] {
        let acts = vec![act(kind, "a.service", Fallback::Rollback)];
        let acted = [JournalRecord::Started { act: 0 }, JournalRecord::Finished { act: 0 }];
        let world = interrupted(begin(&this_boot(), acts), &acted);
        policy(&world, &[("/proc/cmdline", "ignore")]);
        world.write("/proc/cmdline", "rw\n");
        world.config("wanted", "  kernelArguments: [a=1]\n");
        let wanted = fs::read_to_string(world.config_file("wanted")).unwrap().replace("99-test", "98-os");
        fs::write(world.state().join("apply/generations/2/config/98-os.yaml"), wanted).unwrap();
        let applied = recover(&world, &mut PreparedHost::default(), ResumeLimit::Unlimited);
        assert_eq!(applied.end, MachineEnd::Closed(ended), "{applied:?}");
        let reported = [vec![applied.reason], applied.tolerated].concat().concat();
        assert!(reported.contains("missing expected kernel arguments: [a=1]"), "{reported}");
    }
}

#[test]
fn a_drift_policy_with_a_mistake_refuses_an_apply_and_names_the_file_and_another_one_can_be_named() {
    let world = World::old();
    policy(&world, &[(STAYS, "ignroe")]);
    let said = world.apply(&["new"], "");
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert!(said.err.contains("a.yaml") && said.err.contains("ignroe"), "{}", said.err);
    assert!(!world.has_journal());
    world.write(
        "/other/b.yaml",
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: b}\nspec: {rules: []}\n",
    );
    let other = world.at("/other");
    let said = world.apply(&["new", "--drift-policy", other.to_str().unwrap()], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
}
