//! A unit after a boot.
//!
//! In: a unit that the boot starts, or not. Out: whether it came to rest well. Nothing is started here, and no wait is
//! without an end: the boot's own work has one limit, what the unit takes has another.

use super::{
    bus::SYSTEMD,
    jobs::{service_of, unit_of},
};
use crate::apply::act_runner::UnitAfterBoot;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use zbus::fdo;
use zbus_systemd::systemd1::{JobProxy, ManagerProxy, ServiceProxy, UnitProxy};

/// How long a boot may take until it comes to a unit.
const QUEUE: Duration = Duration::from_mins(5);

/// What a unit gets at least: a boot does a lot beside it.
const LEAST: Duration = Duration::from_secs(90);

/// Pause between two looks at a unit.
const PAUSE: Duration = Duration::from_millis(100);

/// Looks at a unit that runs until it is believed to stay.
const LOOKS: u32 = 10;

/// Awaits that a unit comes to rest; `may_be_gone` where the apply takes it away.
///
/// # Errors
/// Why nobody can tell: systemd does not answer, or the boot has not come to the unit.
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

/// Waits while the boot's job for a unit stands in the queue.
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
        // One that is over meanwhile waits no more.
        if job.state().await.is_ok_and(|state| state != "waiting") {
            return Ok(());
        }
        sleep(PAUSE).await;
    }
}

/// Why a unit does not run; `None` when it does, has done what it is for, or was not started.
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

/// How often systemd started everything but the kernel anew. Versions that count it have the property; what has not counts
/// none.
pub(super) async fn soft_reboots(connection: &zbus::Connection) -> Result<Option<u32>, String> {
    let text = |error: zbus::Error| format!("systemd does not answer: {error}");
    let manager = ManagerProxy::builder(connection).cache_properties(zbus::proxy::CacheProperties::No);
    match manager.build().await.map_err(text)?.soft_reboots_count().await {
        Ok(count) => Ok(Some(count)),
        Err(zbus::Error::FDO(error)) if matches!(*error, fdo::Error::UnknownProperty(_)) => Ok(None),
        Err(error) => Err(text(error)),
    }
}
