//! How long applies like this one took on this host.
//!
//! In: the directory in which applies are kept, and a plan. Out: seconds, the newest first, of those that ended well
//! with a drain and a reboot as this one would. Where nothing was applied yet there is nothing to say, and what
//! cannot be read is passed over: a plan does not fail for the past's sake.

use crate::bounded;
use sensor_model::plan::Plan;
use serde::Deserialize;
use std::{fs, path::Path};

/// How many are told.
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

/// Seconds that the last applies took which disturbed as much.
pub(super) fn seconds(state: &Path, plan: &Plan) -> Vec<i64> {
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
