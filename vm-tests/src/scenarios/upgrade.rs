//! An upgrade of the daemon that finds the pins of another version, or maps that its config has outgrown.
//!
//! In: a bare guest. Out: a check for each kind of pins. The scenario renames this version's pins as another object, or
//! another layout of the maps, would have named them. So the pins are real, and their programs run until they are
//! replaced.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::maps::MapInfo;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::simple::{self, is_drift};
use crate::guest::agent::RunningDaemon;
use crate::guest::{Context, programs, shell, status, wait};

const PINS: &str = "/sys/fs/bpf/holdfast";
const CONFIG: &str = "/run/upgrade.json";
const LIMIT: Duration = Duration::from_mins(1);

/// The scenario.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    let files = simple::files(Path::new("/etc/upgrade"), 4, Path::new(CONFIG))?;
    let agent = start()?;
    status::wait_for("compliant", LIMIT)?;
    context.check("pins_are_private", private());
    let (result, agent) = upgraded(agent, &files[0], &["links-"])?;
    context.check("another_object", result);
    let (result, agent) = upgraded(agent, &files[1], &["links-", "maps-v"])?;
    context.check("another_layout_of_maps", result);
    let (result, agent) = outgrown(agent, &files[2])?;
    context.check("maps_that_the_config_outgrew", result);
    agent.stop()?;
    Ok(())
}

/// The daemon verifies only at its start and after events and gaps.
fn start() -> Result<RunningDaemon> {
    RunningDaemon::start(&[
        "--standalone",
        "--config",
        CONFIG,
        "--canary-every",
        "1",
        "--verify-every",
        "3600",
    ])
}

/// The directories of pins with their names.
fn pinned() -> Result<Vec<(String, PathBuf)>> {
    let entries = fs::read_dir(PINS)?.collect::<std::io::Result<Vec<_>>>()?;
    Ok(entries.into_iter().map(|e| (e.file_name().to_string_lossy().into_owned(), e.path())).collect())
}

/// A process that can open a pinned map can change the programs' entries, so only root may.
fn private() -> Result<String> {
    let mut printed = Vec::new();
    let below = pinned()?.into_iter().map(|(_, path)| path);
    for path in std::iter::once(PathBuf::from(PINS)).chain(below) {
        let metadata = fs::metadata(&path)?;
        let (mode, owner) = (metadata.permissions().mode() & 0o7777, metadata.uid());
        ensure!((mode, owner) == (0o700, 0), "{} is {mode:o} of {owner}", path.display());
        printed.push(path.display().to_string());
    }
    ensure!(printed.len() == 3, "links, maps and what holds them were to be there: {printed:?}");
    Ok(printed.join(", "))
}

/// Programs in the kernel on the open hook: this version's, and those of earlier versions.
fn on_the_open_hook() -> Result<usize> {
    /// `lsm_file_open` or `fentry_file_open`; the kernel keeps fifteen letters.
    const CUT: &str = "_file_ope";
    let programs = programs::loaded()?;
    Ok(programs.iter().filter_map(|program| program.name_as_str()).filter(|name| name.contains(CUT)).count())
}

/// Stops the daemon, renames pins with these prefixes as another version's, changes a file and starts the daemon again.
fn upgraded(agent: RunningDaemon, file: &Path, kinds: &[&str]) -> Result<(Result<String>, RunningDaemon)> {
    let before = agent.records()?.len();
    agent.stop()?;
    let moved = of_another_version(kinds)?;
    shell(&format!("echo drift >> {}", file.display()))?;
    let mut agent = start()?;
    let result = replaced(&mut agent, before, file, &moved);
    fs::write(file, simple::CONTENT)?;
    status::wait_for("compliant", LIMIT)?;
    Ok((result, agent))
}

/// More than the smallest maps hold, and so are the words of a bitmap for them.
const MANY: usize = 16_400;
const WORDS: u32 = 1 << 15;

/// Reloads a config that the maps are too small for, changes a file after the daemon has ended, and starts it again.
fn outgrown(agent: RunningDaemon, file: &Path) -> Result<(Result<String>, RunningDaemon)> {
    let before = agent.records()?.len();
    let declared = fs::read(CONFIG)?;
    let many = Path::new("/etc/outgrown");
    simple::files(many, MANY, Path::new(CONFIG))?;
    simple::declare_too(Path::new(CONFIG), &declared)?;
    agent.signal(Signal::SIGHUP)?;
    let status = agent.end()?;
    let result = (|| {
        ensure!(status.code() == Some(3), "the daemon has to end with an error: {status}");
        ensure!(on_the_open_hook()? == 1, "the programs that it attached are gone");
        Ok(())
    })();
    let pins: Vec<(PathBuf, PathBuf)> = pinned()?
        .into_iter()
        .map(|(name, path)| (path, Path::new(PINS).join(format!("{name}-aside-0"))))
        .collect();
    shell(&format!("echo drift >> {}", file.display()))?;
    let mut agent = start()?;
    let result = result.and_then(|()| {
        let printed = replaced(&mut agent, before, file, &pins)?;
        let maps =
            pins.iter().find(|(path, _)| path.join("BITMAP").exists()).context("no bitmap is pinned")?;
        let words = MapInfo::from_pin(maps.0.join("BITMAP"))?.max_entries();
        ensure!(words == WORDS, "the bitmap has {words} words");
        Ok(printed)
    });
    fs::write(file, simple::CONTENT)?;
    Ok((result, agent))
}

/// Renames pins with these prefixes as another version's. Gives the earlier and the present path of each.
pub(super) fn of_another_version(kinds: &[&str]) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut moved = Vec::new();
    for (name, path) in pinned()? {
        let Some(kind) = kinds.iter().find(|kind| name.starts_with(**kind)) else { continue };
        let old = Path::new(PINS).join(format!("{kind}0"));
        fs::rename(&path, &old).with_context(|| format!("rename {}", path.display()))?;
        moved.push((path, old));
    }
    ensure!(moved.len() == kinds.len(), "{moved:?} are not {kinds:?}");
    Ok(moved)
}

fn replaced(
    agent: &mut RunningDaemon,
    before: usize,
    file: &Path,
    moved: &[(PathBuf, PathBuf)],
) -> Result<String> {
    let since = |kind: &str| -> Result<Value> {
        let records = agent.records()?;
        let found = records.into_iter().skip(before).rfind(|record| record["kind"] == kind);
        found.with_context(|| format!("no record {kind}"))
    };
    let begun = since("start")?;
    ensure!(begun["detail"]["adopted"] == false, "what is another version's was adopted: {begun}");
    let is_gap = |record: &Value| record["kind"] == "gap" && record["detail"]["reason"] == "sensor-start";
    agent.wait_for("the gap", before, is_gap)?;
    agent.wait_for("drift of when it was replaced", before, |record| is_drift(record, file))?;
    agent.wait_for("the gap to close", before, |record| {
        is_gap(record) && record["detail"]["until"].is_string()
    })?;
    for (path, old) in moved {
        ensure!(path.exists(), "{} was not created again", path.display());
        ensure!(!old.exists(), "{} is still there", old.display());
    }
    private()?;
    // The kernel removes them a little later.
    wait::until("the old programs to go", LIMIT, || Ok((on_the_open_hook()? == 1).then_some(())))
        .with_context(|| format!("{:?} programs", on_the_open_hook()))?;
    // The new programs report changes.
    fs::write(file, simple::CONTENT)?;
    status::wait_for("compliant", LIMIT)?;
    let skip = agent.records()?.len();
    shell(&format!("echo again >> {}", file.display()))?;
    let record = agent.wait_for("drift from the new programs", skip, |record| is_drift(record, file))?;
    ensure!(record["operation"] != "sweep" && record["actor"]["exe"].is_string(), "{record}");
    Ok(record["operation"].to_string())
}
