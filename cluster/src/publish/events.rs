//! The Events about the Node.
//!
//! In: what the reporter knows, and the Events of an update. Out: each Event once. One that got no answer is created again under its own name, which
//! the API server gives to one Event only. Those above the budget wait.

use super::event_queue::UncertainEvent;
use super::{PublishError, Publisher, REFRESH, limited, objects};
use crate::api::{ConfigState, DriftReportStatus, DriftState, ReportedConfig};
use crate::metrics::{WriteResult, WrittenObject};
use crate::reports::{NodeEvent, NodeFinding, config_event, end_of_drifts, event, with_config};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::events::v1::Event;
use kube::api::PostParams;
use std::time::Duration;
use tokio::time::Instant;

/// How long the API server may take to create an Event after the request for it got no answer. It ends a request after a minute.
const LATE: Duration = Duration::from_secs(90);
/// The pause between two looks for such an Event.
const LOOK_PAUSE: Duration = Duration::from_secs(15);

/// The next Event.
struct NextEvent {
    event: NodeEvent,
    /// The report that it leads to.
    led_to: DriftReportStatus,
    is_of_config: bool,
}

impl Publisher {
    pub(super) async fn write_event(&mut self, uid: &str, finding: &NodeFinding) -> Instant {
        let idle = Instant::now() + REFRESH;
        if !self.may_announce {
            // The next attempt to write the report is soon.
            return idle;
        }
        if let Err(again) = self.settle_uncertain(finding).await {
            return again;
        }
        let Some(NextEvent { event, led_to, is_of_config }) = self.next_event(finding) else {
            let status = &finding.status;
            let noted = self.with_noted_config(status);
            // Such a state ends no drift, so it must not hide the recovery.
            if !matches!(status.state, DriftState::Updating | DriftState::Unknown) {
                self.reported = Some(noted);
            } else if let Some(reported) = &mut self.reported {
                reported.config = noted.config;
            }
            return idle;
        };
        if let Some(later) = self.event.later(&()).or_else(|| self.event_budget.later()) {
            return later;
        }
        let event = objects::event(&self.place, uid, &event, Timestamp::now());
        let result = self.send_event(&event).await;
        let is_created = result.is_ok();
        if is_created {
            self.reported = Some(led_to);
        } else if result.as_ref().is_err_and(PublishError::may_have_happened) {
            self.uncertain = Some(UncertainEvent { event: Box::new(event), led_to, since: Instant::now() });
        }
        let again = self.event.done((), result);
        self.event.forget();
        match (is_created, is_of_config) {
            // There may be a drift that this Event does not name.
            (true, true) => Instant::now(),
            (true, false) => idle,
            (false, _) => again,
        }
    }

    /// The report, with the config of the last Event while it is not known whether the node has the config of the cluster. A config that is the
    /// cluster's again is noted, so that the next change of it has an Event, too.
    fn with_noted_config(&self, status: &DriftReportStatus) -> DriftReportStatus {
        let is_known =
            |config: &ReportedConfig| !matches!(config.state, ConfigState::Unknown | ConfigState::Updating);
        let noted = || self.reported.as_ref()?.config.clone();
        DriftReportStatus { config: status.config.clone().filter(is_known).or_else(noted), ..status.clone() }
    }

    /// The Event that leads from the report of the last one to this report.
    fn next_event(&self, finding: &NodeFinding) -> Option<NextEvent> {
        let (last, status) = (self.reported.as_ref(), &finding.status);
        if let Some(event) = config_event(last, status) {
            return Some(NextEvent { event, led_to: with_config(last, status), is_of_config: true });
        }
        Some(NextEvent {
            event: event(last, status).or_else(|| end_of_drifts(last, finding))?,
            led_to: self.with_noted_config(status),
            is_of_config: false,
        })
    }

    /// Settles whether the Event exists whose creation got no answer: it is created again under its own name, so that a late creation by the
    /// first request is a conflict. If it names what is over, the API server is only asked whether it exists, for as long as the first
    /// request may still create it. Gives the time of the next attempt if it is not settled.
    async fn settle_uncertain(&mut self, finding: &NodeFinding) -> Result<(), Instant> {
        let is_over = self.next_event(finding).is_none();
        let Some(uncertain) = self.uncertain.take() else { return Ok(()) };
        let later = self.event.later(&()).or_else(|| self.event_budget.later());
        let settled = match later {
            Some(later) => Err(later),
            None => self.look_for(&uncertain, is_over).await,
        };
        match settled {
            Ok(true) => self.reported = Some(uncertain.led_to),
            // The API server refuses it, or it is over. The caller creates another one if there is anything to report.
            Ok(false) => {}
            Err(again) => {
                self.uncertain = Some(uncertain);
                return Err(again);
            }
        }
        Ok(())
    }

    /// Whether an Event exists whose creation got no answer. If it is not over, it is created.
    async fn look_for(&mut self, uncertain: &UncertainEvent, is_over: bool) -> Result<bool, Instant> {
        let answer = if is_over {
            let without_effect = PostParams { dry_run: true, ..PostParams::default() };
            limited("Event", self.events.create(&without_effect, &uncertain.event)).await.map(drop)
        } else {
            self.send_event(&uncertain.event).await
        };
        match answer {
            Err(error) if error.is_conflict() => {
                self.event_budget.spend();
                Ok(true)
            }
            Err(error) if error.is_temporary() => {
                let again = self.event.done((), Err(error));
                self.event.forget();
                Err(again)
            }
            Ok(()) if is_over && uncertain.since.elapsed() < LATE => Err(Instant::now() + LOOK_PAUSE),
            answer => Ok(answer.is_ok() && !is_over),
        }
    }

    /// Queues the Events of an update.
    pub(super) fn queue_events(&mut self, uid: &str, events: &[NodeEvent]) {
        let now = Timestamp::now();
        for (number, event) in (0..).zip(events) {
            // The time is the Event's name, too.
            let at = now.checked_add(SignedDuration::from_nanos(number)).unwrap_or(now);
            self.queue.events.push_back(objects::event(&self.place, uid, event, at));
        }
        self.queue.limit();
    }

    /// Creates the queued Events for which there is room in the budget. Gives the time at which the next one is due.
    pub(super) async fn send_queued(&mut self) -> Instant {
        while let Some(event) = self.queue.events.front().cloned() {
            if let Some(later) = self.queue.attempts.later(&()).or_else(|| self.event_budget.later()) {
                return later;
            }
            match self.send_event(&event).await {
                Err(error) if error.is_temporary() => {
                    let again = self.queue.attempts.done((), Err(error));
                    return again;
                }
                // An attempt without an answer has created it.
                Err(error) if error.is_conflict() => self.event_budget.spend(),
                Err(error) => tracing::debug!(%error, "the Event of an update was not created"),
                Ok(()) => {}
            }
            self.queue.attempts.done((), Ok(()));
            self.queue.attempts.forget();
            self.queue.events.pop_front();
        }
        Instant::now() + REFRESH
    }

    pub(super) async fn send_event(&mut self, event: &Event) -> Result<(), PublishError> {
        let result = limited("Event", self.events.create(&PostParams::default(), event)).await;
        // The names are ours alone, so an Event that exists was created by an attempt without an answer.
        let is_created = result.as_ref().is_err_and(PublishError::is_conflict);
        let counted = if is_created { WriteResult::Success } else { PublishError::write_result(&result) };
        self.metrics.wrote(WrittenObject::Event, counted);
        result?;
        self.event_budget.spend();
        Ok(())
    }
}
