//! A configuration extension that `systemd-confext` merges over `/etc`: one record for the merge, and changes below it are reported.
//!
//! In: a daemon whose policy is about `/etc` and [`FOLDER`], and whose baseline has the folder. Out: a check for each step.

use anyhow::{Result, ensure};

use super::merged::{
    LIMIT, drift, drift_at, index, make, merge, mounted_over, mounted_over_source, of_refresh, only,
    recovered, refresh,
};
use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::{Context, run, shell, status};

/// A directory of the baseline.
pub(super) const FOLDER: &str = "/etc/os-conf";
/// A file of the baseline that the extension has, too.
const FILE: &str = "/etc/os-conf/a";
/// A file that only the baseline has.
const OTHER: &str = "/etc/os-conf/b";
/// What the config declares. The extension does not have it.
const DECLARED: &str = "/etc/extensions-test";

/// Writes the files of the host.
pub(super) fn prepare() -> Result<()> {
    shell(&format!("mkdir {FOLDER} && echo of the host > {FILE} && echo of the host > {OTHER}")).map(drop)
}

pub(super) fn checks(context: &mut Context, agent: &mut RunningDaemon) {
    context.check("a_confext", merged(agent));
    context.check("an_index_of_the_confext", indexed(agent));
    context.check("changes_below_a_confext", changed(agent));
    context.check("a_refresh_of_the_confext", refreshed(agent));
    context.check("a_writable_confext", writable(agent));
    context.check("without_the_confext", unmerged(agent));
}

/// Each inode of `/etc` is another one after the merge, and only what the extension replaces has a record.
fn merged(agent: &mut RunningDaemon) -> Result<String> {
    make("/var/lib/confexts/demo", "etc", &[FILE, "/etc/os-conf/added"])?;
    let text = "configuration extensions are merged over /etc: \"demo\"";
    let (before, record) = merge(agent, "systemd-confext", "/etc", text)?;
    drift_at(agent, before, FILE)?;
    // Its record comes after all of those of the merge.
    mounted_over(agent, DECLARED)?;
    only(agent, before, &["/etc", DECLARED, FILE])?;
    Ok(record.to_string())
}

fn indexed(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    let printed = index("demo (confext)")?;
    recovered(agent, before, "/etc")?;
    status::wait_for("compliant", LIMIT)?;
    let arguments = "--config /run/extensions.yaml --policy /run/extensions-policy.yaml";
    for (path, source) in [(FILE, "extension demo (confext)"), (OTHER, "baseline")] {
        let explained = shell(&format!("{HOLDFAST} explain {path} {arguments}"))?;
        ensure!(explained.contains("as declared") && explained.contains(source), "{explained}");
    }
    run(HOLDFAST, &["image", "verify", "--image", "extensions"])?;
    Ok(printed)
}

/// A file of the config, one of the extension and one of the baseline, each with its source.
fn changed(agent: &mut RunningDaemon) -> Result<String> {
    let mut sources = Vec::new();
    for (path, source) in
        [(DECLARED, "99-worker-extensions"), (FILE, "extension demo (confext)"), (OTHER, "baseline")]
    {
        sources.push(mounted_over_source(agent, path, source)?);
    }
    Ok(sources.join(", "))
}

/// Each inode is another one once more, and all is as before.
fn refreshed(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    refresh("systemd-confext", "")?;
    mounted_over(agent, DECLARED)?;
    status::wait_for("compliant", LIMIT)?;
    let made = of_refresh(agent, before, DECLARED)?;
    ensure!(made.iter().all(|path| path == "/etc") && made.len() <= 1, "{made:?}");
    Ok(format!("{made:?}"))
}

/// Other than the index says, the merged `/etc` is writable: one difference. A change below it has a record with its actor.
fn writable(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    refresh("systemd-confext", "--mutable=ephemeral")?;
    drift(agent, before, "/etc", "configuration extensions are merged over /etc, writable: \"demo\"")?;
    let before = agent.records()?.len();
    shell(&format!("echo evil >> {DECLARED}"))?;
    let record = drift_at(agent, before, DECLARED)?;
    ensure!(record["actor"]["argv"].is_array(), "{record}");
    let before = agent.records()?.len();
    // The change was in memory alone.
    refresh("systemd-confext", "--mutable=no")?;
    recovered(agent, before, "/etc")?;
    status::wait_for("compliant", LIMIT)?;
    Ok(record.to_string())
}

/// What the index expects is gone, and a new index expects no extension.
fn unmerged(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    run("systemd-confext", &["unmerge"])?;
    let record = drift(agent, before, "/etc", "extensions are not merged over /etc: \"demo\"")?;
    run(HOLDFAST, &["image", "index", "--extensions"])?;
    recovered(agent, before, "/etc")?;
    status::wait_for("compliant", LIMIT)?;
    only(agent, before, &["/etc"])?;
    Ok(record["differences"].to_string())
}
