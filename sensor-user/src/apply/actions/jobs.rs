//! One job of systemd's, from its request until its unit has settled.
//!
//! In: the manager, a job and its unit. Out: success, or the reason of the failure. Nothing takes longer than the limit, and a job
//! whose limit has passed is cancelled.

use super::{bus::SYSTEMD, results::Results};
use crate::apply::act_error::{SystemdError, UnitFailure};
use sensor_model::journal::Action;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use zbus_systemd::systemd1::{ManagerProxy, ServiceProxy, UnitProxy};

/// The pause between two reads of a unit's state.
const PAUSE: Duration = Duration::from_millis(100);

/// How many reads in a row must find a unit running: systemd reports a service of `Type=simple` as started before it has done
/// anything. With a wrong configuration it ends a moment later.
const READS: u32 = 10;

/// A job, and how to treat its unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) kind: Action,
    pub(super) unit: &'a str,
    /// Whether the unit may be missing, because the apply removes it.
    pub(super) may_be_gone: bool,
    pub(super) masked: WhenMasked,
    pub(super) limit: Duration,
}

/// What to do about a masked unit: systemd refuses every job for it except a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenMasked {
    /// Skip and report it: the config masks it.
    Skip,
    /// Stop it.
    Stop,
    /// Fail: another process masked it.
    Fail,
}

/// How a job ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobEnd {
    /// It is done, or was not needed.
    Done,
    /// The config masks the unit, and no job was queued.
    Masked {
        /// Whether the unit runs.
        runs: bool,
    },
}

/// Queues a job, waits for its end, and reads the unit's state.
///
/// # Errors
/// The job failed, or the unit does not run after it.
pub(super) async fn run(manager: &ManagerProxy<'_>, job: Job<'_>) -> Result<JobEnd, SystemdError> {
    let mut queued = None;
    if let Ok(ended) = timeout(job.limit, wait(manager, job, &mut queued)).await {
        return ended;
    }
    // A job that stays in the queue could run after the fallback.
    if let Some(id) = queued.as_deref().and_then(|path| path.rsplit('/').next()?.parse().ok()) {
        let _ = manager.cancel_job(id).await;
    }
    Err(SystemdError::JobTimeout(job.limit))
}

async fn wait(
    manager: &ManagerProxy<'_>,
    job: Job<'_>,
    path: &mut Option<String>,
) -> Result<JobEnd, SystemdError> {
    let unit = unit_of(manager, job.unit).await?;
    let (load, active) = (unit.load_state().await?, unit.active_state().await?);
    let is_running = matches!(active.as_str(), "active" | "reloading" | "activating");
    let kind = match (load.as_str(), job.masked) {
        // A unit without a file can only be stopped.
        ("not-found", _) if job.may_be_gone => Action::Stop,
        ("not-found", _) => return Err(UnitFailure::Missing.into()),
        ("masked", _) if job.kind == Action::Stop => Action::Stop,
        ("masked", WhenMasked::Stop) => Action::Stop,
        ("masked", WhenMasked::Skip) => return Ok(JobEnd::Masked { runs: is_running }),
        // systemd has not read the mask yet, or the rollback removed it. A restart would start a unit that did not run.
        (_, WhenMasked::Skip) if active == "inactive" && job.kind != Action::Stop => {
            return Ok(JobEnd::Masked { runs: false });
        }
        // A unit that does not run has nothing to reload.
        ("masked", WhenMasked::Fail) if job.kind != Action::Reload || is_running => {
            return Err(SystemdError::Masked(job.unit.to_owned()));
        }
        _ => job.kind,
    };
    match kind {
        // A failed unit cannot read the new content.
        Action::Reload if active == "failed" => return Err(SystemdError::NotReloaded),
        Action::Reload if !is_running => {
            tracing::warn!(
                unit = job.unit,
                state = active,
                "The unit does not run, so it is not reloaded. It reads the new files when it starts."
            );
            return Ok(JobEnd::Done);
        }
        Action::Stop if !is_running => return Ok(JobEnd::Done),
        _ => {}
    }
    let mut results = Results::of(manager, unit.id().await?).await?;
    let (name, mode) = (job.unit.to_owned(), "replace".to_owned());
    let queued = match kind {
        Action::Reload => manager.reload_unit(name, mode).await,
        Action::Restart => manager.restart_unit(name, mode).await,
        Action::ReloadOrRestart => manager.reload_or_restart_unit(name, mode).await,
        Action::Stop => manager.stop_unit(name, mode).await,
        // An act of systemd itself or of the OS tool, or no act at all.
        Action::DaemonReload | Action::Os | Action::None | Action::Write | Action::Drain | Action::Reboot => {
            return Err(SystemdError::NoJob(kind));
        }
    };
    let queued = queued?;
    *path = Some(queued.as_str().to_owned());
    let result = results.of_job(&queued).await?;
    *path = None;
    if result != "done" {
        return Err(SystemdError::JobFailed(result));
    }
    settled(&unit, kind, job.unit).await.map(|()| JobEnd::Done)
}

/// A unit, read from systemd at each question.
pub(super) async fn unit_of(
    manager: &ManagerProxy<'_>,
    name: &str,
) -> Result<UnitProxy<'static>, SystemdError> {
    let path = manager.load_unit(name.to_owned()).await?;
    let connection = manager.inner().connection().clone();
    let unit = UnitProxy::builder(&connection)
        .destination(SYSTEMD)
        .path(path)
        .cache_properties(zbus::proxy::CacheProperties::No)
        .build()
        .await?;
    Ok(unit)
}

/// Waits until a unit runs steadily or has ended after its job. A unit may fail right after a job that succeeded, once or again
/// and again.
async fn settled(unit: &UnitProxy<'_>, kind: Action, name: &str) -> Result<(), SystemdError> {
    // Every other job may start the unit.
    let starts = !matches!(kind, Action::Reload | Action::Stop);
    let service = if starts && name.ends_with(".service") { Some(service_of(unit).await?) } else { None };
    let restarts = async || match &service {
        Some(service) => service.n_restarts().await,
        None => Ok(0),
    };
    let before = restarts().await?;
    let mut reads = 0;
    loop {
        let active = unit.active_state().await?;
        match active.as_str() {
            "failed" if kind != Action::Stop => return Err(UnitFailure::Failed.into()),
            "reloading" | "deactivating" | "activating" => {
                let sub = unit.sub_state().await?;
                if sub.starts_with("auto-restart") && kind != Action::Stop {
                    return Err(UnitFailure::Restarting.into());
                }
            }
            // The unit has ended, or did not run before either.
            "inactive" => return Ok(()),
            _ if reads >= READS || service.is_none() => {
                return match restarts().await? {
                    after if after > before => Err(UnitFailure::EndedAtOnce.into()),
                    _ => Ok(()),
                };
            }
            _ => reads += 1,
        }
        sleep(PAUSE).await;
    }
}

/// The properties of a unit that only services have.
pub(super) async fn service_of(unit: &UnitProxy<'_>) -> Result<ServiceProxy<'static>, SystemdError> {
    let service = ServiceProxy::builder(unit.inner().connection())
        .destination(SYSTEMD)
        .path(unit.inner().path().to_owned())
        .cache_properties(zbus::proxy::CacheProperties::No)
        .build()
        .await?;
    Ok(service)
}
