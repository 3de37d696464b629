//! The attached programs, and the hooks that are needed only at times.
//!
//! In: whether links are managed, whether a process has a managed file open for writing. Out: hooks attached or detached, and
//! reports about them. It owns the loaded programs and their links.

use super::reports::{AgentReport, BackendName, Reports};
use crate::kernel::hooks::{Attachment, FUNCTIONS, TRACEPOINTS, When, hidden};
use crate::kernel::load::{AttachedPrograms, HookState};
use std::time::Duration;

/// A managed file must have writers for this long before the daemon attaches the hooks on reads and writes. So an ordinary open,
/// write and close does not pay for attaching.
const ATTACH_AFTER: Duration = Duration::from_millis(200);

/// No managed file may have writers for this long before the daemon detaches them.
const DETACH_AFTER: Duration = Duration::from_secs(30);

/// The programs of one backend.
pub(super) struct Hooks {
    /// The backend.
    pub(super) backend: BackendName,
    /// Absent on the fanotify backend.
    pub(super) sensor: Option<AttachedPrograms>,
    /// Boot time since which a managed file has writers.
    writers_since: Option<u64>,
    /// Boot time since which no managed file has writers.
    no_writers_since: Option<u64>,
}

impl Hooks {
    /// The hooks of a backend.
    pub(super) fn new(backend: BackendName, sensor: Option<AttachedPrograms>) -> Self {
        Self { backend, sensor, writers_since: None, no_writers_since: None }
    }

    /// Detaches the programs of earlier daemons. The caller has enrolled everything in the maps of these programs, which run.
    pub(super) fn retire_earlier(&self) {
        if let Some(sensor) = &self.sensor {
            sensor.retire_others();
        }
    }

    /// Reports which hooks are attached, and how many kinds of changes the backend does not see at once.
    pub(super) fn report(&self, reports: &mut dyn Reports) {
        let mut unseen_kinds = crate::fanotify::BLIND_SPOTS.len();
        if let Some(sensor) = &self.sensor {
            unseen_kinds = 0;
            for (name, state) in &sensor.hooks {
                let tracepoint = TRACEPOINTS.iter().any(|hook| hook.name == *name);
                let function = FUNCTIONS.iter().any(|function| function.name == *name);
                let attached = matches!(state, HookState::Attached | HookState::Adopted);
                let attachment = match (tracepoint, function) {
                    (true, _) => Attachment::Tracepoint,
                    (_, true) => Attachment::Fentry,
                    _ => sensor.set.into(),
                };
                reports.report(AgentReport::Hook { name, attachment, attached });
                if let HookState::Off(reason) = state
                    && let Some(unseen) = hidden(name, reason)
                {
                    unseen_kinds += 1;
                    tracing::warn!(hook = name, ?reason, unseen, "This hook is off.");
                }
            }
        }
        reports.report(AgentReport::BackendRuns(self.backend, unseen_kinds));
    }

    /// Attaches or detaches hooks that are needed only at times.
    pub(super) fn set_needed(&mut self, when: When, needed: bool, reports: &mut dyn Reports) {
        let Some(sensor) = &mut self.sensor else { return };
        let attachment = sensor.set.into();
        match sensor.attach_while(when, needed) {
            Ok(changed) => {
                for name in changed {
                    tracing::debug!(
                        hook = name,
                        attached = needed,
                        "A hook that is needed only at times changed."
                    );
                    reports.report(AgentReport::Hook { name, attachment, attached: needed });
                }
            }
            Err(error) => tracing::error!(%error, ?when, "Cannot attach the hooks."),
        }
    }

    /// Attaches the hooks on reads and writes while a managed file stays open for writing.
    pub(super) fn follow_file_writers(&mut self, has_writers: bool, now: u64, reports: &mut dyn Reports) {
        let is_over = |since: u64, limit: Duration| u128::from(now.saturating_sub(since)) >= limit.as_nanos();
        let (since, limit) = if has_writers {
            self.no_writers_since = None;
            (*self.writers_since.get_or_insert(now), ATTACH_AFTER)
        } else {
            self.writers_since = None;
            (*self.no_writers_since.get_or_insert(now), DETACH_AFTER)
        };
        if is_over(since, limit) {
            self.set_needed(When::Writers, has_writers, reports);
        }
    }
}
