//! A system extension that `systemd-sysext` merges over the `/usr` of an ostree host: what the commit has stays expected, and what the extension
//! has is expected with an index of it.

use std::fs;

use anyhow::{Result, ensure};

use super::super::apply::holdfast;
use super::super::extensions::merged::{
    CONTENT, LIMIT, drift, drift_at, index, make, merge, mounted_over_source, of_refresh, only, overlay,
    recovered, refresh,
};
use crate::guest::agent::RunningDaemon;
use crate::guest::ostree::COPIED;
use crate::guest::{Context, run, shell, status};

/// The directory of the extension.
const PLACE: &str = "/var/lib/extensions/demo";
/// A file of the commit's second layer, which the extension has, too.
const FILE: &str = "/usr/lib/os-version";
/// A file that only the commit has, from its first layer.
const OTHER: &str = "/usr/lib/systemd/system/basic.target";
/// A file that only the extension has.
const ADDED: &str = "/usr/lib/systemd/system/added.service";

const POLICY: &str = r"apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: extensions}
spec:
  rules:
  - {path: /usr, image: true, action: degrade}
  - {path: /usr/lib/os-version, image: true, action: degrade}
  - {path: /usr/lib/systemd/system/, image: true, action: observe}
  - {path: /etc/debian_version, image: true, action: observe}
";

/// A file without a mount above it.
const LATER: &str = "/etc/debian_version";

/// The checks. The host has the index of its commit.
pub(super) fn checks(context: &mut Context) -> Result<()> {
    ensure!(FILE.ends_with(COPIED), "{FILE} is not of the second layer");
    fs::write("/root/extensions-policy.yaml", POLICY)?;
    let mut agent = RunningDaemon::start(&["--standalone", "--policy", "/root/extensions-policy.yaml"])?;
    status::wait_for("compliant", LIMIT)?;
    context.check("an_extension", merged(&mut agent));
    context.check("an_index_of_the_extension", indexed(&mut agent));
    context.check("changes_below_the_extension", changed(&mut agent));
    context.check("an_overlay_over_the_extension", overlay(&mut agent));
    context.check("a_refresh", refreshed(&mut agent));
    context.check("unmerged", unmerged(&mut agent));
    ensure!(agent.stop()?.success(), "the daemon did not end well");
    Ok(())
}

/// Each inode of `/usr` is another one after the merge, and only what the extension replaces has a record.
fn merged(agent: &mut RunningDaemon) -> Result<String> {
    make(PLACE, "usr/lib", &[FILE, ADDED])?;
    let text = "system extensions are merged over /usr: \"demo\"";
    let (before, record) = merge(agent, "systemd-sysext", "/usr", text)?;
    let file = drift_at(agent, before, FILE)?;
    ensure!(file["source"].as_str().is_some_and(|source| source.starts_with("layer 2 of 2")), "{file}");
    // The record of this change comes after all of those of the merge.
    mounted_over_source(agent, OTHER, "layer 1 of 2")?;
    only(agent, before, &["/usr", FILE, OTHER])?;
    Ok(record.to_string())
}

/// With its index the extension is the source of its own paths, and the layers of the commit are that of the others.
fn indexed(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    let printed = index("demo (sysext)")?;
    recovered(agent, before, "/usr")?;
    status::wait_for("compliant", LIMIT)?;
    for (path, source) in
        [(FILE, "extension demo (sysext)"), (ADDED, "extension demo (sysext)"), (OTHER, "layer 1 of 2")]
    {
        let (explained, _) = holdfast(0, &["explain", path])?;
        let put = explained.lines().find(|line| line.trim_start().starts_with("put there by"));
        ensure!(put.is_some_and(|line| line.contains(source)), "not by {source}: {explained}");
    }
    holdfast(0, &["image", "verify", "--image", "extensions"])?;
    holdfast(0, &["image", "verify", "/usr/lib/systemd/system"])?;
    Ok(printed)
}

/// Changes of the merged paths have their source and actor. `image verify` finds one in the directory of the extension.
fn changed(agent: &mut RunningDaemon) -> Result<String> {
    for (path, source) in [(FILE, "extension demo (sysext)"), (OTHER, "layer 1 of 2")] {
        mounted_over_source(agent, path, source)?;
    }
    shell(&format!("echo evil >> {PLACE}{FILE}"))?;
    let found = holdfast(1, &["image", "verify", "--image", "extensions"]);
    shell(&format!("printf '{CONTENT}' > {PLACE}{FILE}"))?;
    let (found, _) = found?;
    ensure!(found.contains(&format!("differs {FILE} (extension demo (sysext)")), "{found}");
    holdfast(0, &["image", "verify", "--image", "extensions"])?;
    Ok(found)
}

/// A refresh merges the same extension with new inodes. It has one record at most.
fn refreshed(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    refresh("systemd-sysext", "")?;
    let content = fs::read(LATER)?;
    fs::write(LATER, "local\n")?;
    // Its record comes after those of the refresh.
    drift_at(agent, before, LATER)?;
    fs::write(LATER, content)?;
    status::wait_until("no drift", LIMIT, |status| status["drifted"].as_array().is_some_and(Vec::is_empty))?;
    let made = of_refresh(agent, before, LATER)?;
    ensure!(made.iter().all(|path| path == "/usr") && made.len() <= 1, "{made:?}");
    Ok(format!("{made:?}"))
}

/// What the index expects is gone: one drift. A new index expects no extension.
fn unmerged(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    run("systemd-sysext", &["unmerge"])?;
    drift(agent, before, "/usr", "extensions are not merged over /usr: \"demo\"")?;
    let (printed, _) = holdfast(0, &["image", "index", "--extensions"])?;
    recovered(agent, before, "/usr")?;
    status::wait_for("compliant", LIMIT)?;
    only(agent, before, &["/usr"])?;
    Ok(printed)
}
