//! The durations of earlier applies with the same disruption on this host.
//!
//! In: the state directory, and a plan. Out: seconds, the newest first, of completed applies with the same drain and reboot.
//! Entries that cannot be read are skipped, so that a plan never fails because of the history.

use crate::bounded;
use sensor_model::plan::Plan;
use serde::Deserialize;
use std::{fs, path::Path};

/// How many are returned.
const MOST: usize = 3;

/// The fields of a history entry that are read. Entries of other versions may lack the others.
#[derive(Deserialize)]
struct PastApply {
    id: u64,
    began: String,
    ended: Option<String>,
    result: Option<String>,
    plan: Plan,
}

/// Seconds of the last applies with the same disruption.
pub(super) fn seconds(state: &Path, plan: &Plan) -> Vec<i64> {
    let Ok(generations) = fs::read_dir(state.join("apply/generations")) else { return Vec::new() };
    let mut alike: Vec<(u64, i64)> = generations
        .filter_map(|entry| {
            let bytes = bounded::read(&entry.ok()?.path().join("history.json"), bounded::OWN).ok()?;
            let apply: PastApply = serde_json::from_slice(&bytes).ok()?;
            let same = (apply.plan.drain, apply.plan.reboot) == (plan.drain, plan.reboot);
            let time = |text: &str| text.parse::<jiff::Timestamp>().ok();
            let took = time(apply.ended.as_deref()?)?.as_second() - time(&apply.began)?.as_second();
            (same && apply.result.as_deref() == Some("done")).then_some((apply.id, took))
        })
        .collect();
    alike.sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
    alike.into_iter().take(MOST).map(|(_, took)| took).collect()
}
