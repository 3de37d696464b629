//! The `DriftReport`.

use super::{PublishError, Publisher, limited, objects, ours};
use crate::api::{DriftReport, DriftReportStatus, DriftState, ReportedRewriting};
use crate::metrics::WrittenObject;
use crate::reports::{NodeFinding, names_in, rewriting_event};
use jiff::Timestamp;
use kube::api::Patch;
use std::time::Duration;
use tokio::time::Instant;

/// The time after which an API server that refuses the report is believed.
const REFUSED: Duration = Duration::from_mins(1);

impl Publisher {
    pub(super) async fn write_report(&mut self, uid: &str, finding: &NodeFinding) -> Instant {
        // The time and the log's newest entry change all the time. They go with other changes.
        let status = DriftReportStatus { observed_at: None, log: None, ..finding.status.clone() };
        let steady = NodeFinding { status, ..finding.clone() };
        if self.log.is_contradicted_by(finding.status.log.as_ref()) {
            self.report.forget();
        }
        let wanted = self.completed(&steady);
        if let Some(later) = self.report.later(&wanted) {
            return later;
        }
        let result = self.apply_report(uid, finding).await;
        self.metrics.wrote(WrittenObject::Report, PublishError::write_result(&result));
        if result.as_ref().is_err_and(PublishError::is_missing) {
            self.is_owned = false;
        }
        if result.is_ok() {
            self.written.plan.clone_from(&self.plan);
        }
        self.report.done(self.completed(&steady), result)
    }

    /// The report with what the sensor does not know. Until the sensor has answered, it has the drifts that an earlier reporter knew, and what that
    /// one found about config and OS image: without them the next reporter could not know which Events were created, and what still differs.
    pub(super) fn completed(&self, finding: &NodeFinding) -> DriftReportStatus {
        let found = self.compared(finding);
        let known = self.last_report.as_ref().filter(|_| !self.has_answered);
        let known = known.map(|last| DriftReportStatus {
            state: found.state,
            observed_at: found.observed_at.clone(),
            log: found.log.clone(),
            ..last.clone()
        });
        let policies = self.policies.as_ref().map_or(&self.reported_policies, |known| &known.policies);
        DriftReportStatus {
            plan: self.plan.clone(),
            policies: policies.clone(),
            log_rewritten: self.log.rewritten().cloned(),
            node_uid: self.uid.clone(),
            ..known.unwrap_or(found)
        }
    }

    async fn apply_report(&mut self, uid: &str, finding: &NodeFinding) -> Result<(), PublishError> {
        if !self.is_owned {
            let report = Patch::Apply(objects::report(&self.place, uid));
            let answer = limited("DriftReport", self.reports.patch(&self.place.node, &ours(), &report)).await;
            self.learn_report(&answer);
            if answer?.status.is_none() {
                self.log.forget_rewriting();
            }
            self.is_owned = true;
        }
        let log = self.log.fields(finding.status.log.as_ref()).await;
        // The Event is first: after a failure in between it is repeated under the same name, and not lost.
        if let Some(rewriting) = log.rewritten.as_ref().filter(|_| log.is_found_now) {
            self.announce_rewriting(uid, rewriting).await?;
        }
        let status = DriftReportStatus {
            log: log.entry.clone(),
            log_rewritten: log.rewritten.clone(),
            ..self.completed(finding)
        };
        let status = Patch::Apply(objects::report_status(&self.place, &status));
        limited("DriftReport's status", self.reports.patch_status(&self.place.node, &ours(), &status))
            .await?;
        self.log.written(log);
        Ok(())
    }

    /// Creates the Event of a log that was written anew. No limit of other Events holds it back.
    async fn announce_rewriting(
        &mut self,
        uid: &str,
        rewriting: &ReportedRewriting,
    ) -> Result<(), PublishError> {
        let mut event = objects::event(&self.place, uid, &rewriting_event(rewriting), Timestamp::now());
        event.metadata.name = Some(objects::name_of_rewriting(&self.place, &rewriting.hash));
        match self.send_event(&event).await {
            Err(error) if error.is_conflict() => Ok(()),
            Err(error) if error.is_temporary() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "The Event of a forensic log that was written anew was not created.");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Learns what an earlier reporter reported, so that nothing is reported twice after a restart. The answer to a write has it, so
    /// the reporter needs no right to read reports.
    fn learn_report(&mut self, answer: &Result<DriftReport, PublishError>) {
        let report = match answer {
            Ok(report) => report,
            Err(error) => {
                self.may_announce |= self.is_refused_for_long(error);
                return;
            }
        };
        self.may_announce = true;
        // The answers after the first one have what this reporter wrote.
        if std::mem::replace(&mut self.is_learnt, true) {
            return;
        }
        let last = report.status.clone();
        if !self.is_plan_decided {
            self.plan = last.as_ref().and_then(|last| last.plan.clone());
        }
        if let Some(last) = &last {
            self.reported_policies.clone_from(&last.policies);
            if !self.is_of_earlier_node(report) {
                self.log.learn(last);
                self.last_names = names_in(last);
                self.last_report = Some(last.clone());
            }
        }
        self.reported = self.reported.take().or_else(|| last.map(announced));
    }

    /// Whether the Events need not wait for the report of an earlier reporter: the cluster has no reports, or refuses them for some time. An API
    /// server that has just started refuses what it accepts a moment later.
    fn is_refused_for_long(&mut self, error: &PublishError) -> bool {
        if error.is_temporary() {
            return false;
        }
        let since = *self.refused_since.get_or_insert_with(Instant::now);
        error.is_missing() || since.elapsed() >= REFUSED
    }

    /// Whether a report is that of an earlier Node of this name. The garbage collector has not removed it yet, and its log was another machine's. Its
    /// age proves that only until a reporter of the present Node has written it: the Node owns it then, and the report keeps its age.
    fn is_of_earlier_node(&self, report: &DriftReport) -> bool {
        if let Some(written_for) = report.status.as_ref().and_then(|status| status.node_uid.as_ref()) {
            return Some(written_for) != self.uid.as_ref();
        }
        let made = report.metadata.creation_timestamp.as_ref().zip(self.node_made.as_ref());
        made.is_some_and(|(report, node)| report.0 < node.0)
    }
}

/// The report of an earlier reporter as its Events have it. The drifts of an update have none.
fn announced(last: DriftReportStatus) -> DriftReportStatus {
    if last.state == DriftState::Updating {
        return DriftReportStatus { count: 0, newest: None, drifts: Vec::new(), more: 0, ..last };
    }
    last
}
