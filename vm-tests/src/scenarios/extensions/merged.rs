//! Merges of extensions, and what the daemon records of them.
//!
//! In: the files of an extension, a daemon and the number of its records before a step. Out: the extension on the disk, or records.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::{run, shell, status};

/// How long the daemon may take.
pub(in super::super) const LIMIT: Duration = Duration::from_mins(1);

/// Makes an extension that fits each OS, a directory, with these paths of files. Each file has the content [`CONTENT`].
pub(in super::super) fn make(place: &str, release: &str, files: &[&str]) -> Result<()> {
    let name = place.rsplit('/').next().unwrap_or_default();
    let folder = format!("{place}/{release}/extension-release.d");
    shell(&format!("mkdir -p {folder} && echo ID=_any > {folder}/extension-release.{name}"))?;
    for file in files {
        shell(&format!("mkdir -p $(dirname {place}{file}) && printf '{CONTENT}' > {place}{file}"))?;
    }
    Ok(())
}

/// The content of the files of an extension.
pub(in super::super) const CONTENT: &str = "of the extension\\n";

/// Whether a record is about what is mounted over a hierarchy.
pub(in super::super) fn is_of(record: &Value, hierarchy: &str, kind: &str) -> bool {
    record["kind"] == kind && record["thing"] == "hierarchy" && record["path"] == hierarchy
}

/// The drift of a hierarchy after `before` records. It has one difference, with this text, and an actor.
pub(in super::super) fn drift(
    agent: &mut RunningDaemon,
    before: usize,
    hierarchy: &str,
    text: &str,
) -> Result<Value> {
    let what = format!("the drift of {hierarchy}");
    let record = agent.wait_for(&what, before, |record| is_of(record, hierarchy, "drift"))?;
    ensure!(record["differences"][0]["text"] == text && record["differences"][1].is_null(), "{record}");
    ensure!(record["actor"]["argv"].is_array() && record["detail"]["policy"] == "degrade", "{record}");
    Ok(record)
}

/// Waits for the end of the drift of a hierarchy.
pub(in super::super) fn recovered(agent: &mut RunningDaemon, before: usize, hierarchy: &str) -> Result<()> {
    let what = format!("the recovery of {hierarchy}");
    agent.wait_for(&what, before, |record| is_of(record, hierarchy, "recovered")).map(drop)
}

/// The drift of a path after `before` records.
pub(in super::super) fn drift_at(agent: &mut RunningDaemon, before: usize, path: &str) -> Result<Value> {
    let what = format!("the drift of {path}");
    agent.wait_for(&what, before, |record| record["kind"] == "drift" && record["path"] == path)
}

/// Waits for the end of the drift of a path.
pub(in super::super) fn recovered_at(agent: &mut RunningDaemon, before: usize, path: &str) -> Result<()> {
    let what = format!("the recovery of {path}");
    agent.wait_for(&what, before, |record| record["kind"] == "recovered" && record["path"] == path).map(drop)
}

/// The paths of the drift records after `before` records, sorted.
pub(in super::super) fn drifted(agent: &RunningDaemon, before: usize) -> Result<Vec<String>> {
    let records = agent.records()?;
    let drifts = records.iter().skip(before).filter(|record| record["kind"] == "drift");
    let mut paths: Vec<String> =
        drifts.filter_map(|record| Some(record["path"].as_str()?.to_owned())).collect();
    paths.sort();
    Ok(paths)
}

/// Fails if other paths than these, which are sorted, have a drift after `before` records.
pub(in super::super) fn only(agent: &RunningDaemon, before: usize, paths: &[&str]) -> Result<()> {
    let drifted = drifted(agent, before)?;
    ensure!(drifted == paths, "{drifted:?}");
    Ok(())
}

/// Merges the extensions by a program of systemd: a drift of the hierarchy with this text, by that program. It gives
/// the number of records before the merge, and the record.
pub(in super::super) fn merge(
    agent: &mut RunningDaemon,
    program: &str,
    hierarchy: &str,
    text: &str,
) -> Result<(usize, Value)> {
    let before = agent.records()?.len();
    run(program, &["merge"])?;
    let record = drift(agent, before, hierarchy, text)?;
    // `systemd-confext` is a link to that program.
    let exe = record["actor"]["exe"].as_str().unwrap_or_default();
    ensure!(exe.ends_with("/systemd-sysext"), "{record}");
    Ok((before, record))
}

/// A writable overlay over `/usr` has other inodes and the same contents: one drift, which an unmount ends.
pub(in super::super) fn overlay(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    shell(
        "mkdir -p /run/upper /run/work && mount -t overlay overlay -o lowerdir=/usr,upperdir=/run/upper,workdir=/run/work /usr",
    )?;
    let record = drift(agent, before, "/usr", "/usr is writable by an overlay that is mounted over it")?;
    ensure!(record["actor"]["exe"].as_str().is_some_and(|exe| exe.ends_with("/mount")), "{record}");
    // The shell's own program is on the overlay.
    shell("umount -l /usr")?;
    recovered(agent, before, "/usr")?;
    status::wait_for("compliant", LIMIT)?;
    only(agent, before, &["/usr"])?;
    Ok(record["differences"].to_string())
}

/// A file is mounted over another one: a drift, which the unmount ends. It gives the drift.
pub(in super::super) fn mounted_over(agent: &mut RunningDaemon, path: &str) -> Result<Value> {
    let before = agent.records()?.len();
    shell(&format!("echo evil > /run/evil && mount --bind /run/evil {path}"))?;
    let record = drift_at(agent, before, path)?;
    shell(&format!("umount {path}"))?;
    recovered_at(agent, before, path)?;
    Ok(record)
}

/// The same with the actor and the beginning of the source that the drift must have.
pub(in super::super) fn mounted_over_source(
    agent: &mut RunningDaemon,
    path: &str,
    source: &str,
) -> Result<String> {
    let record = mounted_over(agent, path)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (exe, named) = (text(&record["actor"]["exe"]), text(&record["source"]));
    ensure!(exe.ends_with("/mount") && named.starts_with(source), "{record}");
    Ok(named)
}

/// Merges the same extensions anew, with other inodes.
pub(in super::super) fn refresh(program: &str, options: &str) -> Result<()> {
    // Newer versions leave an unchanged merge as it is, unless they are asked. Older ones do not know the option.
    let refresh = format!("{program} refresh {options}");
    shell(&format!("{refresh} --always-refresh=yes 2> /dev/null || {refresh}")).map(drop)
}

/// The paths of the drifts and touches by a refresh after `before` records, without that of the file that was mounted over later. Its drift may
/// name the refresh, which gave the file another inode.
pub(in super::super) fn of_refresh(agent: &RunningDaemon, before: usize, later: &str) -> Result<Vec<String>> {
    let records = agent.records()?.split_off(before);
    let by_refresh = |record: &Value| {
        let exe = record["actor"]["exe"].as_str().unwrap_or_default();
        let is_change = matches!(record["kind"].as_str(), Some("drift" | "touched"));
        is_change && exe.ends_with("/systemd-sysext") && record["path"] != later
    };
    let made = records.iter().filter(|record| by_refresh(record));
    Ok(made.map(|record| record["path"].as_str().unwrap_or_default().to_owned()).collect())
}

/// Makes the index of what is merged now. It gives what the command prints.
pub(in super::super) fn index(extension: &str) -> Result<String> {
    let printed = run(HOLDFAST, &["image", "index", "--extensions"])?;
    let lines = ["indexed 1 merged extension".to_owned(), format!("extension {extension}")];
    ensure!(lines.iter().all(|line| printed.contains(line.as_str())), "{printed}");
    Ok(printed)
}
