//! The `PodMonitor` of the Prometheus operator.
//!
//! In: the scrape in `policies/prometheus/scrape.yaml`. Out: the same scrape as an object of the operator, with the token of the component's
//! own account. So both kinds of Prometheus have one job, one port and one label for the node.

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

/// The file with the scrape.
pub(crate) const SCRAPE: &str = "policies/prometheus/scrape.yaml";
/// The label by which the pods are found.
const LABEL: &str = "app.kubernetes.io/name";

#[derive(Deserialize)]
struct ScrapeFile {
    scrape_configs: [Scrape; 1],
}

#[derive(Deserialize)]
struct Scrape {
    job_name: String,
    scheme: String,
    metrics_path: String,
    #[serde(rename = "scrape_interval")]
    interval: String,
    kubernetes_sd_configs: [Discovery; 1],
    tls_config: Tls,
    relabel_configs: [Relabeling; 2],
}

#[derive(Deserialize)]
struct Discovery {
    namespaces: Namespaces,
    selectors: [Selector; 1],
}

#[derive(Deserialize)]
struct Namespaces {
    names: [String; 1],
}

#[derive(Deserialize)]
struct Selector {
    label: String,
}

#[derive(Deserialize)]
struct Tls {
    insecure_skip_verify: bool,
}

#[derive(Deserialize)]
struct Relabeling {
    source_labels: [String; 1],
    regex: Option<String>,
    action: Option<String>,
    target_label: Option<String>,
}

/// The object for the scrape in this text.
///
/// # Errors
/// The text is another scrape than one of all pods with the label at one named port, with one label for the node.
pub(crate) fn of_scrape(text: &str) -> Result<String> {
    let ScrapeFile { scrape_configs: [scrape] } =
        serde_saphyr::from_str(text).with_context(|| format!("{SCRAPE} has another form"))?;
    let [Discovery { namespaces: Namespaces { names: [namespace] }, selectors: [selector] }] =
        &scrape.kubernetes_sd_configs;
    let [port, node] = &scrape.relabel_configs;
    let port_name = port.regex.as_deref().filter(|_| port.action.as_deref() == Some("keep"));
    let port_name = port_name.with_context(|| format!("{SCRAPE}: the first relabeling keeps no port"))?;
    let label = node.target_label.as_deref();
    let label = label.with_context(|| format!("{SCRAPE}: the second relabeling has no target"))?;
    let Scrape { job_name, scheme, metrics_path, interval, .. } = &scrape;
    // The operator takes the job's name from a label of the pod.
    ensure!(
        selector.label == format!("{LABEL}={job_name}"),
        "{SCRAPE}: the pods have another label than the job's name"
    );
    let (skip, [source]) = (scrape.tls_config.insecure_skip_verify, &node.source_labels);
    Ok(format!(
        "apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: holdfast
  namespace: {namespace}
  labels: {{{LABEL}: {job_name}}}
spec:
  selector:
    matchLabels: {{{LABEL}: {job_name}}}
  jobLabel: {LABEL}
  podMetricsEndpoints:
  - port: {port_name}
    path: {metrics_path}
    scheme: {scheme}
    interval: {interval}
    tlsConfig:
      # Each reporter makes its own certificate at its start, unless it is given one: then name its authority in `ca` here instead.
      # Another program at this address could serve false metrics and see the token below, which reads metrics and nothing else.
      insecureSkipVerify: {skip}
    authorization:
      type: Bearer
      credentials: {{name: holdfast-metrics, key: token}}
    relabelings:
    - sourceLabels: [{source}]
      targetLabel: {label}
"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../../policies/prometheus/scrape.yaml");

    #[test]
    fn job_port_and_label_of_the_node_are_those_of_the_scrape() {
        let made = of_scrape(TEXT).expect("the shipped scrape");
        for line in ["  - port: secure\n", "    interval: 30s\n", "      targetLabel: instance\n"] {
            assert!(made.contains(line), "{line}: {made}");
        }
        let other = of_scrape(&TEXT.replace("regex: secure", "regex: other")).expect("another port");
        assert!(other.contains("  - port: other\n"), "{other}");
    }

    #[test]
    fn a_scrape_of_another_job_or_without_a_port_is_refused() {
        for (from, to) in [("job_name: holdfast", "job_name: other"), ("action: keep", "action: drop")] {
            assert!(of_scrape(&TEXT.replace(from, to)).is_err(), "{to}");
        }
    }
}
