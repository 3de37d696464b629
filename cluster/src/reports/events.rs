//! The Event that a change of the report needs.

use super::conditions::{named, things, unknown};
use super::config::differing;
use super::finding::NodeFinding;
use super::os_image::sentence;
use crate::api::{ConfigState, Drift, DriftReportStatus, DriftState, ReportedRewriting};
use crate::text::fit;
use jiff::Timestamp;
use sensor_model::record::ThingKind;
use std::collections::BTreeSet;

/// Longest note that the API server accepts, in bytes.
const NOTE_BYTES: usize = 1000;

/// One Event about the Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEvent {
    /// Whether it is a warning.
    pub is_warning: bool,
    /// The reason, for programs.
    pub reason: &'static str,
    /// The action of the sensor.
    pub action: &'static str,
    /// What happened.
    pub note: String,
}

/// The Event that leads from the report of the last Event to this one; `None` if this one adds no drift and ends none.
pub fn event(last: Option<&DriftReportStatus>, now: &DriftReportStatus) -> Option<NodeEvent> {
    let known: BTreeSet<_> = last.map(|last| last.drifts.iter().map(key).collect()).unwrap_or_default();
    // A report lists the newest drifts, so one that is listed when a newer one ends was counted before.
    let unlisted =
        last.filter(|last| last.more > 0).and_then(|last| last.drifts.iter().filter_map(since).min());
    // The time of some drifts, such as that of the OS image, is not known.
    let was_counted =
        |drift: &Drift| since(drift).is_some_and(|since| unlisted.is_some_and(|unlisted| since <= unlisted));
    let is_new = |drift: &&Drift| !known.contains(&key(drift)) && !was_counted(drift);
    let new: Vec<Drift> = now.drifts.iter().filter(is_new).cloned().collect();
    let had = last.map_or(0, |last| last.count);
    if !new.is_empty() && now.state == DriftState::Drifted {
        let number = i64::try_from(new.len()).unwrap_or(i64::MAX);
        let all = match now.count - number {
            0 => String::new(),
            _ => format!(" ({} in all)", now.count),
        };
        let is_image = |drift: &Drift| drift.kind.as_deref() == Some(ThingKind::OsImage.as_str());
        let sentence = if new.iter().any(is_image) { sentence(now) } else { String::new() };
        let note = format!("{sentence}{} drifted{all}: {}", things(number), named(&new, number));
        return Some(NodeEvent {
            is_warning: true,
            reason: "ConfigDriftDetected",
            action: "Verify",
            note: fit(&note, NOTE_BYTES),
        });
    }
    (had > 0 && now.state == DriftState::InSync).then(|| NodeEvent {
        is_warning: false,
        reason: "ConfigDriftRecovered",
        action: "Verify",
        note: format!("the node matches its MachineConfigs again; {} had drifted", things(had)),
    })
}

/// The Event of a node whose known drifts are over, although the sensor cannot prove that the node matches; `None` if the report of the last
/// Event has no drift, or any is left.
pub fn end_of_drifts(last: Option<&DriftReportStatus>, now: &NodeFinding) -> Option<NodeEvent> {
    let last = last.filter(|last| last.count > 0 && now.has_no_known_drift())?;
    let (_, _, reason) = unknown(&now.status);
    let note = format!(
        "no known drift is left, but whether the node matches its MachineConfigs is unknown ({reason}); {} had drifted: {}",
        things(last.count),
        named(&last.drifts, last.count)
    );
    Some(NodeEvent {
        is_warning: false,
        reason: "ConfigDriftRecovered",
        action: "Verify",
        note: fit(&note, NOTE_BYTES),
    })
}

/// The Event of a node whose copy of its config was changed; `None` if the report of the last Event has it.
pub fn config_event(last: Option<&DriftReportStatus>, now: &DriftReportStatus) -> Option<NodeEvent> {
    let differs = |status: &DriftReportStatus| {
        let config = status.config.as_ref().filter(|config| config.state == ConfigState::Differs)?;
        config.expected.clone()
    };
    let note = differing(now)?;
    (last.and_then(differs) != differs(now)).then(|| NodeEvent {
        is_warning: true,
        reason: "NodeConfigDiffers",
        action: "Verify",
        note: fit(&note, NOTE_BYTES),
    })
}

/// The report that an Event about the config leads to. Drifts that no Event has named stay unnamed.
pub fn with_config(last: Option<&DriftReportStatus>, now: &DriftReportStatus) -> DriftReportStatus {
    DriftReportStatus { config: now.config.clone(), ..last.cloned().unwrap_or_default() }
}

/// The Event of a forensic log that was written anew.
pub fn rewriting_event(rewriting: &ReportedRewriting) -> NodeEvent {
    let ReportedRewriting { sequence, found, .. } = rewriting;
    let note = format!(
        "the forensic log was written anew: the DriftReport keeps entry {sequence}, and {found}; do not believe what this log says \
         about the time before, and compare it with a copy that is not on the node"
    );
    NodeEvent {
        is_warning: true,
        reason: "ForensicLogRewritten",
        action: "Verify",
        note: fit(&note, NOTE_BYTES),
    }
}

fn since(drift: &Drift) -> Option<Timestamp> {
    drift.since.as_ref()?.parse().ok()
}

/// What makes a drift another one: a thing that drifts again has another time.
fn key(drift: &Drift) -> (&str, Option<&str>, Option<&str>) {
    (&drift.path, drift.kind.as_deref(), drift.since.as_deref())
}
