//! The state of a unit after a boot.
//!
//! In: a unit that the boot may start. Out: whether it settled or failed. Nothing here starts a unit. There is a limit for the
//! boot's queue of jobs, and one for the unit itself.

use super::{
    bus::SYSTEMD,
    jobs::{service_of, unit_of},
};
use crate::apply::{
    act_error::{SystemdError, UnitFailure},
    act_runner::UnitAfterBoot,
};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use zbus::fdo;
use zbus_systemd::systemd1::{JobProxy, ManagerProxy, ServiceProxy, UnitProxy};

/// How long a unit's job may wait in the boot's queue.
const QUEUE: Duration = Duration::from_mins(5);

/// The shortest limit of a unit: a boot starts many others at the same time.
const LEAST: Duration = Duration::from_secs(90);

/// The pause between two reads of a unit's state.
const PAUSE: Duration = Duration::from_millis(100);

/// How many reads in a row must find a unit running.
const READS: u32 = 10;

/// Waits until a unit has settled; `may_be_gone` where the apply removes it.
///
/// # Errors
/// systemd does not answer, or the unit's job still waits in the queue.
pub(super) async fn unit_after_boot(
    manager: &ManagerProxy<'_>,
    name: &str,
    may_be_gone: bool,
    limit: Duration,
) -> Result<UnitAfterBoot, SystemdError> {
    let unit = unit_of(manager, name).await?;
    match unit.load_state().await?.as_str() {
        "masked" => return Ok(UnitAfterBoot::Settled),
        "not-found" if may_be_gone => return Ok(UnitAfterBoot::Settled),
        "not-found" => return Ok(UnitAfterBoot::Failed(UnitFailure::Missing)),
        _ => {}
    }
    match timeout(QUEUE, begun(&unit)).await {
        Ok(begun) => begun?,
        Err(_) => return Err(SystemdError::QueueTimeout(QUEUE)),
    }
    let limit = limit.max(LEAST);
    let failure = match timeout(limit, settled(&unit, name)).await {
        Ok(failure) => failure?,
        Err(_) => Some(UnitFailure::NotSettled(limit)),
    };
    Ok(failure.map_or(UnitAfterBoot::Settled, UnitAfterBoot::Failed))
}

/// Waits while the boot's job for a unit is in the queue.
async fn begun(unit: &UnitProxy<'_>) -> Result<(), zbus::Error> {
    loop {
        let (id, path) = unit.job().await?;
        if id == 0 {
            return Ok(());
        }
        let job = JobProxy::builder(unit.inner().connection())
            .destination(SYSTEMD)
            .path(path)
            .cache_properties(zbus::proxy::CacheProperties::No)
            .build()
            .await?;
        // A job that cannot be read has ended.
        if job.state().await.is_ok_and(|state| state != "waiting") {
            return Ok(());
        }
        sleep(PAUSE).await;
    }
}

/// Why a unit does not run; `None` when it runs, has finished, or was not started.
async fn settled(unit: &UnitProxy<'_>, name: &str) -> Result<Option<UnitFailure>, SystemdError> {
    let service = if name.ends_with(".service") { Some(service_of(unit).await?) } else { None };
    let mut reads = 0;
    let mut before = restarts(service.as_ref()).await?;
    loop {
        let has_job = unit.job().await?.0 != 0;
        let active = unit.active_state().await?;
        match active.as_str() {
            "activating" if unit.sub_state().await?.starts_with("auto-restart") => {
                return Ok(Some(UnitFailure::Restarting));
            }
            _ if has_job => reads = 0,
            "failed" => return Ok(Some(UnitFailure::Failed)),
            "inactive" => return Ok(None),
            "active" if reads >= READS => {
                let after = restarts(service.as_ref()).await?;
                return Ok((after > before).then_some(UnitFailure::EndedAtOnce));
            }
            "active" => reads += 1,
            _ => reads = 0,
        }
        if reads == 0 {
            before = restarts(service.as_ref()).await?;
        }
        sleep(PAUSE).await;
    }
}

/// How often systemd has started a service again; 0 for other units.
async fn restarts(service: Option<&ServiceProxy<'_>>) -> Result<u32, SystemdError> {
    match service {
        Some(service) => Ok(service.n_restarts().await?),
        None => Ok(0),
    }
}

/// The number of soft reboots; `None` if systemd is too old to have the property.
pub(super) async fn soft_reboots(connection: &zbus::Connection) -> Result<Option<u32>, SystemdError> {
    let manager = ManagerProxy::builder(connection).cache_properties(zbus::proxy::CacheProperties::No);
    match manager.build().await.map_err(SystemdError::Manager)?.soft_reboots_count().await {
        Ok(count) => Ok(Some(count)),
        Err(zbus::Error::FDO(error)) if matches!(*error, fdo::Error::UnknownProperty(_)) => Ok(None),
        Err(error) => Err(SystemdError::Manager(error)),
    }
}
