//! The OS image in a report.
//!
//! In: the booted image of the sensor's status, and what the cluster says about it. Out: that part of the report, and one drift of the kind
//! `os-image` while an opinion is out of step.

use super::finding::SensorState;
use super::status::{DRIFTS, set_newest};
use crate::api::{Drift, DriftReportStatus, DriftState, ReportedOsImage};
use sensor_model::difference::DifferenceKind;
use sensor_model::expectation::OSTREE_BOOTED;
use sensor_model::record::ThingKind;

/// Writes the opinions about the booted image into a report, and one drift if one of them is out of step. Opinions about another image
/// are left out. So is the drift while the node is updated. A sensor that gives no status proves nothing: the state stays `Unknown` then.
pub fn add_os_image(status: &mut DriftReportStatus, sensor: &SensorState, opinions: &ReportedOsImage) {
    let Some(image) = &mut status.os_image else { return };
    if (&image.booted, &image.booted_digest) != (&opinions.booted, &opinions.booted_digest) {
        return;
    }
    image.clone_from(opinions);
    if status.state == DriftState::Updating {
        image.out_of_step = None;
    }
    if image.out_of_step.is_none() {
        return;
    }
    let source = image.config.clone().unwrap_or_default();
    if matches!(sensor, SensorState::Answers { .. }) {
        status.state = DriftState::Drifted;
    }
    let kind = ThingKind::OsImage.as_str();
    // The sensor has compared the booted image with the node's own files, and may have found the same.
    if status.drifts.iter().any(|drift| drift.kind.as_deref() == Some(kind)) {
        return;
    }
    status.count += 1;
    if status.drifts.len() >= DRIFTS {
        status.more += 1;
        return;
    }
    // Without a time a reporter that restarts reports the same drift.
    status.drifts.push(Drift {
        kind: Some(kind.to_owned()),
        path: OSTREE_BOOTED.to_owned(),
        differences: vec![DifferenceKind::OsImage.as_str().to_owned()],
        source,
        ..Drift::default()
    });
    set_newest(status);
}

/// The sentence about what is out of step, as the beginning of a message.
pub(super) fn sentence(status: &DriftReportStatus) -> String {
    let sentence = status.os_image.as_ref().and_then(|image| image.out_of_step.as_deref());
    sentence.map_or_else(String::new, |sentence| format!("OS image out of step: {sentence}; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERS: SensorState = SensorState::Answers { refuses_config: false };

    fn image(booted: &str, out_of_step: Option<&str>) -> ReportedOsImage {
        ReportedOsImage {
            booted: Some(booted.to_owned()),
            config: Some("rendered-1".to_owned()),
            out_of_step: out_of_step.map(str::to_owned),
            ..ReportedOsImage::default()
        }
    }

    fn report(state: DriftState, kinds: &[&str]) -> DriftReportStatus {
        let drift = |kind: &&str| Drift { kind: Some((*kind).to_owned()), ..Drift::default() };
        let os_image = Some(ReportedOsImage { config: None, ..image("a", None) });
        let (count, drifts) = (i64::try_from(kinds.len()).unwrap(), kinds.iter().map(drift).collect());
        DriftReportStatus { state, count, drifts, os_image, ..DriftReportStatus::default() }
    }

    /// The report with opinions about the image `a`, of which one is out of step.
    fn added(mut status: DriftReportStatus, sensor: &SensorState) -> DriftReportStatus {
        add_os_image(&mut status, sensor, &image("a", Some("x")));
        status
    }

    #[test]
    fn an_opinion_that_is_out_of_step_is_one_more_drift_with_the_config_as_its_source() {
        for (state, kinds, count) in [
            (DriftState::InSync, &[][..], 1),
            (DriftState::Unknown, &[], 1),
            (DriftState::Drifted, &["file"], 2),
            (DriftState::Drifted, &["os-image"], 1),
        ] {
            let status = added(report(state, kinds), &ANSWERS);
            assert_eq!((status.state, status.count), (DriftState::Drifted, count), "{state:?} {kinds:?}");
            assert_eq!(status.os_image, Some(image("a", Some("x"))));
            assert!(status.newest.is_some() || kinds == ["os-image"]);
        }
        let status = added(report(DriftState::InSync, &[]), &ANSWERS);
        assert_eq!((status.drifts[0].source.as_str(), status.degraded), ("rendered-1", false));
        let full = added(report(DriftState::Drifted, &["file"; DRIFTS]), &ANSWERS);
        assert_eq!((full.drifts.len(), full.more), (DRIFTS, 1));
    }

    #[test]
    fn a_silent_sensor_keeps_the_drift_without_a_proof_and_an_update_has_none() {
        let silent = SensorState::Silent { since: String::new() };
        let status = added(report(DriftState::Unknown, &[]), &silent);
        assert_eq!((status.state, status.count, status.drifts.len()), (DriftState::Unknown, 1, 1));
        assert_eq!(status.os_image, Some(image("a", Some("x"))));
        let status = added(report(DriftState::Updating, &["file"]), &ANSWERS);
        assert_eq!((status.state, status.count), (DriftState::Updating, 1));
    }

    #[test]
    fn opinions_about_another_image_are_left_out() {
        let mut status = report(DriftState::InSync, &[]);
        let before = status.clone();
        add_os_image(&mut status, &ANSWERS, &image("b", Some("x")));
        assert_eq!(status, before);
        status.os_image = None;
        add_os_image(&mut status, &ANSWERS, &image("a", Some("x")));
        assert_eq!(status.os_image, None, "the host boots no images");
    }
}
