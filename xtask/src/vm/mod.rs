//! Virtual machines: one kernel with one guest that runs one scenario, from its boot or from a saved state.
//!
//! In: a `Vm`. Out: the results of its scenario, or the failure; and a log of its output in `target/vm-logs`. Nothing that a
//! guest writes remains after its end.

mod audit;
pub(crate) mod cluster;
pub(crate) mod console;
mod cpio;
mod egress;
mod guest;
pub(crate) mod images;
mod kube_root;
mod lines;
mod machine;
mod ostree;
mod payload;
mod prometheus;
mod qmp;
mod runs;
mod saved;
mod selinux;
mod stalled;
mod verity;

pub(crate) use audit::AuditLog;
pub(crate) use guest::{GuestParts, Vm};
pub(crate) use runs::Outcome;
pub(crate) use saved::Saved;

use crate::cache::Cache;
use anyhow::Result;
use std::path::PathBuf;

/// The disks of two guests with a whole Debian each.
pub(crate) fn debian_disks(cache: &Cache) -> Result<[PathBuf; 2]> {
    Ok([selinux::root(cache)?, images::systemd_root(cache)?])
}
