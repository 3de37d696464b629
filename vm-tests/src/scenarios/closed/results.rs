//! What the daemon did about an object that nothing declares: the end of its drift, and its item in the quarantine.

use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::{shell, status, wait};
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(1);

/// Waits until the drift of a path has ended.
pub(super) fn recovered(agent: &mut RunningDaemon, path: &str) -> Result<()> {
    // The record is written before the status is, so a status without the drift may still be the one of before it.
    wait::until("the record of the recovery", LIMIT, || {
        let records = agent.records()?;
        let last = records.iter().rev().find(|record| record["path"] == path);
        Ok(last.filter(|last| last["kind"] == "recovered").map(drop))
    })?;
    status::wait_until("no drift", LIMIT, |status| {
        let drifted = status["drifted"].as_array();
        drifted.is_some_and(|all| all.iter().all(|thing| thing["path"] != path))
    })?;
    Ok(())
}

/// The report of a command about the quarantine.
pub(super) fn quarantine(arguments: &str) -> Result<Value> {
    let printed = shell(&format!("{HOLDFAST} quarantine {arguments} -o json 2>/dev/null"))?;
    serde_json::from_str(&printed).with_context(|| printed.clone())
}

/// The item of a path.
pub(super) fn item_of(path: &str) -> Result<Value> {
    let items = quarantine("list")?;
    let items = items["items"].as_array().context("no items")?;
    items
        .iter()
        .rev()
        .find(|item| item["path"] == path)
        .cloned()
        .with_context(|| format!("no item of {path}"))
}
