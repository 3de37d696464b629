//! Common parts of the bench's stages.
//!
//! In: a stage's name. Out: its measurements. It compares no number with a limit.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};

use super::changes::QUIET;
use super::files::BenchFile;
use super::operations::{CHANGES, READ_WRITE, measure};
use super::usage;
use crate::guest::agent::RunningDaemon;
use crate::guest::{Context, wait};

/// Managed files.
pub(super) const FILES: usize = 10_000;
/// The folder of unmanaged files, on the same file system as the managed ones.
pub(super) const UNMANAGED: &str = "/bench-unmanaged";
/// The folder of the daemon's pins.
const PINS: &str = "/sys/fs/bpf/holdfast";
/// The folder of the daemon's log.
pub(super) const LOG: &str = "/var/log/holdfast";

/// Milliseconds between two searches of khugepaged (Documentation/admin-guide/mm/transhuge.rst).
const KHUGEPAGED: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs";

/// After this time the work of the boot has ended.
pub(super) const SETTLE: Duration = Duration::from_secs(6);

/// Keeps the work of others out of the measurements.
pub(super) fn prepare() -> Result<()> {
    // khugepaged works for milliseconds at a time.
    fs::write(KHUGEPAGED, "86400000").with_context(|| format!("cannot write {KHUGEPAGED}"))?;
    // The log has its own file system: a watch on it costs the kernel work for all files of its file system.
    fs::create_dir_all(LOG)?;
    Ok(mount(Some("tmpfs"), LOG, Some("tmpfs"), MsFlags::empty(), None::<&str>)?)
}

/// Removes the kernel programs of a daemon that has ended.
pub(super) fn detach() -> Result<()> {
    // Pinned programs run until their pins are removed, and the kernel detaches them some time later.
    fs::remove_dir_all(PINS).context("cannot remove the pins")?;
    wait::until("the kernel programs to go", Duration::from_mins(5), || {
        Ok((usage::programs()? == 0).then_some(()))
    })
}

/// Measures operations on unmanaged files.
pub(super) fn operations(context: &mut Context, stage: &str, wanted: &[&str]) -> Result<()> {
    context.note(format!("{stage}: operations"));
    let measured = measure(Path::new(UNMANAGED), wanted)?;
    context.measured(&format!("{stage} operations"), format!("{measured:.0?}"), json!(measured));
    Ok(())
}

/// Opening, writing and closing managed files.
pub(super) fn changes(context: &mut Context, stage: &str) -> Result<()> {
    context.note(format!("{stage}: changes of managed files"));
    let measured = measure(Path::new(UNMANAGED), &[CHANGES])?;
    context.measured(&format!("{stage} changes"), format!("{measured:.0?}"), json!(measured));
    Ok(())
}

/// Reports one measurement.
pub(super) fn one(context: &mut Context, name: &str, value: Value) {
    context.measured(name, value.to_string(), value);
}

/// Reads and writes of unmanaged files while a managed file is open for writing. `before`: how many links the daemon holds
/// otherwise.
pub(super) fn writers(
    context: &mut Context,
    stage: &str,
    agent: &RunningDaemon,
    before: usize,
) -> Result<()> {
    context.note(format!("{stage}: with a managed file open for writing"));
    wait::until("the end of hooks that earlier writers left", Duration::from_mins(2), || {
        Ok((usage::links(agent.pid())? == before).then_some(()))
    })?;
    let held = BenchFile::new(1).hold()?;
    // The hooks are links that the daemon holds.
    wait::until("the hooks on reads and writes", Duration::from_secs(10), || {
        Ok((usage::links(agent.pid())? >= before + 2).then_some(()))
    })?;
    wait::pause(QUIET);
    operations(context, &format!("{stage}, writing"), &READ_WRITE)?;
    drop(held);
    wait::until("their end", Duration::from_mins(2), || {
        Ok((usage::links(agent.pid())? == before).then_some(()))
    })
}
