//! What the reporter knows.

use crate::api::{ConfigState, DriftReportStatus, DriftState, ReportedConfig};
use sensor_model::protocol::GapReason;
use sensor_model::status::ExpectedConfig;

/// All that the reporter knows about its node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFinding {
    /// The report's status.
    pub status: DriftReportStatus,
    /// Whether the sensor answers.
    pub sensor: SensorState,
    /// The oldest difference in the Machine Config Operator's words, for mode `manage`.
    pub text: Option<String>,
    /// The config that the sensor expects, or expected when it last answered, for the comparison with the cluster.
    pub config: Option<ExpectedConfig>,
}

/// The reasons of a gap while the sensor may not know a drift of before its start: the first verification is not over, or its log lacks entries.
const INCOMPLETE: [GapReason; 2] = [GapReason::SensorStart, GapReason::ForensicLogCut];

impl NodeFinding {
    /// Whether each drift that was known is over on a node of which the sensor cannot prove that it matches, such as one with a lasting gap. The
    /// sensor's list has a drift of before its start until a verification finds that it is over. A silent sensor proves nothing, and one
    /// whose config was changed on the node verifies something else.
    pub fn has_no_known_drift(&self) -> bool {
        let Self { status, sensor, .. } = self;
        let is_changed = |config: &ReportedConfig| config.state == ConfigState::Differs;
        matches!(sensor, SensorState::Answers { .. })
            && status.state == DriftState::Unknown
            && (status.count, status.degraded) == (0, false)
            && !status.config.as_ref().is_some_and(is_changed)
            && !status.gaps.iter().any(|gap| INCOMPLETE.iter().any(|reason| gap.reason == reason.as_str()))
    }
}

/// Whether the sensor answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SensorState {
    /// It does.
    Answers {
        /// It refuses the newest MachineConfigs or policies, and still uses the last valid ones.
        refuses_config: bool,
    },
    /// It does not, for longer than it may.
    Silent {
        /// Since when, RFC 3339.
        since: String,
    },
    /// It runs, and has had no current status for longer than it may: its loop hangs, or has not begun.
    NotReady {
        /// Since when, RFC 3339.
        since: String,
    },
    /// Its answers cannot be used.
    Unusable {
        /// Since when, RFC 3339.
        since: String,
    },
}
