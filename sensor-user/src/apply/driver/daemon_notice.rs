//! What a running daemon knows of an apply.
//!
//! In: the state directory. Out: an announcement before the first write, and another one to each daemon that starts during the apply.
//! It owns the connection. A daemon removes what an earlier one allowed at its start, so without the second announcement its deny rules
//! would refuse the apply and its rollback.

use crate::{
    agent::writer_protocol::{PATIENCE, WriterAnnouncement, WriterConnection},
    apply::request::{ApplyOptions, Progress},
};
use sensor_model::journal::machine::MachineRequest;
use std::{path::PathBuf, time::Duration};

/// How long an apply waits for the answer of a daemon that started during it. That daemon first reads its configs and loads its programs.
const RESTART_PATIENCE: Duration = Duration::from_secs(30);

/// After so many announcements without an answer no more are made: a daemon that fails at each start must not delay every write.
const MOST_UNANSWERED: u32 = 3;

/// What a running daemon knows of the apply.
#[derive(Debug)]
pub(in crate::apply) struct DaemonNotice {
    /// The state directory; `None` in the daemon itself, which needs no announcement.
    state: Option<PathBuf>,
    /// For the daemon, the apply ends with the connection. `None` if no daemon ran before the last write.
    connection: Option<WriterConnection>,
    /// The apply has looked for a daemon before.
    has_looked: bool,
    /// Announcements without an answer.
    unanswered: u32,
}

impl DaemonNotice {
    /// By the options.
    pub(in crate::apply) fn of(options: &ApplyOptions) -> Self {
        let state = options.asks_daemon.then(|| options.state.clone());
        Self { state, connection: None, has_looked: false, unanswered: 0 }
    }

    /// Whether the apply has to look for a daemon before this request. An observation removes what a killed edit left.
    pub(super) fn is_due(&self, request: &MachineRequest) -> bool {
        if self.state.is_none() || self.unanswered == MOST_UNANSWERED {
            return false;
        }
        let writes = matches!(request, MachineRequest::Observe(_) | MachineRequest::Edit(..));
        !self.has_looked || (writes && self.connection.as_ref().is_none_or(WriterConnection::is_closed))
    }

    /// Notifies the daemon of the apply with this number, so that it watches the paths and its deny rules do not refuse the writes. `waits`
    /// takes what the apply waits for then. Gives whether a daemon answered.
    pub(super) async fn notify(
        &mut self,
        apply: u64,
        waits: &mut dyn FnMut(&str),
        progress: Progress<'_>,
    ) -> bool {
        let Some(state) = &self.state else { return false };
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        self.connection = None;
        let Some(mut connection) = WriterConnection::open(state, &mut *progress).await else { return false };
        let patience = if is_first { PATIENCE } else { RESTART_PATIENCE };
        if !is_first {
            progress("a daemon has started during this apply: the apply announces its writes to it");
        }
        waits(&format!("the daemon to watch it, {} s at most", patience.as_secs()));
        let announcement = WriterAnnouncement { apply: Some(apply), ..WriterAnnouncement::default() };
        connection.ask(&announcement, patience, progress).await;
        let is_answered = connection.is_answered;
        self.unanswered += u32::from(!is_answered);
        self.connection = Some(connection);
        is_answered
    }
}
