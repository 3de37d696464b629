//! The output of `apply`, `rollback` and `history`: golden for people, by their schemas for programs.

use crate::world::{RunResult, World};
use serde_json::Value;
use std::fs;

/// Output, progress and exit code as one text.
fn golden(said: &RunResult) -> String {
    let code = said.code.map_or_else(|| "a signal".to_owned(), |code| code.to_string());
    format!("{}--- stderr\n{}--- exit {code}", said.out, said.err)
}

/// The output as JSON, which must match a schema of `docs/schemas`.
pub(crate) fn json(said: &RunResult, schema: &str) -> Value {
    let path = format!("{}/../docs/schemas/{schema}.schema.json", env!("CARGO_MANIFEST_DIR"));
    let schema: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let value: Value =
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {}", said.out));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let faults: Vec<String> =
        validator.iter_errors(&value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert_eq!(faults, Vec::<String>::new(), "{value:#}");
    value
}

/// Without the parts that differ from run to run: temporary directories, times, durations.
fn settled(world: &World, text: &str) -> String {
    let mut lines = Vec::new();
    let directory = world.at("/");
    let directory = directory.parent().unwrap().display().to_string();
    for line in text.replace(&directory, "HOST").lines() {
        // Two blanks separate the columns of the history: result, number, begin, duration.
        let mut cells: Vec<&str> = line.split("  ").filter(|cell| !cell.is_empty()).collect();
        if cells.len() > 4 && cells[2].starts_with("20") {
            cells[2] = "TIME";
            cells[3] = "DURATION";
            lines.push(cells.iter().map(|cell| cell.trim()).collect::<Vec<_>>().join("  "));
        } else {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n")
}

#[test]
fn an_apply_prints_each_step_and_its_result() {
    let world = World::old();
    let said = world.apply(&["new"], "");
    insta::assert_snapshot!(settled(&world, &golden(&said)));
}

#[test]
fn a_dry_run_prints_each_change_with_its_action_and_reason() {
    let world = World::old();
    insta::assert_snapshot!(golden(&world.apply(&["new", "--dry-run"], "")));
}

#[test]
fn a_refusal_names_every_difference_and_what_to_do() {
    let world = World::old();
    world.write("/etc/app/stays", "tampered");
    fs::remove_file(world.at("/etc/app/link")).unwrap();
    insta::assert_snapshot!(settled(&world, &golden(&world.apply(&["new"], ""))));
}

#[test]
fn the_history_shows_every_apply_and_the_nodes_state() {
    let world = World::new();
    insta::assert_snapshot!("empty", golden(&world.run(&["history"], "")));
    assert_eq!(world.apply(&["old"], "").code, Some(0));
    assert_eq!(world.apply(&["new"], "").code, Some(0));
    world.write("/etc/app/stays", "tampered");
    assert_eq!(world.apply(&["nothing"], "").code, Some(3));
    world.write("/etc/app/stays", "stays");
    assert_eq!(world.run(&["rollback", "--no-acts"], "").code, Some(0));
    insta::assert_snapshot!("three", settled(&world, &golden(&world.run(&["history"], ""))));
}

#[test]
fn an_unreadable_history_is_a_failure_and_not_an_empty_one() {
    let world = World::new();
    fs::create_dir_all(world.state()).unwrap();
    // Root can look everywhere except behind an endless link.
    std::os::unix::fs::symlink("apply", world.state().join("apply")).unwrap();
    for arguments in [&["history"][..], &["rollback", "--dry-run"]] {
        let said = world.run(arguments, "");
        assert_eq!(said.code, Some(3), "{arguments:?}: {}", golden(&said));
        assert!(said.err.contains("look for what was applied"), "{arguments:?}: {}", golden(&said));
    }
    assert_eq!(world.apply(&["new", "--dry-run"], "").code, Some(3));
}

#[test]
fn json_output_matches_its_schema_and_repeats_no_field() {
    let world = World::new();
    let history = |said: &RunResult| json(said, "history");
    assert_eq!(history(&world.run(&["history", "-o", "json"], ""))["current"], Value::Null);
    let applied = json(&world.apply(&["old", "-o", "json"], ""), "apply");
    assert_eq!((&applied["result"], &applied["id"]), (&"done".into(), &1.into()));
    let same = json(&world.apply(&["old", "-o", "json"], ""), "apply");
    assert_eq!((&same["result"], &same["id"]), (&"unchanged".into(), &Value::Null));
    let planned = world.apply(&["new", "--dry-run", "-o", "json"], "");
    assert_eq!(json(&planned, "plan")["schema"], "holdfast.plan/v1");
    assert_eq!(json(&world.apply(&["new", "-o", "json"], ""), "apply")["result"], "done");
    let back = json(&world.run(&["rollback", "--no-acts", "-o", "json"], ""), "apply");
    assert_eq!(back["id"], 3);
    let reported = history(&world.run(&["history", "-o", "json"], ""));
    assert_eq!(reported["applies"].as_array().map(Vec::len), Some(3));
    assert_eq!(reported["standing"]["state"], "Done");
}
