//! What systemd reports about the end of a job.
//!
//! In: the manager, a unit, the path of one of its jobs. Out: the job's result. Every user of the bus may send a signal with
//! systemd's interface and any body, also directly to Holdfast. So Holdfast accepts only signals whose sender owns systemd's name.
//! The bus writes the sender, and gives each unique name only once.

use super::bus::SYSTEMD;
use crate::apply::act_error::SystemdError;
use std::{num::NonZeroUsize, pin::Pin, task::Poll, time::Duration};
use tokio::time::timeout;
use zbus::{
    MatchRule, MessageStream, OwnedObjectPath, export::futures_core::Stream, fdo::DBusProxy, message::Type,
    names::OwnedUniqueName,
};
use zbus_systemd::systemd1::ManagerProxy;

/// How many signals may wait. The queue gets only those of one unit's jobs.
const SIGNALS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

/// How long to wait for a signal before asking systemd, which may have a new connection to the bus (`daemon-reexec`).
const PATIENCE: Duration = Duration::from_secs(1);

/// The error of systemd for a job that has ended.
const NO_SUCH_JOB: &str = "org.freedesktop.systemd1.NoSuchJob";

/// The results of one unit's jobs.
#[derive(Debug)]
pub(super) struct Results<'a> {
    manager: &'a ManagerProxy<'a>,
    /// The unit's own name, which is not that of an alias.
    unit: String,
    systemd: OwnedUniqueName,
    removed: MessageStream,
}

impl<'a> Results<'a> {
    /// Subscribes to the results of a unit's jobs. The caller queues the job afterwards.
    ///
    /// # Errors
    /// The bus or systemd does not answer.
    pub(super) async fn of(manager: &'a ManagerProxy<'a>, unit: String) -> Result<Self, SystemdError> {
        let systemd = owner(manager).await?;
        let removed = subscribe(manager, &systemd, &unit).await?;
        Ok(Self { manager, unit, systemd, removed })
    }

    /// Waits for the end of a job and returns its result.
    ///
    /// # Errors
    /// The result is lost.
    pub(super) async fn of_job(&mut self, job: &OwnedObjectPath) -> Result<String, SystemdError> {
        loop {
            let signal = std::future::poll_fn(|context| Pin::new(&mut self.removed).poll_next(context));
            let result = match timeout(PATIENCE, signal).await {
                Ok(signal) => result(signal, job)?,
                Err(_) => self.ask(job).await?,
            };
            if let Some(result) = result {
                return Ok(result);
            }
        }
    }

    /// Asks systemd whether it still has the job. Follows systemd to a new connection.
    async fn ask(&mut self, job: &OwnedObjectPath) -> Result<Option<String>, SystemdError> {
        // While systemd reconnects, no connection owns its name. The job's own limit ends the wait.
        let Ok(systemd) = owner(self.manager).await else { return Ok(None) };
        if systemd != self.systemd {
            self.removed = subscribe(self.manager, &systemd, &self.unit).await?;
            self.systemd = systemd;
        }
        let id = job.rsplit('/').next().and_then(|id| id.parse().ok());
        let Some(id) = id else { return Err(SystemdError::JobPath(job.to_string())) };
        match self.manager.get_job(id).await {
            Err(zbus::Error::MethodError(name, ..)) if name.as_str() == NO_SUCH_JOB => {}
            _ => return Ok(None),
        }
        // The bus keeps the order, so a signal that systemd sent before this answer is in the queue.
        loop {
            let signal = std::future::poll_fn(|context| {
                Poll::Ready(match Pin::new(&mut self.removed).poll_next(context) {
                    Poll::Ready(signal) => Some(signal),
                    Poll::Pending => None,
                })
            });
            let Some(signal) = signal.await else { break };
            if let Some(result) = result(signal, job)? {
                return Ok(Some(result));
            }
        }
        Err(SystemdError::NoResult)
    }
}

/// The connection that owns systemd's name.
async fn owner(manager: &ManagerProxy<'_>) -> Result<OwnedUniqueName, SystemdError> {
    let asked = async {
        let bus = DBusProxy::new(manager.inner().connection()).await?;
        Ok(bus.get_name_owner(SYSTEMD.try_into()?).await?)
    };
    asked.await.map_err(SystemdError::NoOwner)
}

/// Subscribes to systemd's signals about a unit's jobs. By this rule the bus drops the broadcasts of other senders, and zbus drops
/// their direct messages, before they are queued.
async fn subscribe(
    manager: &ManagerProxy<'_>,
    systemd: &OwnedUniqueName,
    unit: &str,
) -> Result<MessageStream, SystemdError> {
    let rule = MatchRule::builder()
        .msg_type(Type::Signal)
        .sender(systemd.as_str())
        .path("/org/freedesktop/systemd1")
        .interface("org.freedesktop.systemd1.Manager")
        .member("JobRemoved")
        .arg(2, unit)
        .build()?;
    let connection = manager.inner().connection();
    let removed = MessageStream::for_match_rule(rule, connection, Some(SIGNALS)).await?;
    // systemd sends signals only to subscribers. A second subscription fails, which does no harm.
    let _ = manager.subscribe().await;
    Ok(removed)
}

/// The result in a signal, if the signal is about this job.
fn result(
    signal: Option<zbus::Result<zbus::Message>>,
    job: &OwnedObjectPath,
) -> Result<Option<String>, SystemdError> {
    let signal = signal.ok_or(SystemdError::Disconnected)??;
    let body = signal.body();
    let (_, path, _, result): (u32, OwnedObjectPath, String, String) = body.deserialize()?;
    Ok((path == *job).then_some(result))
}
