//! A Prometheus on the host that scrapes the reporter in this guest.
//!
//! In: its port on the host's loopback, which the host puts into the guest. Out: a way from the node's port to the pod, and what
//! Prometheus has of the reporter: targets, alerts and names of metrics.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::kube::{self, ADDRESS, HOST};
use super::shell;

/// The file with the port of Prometheus on the host's loopback.
pub const PORT: &str = "/etc/kubernetes/prometheus";
/// The port of the reporter's pages over TLS, on the node and in the pod.
pub const REPORTER: u16 = 9466;
/// The job that may read the metrics. The alerts expect this name.
pub const JOB: &str = "holdfast";
/// The job without a token.
pub const WITHOUT_TOKEN: &str = "without-token";
/// The job with the token of an account without rights.
pub const WITHOUT_RIGHT: &str = "without-right";

/// Sends connections to the node's port to the pod, as kube-proxy does for a Service of the type `NodePort`.
pub fn expose(pod: &str) -> Result<()> {
    let address =
        kube::kubectl(&["-n", "holdfast-system", "get", "pod", pod, "-o", "jsonpath={.status.podIP}"])?;
    shell(&format!(
        "iptables -t nat -A PREROUTING -d {ADDRESS}/32 -p tcp --dport {REPORTER} -j DNAT --to-destination {}:{REPORTER}",
        address.trim()
    ))
    .map(drop)
}

/// The target of a job: its health and its last error.
pub fn target(job: &str) -> Result<Value> {
    let found = get("/api/v1/targets?state=active")?;
    let mut targets = found["activeTargets"].as_array().context("no targets")?.iter();
    targets.find(|target| target["labels"]["job"] == job).cloned().with_context(|| format!("no job {job}"))
}

/// The alerts that are pending or fire.
pub fn alerts() -> Result<Vec<Value>> {
    get("/api/v1/alerts")?["alerts"].as_array().cloned().context("no list of alerts")
}

/// The names of all metrics that it has.
pub fn metrics() -> Result<Vec<String>> {
    let names = get("/api/v1/label/__name__/values")?;
    let names = names.as_array().context("no list of names")?;
    Ok(names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// The data of an answer of its API.
fn get(path: &str) -> Result<Value> {
    let port = fs::read_to_string(PORT).with_context(|| format!("cannot read {PORT}"))?;
    let address = format!("{HOST}:{}", port.trim());
    let mut stream = TcpStream::connect(&address).with_context(|| format!("cannot connect to {address}"))?;
    // An answer in HTTP/1.0 ends with its connection, and is not in chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let mut body: Value = serde_json::from_str(body).with_context(|| format!("{path}: {answer}"))?;
    ensure!(body["status"] == "success", "{path}: {body}");
    Ok(body["data"].take())
}
