//! What a node says of itself, in the form of its report.
//!
//! In: the report of a node, and the status of its sensor. Out: a report with the sensor's newest findings.

use super::config::add_config;
use super::finding::SensorState;
use super::os_image::add_os_image;
use super::status::{drift, gap, name_pods, names_in, newest_first, status_of, sum};
use super::update::mark_update;
use crate::api::{DriftReportStatus, DriftState};
use sensor_model::status::NodeStatus;

/// What a node says of itself now, with what its report says about OS image, config and log, and with the names in the report. It has each drift
/// and each gap of the status: the limits of an object of the API are not its own.
pub fn current(report: &DriftReportStatus, status: &NodeStatus) -> DriftReportStatus {
    let answers = SensorState::Answers { refuses_config: false };
    let DriftReportStatus { log_rewritten, policies, plan, node_uid, os_image, config, log, .. } =
        report.clone();
    let drifts = newest_first(status).into_iter().map(|(since, thing)| drift(since, thing)).collect();
    let gaps = status.gaps.iter().filter(|gap| gap.until.is_none()).map(gap).collect();
    let (more, more_gaps) = (sum(0, status.left_out.drifted), sum(0, status.left_out.gaps));
    let own = status_of(status, None);
    let mut now = DriftReportStatus {
        drifts,
        more,
        gaps,
        more_gaps,
        log,
        log_rewritten,
        policies,
        plan,
        node_uid,
        ..own
    };
    name_pods(&mut now, &names_in(report));
    // The reporter knows whether an update is under way.
    if report.state == DriftState::Updating {
        mark_update(&mut now);
    }
    if let Some(opinions) = &os_image {
        add_os_image(&mut now, &answers, opinions);
    }
    if let Some(config) = &config {
        add_config(&mut now, &answers, config);
    }
    now
}
