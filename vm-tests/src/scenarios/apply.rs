//! A config applied to a node with a real systemd: the actions on its units, their failures, and a reboot.
//!
//! In: a systemd guest that may reboot. Out: a check for each action and each failure; the second boot adds a check of
//! the comparison that follows a reboot. A third boot is the fallback of a failed action, whose unit fails again.

mod masked;
mod node;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::guest::agent::HOLDFAST;
use crate::guest::command::CONSENT;
use crate::guest::{Context, bus, run, wait};
use node::{APPLY, Wish, apply, apply_manifest, enabled, file, property, write_down};
pub(super) use node::{history, holdfast, result};

/// What the second boot must find.
const NOTE: &str = "/var/lib/holdfast-scenario";
/// What the third boot must find.
const FAILED: &str = "/var/lib/holdfast-scenario-failed";

/// The scenario, in all boots.
pub(super) fn systemd(context: &mut Context) -> Result<()> {
    wait::until("systemd to finish starting", Duration::from_secs(90), || {
        let jobs = run("systemctl", &["list-jobs", "--no-legend"])?;
        let others = jobs.lines().filter(|line| !line.contains("holdfast-guest")).count();
        Ok((others == 0).then_some(()))
    })?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    if let Ok(before) = fs::read_to_string(FAILED) {
        context.check("failing_after_a_reboot", after_failed_reboot(&before, &boot));
        return Ok(());
    }
    if let Ok(before) = fs::read_to_string(NOTE) {
        context.check("reboot", after_reboot(&before, &boot));
        fs::write(FAILED, boot)?;
        return end(reboots_for_a_failure());
    }
    let wish = Wish::first();
    context.check("another-fips-mode", another_fips_mode(&wish));
    context.check("first", first(&wish));
    context.check("none", none(&wish));
    let wish = wish.with("none", "2");
    context.check("reload", reload(&wish));
    let wish = wish.with("reload", "2");
    context.check("reload-or-restart", reload_or_restart(&wish));
    let wish = wish.with("either", "2");
    context.check("restart", restart(&wish));
    let wish = wish.with("restart", "2");
    let wish = Wish { description: "second", ..wish };
    context.check("daemon-reload", daemon_reload(&wish));
    let wish = Wish {
        other_enabled: false,
        shipped: "      - {name: dpkg-db-backup.timer, mask: true}\n      - {name: e2scrub_all.timer, enabled: false}\n",
        ..wish
    };
    context.check("enable-disable-mask", units(&wish));
    context.check("failing", goes_back(&wish.with("fails", "2"), "fails.service", "fails"));
    context.check("hanging", goes_back(&wish.with("hangs", "2"), "hangs.service", "hangs"));
    context.check("inhibited", inhibited(&wish.with("holds", "2")));
    let wish = wish.with("holds", "2");
    context.check("masked", masked::masked(&wish.with("masked", "1")));
    let wish = Wish { shipped: "", other_enabled: true, ..wish };
    context.check("back", back(&wish));
    context.check("drift", drift(&wish));

    // No policy entry matches this file, so the apply reboots. This is the last step of this boot.
    fs::write(NOTE, boot)?;
    end(apply(&wish.with("reboot", "1"), 0).and_then(|report| result(&report, "rebooting")))
}

/// The end of a boot, after the request for a reboot.
fn end(asked: Result<()>) -> Result<()> {
    if let Err(error) = asked {
        bail!(
            "{error:#}\n{}",
            run("journalctl", &["-n", "40", "--no-pager", "-o", "cat"]).unwrap_or_default()
        );
    }
    loop {
        // The boot ends here. If it does not, the host's time limit ends the scenario.
        std::thread::park();
    }
}

/// Preflight compares with the booted kernel's FIPS mode, and the apply writes nothing.
fn another_fips_mode(wish: &Wish) -> Result<String> {
    const SWITCH: &str = "/proc/sys/crypto/fips_enabled";
    let refused = |manifest: &str| -> Result<()> {
        write_down(manifest)?;
        let (_, error) = holdfast(4, &APPLY)?;
        ensure!(error.contains("detected change to FIPS flag"), "{error}");
        ensure!(!Path::new("/etc/demo").exists(), "it wrote all the same");
        Ok(())
    };
    let plain = wish.manifest();
    refused(&plain.replace("\nspec:\n", "\nspec:\n  fips: true\n"))?;
    if !Path::new(SWITCH).exists() {
        return Ok("a kernel without the switch".to_owned());
    }
    fs::write("/run/fips", "1\n")?;
    run("mount", &["--bind", "/run/fips", SWITCH])?;
    let other = refused(&plain);
    run("umount", &[SWITCH])?;
    other?;
    Ok("a kernel with the switch".to_owned())
}

fn first(wish: &Wish) -> Result<String> {
    let report = apply(wish, 0)?;
    result(&report, "done")?;
    ensure!(enabled("demo.service")? == "enabled" && enabled("other.service")? == "enabled", "not enabled");
    for unit in ["demo.service", "fails.service", "hangs.service", "holds.service", "boots.service"] {
        run("systemctl", &["start", unit])?;
    }
    Ok(format!("{} changes", report["plan"]["changes"].as_array().map_or(0, Vec::len)))
}

fn none(wish: &Wish) -> Result<String> {
    let pid = property("demo.service", "MainPID")?;
    let report = apply(&wish.with("none", "2"), 0)?;
    result(&report, "done")?;
    ensure!(file("none") == "2" && property("demo.service", "MainPID")? == pid, "{report:#}");
    Ok(String::new())
}

fn reload(wish: &Wish) -> Result<String> {
    let pid = property("demo.service", "MainPID")?;
    result(&apply(&wish.with("reload", "2"), 0)?, "done")?;
    ensure!(fs::read_to_string("/run/reloads")? == "2", "it was not reloaded once, after the write");
    ensure!(property("demo.service", "MainPID")? == pid, "it was restarted");
    Ok(String::new())
}

/// systemd reloads the unit that supports it, and restarts the other one.
fn reload_or_restart(wish: &Wish) -> Result<String> {
    let invocations = || -> Result<[String; 2]> {
        Ok([property("demo.service", "InvocationID")?, property("boots.service", "InvocationID")?])
    };
    let before = invocations()?;
    let report = apply(&wish.with("either", "2"), 0)?;
    result(&report, "done")?;
    let steps = report["plan"]["steps"].as_array().cloned().unwrap_or_default();
    let either = steps.iter().filter(|step| step["action"] == "reload-or-restart").count();
    ensure!(either == 2, "{report:#}");
    let after = invocations()?;
    ensure!(after[0] == before[0] && after[1] != before[1], "{before:?} became {after:?}");
    ensure!(fs::read_to_string("/run/reloads")? == "22", "demo.service was not reloaded once more");
    Ok(String::new())
}

fn restart(wish: &Wish) -> Result<String> {
    let pid = property("demo.service", "MainPID")?;
    result(&apply(&wish.with("restart", "2"), 0)?, "done")?;
    let now = property("demo.service", "MainPID")?;
    ensure!(now != pid && now != "0", "process {pid} is {now} now");
    Ok(format!("process {pid} became {now}"))
}

fn daemon_reload(wish: &Wish) -> Result<String> {
    let pid = property("demo.service", "MainPID")?;
    result(&apply(wish, 0)?, "done")?;
    let description = property("demo.service", "Description")?;
    ensure!(description == "second", "systemd still calls it {description:?}");
    ensure!(property("demo.service", "MainPID")? == pid, "it was restarted");
    Ok(String::new())
}

fn units(wish: &Wish) -> Result<String> {
    let before = enabled("e2scrub_all.timer")?;
    result(&apply(wish, 0)?, "done")?;
    for (unit, wanted) in
        [("other.service", "disabled"), ("dpkg-db-backup.timer", "masked"), ("e2scrub_all.timer", "disabled")]
    {
        let state = enabled(unit)?;
        ensure!(state == wanted, "{unit} is {state}");
    }
    Ok(format!("e2scrub_all.timer was {before}"))
}

/// An action that fails or hangs: the old file is back, the unit runs with it, and the node is Degraded with the
/// reason.
fn goes_back(wish: &Wish, unit: &str, name: &str) -> Result<String> {
    let before = history()?["current"].clone();
    let report = apply(wish, 3)?;
    result(&report, "rolled-back")?;
    let reason = report["reason"].as_str().unwrap_or_default().to_owned();
    ensure!(reason.contains(&format!("restart {unit}")), "{reason}");
    ensure!(file(name) == "1", "the file says {:?}", file(name));
    let state = property(unit, "ActiveState")?;
    ensure!(state == "active", "{unit} is {state}");
    let history = history()?;
    ensure!(history["current"] == before && history["standing"]["state"] == "Degraded", "{history:#}");
    Ok(reason)
}

/// Units that the config no longer declares get back the OS's state.
fn back(wish: &Wish) -> Result<String> {
    result(&apply(wish, 0)?, "done")?;
    for (unit, wanted) in
        [("other.service", "enabled"), ("dpkg-db-backup.timer", "enabled"), ("e2scrub_all.timer", "enabled")]
    {
        let state = enabled(unit)?;
        ensure!(state == wanted, "{unit} is {state}");
    }
    ensure!(history()?["standing"]["state"] == "Done", "not done");
    Ok(String::new())
}

/// While an action runs, no other process can shut the node down, and the state names what the apply waits for. A forged result on the
/// bus changes nothing.
fn inhibited(wish: &Wish) -> Result<String> {
    let locks = || run("systemd-inhibit", &["--list", "--no-legend"]);
    let ours = |list: &str| list.lines().find(|line| line.starts_with("holdfast ")).map(str::to_owned);
    run("mkfifo", &["/run/hold"])?;
    fs::write("/root/new.yaml", wish.manifest())?;
    let mut applying =
        Command::new(HOLDFAST).args(APPLY).envs(CONSENT).stdout(std::process::Stdio::null()).spawn()?;
    let mut forged = false;
    let held = wait::until("the act to be waited for under a lock", Duration::from_mins(1), || {
        let standing = history()?["standing"].clone();
        let is_at_it = standing["wait"] == "act"
            && standing["waiting_for"].as_str().is_some_and(|what| what.contains("holds.service"));
        let Some(lock) = ours(&locks()?).filter(|_| is_at_it) else { return Ok(None) };
        forged |= bus::forge("alice", "holds.service", "failed")?;
        // A unit that has found the pipe and not opened it would block below. This request lets it continue.
        Ok(is_read("/run/hold").then_some(lock))
    });
    // The unit continues, whatever the result was.
    let pipe = fs::OpenOptions::new().read(true).write(true).open("/run/hold")?;
    fs::remove_file("/run/hold")?;
    drop(pipe);
    let ended = applying.wait()?;
    let held = held?;
    ensure!(forged, "the job ended before a result was forged");
    ensure!(ended.success(), "{ended}");
    ensure!(held.contains("shutdown") && held.contains("block"), "{held}");
    let after = locks()?;
    ensure!(ours(&after).is_none(), "it is held after the end: {after}");
    Ok(held)
}

/// Whether a process reads from a pipe, or waits for a writer to it (fifo(7)). Then nothing blocks the process any
/// more.
fn is_read(pipe: &str) -> bool {
    use std::os::unix::fs::OpenOptionsExt as _;
    fs::OpenOptions::new().write(true).custom_flags(nix::libc::O_NONBLOCK).open(pipe).is_ok()
}

fn drift(wish: &Wish) -> Result<String> {
    fs::write("/etc/demo/none", "tampered")?;
    fs::write("/root/new.yaml", wish.with("reload", "3").manifest())?;
    let (_, error) = holdfast(3, &["apply", "/root/new.yaml", "--policy", "/root/policy.yaml"])?;
    ensure!(error.contains("content mismatch for file \"/etc/demo/none\""), "{error}");
    ensure!(file("reload") == "2", "it wrote all the same");
    fs::write("/etc/demo/none", "2")?;
    Ok(error.trim().to_owned())
}

fn after_reboot(before: &str, boot: &str) -> Result<String> {
    ensure!(before != boot, "the boot id is the same");
    ensure!(file("reboot") == "1", "the file is not there");
    let (printed, error) = holdfast(0, &["apply", "--resume", "-o", "json"])?;
    let report: Value = serde_json::from_str(&printed).with_context(|| format!("{printed}{error}"))?;
    result(&report, "done")?;
    let history = history()?;
    ensure!(
        history["applies"][0]["result"] == "done" && history["standing"]["state"] == "Done",
        "{history:#}"
    );
    holdfast(0, &["check", "--config", "/var/lib/holdfast/apply/current"])?;
    Ok(format!("{} became {}", before.trim(), boot.trim()))
}

/// A unit does not start with its new file, and no policy sets another fallback. The node reboots, and the command
/// reports that the apply has not succeeded.
fn reboots_for_a_failure() -> Result<()> {
    let manifest = fs::read_to_string("/root/new.yaml")?;
    let line = |content: &str| {
        format!("/etc/demo/boots, mode: 420, overwrite: true, contents: {{source: 'data:,{content}'}}")
    };
    ensure!(manifest.contains(&line("1")), "{manifest}");
    let report = apply_manifest(&manifest.replace(&line("1"), &line("2")), 3)?;
    result(&report, "rebooting")?;
    let reason = report["reason"].as_str().unwrap_or_default();
    ensure!(
        reason.contains("restart boots.service: ") && reason.ends_with("so the node reboots"),
        "{reason}"
    );
    ensure!(history()?["standing"]["reason"] == reason, "{:#}", history()?);
    Ok(())
}

/// The unit fails again after the boot: the apply rolls everything back.
fn after_failed_reboot(before: &str, boot: &str) -> Result<String> {
    ensure!(before != boot, "the boot id is the same");
    ensure!(file("boots") == "2", "the file says {:?}", file("boots"));
    let (printed, error) = holdfast(3, &["apply", "--resume", "-o", "json"])?;
    let report: Value = serde_json::from_str(&printed).with_context(|| format!("{printed}{error}"))?;
    result(&report, "rolled-back")?;
    let reason = report["reason"].as_str().unwrap_or_default().to_owned();
    ensure!(reason == "after the reboot: boots.service: the unit failed", "{reason}");
    ensure!(file("boots") == "1", "the file says {:?}", file("boots"));
    let state = property("boots.service", "ActiveState")?;
    ensure!(state == "active", "boots.service is {state}");
    let history = history()?;
    ensure!(history["standing"]["state"] == "Degraded", "{history:#}");
    holdfast(0, &["check", "--config", "/var/lib/holdfast/apply/current"])?;
    Ok(reason)
}
