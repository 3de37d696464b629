//! The conditions of the Node.

use super::actor::by;
use super::config;
use super::finding::{NodeFinding, SensorState};
use super::os_image::sentence;
use crate::api::{Drift, DriftReportStatus, DriftState};
use crate::text::{count, fit};
use sensor_model::image::without_history;
use std::fmt::Write as _;

/// The condition that is `True` while something on the node differs from its MachineConfigs.
pub const CONFIG_DRIFT: &str = "ConfigDrift";

/// The condition that is `True` while the node's sensor works.
pub const SENSOR_READY: &str = "holdfast.dev/SensorReady";

/// The types of all conditions of the Node that are ours.
pub const CONDITIONS: [&str; 2] = [CONFIG_DRIFT, SENSOR_READY];

/// Most bytes of a message in JSON.
const MESSAGE_BYTES: usize = 1000;
/// Most bytes of one drift in a message, so that a long path leaves room for others.
const DRIFT_BYTES: usize = 300;
/// Most bytes of the source of a drift, such as the number and the digest of a layer.
const SOURCE_BYTES: usize = 80;
/// The words around the source.
const SOURCE_WORDS: usize = " (source )".len();
/// Most drifts that a message names.
pub(super) const NAMED: usize = 8;

/// The status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nothing proves either.
    Unknown,
}

impl ConditionStatus {
    /// The status by its name in the API.
    pub fn of(name: &str) -> Option<Self> {
        [Self::True, Self::False, Self::Unknown].into_iter().find(|status| status.as_str() == name)
    }

    /// Its name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// One condition of the Node, without its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The type.
    pub kind: &'static str,
    /// The status.
    pub status: ConditionStatus,
    /// The reason, for programs: one word in `CamelCase`.
    pub reason: &'static str,
    /// The reason, for people.
    pub message: String,
}

/// The conditions of the Node: [`CONFIG_DRIFT`] and [`SENSOR_READY`].
pub fn conditions(finding: &NodeFinding) -> [Condition; 2] {
    [config_drift(finding), sensor_ready(finding)]
}

fn config_drift(NodeFinding { status, sensor, .. }: &NodeFinding) -> Condition {
    let last = match status.count {
        0 => String::new(),
        number => {
            format!("; {} drifted when it last answered: {}", things(number), named(&status.drifts, number))
        }
    };
    let (value, reason, message) = match (sensor, status.state) {
        (SensorState::Silent { since }, _) => (
            ConditionStatus::Unknown,
            "SensorSilent",
            format!("the node's sensor has not answered since {since}{last}"),
        ),
        (SensorState::NotReady { since }, _) => (
            ConditionStatus::Unknown,
            "SensorNotReady",
            format!("the node's sensor runs without a current status since {since}{last}"),
        ),
        (SensorState::Unusable { since }, _) => (
            ConditionStatus::Unknown,
            "SensorUnusable",
            format!("the answers of the node's sensor cannot be used since {since}{last}"),
        ),
        (SensorState::Answers { .. }, DriftState::Drifted) => (
            ConditionStatus::True,
            "Drifted",
            format!(
                "{}{}{} drifted: {}",
                config::prefix(status),
                sentence(status),
                things(status.count),
                named(&status.drifts, status.count)
            ),
        ),
        (SensorState::Answers { .. }, DriftState::InSync) => {
            (ConditionStatus::False, "InSync", "the node matches its MachineConfigs".to_owned())
        }
        (SensorState::Answers { .. }, DriftState::Updating) => (
            ConditionStatus::Unknown,
            "Updating",
            format!(
                "the Machine Config Operator's daemon updates the node, and has changed {}: {}",
                things(status.count),
                named(&status.drifts, status.count)
            ),
        ),
        (SensorState::Answers { .. }, DriftState::Unknown) => unknown(status),
    };
    Condition { kind: CONFIG_DRIFT, status: value, reason, message: fit(&message, MESSAGE_BYTES) }
}

/// The condition of a node of which nothing proves that it matches, or that it does not.
pub(super) fn unknown(status: &DriftReportStatus) -> (ConditionStatus, &'static str, String) {
    if let Some(sentence) = config::differing(status) {
        return (ConditionStatus::Unknown, "ConfigDiffers", sentence);
    }
    if status.gaps.is_empty() {
        let message = "not everything was verified yet".to_owned();
        return (ConditionStatus::Unknown, "NotVerified", message);
    }
    let reasons: Vec<&str> = status.gaps.iter().map(|gap| gap.reason.as_str()).collect();
    (
        ConditionStatus::Unknown,
        "EvidenceLost",
        format!("changes may have been missed: {}", reasons.join(", ")),
    )
}

fn sensor_ready(NodeFinding { status, sensor, .. }: &NodeFinding) -> Condition {
    let (value, reason, message) = match (sensor, &status.backend) {
        (SensorState::Silent { since }, _) => (
            ConditionStatus::False,
            "SensorSilent",
            format!("the node's sensor has not answered since {since}"),
        ),
        (SensorState::NotReady { since }, _) => (
            ConditionStatus::False,
            "SensorNotReady",
            format!("the node's sensor runs without a current status since {since}"),
        ),
        (SensorState::Unusable { since }, _) => (
            ConditionStatus::False,
            "SensorUnusable",
            format!("the answers of the node's sensor cannot be used since {since}"),
        ),
        (SensorState::Answers { .. }, None) => {
            (ConditionStatus::False, "NoBackend", "the node's sensor receives no events".to_owned())
        }
        (SensorState::Answers { refuses_config: true }, Some(backend)) => (
            ConditionStatus::True,
            "ConfigRefused",
            format!(
                "backend {backend}; the sensor refuses the newest MachineConfigs or policies and uses the last valid ones, \
                 see `holdfast status` on the node"
            ),
        ),
        (SensorState::Answers { refuses_config: false }, Some(backend)) => {
            (ConditionStatus::True, "Watching", format!("backend {backend}"))
        }
    };
    Condition { kind: SENSOR_READY, status: value, reason, message: fit(&message, MESSAGE_BYTES) }
}

/// `1 thing`, `2 things`.
pub(super) fn things(number: i64) -> String {
    count(number, "managed thing")
}

/// What declares the thing of a drift, in brackets; empty if the drift names nothing. Many may read a Node and its Events, so a layer's line of
/// history, which may have a password, is left out. The `DriftReport` has it.
fn source(drift: &Drift) -> String {
    if drift.source.is_empty() {
        return String::new();
    }
    format!(" (source {})", fit(without_history(&drift.source), SOURCE_BYTES))
}

/// Drifts with their actors and sources: `/etc/a (content) by root login alice via vi (source 99-worker); and 3 more`. `number` is how many
/// there are in all.
pub(super) fn named(drifts: &[Drift], number: i64) -> String {
    let mut text = String::new();
    let mut left = number;
    for drift in drifts.iter().take(NAMED) {
        let kinds = drift.differences.join(", ");
        let one = format!("{} ({kinds}) by {}", drift.path, by(drift.by.as_ref()));
        // A long path or actor does not cut the source.
        let one = fit(&one, DRIFT_BYTES - SOURCE_WORDS - SOURCE_BYTES) + &source(drift);
        // The end of the message counts what it leaves out.
        if !text.is_empty() && text.len() + one.len() > MESSAGE_BYTES - DRIFT_BYTES {
            break;
        }
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(&one);
        left -= 1;
    }
    if left > 0 {
        // Writing to a string cannot fail.
        let _ = write!(text, "; and {left} more");
    }
    text
}
