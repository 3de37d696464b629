//! Adds the comparison with the cluster, and the pod names of an earlier report, to a finding.
//!
//! In: a finding, what this reporter has compared, and the report of an earlier one. Out: the finding with the newest comparison. A comparison
//! takes up to a minute after a start, and longer without an API server. Until then that of the earlier reporter holds: a node that was out of
//! step does not match its config because its reporter restarted.

use super::Publisher;
use crate::api::{ConfigState, DriftReportStatus, DriftState, ReportedOsImage};
use crate::reports::{ComparedConfig, NodeFinding, add_config, add_os_image, name_pods};

impl Publisher {
    /// Sets what this reporter has compared, for the next rounds. The OS image is `None` until it is compared.
    pub fn set_compared(&mut self, os_image: Option<ReportedOsImage>, config: ComparedConfig) {
        self.os_image = os_image;
        self.config = config;
    }

    /// The report of a finding, with the comparison with the cluster, and with the names of ended pods from the earlier report.
    pub(super) fn compared(&self, finding: &NodeFinding) -> DriftReportStatus {
        let mut status = finding.status.clone();
        let last = self.last_report.as_ref();
        name_pods(&mut status, &self.last_names);
        let earlier_image = || last?.os_image.as_ref().filter(|image| image.out_of_step.is_some());
        if let Some(opinions) = self.os_image.as_ref().or_else(earlier_image) {
            add_os_image(&mut status, &finding.sensor, opinions);
        }
        let expected = finding.config.as_ref().and_then(|config| config.name.as_ref());
        let earlier_config = last.and_then(|last| last.config.as_ref()).filter(|config| {
            !self.config.is_final
                && config.state == ConfigState::Differs
                && config.expected.as_ref() == expected
        });
        if let Some(config) = earlier_config.or(self.config.config.as_ref()) {
            add_config(&mut status, &finding.sensor, config);
        }
        status
    }

    /// Shows the state of the node in the metrics.
    pub(super) fn count_state(&self, status: &DriftReportStatus) {
        self.metrics.node_is_updating(status.state == DriftState::Updating);
        let image = status.os_image.as_ref();
        self.metrics.os_image_is_out_of_step(image.is_some_and(|image| image.out_of_step.is_some()));
        self.metrics.config_is(status.config.as_ref().map(|config| config.state));
    }
}
