//! The config of the node in a report.
//!
//! In: a report, and whether the config that the sensor expects is the one of the cluster. Out: that part of the report, and the sentences
//! about it. A node whose own copy of its config was changed is not in sync, whatever the sensor verified: it verified something else. The
//! report has no further drift for that, because the digest does not show the path.

use super::finding::SensorState;
use crate::api::{ConfigState, DriftReportStatus, DriftState, ReportedConfig};

/// What the comparison of the node's config with the cluster has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ComparedConfig {
    /// The part of the report. `None`: nothing is known, or the Node names no config.
    pub config: Option<ReportedConfig>,
    /// Whether all that the comparison needs was read since the start. Until then what an earlier reporter found is as good.
    pub is_final: bool,
}

/// Writes the compared config into the report. While the sensor gives no status, the report keeps the last comparison. A reporter that starts
/// meanwhile reads it from the report.
pub fn add_config(status: &mut DriftReportStatus, sensor: &SensorState, config: &ReportedConfig) {
    let answers = matches!(sensor, SensorState::Answers { .. });
    if answers && config.state == ConfigState::Differs && status.state == DriftState::InSync {
        status.state = DriftState::Unknown;
    }
    status.config = Some(config.clone());
}

/// What differs between the config of the node and the one of the cluster; `None` if that is not known of any difference.
pub fn config_sentence(status: &DriftReportStatus) -> Option<String> {
    let config = status.config.as_ref()?;
    let what = match config.state {
        ConfigState::Differs => "config differs from the cluster",
        ConfigState::Other => "config is another one than that of the cluster",
        ConfigState::Same | ConfigState::Updating | ConfigState::Unknown => return None,
    };
    Some(format!("{what}: {}", config.message.as_deref().unwrap_or_default()))
}

/// The same as the beginning of a message, if the node's copy of its config was changed.
pub(super) fn prefix(status: &DriftReportStatus) -> String {
    differing(status).map_or_else(String::new, |sentence| format!("{sentence}; "))
}

/// The sentence about a node whose copy of its config was changed.
pub(super) fn differing(status: &DriftReportStatus) -> Option<String> {
    let is_changed = status.config.as_ref().is_some_and(|config| config.state == ConfigState::Differs);
    config_sentence(status).filter(|_| is_changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reports::{ConditionStatus, NodeFinding, conditions, config_event, event, with_config};

    const ANSWERS: SensorState = SensorState::Answers { refuses_config: false };

    fn config(state: ConfigState) -> ReportedConfig {
        ReportedConfig {
            expected: Some("rendered-1".to_owned()),
            message: Some("they differ".to_owned()),
            state,
            ..ReportedConfig::default()
        }
    }

    fn report(state: DriftState, found: ConfigState) -> DriftReportStatus {
        let mut status =
            DriftReportStatus { state, backend: Some("lsm".to_owned()), ..DriftReportStatus::default() };
        add_config(&mut status, &ANSWERS, &config(found));
        status
    }

    #[test]
    fn a_node_with_a_changed_copy_of_its_config_is_not_in_sync_and_its_condition_says_why() {
        let status = report(DriftState::InSync, ConfigState::Differs);
        assert_eq!(status.state, DriftState::Unknown);
        let finding = NodeFinding { status, sensor: ANSWERS, text: None, config: None };
        let [drift, _] = conditions(&finding);
        assert_eq!((drift.status, drift.reason), (ConditionStatus::Unknown, "ConfigDiffers"));
        assert_eq!(drift.message, "config differs from the cluster: they differ");
        for (state, found) in [
            (DriftState::InSync, ConfigState::Same),
            (DriftState::InSync, ConfigState::Other),
            (DriftState::InSync, ConfigState::Unknown),
            (DriftState::InSync, ConfigState::Updating),
            (DriftState::Drifted, ConfigState::Differs),
            (DriftState::Updating, ConfigState::Differs),
        ] {
            assert_eq!(report(state, found).state, state, "{found:?}");
        }
        let finding = NodeFinding { status: report(DriftState::Drifted, ConfigState::Differs), ..finding };
        let [drift, _] = conditions(&finding);
        assert!(
            drift.message.starts_with("config differs from the cluster: they differ; "),
            "{}",
            drift.message
        );
        assert_eq!(drift.status, ConditionStatus::True);
    }

    #[test]
    fn a_sensor_that_gives_no_status_keeps_the_config_that_was_found_last() {
        let mut status = DriftReportStatus::default();
        let last = config(ConfigState::Differs);
        add_config(&mut status, &SensorState::Silent { since: String::new() }, &last);
        assert_eq!(status, DriftReportStatus { config: Some(last), ..DriftReportStatus::default() });
    }

    #[test]
    fn one_event_names_a_changed_copy_and_hides_no_event_of_a_drift() {
        let now = report(DriftState::Drifted, ConfigState::Differs);
        let first = config_event(None, &now).unwrap();
        assert_eq!((first.reason, first.is_warning), ("NodeConfigDiffers", true));
        let led_to = with_config(None, &now);
        assert_eq!(config_event(Some(&led_to), &now), None);
        assert_eq!(event(Some(&led_to), &now), event(None, &now));
        for (state, found) in
            [(DriftState::InSync, ConfigState::Other), (DriftState::InSync, ConfigState::Same)]
        {
            assert_eq!(config_event(None, &report(state, found)), None);
        }
        let mut other = now.clone();
        other.config.as_mut().unwrap().expected = Some("rendered-2".to_owned());
        assert!(config_event(Some(&led_to), &other).is_some(), "another config was changed");
    }
}
