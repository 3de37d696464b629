//! The state of a unit after a boot.
//!
//! In: a unit that the boot may start. Out: whether it settled or failed. Nothing is started here. Each wait has a limit: one for
//! the boot's queue of jobs, one for the unit itself.

use super::{
    bus::SYSTEMD,
    jobs::{service_of, unit_of},
};
use crate::apply::act_runner::UnitAfterBoot;
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
const LOOKS: u32 = 10;

/// Waits until a unit has settled; `may_be_gone` where the apply removes it.
///
/// # Errors
/// systemd does not answer, or the unit's job still waits in the queue.
pub(super) async fn unit_after_boot(
    manager: &ManagerProxy<'_>,
    name: &str,
    may_be_gone: bool,
    limit: Duration,
) -> Result<UnitAfterBoot, String> {
    let text = |error: zbus::Error| format!("{name}: {error}");
    let unit = unit_of(manager, name).await.map_err(|reason| format!("{name}: {reason}"))?;
    match unit.load_state().await.map_err(text)?.as_str() {
        "masked" => return Ok(UnitAfterBoot::Settled),
        "not-found" if may_be_gone => return Ok(UnitAfterBoot::Settled),
        "not-found" => return Ok(UnitAfterBoot::Failed(format!("{name}: there is no such unit"))),
        _ => {}
    }
    match timeout(QUEUE, begun(&unit)).await {
        Ok(begun) => begun.map_err(text)?,
        Err(_) => return Err(format!("{name}: the boot has not come to it within {} s", QUEUE.as_secs())),
    }
    let limit = limit.max(LEAST);
    Ok(match timeout(limit, settled(&unit, name)).await {
        Ok(Ok(None)) => UnitAfterBoot::Settled,
        Ok(Ok(Some(reason))) => UnitAfterBoot::Failed(format!("{name}: {reason}")),
        Ok(Err(reason)) => return Err(format!("{name}: {reason}")),
        Err(_) => UnitAfterBoot::Failed(format!("{name}: not at rest within {} s", limit.as_secs())),
    })
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
        // A job that has ended since does not wait any more.
        if job.state().await.is_ok_and(|state| state != "waiting") {
            return Ok(());
        }
        sleep(PAUSE).await;
    }
}

/// Why a unit does not run; `None` when it runs, has finished, or was not started.
async fn settled(unit: &UnitProxy<'_>, name: &str) -> Result<Option<&'static str>, String> {
    let text = |error: zbus::Error| error.to_string();
    let service = if name.ends_with(".service") { Some(service_of(unit).await?) } else { None };
    let mut stays = 0;
    let mut before = restarts(service.as_ref()).await?;
    loop {
        let is_at_work = unit.job().await.map_err(text)?.0 != 0;
        let active = unit.active_state().await.map_err(text)?;
        match active.as_str() {
            "activating" if unit.sub_state().await.map_err(text)?.starts_with("auto-restart") => {
                return Ok(Some("the unit failed, and systemd starts it again and again"));
            }
            _ if is_at_work => stays = 0,
            "failed" => return Ok(Some("the unit failed")),
            "inactive" => return Ok(None),
            "active" if stays >= LOOKS => {
                let after = restarts(service.as_ref()).await?;
                return Ok((after > before).then_some("the unit ended at once and was started again"));
            }
            "active" => stays += 1,
            _ => stays = 0,
        }
        if stays == 0 {
            before = restarts(service.as_ref()).await?;
        }
        sleep(PAUSE).await;
    }
}

async fn restarts(service: Option<&ServiceProxy<'_>>) -> Result<u32, String> {
    match service {
        Some(service) => service.n_restarts().await.map_err(|error| error.to_string()),
        None => Ok(0),
    }
}

/// The number of soft reboots; `None` where systemd does not have the property.
pub(super) async fn soft_reboots(connection: &zbus::Connection) -> Result<Option<u32>, String> {
    let text = |error: zbus::Error| format!("systemd does not answer: {error}");
    let manager = ManagerProxy::builder(connection).cache_properties(zbus::proxy::CacheProperties::No);
    match manager.build().await.map_err(text)?.soft_reboots_count().await {
        Ok(count) => Ok(Some(count)),
        Err(zbus::Error::FDO(error)) if matches!(*error, fdo::Error::UnknownProperty(_)) => Ok(None),
        Err(error) => Err(text(error)),
    }
}
