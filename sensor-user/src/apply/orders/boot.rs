//! The present boot, as the ends of orders name it.
//!
//! In: the host's root. Out: the boot. By it the daemon finds whether the reboot has happened that an order waits for.

use crate::{
    apply::{Systemd, act_runner::ActRunner as _, os},
    clock::boot_id,
    observation::Observer,
};
use sensor_model::journal::Boot;
use std::{io, path::Path};

/// The kernel's boot id, the number of soft reboots since, and the deployment.
///
/// # Errors
/// The boot id cannot be read.
pub(super) async fn present_boot(root: &Path) -> io::Result<Boot> {
    let boot_id = boot_id(Path::new("/proc"))?;
    let soft_reboots = Systemd::new(root).soft_reboots().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "Cannot read the count of soft reboots.");
        None
    });
    let deployment = Observer::new(root).ok().and_then(|observer| os::deployment(&observer));
    Ok(Boot { boot_id, soft_reboots, deployment })
}
