//! What systemd reports about the end of a job.
//!
//! In: the manager, a unit, the path of one of its jobs. Out: the job's result. Every user of the bus may send a signal with
//! systemd's interface and any body, also straight to us, so only signals count whose sender owns systemd's name: the bus
//! writes the sender, and a unique name is never given away twice.

use super::bus::SYSTEMD;
use std::{num::NonZeroUsize, pin::Pin, task::Poll, time::Duration};
use tokio::time::timeout;
use zbus::{
    MatchRule, MessageStream, OwnedObjectPath, export::futures_core::Stream, fdo::DBusProxy, message::Type,
    names::OwnedUniqueName,
};
use zbus_systemd::systemd1::ManagerProxy;

/// Signals that may wait: those of one unit's jobs alone.
const SIGNALS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

/// How long a signal is awaited until systemd is asked: it may have another connection to the bus since (`daemon-reexec`).
const PATIENCE: Duration = Duration::from_secs(1);

/// What systemd answers about a job that is over.
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
    /// To be asked for before a job is queued.
    ///
    /// # Errors
    /// The bus or systemd does not answer.
    pub(super) async fn of(manager: &'a ManagerProxy<'a>, unit: String) -> Result<Self, String> {
        let systemd = owner(manager).await?;
        let removed = subscribe(manager, &systemd, &unit).await?;
        Ok(Self { manager, unit, systemd, removed })
    }

    /// The result of a job; waits for its end.
    ///
    /// # Errors
    /// It cannot be known any more.
    pub(super) async fn of_job(&mut self, job: &OwnedObjectPath) -> Result<String, String> {
        loop {
            let signal = std::future::poll_fn(|context| Pin::new(&mut self.removed).poll_next(context));
            let result = match timeout(PATIENCE, signal).await {
                Ok(signal) => result(signal, job)?,
                Err(_) => self.look(job).await?,
            };
            if let Some(result) = result {
                return Ok(result);
            }
        }
    }

    /// Whether systemd still has the job, and the connection on which its signals are awaited.
    async fn look(&mut self, job: &OwnedObjectPath) -> Result<Option<String>, String> {
        // While systemd connects again no connection owns the name; the job has its own limit.
        let Ok(systemd) = owner(self.manager).await else { return Ok(None) };
        if systemd != self.systemd {
            self.removed = subscribe(self.manager, &systemd, &self.unit).await?;
            self.systemd = systemd;
        }
        let id = job.rsplit('/').next().and_then(|id| id.parse().ok());
        let Some(id) = id else { return Err(format!("systemd gave a job with an unknown path, {job}")) };
        match self.manager.get_job(id).await {
            Err(zbus::Error::MethodError(name, ..)) if name.as_str() == NO_SUCH_JOB => {}
            _ => return Ok(None),
        }
        // The bus keeps the order: a signal that systemd sent before this answer is here.
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
        Err("the job is over, and systemd did not report its result".to_owned())
    }
}

/// The connection that owns systemd's name.
async fn owner(manager: &ManagerProxy<'_>) -> Result<OwnedUniqueName, String> {
    let asked = async {
        let bus = DBusProxy::new(manager.inner().connection()).await?;
        Ok(bus.get_name_owner(SYSTEMD.try_into()?).await?)
    };
    asked.await.map_err(|error: zbus::Error| format!("systemd is not on the bus: {error}"))
}

/// The bus drops what others broadcast by this rule, and zbus what they send straight to us, before it is queued.
async fn subscribe(
    manager: &ManagerProxy<'_>,
    systemd: &OwnedUniqueName,
    unit: &str,
) -> Result<MessageStream, String> {
    let text = |error: zbus::Error| error.to_string();
    let rule = MatchRule::builder()
        .msg_type(Type::Signal)
        .sender(systemd.as_str())
        .path("/org/freedesktop/systemd1")
        .interface("org.freedesktop.systemd1.Manager")
        .member("JobRemoved")
        .arg(2, unit)
        .build()
        .map_err(text)?;
    let connection = manager.inner().connection();
    let removed = MessageStream::for_match_rule(rule, connection, Some(SIGNALS)).await.map_err(text)?;
    // systemd sends signals only to connections that asked. A second time is an error, and no harm.
    let _ = manager.subscribe().await;
    Ok(removed)
}

/// The result that a signal has, where it is about this job.
fn result(
    signal: Option<zbus::Result<zbus::Message>>,
    job: &OwnedObjectPath,
) -> Result<Option<String>, String> {
    let text = |error: zbus::Error| error.to_string();
    let signal = signal.ok_or("the connection to systemd is gone")?.map_err(text)?;
    let body = signal.body();
    let (_, path, _, result): (u32, OwnedObjectPath, String, String) = body.deserialize().map_err(text)?;
    Ok((path == *job).then_some(result))
}
