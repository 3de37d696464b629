//! The Events that are not created yet.

use super::attempts::WriteAttempts;
use crate::api::DriftReportStatus;
use k8s_openapi::api::events::v1::Event;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// Most Events of updates that wait.
const QUEUED: usize = 32;

/// Events of updates that wait for the budget or for the API server.
#[derive(Debug)]
pub(super) struct EventQueue {
    pub(super) events: VecDeque<Event>,
    pub(super) attempts: WriteAttempts<()>,
}

impl EventQueue {
    pub(super) const fn new() -> Self {
        Self { events: VecDeque::new(), attempts: WriteAttempts::new(Duration::ZERO) }
    }

    /// Leaves the oldest ones out if too many wait.
    pub(super) fn limit(&mut self) {
        while self.events.len() > QUEUED {
            let left_out = self.events.pop_front();
            let note = left_out.as_ref().and_then(|event| event.note.as_deref());
            tracing::warn!(note, "An Event of an update is left out, because too many wait.");
        }
    }
}

/// An Event whose creation got no answer.
#[derive(Debug)]
pub(super) struct UncertainEvent {
    pub(super) event: Box<Event>,
    /// The report that it led to.
    pub(super) led_to: DriftReportStatus,
    /// When the request for it ended.
    pub(super) since: Instant,
}
