use super::*;
use crate::changes::tests::{config, files};
use serde_json::{Value, json};

fn planned(old: &Value, new: &Value) -> Plan {
    plan(Some(&config(old)), Some(&config(new)), &Policy::shipped().unwrap()).unwrap()
}

fn at(path: &str, text: &str) -> Value {
    files(&json!([{ "path": path, "contents": { "source": format!("data:,{text}") } }]))
}

/// Steps as short words.
fn words(plan: &Plan) -> Vec<String> {
    plan.steps
        .iter()
        .map(|step| match &step.target {
            Some(target) => format!("{} {target}", step.action.word()),
            None => step.action.word().to_owned(),
        })
        .collect()
}

#[test]
fn nothing_to_do_has_no_steps() {
    let plan = planned(&at("/etc/a", "x"), &at("/etc/a", "x"));
    assert!(plan.is_empty() && plan.steps.is_empty() && plan.reconcilable && !plan.drain && !plan.reboot);
}

#[test]
fn what_no_entry_fits_drains_and_reboots() {
    let plan = planned(&at("/etc/a", "x"), &at("/etc/a", "y"));
    assert_eq!(words(&plan), ["drain", "write", "reboot"]);
    assert!(plan.drain && plan.reboot);
    assert_eq!(plan.changes[0].policy, "no entry fits: reboot");
}

#[test]
fn a_config_that_no_running_node_takes_has_reasons_and_no_steps() {
    let plan = planned(&json!({}), &json!({ "fips": true, "kernelArguments": ["a"] }));
    assert!(!plan.reconcilable && plan.steps.is_empty() && !plan.drain && !plan.reboot);
    assert_eq!(plan.changes.len(), 2);
}
