//! The daemon's status of the node.
//!
//! In: the status file. Out: its JSON, or a part of it.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::wait;

const FILE: &str = "/run/holdfast/status.json";

/// The present status.
pub fn read() -> Result<Value> {
    let text = fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    serde_json::from_str(&text).with_context(|| format!("no JSON in {FILE}"))
}

/// The present verdict of the node; empty before the first status.
pub fn verdict() -> String {
    read().ok().and_then(|status| status["verdict"].as_str().map(str::to_owned)).unwrap_or_default()
}

/// The drifted paths in the status.
pub fn drifted() -> Result<Vec<String>> {
    let status = read()?;
    let list = status["drifted"].as_array().into_iter().flatten();
    Ok(list.filter_map(|thing| thing["path"].as_str().map(str::to_owned)).collect())
}

/// Waits until the node has this verdict.
pub fn wait_for(wanted: &str, limit: Duration) -> Result<Value> {
    wait_until(&format!("the verdict {wanted}"), limit, |status| status["verdict"] == wanted)
}

/// Waits until the status is as wanted.
pub fn wait_until(what: &str, limit: Duration, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let found = wait::until(what, limit, || Ok(read().ok().filter(|status| wanted(status))));
    found.with_context(|| format!("the status is {}", fs::read_to_string(FILE).unwrap_or_default()))
}
