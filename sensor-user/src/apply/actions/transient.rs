//! Transient units of the host's systemd.
//!
//! In: a name and a command line. Out: a unit that systemd runs outside of the caller's control group, so it lives on when the
//! caller ends. The caller's capabilities and filters do not bind it.

use super::bus::{SYSTEMD, connect};
use crate::apply::act_error::SystemdError;
use std::{path::Path, time::Duration};
use zbus::{OwnedVariant, Variant};
use zbus_systemd::systemd1::ManagerProxy;

/// Longest time for an answer of systemd.
const ANSWER: Duration = Duration::from_secs(10);

/// How long a stop waits for the unit, such as that of a shutdown: an apply ends at its next safe point, after a running action.
/// It is the grace period of the sensor's pod in the mode `manage`.
const STOP_MICROSECONDS: u64 = 600_000_000;

/// One entry of `ExecStart`: the program, its arguments with its name first, and whether a failure is ignored.
type ExecStart<'a> = (&'a str, Vec<&'a str>, bool);

/// Starts a unit that exists for as long as its process. `limit`: systemd ends the process after this time.
///
/// # Errors
/// systemd does not answer, or refuses. It refuses a name that a unit has that still runs.
pub(in crate::apply) async fn start(
    root: &Path,
    name: &str,
    description: &str,
    command: &[&str],
    limit: Option<Duration>,
) -> Result<(), SystemdError> {
    let manager = manager(root).await?;
    // A failed unit of an earlier time keeps the name.
    drop(manager.reset_failed_unit(name.to_owned()).await);
    let [program, ..] = command else { return Ok(()) };
    let exec: Vec<ExecStart<'_>> = vec![(program, command.to_vec(), false)];
    let property = |name: &str, value: Variant<'_>| -> Result<(String, OwnedVariant), SystemdError> {
        Ok((name.to_owned(), value.try_to_owned()?))
    };
    let mut properties = vec![
        property("Description", Variant::from(description))?,
        property("Type", Variant::from("exec"))?,
        property("CollectMode", Variant::from("inactive-or-failed"))?,
        property("UMask", Variant::from(0o077_u32))?,
        property("TimeoutStopUSec", Variant::from(STOP_MICROSECONDS))?,
        property("ExecStart", Variant::from(exec))?,
    ];
    if let Some(limit) = limit {
        let microseconds = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        properties.push(property("RuntimeMaxUSec", Variant::from(microseconds))?);
    }
    manager.start_transient_unit(name.to_owned(), "fail".to_owned(), properties, Vec::new()).await?;
    Ok(())
}

/// Whether a unit runs, or is about to.
///
/// # Errors
/// systemd does not answer.
pub(in crate::apply) async fn is_active(root: &Path, name: &str) -> Result<bool, SystemdError> {
    let manager = manager(root).await?;
    let unit = super::jobs::unit_of(&manager, name).await?;
    // A unit whose start waits in the queue, such as for the end of the boot, is inactive. The job is read first: it ends after the
    // state has changed.
    if unit.job().await?.0 != 0 {
        return Ok(true);
    }
    let state = unit.active_state().await?;
    Ok(!matches!(state.as_str(), "inactive" | "failed"))
}

/// Whether the host shuts down: the target is active or queued. systemd then refuses to start units.
///
/// # Errors
/// systemd does not answer.
pub(in crate::apply) async fn is_host_stopping(root: &Path) -> Result<bool, SystemdError> {
    Ok(manager(root).await?.system_state().await? == "stopping")
}

async fn manager(root: &Path) -> Result<ManagerProxy<'static>, SystemdError> {
    let connection = connect(root, ANSWER).await?;
    Ok(ManagerProxy::builder(&connection)
        .destination(SYSTEMD)
        .cache_properties(zbus::proxy::CacheProperties::No)
        .build()
        .await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::actions::tests::played::{PlayedHost, Plays};

    #[tokio::test]
    async fn a_unit_whose_start_waits_in_the_queue_is_about_to_run() {
        let host = PlayedHost::new(Plays::Booting);
        for look in 0..5 {
            assert!(is_active(host.root.path(), "there.service").await.unwrap(), "look {look}");
        }
        let host = PlayedHost::new(Plays::Well);
        assert!(!is_active(host.root.path(), "there.service").await.unwrap());
    }
}
