//! The alerts: their rules, and the tests of the rules.
//!
//! In: `policies/prometheus`. Out: success if `promtool`, from Debian's package of Prometheus, accepts the rules and all their
//! tests pass. The tests of this file need no `promtool`: each metric exists, and each alert is documented.

use std::process::Command;

use anyhow::{Context, Result};

use crate::apt;
use crate::cache::Cache;
use crate::dist::root;
use crate::run::{find_program, output};
use crate::tools::PackageTree;

const PACKAGE: &str = "prometheus";
const PROGRAM: &str = "promtool";

/// Checks the rules and runs their tests.
pub(crate) fn test() -> Result<()> {
    let folder = root().join("policies/prometheus");
    let tree = match find_program(PROGRAM) {
        Some(_) => None,
        None => Some(tree(&Cache::open()?)?),
    };
    for arguments in [["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]] {
        output(promtool(tree.as_ref())?.args(arguments).current_dir(&folder))?;
    }
    Ok(())
}

fn tree(cache: &Cache) -> Result<PackageTree> {
    if let Some(tree) = PackageTree::cached(cache, PACKAGE) {
        return Ok(tree);
    }
    let release = apt::codename()?;
    PackageTree::make(cache, PACKAGE, &[&release], &release, &[PACKAGE])
}

fn promtool(tree: Option<&PackageTree>) -> Result<Command> {
    let Some(tree) = tree else { return Ok(Command::new(PROGRAM)) };
    let program = tree.program(PROGRAM).with_context(|| format!("{PACKAGE} holds no {PROGRAM}"))?;
    Ok(tree.command(&program))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    fn read(path: &str) -> String {
        fs::read_to_string(root().join(path)).expect(path)
    }

    /// Names of metrics in a text of expressions.
    fn metrics(text: &str) -> BTreeSet<&str> {
        text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .filter(|word| word.starts_with("holdfast_") || word.starts_with("mcd_"))
            .collect()
    }

    fn alerts(rules: &str) -> Vec<&str> {
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
    }

    #[test]
    fn every_metric_in_a_rule_is_one_that_the_daemon_shows() {
        let snapshot = "holdfast__report__metrics__tests__the_page_is_the_one_that_dashboards_and_alerts_are_written_for";
        let page = read(&format!("sensor-user/src/report/metrics/snapshots/{snapshot}.snap"));
        let shown: BTreeSet<&str> = page.lines().filter_map(|line| line.split([' ', '{']).next()).collect();
        let rules = read("policies/prometheus/rules.yaml");
        let used = metrics(&rules);
        assert!(used.len() > 5, "{used:?}");
        for name in used {
            assert!(shown.contains(name), "no metric {name}");
        }
    }

    #[test]
    fn every_alert_is_tested_and_has_its_heading_in_the_operations_guide() {
        let rules = read("policies/prometheus/rules.yaml");
        let (tests, guide) = (read("policies/prometheus/rules_test.yaml"), read("docs/operations.md"));
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
