//! Updates by the Machine Config Operator's daemon.
//!
//! In: a report, while that daemon updates the node. Out: whether the daemon made all of its differences. The daemon writes the new
//! files first and stores its config last, so that until then they differ from the config that the node has.

use crate::api::{ChangedBy, Drift, DriftReportStatus, DriftState};

/// The namespace of the daemon's pods.
const NAMESPACE: &str = "openshift-machine-config-operator";
/// The unit of process 1. It makes the links of units on the daemon's order.
const SYSTEMD: &str = "init.scope";
/// What differs while such a link is another one.
const LINKS: [&str; 2] = ["unit-enablement", "unit-mask"];

/// Gives the report the state `Updating` if the daemon made every difference in it. Others stay drift: an update hides no stranger.
pub fn mark_update(status: &mut DriftReportStatus) {
    // A drift that is not listed could be anybody's.
    if status.state == DriftState::Drifted && status.more == 0 && status.drifts.iter().all(is_of_update) {
        status.state = DriftState::Updating;
    }
}

fn is_of_update(drift: &Drift) -> bool {
    match &drift.by {
        Some(ChangedBy { pod_namespace: Some(namespace), .. }) => namespace == NAMESPACE,
        Some(ChangedBy { pod_uid: None, unit: Some(unit), .. }) => {
            unit == SYSTEMD
                && !drift.differences.is_empty()
                && drift.differences.iter().all(|kind| LINKS.contains(&kind.as_str()))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(drifts: Vec<Drift>, more: i64) -> DriftState {
        let mut status =
            DriftReportStatus { state: DriftState::Drifted, drifts, more, ..DriftReportStatus::default() };
        mark_update(&mut status);
        status.state
    }

    fn drift(difference: &str, by: ChangedBy) -> Drift {
        Drift { differences: vec![difference.to_owned()], by: Some(by), ..Drift::default() }
    }

    fn daemon() -> ChangedBy {
        ChangedBy { pod_namespace: Some(NAMESPACE.to_owned()), ..ChangedBy::default() }
    }

    fn systemd() -> ChangedBy {
        ChangedBy { unit: Some(SYSTEMD.to_owned()), ..ChangedBy::default() }
    }

    #[test]
    fn files_of_the_daemon_and_links_of_systemd_are_the_update() {
        let drifts = vec![drift("content", daemon()), drift("unit-enablement", systemd())];
        assert_eq!(state(drifts, 0), DriftState::Updating);
    }

    #[test]
    fn one_change_of_another_actor_or_one_that_is_not_listed_is_drift() {
        let other = ChangedBy { unit: Some("cron.service".to_owned()), ..ChangedBy::default() };
        for stranger in [drift("content", systemd()), drift("content", other), Drift::default()] {
            assert_eq!(state(vec![drift("content", daemon()), stranger], 0), DriftState::Drifted);
        }
        assert_eq!(state(vec![drift("content", daemon())], 1), DriftState::Drifted);
    }
}
