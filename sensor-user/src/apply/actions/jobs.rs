//! One job of systemd's, from its request until its unit has settled.
//!
//! In: the manager, a job and its unit. Out: success, or the reason of the failure. Nothing takes longer than the limit, and a job
//! whose limit has passed is cancelled.

use super::{bus::SYSTEMD, results::Results};
use crate::apply::act_runner::ActResult;
use sensor_model::journal::Action;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use zbus_systemd::systemd1::{ManagerProxy, ServiceProxy, UnitProxy};

/// The pause between two reads of a unit's state.
const PAUSE: Duration = Duration::from_millis(100);

/// How many reads in a row must find a unit running: a service of `Type=simple` counts as started before it has done anything,
/// and dies after that if its configuration is wrong.
const LOOKS: u32 = 10;

/// A job, and how its unit is judged.
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
    /// Skip it and report that: the config masks it.
    Skip,
    /// Stop it.
    Stop,
    /// Fail: another process masked it.
    Fail,
}

/// Queues a job, waits for its end, and reads the unit's state.
///
/// # Errors
/// How the job ended instead.
pub(super) async fn run(manager: &ManagerProxy<'_>, job: Job<'_>) -> Result<ActResult, String> {
    let mut queued = None;
    if let Ok(ended) = timeout(job.limit, wait(manager, job, &mut queued)).await {
        return ended;
    }
    // A job that stays queued could still run after the fallback.
    if let Some(id) = queued.as_deref().and_then(|path| path.rsplit('/').next()?.parse().ok()) {
        let _ = manager.cancel_job(id).await;
    }
    Err(format!("not done within {} s", job.limit.as_secs()))
}

async fn wait(
    manager: &ManagerProxy<'_>,
    job: Job<'_>,
    path: &mut Option<String>,
) -> Result<ActResult, String> {
    let text = |error: zbus::Error| error.to_string();
    let unit = unit_of(manager, job.unit).await?;
    let (load, active) = (unit.load_state().await.map_err(text)?, unit.active_state().await.map_err(text)?);
    let is_running = matches!(active.as_str(), "active" | "reloading" | "activating");
    let skipped = |now| Ok(ActResult::Skipped(format!("skipped: the config masks the unit, and {now}")));
    let kind = match (load.as_str(), job.masked) {
        // What has no file any more can only be stopped.
        ("not-found", _) if job.may_be_gone => Action::Stop,
        ("not-found", _) => return Err("there is no such unit".to_owned()),
        ("masked", _) if job.kind == Action::Stop => Action::Stop,
        ("masked", WhenMasked::Stop) => Action::Stop,
        ("masked", WhenMasked::Skip) if is_running => return skipped("it runs on until it is stopped"),
        ("masked", WhenMasked::Skip) => return skipped("it does not run"),
        // Systemd has not read the mask yet, or the way back took it away: a restart would start what did not run.
        (_, WhenMasked::Skip) if active == "inactive" && job.kind != Action::Stop => {
            return skipped("it does not run");
        }
        // A unit that does not run has nothing to reload.
        ("masked", WhenMasked::Fail) if job.kind != Action::Reload || is_running => {
            return Err(format!(
                "the unit is masked, and not by the config; `systemctl unmask {}` lets systemd start it",
                job.unit
            ));
        }
        _ => job.kind,
    };
    match kind {
        // What has failed does not use the new content, whatever it is asked to read.
        Action::Reload if active == "failed" => {
            return Err("the unit has failed, so there is nothing to reload".to_owned());
        }
        Action::Reload if !is_running => {
            tracing::warn!(
                unit = job.unit,
                state = active,
                "Not reloaded: the unit does not run. It reads what is written when it is started."
            );
            return Ok(ActResult::Done);
        }
        Action::Stop if !is_running => return Ok(ActResult::Done),
        _ => {}
    }
    let mut results = Results::of(manager, unit.id().await.map_err(text)?).await?;
    let (name, mode) = (job.unit.to_owned(), "replace".to_owned());
    let queued = match kind {
        Action::Reload => manager.reload_unit(name, mode).await,
        Action::Restart => manager.restart_unit(name, mode).await,
        Action::ReloadOrRestart => manager.reload_or_restart_unit(name, mode).await,
        Action::Stop => manager.stop_unit(name, mode).await,
        // Of systemd itself, of the OS backend, or no act at all.
        Action::DaemonReload | Action::Os | Action::None | Action::Write | Action::Drain | Action::Reboot => {
            return Err(format!("{} is not a job for a unit", kind.as_str()));
        }
    };
    let queued = queued.map_err(text)?;
    *path = Some(queued.as_str().to_owned());
    let result = results.of_job(&queued).await?;
    *path = None;
    if result != "done" {
        return Err(format!("the job ended as `{result}`"));
    }
    settled(&unit, kind, job.unit).await.map(|()| ActResult::Done)
}

pub(super) async fn unit_of(manager: &ManagerProxy<'_>, name: &str) -> Result<UnitProxy<'static>, String> {
    let text = |error: zbus::Error| error.to_string();
    let path = manager.load_unit(name.to_owned()).await.map_err(text)?;
    let connection = manager.inner().connection().clone();
    UnitProxy::builder(&connection)
        .destination(SYSTEMD)
        .path(path)
        .cache_properties(zbus::proxy::CacheProperties::No)
        .build()
        .await
        .map_err(text)
}

/// A job that is done may leave a unit that fails right after, at once or over and over again.
async fn settled(unit: &UnitProxy<'_>, kind: Action, name: &str) -> Result<(), String> {
    let text = |error: zbus::Error| error.to_string();
    let starts = matches!(kind, Action::Restart | Action::ReloadOrRestart);
    let service = if starts && name.ends_with(".service") { Some(service_of(unit).await?) } else { None };
    let restarts = async || match &service {
        Some(service) => service.n_restarts().await.map_err(text),
        None => Ok(0),
    };
    let before = restarts().await?;
    let mut looks = 0;
    loop {
        let active = unit.active_state().await.map_err(text)?;
        match active.as_str() {
            "failed" if kind != Action::Stop => return Err("the unit failed".to_owned()),
            "reloading" | "deactivating" | "activating" => {
                let sub = unit.sub_state().await.map_err(text)?;
                if sub.starts_with("auto-restart") && kind != Action::Stop {
                    return Err("the unit failed, and systemd starts it again and again".to_owned());
                }
            }
            // It has done what it was started for, or was not running and stays so.
            "inactive" => return Ok(()),
            _ if looks >= LOOKS || service.is_none() => {
                return match restarts().await? {
                    after if after > before => Err("the unit ended at once and was started again".to_owned()),
                    _ => Ok(()),
                };
            }
            _ => looks += 1,
        }
        sleep(PAUSE).await;
    }
}

pub(super) async fn service_of(unit: &UnitProxy<'_>) -> Result<ServiceProxy<'static>, String> {
    let text = |error: zbus::Error| error.to_string();
    ServiceProxy::builder(unit.inner().connection())
        .destination(SYSTEMD)
        .path(unit.inner().path().to_owned())
        .cache_properties(zbus::proxy::CacheProperties::No)
        .build()
        .await
        .map_err(text)
}
