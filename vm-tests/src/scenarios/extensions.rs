//! What is mounted over `/usr`: an overlay that makes it writable, and a system extension. Each is one drift with its actor, whatever the number
//! of paths below, and an extension with an index is none. The same holds for a configuration extension over `/etc`.
//!
//! In: a guest with systemd, `systemd-sysext` and `systemd-confext`. Out: a check for each step.

mod confext;
pub(super) mod merged;

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use self::merged::{
    LIMIT, drift, drift_at, drifted, index, make, merge, only, overlay, recovered, recovered_at, refresh,
};
use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::files::load_module;
use crate::guest::{Context, run, shell, status, wait};

const CONFIG: &str = machine_config!(
    "99-worker-extensions",
    r#"      - {path: /etc/extensions-test, mode: 420, contents: {source: "data:,declared"}}
"#
);

const POLICY: &str = r"apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: extensions}
spec:
  rules:
  - {path: /usr, image: true, action: degrade}
  - {path: /usr/libexec/os/, image: true, action: degrade}
  - {path: /etc, image: true, action: degrade}
  - {path: /etc/os-conf/, image: true, action: degrade}
";

/// Programs of the host below the rule.
const PROGRAMS: usize = 50;
/// One that the extension has, too.
const PROGRAM: &str = "/usr/libexec/os/01";
/// One that the disk image has, too.
const PROGRAM_OF_DISK: &str = "/usr/libexec/os/02";

/// The scenario.
pub(super) fn systemd(context: &mut Context) -> Result<()> {
    wait::for_systemd()?;
    load_module("overlay")?;
    fs::create_dir_all("/usr/libexec/os")?;
    for number in 0..PROGRAMS {
        fs::write(format!("/usr/libexec/os/{number:02}"), "of the host\n")?;
    }
    confext::prepare()?;
    fs::write("/etc/extensions-test", "declared")?;
    fs::write("/run/extensions.yaml", CONFIG)?;
    fs::write("/run/extensions-policy.yaml", POLICY)?;
    shell(&format!(
        "{HOLDFAST} baseline /usr/libexec/os {} > /run/baseline.json && {HOLDFAST} image index --baseline /run/baseline.json",
        confext::FOLDER
    ))?;
    let arguments =
        ["--standalone", "--config", "/run/extensions.yaml", "--policy", "/run/extensions-policy.yaml"];
    let mut agent = RunningDaemon::start(&arguments)?;
    status::wait_for("compliant", LIMIT)?;
    context.check("an_overlay_over_usr", overlay(&mut agent));
    context.check("an_extension", extension(&mut agent));
    context.check("a_refresh", refreshed(&mut agent));
    context.check("an_index_of_the_extension", indexed(&mut agent));
    context.check("explained", explained());
    context.check("unmerged", unmerged(&mut agent));
    confext::checks(context, &mut agent);
    context.check("a_disk_image", disk_image(&mut agent));
    context.check("a_disk_image_with_partitions", partitioned(&mut agent));
    ensure!(agent.stop()?.success(), "the daemon did not end well");
    Ok(())
}

/// The extension replaces one program, and adds another one.
fn extension(agent: &mut RunningDaemon) -> Result<String> {
    make("/var/lib/extensions/demo", "usr/lib", &[PROGRAM, "/usr/libexec/os/added"])?;
    let text = "system extensions are merged over /usr: \"demo\"";
    let (before, record) = merge(agent, "systemd-sysext", "/usr", text)?;
    drift_at(agent, before, PROGRAM)?;
    only(agent, before, &["/usr", PROGRAM])?;
    Ok(record["actor"].to_string())
}

/// A refresh merges the same extension with new inodes.
fn refreshed(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    refresh("systemd-sysext", "")?;
    let record = drift(agent, before, "/usr", "system extensions are merged over /usr: \"demo\"")?;
    let others = drifted(agent, before)?.into_iter().filter(|path| path != "/usr" && path != PROGRAM).count();
    ensure!(others == 0, "{others} other paths");
    let touched = agent.records()?.into_iter().find(|record| record["kind"] == "touched");
    ensure!(touched.is_none(), "{touched:?}");
    Ok(record.to_string())
}

/// The daemon reads the index within its beat, and takes the extension for the source of its paths.
fn indexed(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    let printed = index("demo (sysext)")?;
    recovered(agent, before, "/usr")?;
    status::wait_for("compliant", LIMIT)?;
    let verified = run(HOLDFAST, &["image", "verify", "--image", "extensions"])?;
    Ok(format!("{printed}{verified}"))
}

fn explained() -> Result<String> {
    let arguments = "--config /run/extensions.yaml --policy /run/extensions-policy.yaml";
    let printed = shell(&format!("{HOLDFAST} explain {PROGRAM} {arguments}"))?;
    for part in ["as declared", "extension demo (sysext)", "sha256 of an extension"] {
        ensure!(printed.contains(part), "no {part}: {printed}");
    }
    Ok(printed)
}

/// Without the extension its index is old, so what its paths should be is unknown.
fn unmerged(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    run("systemd-sysext", &["unmerge"])?;
    let record = drift(agent, before, "/usr", "extensions are not merged over /usr: \"demo\"")?;
    agent.wait_for("the gap", before, |record| {
        record["kind"] == "gap" && record["detail"]["reason"] == "image-not-indexed"
    })?;
    // Now the index expects no extension.
    run(HOLDFAST, &["image", "index", "--extensions"])?;
    recovered(agent, before, "/usr")?;
    status::wait_for("compliant", LIMIT)?;
    only(agent, before, &["/usr"])?;
    Ok(record["differences"].to_string())
}

/// An extension that is a disk image is indexed like a directory. Nothing of its mount is left, and other processes never see it.
fn disk_image(agent: &mut RunningDaemon) -> Result<String> {
    load_module("loop")?;
    shell(
        "rm -r /var/lib/extensions/demo && mkdir -p /run/disk/usr/lib/extension-release.d /run/disk/usr/libexec/os && cd /run/disk/usr && \
         echo ID=_any > lib/extension-release.d/extension-release.gpu && echo of the disk > libexec/os/02 && \
         mke2fs -q -t ext4 -O ^has_journal -d /run/disk /var/lib/extensions/gpu.raw 4M",
    )?;
    let before = agent.records()?.len();
    run("systemd-sysext", &["merge"])?;
    drift(agent, before, "/usr", "system extensions are merged over /usr: \"gpu\"")?;
    drift_at(agent, before, PROGRAM_OF_DISK)?;
    let mounts =
        || -> Result<(String, String)> { Ok((fs::read_to_string("/proc/self/mountinfo")?, devices()?)) };
    let (before, mounted) = (agent.records()?.len(), mounts()?);
    let printed = index("gpu (sysext)")?;
    let left = mounts()?;
    ensure!(left == mounted, "{mounted:?}, then {left:?}");
    ensure!(!Path::new("/var/lib/holdfast/images/extension").exists(), "the directory for mounts is left");
    recovered(agent, before, "/usr")?;
    status::wait_for("compliant", LIMIT)?;
    let new = agent.records()?.split_off(before);
    let mount = new.iter().find(|record| record["path"] == "/var/lib/holdfast/images/extension");
    ensure!(mount.is_none(), "{mount:?}");
    let arguments = "--config /run/extensions.yaml --policy /run/extensions-policy.yaml";
    let explained = shell(&format!("{HOLDFAST} explain {PROGRAM_OF_DISK} {arguments}"))?;
    for part in ["as declared", "extension gpu (sysext)", "sha256 of an extension"] {
        ensure!(explained.contains(part), "no {part}: {explained}");
    }
    run("systemd-sysext", &["unmerge"])?;
    Ok(printed)
}

/// The loop devices.
fn devices() -> Result<String> {
    shell("losetup --list --noheadings --output NAME")
}

/// The same with another file, in a partition for the root directory, as systemd's own tools make extensions.
fn partitioned(agent: &mut RunningDaemon) -> Result<String> {
    shell(
        "cd /var/lib/extensions && rm gpu.raw && echo of the partition > /run/disk/usr/libexec/os/02 && \
         mke2fs -q -t ext4 -O ^has_journal -d /run/disk /run/part 4M && truncate -s 8M gpu.raw && \
         echo 'start=2048, size=8192, type=4f68bce3-e8cd-4db1-96e7-fbcaf984b709' | sfdisk -q --label gpt gpu.raw && \
         dd if=/run/part of=gpu.raw bs=512 seek=2048 conv=notrunc status=none",
    )?;
    let before = agent.records()?.len();
    run("systemd-sysext", &["merge"])?;
    drift_at(agent, before, PROGRAM_OF_DISK)?;
    let before = agent.records()?.len();
    let known = devices()?;
    let printed = index("gpu (sysext)")?;
    ensure!(devices()? == known, "{known}, then {}", devices()?);
    recovered_at(agent, before, PROGRAM_OF_DISK)?;
    status::wait_for("compliant", LIMIT)?;
    run("systemd-sysext", &["unmerge"])?;
    Ok(printed)
}
