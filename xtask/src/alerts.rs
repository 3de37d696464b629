//! The alerts: their rules, and the tests of the rules. Also the dashboard of Grafana.
//!
//! In: `policies/prometheus`, `deploy/grafana`. Out: success if `promtool`, from Debian's package of Prometheus, accepts the rules and
//! the dashboard's expressions, and all tests of the rules pass. The tests of this file need no `promtool`: each metric exists, and each alert is documented.

use std::fs;
use std::io::Write as _;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::dist::root;
use crate::run::{find_program, output};
use crate::tools::PackageTree;

const PACKAGE: &str = "prometheus";
const PROGRAM: &str = "promtool";
/// The dashboard of Grafana.
const DASHBOARD: &str = "deploy/grafana/holdfast.json";
/// The tests of panels, in the folder of the rules.
const PANELS: &str = "dashboard_test.yaml";

/// Checks the rules and runs their tests.
pub(crate) fn test() -> Result<()> {
    let folder = root().join("policies/prometheus");
    let tree = match find_program(PROGRAM) {
        Some(_) => None,
        None => Some(tree(&Cache::open()?)?),
    };
    for name in ["rules", "cluster"] {
        for (action, file) in [("check", format!("{name}.yaml")), ("test", format!("{name}_test.yaml"))] {
            output(promtool(tree.as_ref())?.args([action, "rules", &file]).current_dir(&folder))?;
        }
    }
    output(promtool(tree.as_ref())?.args(["test", "rules", PANELS]).current_dir(&folder))?;
    // A panel's expression is checked as if it were a rule.
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(dashboard_rules(&dashboard()?).to_string().as_bytes())?;
    output(promtool(tree.as_ref())?.args(["check", "rules"]).arg(file.path())).map(drop)
}

/// Debian's package of Prometheus.
pub(crate) fn tree(cache: &Cache) -> Result<PackageTree> {
    PackageTree::of_package(cache, PACKAGE)
}

fn promtool(tree: Option<&PackageTree>) -> Result<Command> {
    let Some(tree) = tree else { return Ok(Command::new(PROGRAM)) };
    let program = tree.program(PROGRAM).with_context(|| format!("{PACKAGE} holds no {PROGRAM}"))?;
    Ok(tree.command(&program))
}

/// The dashboard of Grafana.
fn dashboard() -> Result<Value> {
    let path = root().join(DASHBOARD);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{DASHBOARD} is no JSON"))
}

/// The expressions of all panels and variables, with a value in the place of each variable of Grafana.
fn expressions(dashboard: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![dashboard];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("expr").and_then(Value::as_str));
                open.extend(fields.values());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    let filled =
        |text: &str| text.replace("$__range", "1h").replace("$__rate_interval", "5m").replace("$node", ".*");
    found.into_iter().map(filled).collect()
}

/// The expressions as recording rules. JSON is YAML.
fn dashboard_rules(dashboard: &Value) -> Value {
    let rule = |(number, expr)| json!({ "record": format!("panel:{number}"), "expr": expr });
    let rules: Vec<Value> = expressions(dashboard).into_iter().enumerate().map(rule).collect();
    json!({ "groups": [{ "name": "dashboard", "rules": rules }] })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::manifests::ALERTS;

    /// What kube-state-metrics shows of objects that Holdfast writes.
    const OF_OBJECTS: [&str; 4] =
        ["kube_node_info", "kube_node_status_condition", "kube_pod_info", "kube_pod_status_ready"];
    /// What the reporter's page has besides the sensor's: its test in `cluster/src/metrics.rs` has the same names.
    const OF_REPORTERS: [&str; 7] = [
        "holdfast_reporter_config_state",
        "holdfast_reporter_last_write_timestamp_seconds",
        "holdfast_reporter_log_rewritten",
        "holdfast_reporter_node_updating",
        "holdfast_reporter_os_image_out_of_step",
        "holdfast_reporter_sensor_up",
        "holdfast_reporter_writes_total",
    ];

    fn read(path: &str) -> String {
        fs::read_to_string(root().join(path)).expect(path)
    }

    /// Names of metrics in a text of expressions.
    fn metrics(text: &str) -> BTreeSet<&str> {
        text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .filter(|word| ["holdfast_", "mcd_", "kube_"].iter().any(|start| word.starts_with(start)))
            .collect()
    }

    fn alerts(rules: &str) -> Vec<&str> {
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
    }

    #[test]
    fn every_metric_in_a_rule_or_a_panel_is_one_that_the_daemon_shows() {
        let snapshot = "holdfast__report__metrics__tests__the_page_is_the_one_that_dashboards_and_alerts_are_written_for";
        let page = read(&format!("sensor-user/src/report/metrics/snapshots/{snapshot}.snap"));
        let mut shown: BTreeSet<&str> =
            page.lines().filter_map(|line| line.split([' ', '{']).next()).collect();
        shown.extend(OF_OBJECTS);
        shown.extend(OF_REPORTERS);
        let rules = ALERTS.map(read).join("");
        let rules: String = rules.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
        let panels = expressions(&dashboard().unwrap()).join(" ");
        for text in [rules, panels] {
            let used = metrics(&text);
            assert!(used.len() > 5, "{used:?}");
            for name in used {
                assert!(shown.contains(name), "no metric {name}");
            }
        }
    }

    #[test]
    fn each_tested_expression_is_one_of_the_dashboard() {
        let tests = read(&format!("policies/prometheus/{PANELS}"));
        let tests: Vec<&str> = tests.lines().map(str::trim).collect();
        let tested = tests.windows(2).filter(|lines| lines[0] == "- expr: >-").map(|lines| lines[1]);
        let tested: Vec<&str> = tested.collect();
        assert!(!tested.is_empty());
        let shown = expressions(&dashboard().unwrap());
        for expression in tested {
            assert!(shown.iter().any(|panel| panel == expression), "no panel has {expression}");
        }
    }

    /// `increase` does not see the first difference of a kind and an actor: it begins the series.
    #[test]
    fn each_increase_of_a_counter_without_a_zero_is_beside_its_first_value() {
        for expression in expressions(&dashboard().unwrap()) {
            if expression.contains("increase(holdfast_drift_detected_total") {
                assert!(expression.contains("or label_replace(min_over_time("), "{expression}");
            }
        }
    }

    #[test]
    fn every_alert_is_tested_and_has_its_heading_in_the_operations_guide() {
        let rules = ALERTS.map(read).join("");
        let tests = ALERTS.map(|path| read(&path.replace(".yaml", "_test.yaml"))).join("");
        let guide = read("docs/operations.md");
        let alerts = alerts(&rules);
        assert!(alerts.len() > 5, "{alerts:?}");
        for alert in alerts {
            assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} has no test");
            assert!(guide.contains(&format!("\n### {alert}\n")), "{alert} has no heading");
            let link = format!("runbook_url: docs/operations.md#{}\n", alert.to_lowercase());
            assert!(rules.contains(&link), "{alert} has no link to its heading");
        }
    }
}
