//! What a real Prometheus sees of a node, with the alerts of `policies/prometheus`.
//!
//! In: a Prometheus on the host that scrapes the reporter's pod over TLS with a token, and edits that the scenario `daemonset` makes.
//! Out: checks of its targets and alerts. Each alert waits a second here, and is otherwise the shipped one.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::guest::kube::NODE;
use crate::guest::service::CONFIG_NAME;
use crate::guest::{Context, prometheus, wait};

/// How long Prometheus may take: two scrapes of an emulated guest and two evaluations, with room for a busy machine.
const LIMIT: Duration = Duration::from_mins(1);
/// The alerts that need nothing but the scrape.
const RULES: &str = include_str!("../../../policies/prometheus/rules.yaml");
/// The alert of an open drift.
const DRIFT: &str = "NodeConfigDrift";

/// The pod is ready and the node in sync.
pub(super) fn healthy(context: &mut Context, pod: &str) -> Result<()> {
    prometheus::expose(pod)?;
    context.check("prometheus_scrapes_the_reporter_over_tls_with_a_token", scraped());
    context.check("a_scrape_without_token_or_right_is_refused", refused());
    context.check("no_alert_is_active_for_a_healthy_node", cleared());
    Ok(())
}

/// The alert of the open drift fires with the node's name, and no other one does.
pub(super) fn drifted() -> Result<String> {
    wait_for_alerts("the alert of the drift alone to fire", |alerts| {
        let [alert] = alerts else { return false };
        alert["state"] == "firing" && alert["labels"]["alertname"] == DRIFT
    })?;
    let alerts = prometheus::alerts()?;
    ensure!(
        alerts[0]["labels"]["instance"] == NODE && alerts[0]["labels"]["severity"] == "warning",
        "{alerts:?}"
    );
    let description = alerts[0]["annotations"]["description"].as_str().unwrap_or_default();
    let source = format!("machine-config ({CONFIG_NAME}) 1");
    ensure!(description.contains(&source), "no {source}: {description}");
    let summary = &alerts[0]["annotations"]["summary"];
    ensure!(summary == &format!("{NODE} does not match its configuration"), "{alerts:?}");
    Ok(summary.to_string())
}

/// No alert is pending or fires, and the reporter is scraped.
pub(super) fn cleared() -> Result<String> {
    wait_for_alerts("all alerts to clear", <[Value]>::is_empty)?;
    scraped()
}

fn wait_for_alerts(what: &str, is_so: impl Fn(&[Value]) -> bool) -> Result<()> {
    let mut last = Vec::new();
    let found = wait::until(what, LIMIT, || {
        last = prometheus::alerts()?;
        Ok(is_so(&last).then_some(()))
    });
    found.map_err(|error| error.context(format!("alerts: {last:?}")))
}

fn scraped() -> Result<String> {
    wait_for_target(prometheus::JOB, |target| target["health"] == "up")
}

fn refused() -> Result<String> {
    let error_is = |code: &'static str| {
        move |target: &Value| {
            target["health"] == "down"
                && target["lastError"].as_str().is_some_and(|error| error.contains(code))
        }
    };
    wait_for_target(prometheus::WITHOUT_TOKEN, error_is("HTTP status 401"))?;
    wait_for_target(prometheus::WITHOUT_RIGHT, error_is("HTTP status 403"))
}

fn wait_for_target(job: &str, is_so: impl Fn(&Value) -> bool) -> Result<String> {
    let mut last = Value::Null;
    let found = wait::until(&format!("the target of the job {job}"), LIMIT, || {
        last = prometheus::target(job)?;
        Ok(is_so(&last).then(String::new))
    });
    found.map_err(|error| error.context(format!("target: {last}")))
}

/// An alert whose metric has another name never fires, and no other check would tell. Some metrics have series only while something drifts.
pub(super) fn metrics() -> Result<String> {
    let known = prometheus::metrics()?;
    let rules = RULES.lines().filter(|line| !line.trim_start().starts_with('#'));
    let words = rules.flat_map(|line| line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')));
    let used: std::collections::BTreeSet<&str> = words.filter(|word| word.starts_with("holdfast_")).collect();
    let missing: Vec<&&str> = used.iter().filter(|name| !known.iter().any(|known| known == **name)).collect();
    ensure!(used.len() > 5 && missing.is_empty(), "missing: {missing:?} of {used:?}; known: {known:?}");
    Ok(format!("{} metrics", used.len()))
}
