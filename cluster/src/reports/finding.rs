//! What the reporter knows.

use crate::api::DriftReportStatus;
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
    /// The config that the sensor expects, for the comparison with the cluster.
    pub config: Option<ExpectedConfig>,
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
