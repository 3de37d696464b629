//! How long applies with the same disruption took on this host.
//!
//! In: the state directory, and a plan. Out: seconds, the newest first, of completed applies with the same drain and reboot. It
//! skips what it cannot read, so that a plan never fails for the history's sake.

use crate::bounded;
use sensor_model::plan::Plan;
use serde::Deserialize;
use std::{fs, path::Path};

/// How many are given.
const MOST: usize = 3;

/// What is read of an apply.
#[derive(Deserialize)]
struct Apply {
    id: u64,
    began: String,
    ended: Option<String>,
    result: Option<String>,
    plan: Plan,
}

/// Seconds of the last applies with the same disruption.
pub fn seconds(state: &Path, plan: &Plan) -> Vec<i64> {
    let Ok(generations) = fs::read_dir(state.join("apply/generations")) else { return Vec::new() };
    let mut alike: Vec<(u64, i64)> = generations
        .filter_map(|entry| {
            let bytes = bounded::read(&entry.ok()?.path().join("history.json"), bounded::OWN).ok()?;
            let apply: Apply = serde_json::from_slice(&bytes).ok()?;
            let same = (apply.plan.drain, apply.plan.reboot) == (plan.drain, plan.reboot);
            let time = |text: &str| text.parse::<jiff::Timestamp>().ok();
            let took = time(apply.ended.as_deref()?)?.as_second() - time(&apply.began)?.as_second();
            (same && apply.result.as_deref() == Some("done")).then_some((apply.id, took))
        })
        .collect();
    alike.sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
    alike.into_iter().take(MOST).map(|(_, took)| took).collect()
}
