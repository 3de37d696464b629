//! An ostree host that configs upgrade and roll back, each time by a real reboot.
//!
//! In: a host that booted version 1, and may reboot. Out: a check for each step. The first reboot boots version 2, with
//! arguments that waited for it. `holdfast rollback` goes back by the second. The third is for version 2, which the
//! shutdown does not finish. The fourth is for version 2 whose boot loader loses an argument; the apply rolls back with
//! the fifth. The sixth is for another change, and includes arguments that waited. Then an administrator drops the staged
//! deployment and boots version 2 by hand. A forced apply restores everything with the eighth.

mod cluster;
mod commit;
mod defaults;
mod extensions;
mod node;
mod ordered;

use std::fs;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::Value;

use super::apply::{history, holdfast, result};
use crate::guest::agent::RunningDaemon;
use crate::guest::ostree::{LOST, VERSIONS};
use crate::guest::{Context, run, status, wait};
use defaults::{default_is_back, other_default};
use node::{CURRENT, FILE, PINNED, STAGE, check, manifest, report};

/// The file's content when a service read it that starts with the others.
const READ: &str = "/run/pinned-at-start";
/// The service that writes again what an update overwrote, as installed.
const EARLY: &str = include_str!("../../../deploy/systemd/holdfast-early.service");
/// A drop-in that prevents the shutdown from finishing the staged deployment.
const UNFINISHED: &str = "/run/systemd/system/ostree-finalize-staged.service.d/unfinished.conf";

/// An upgrade and its roll-back: the first two reboots.
pub(super) fn upgrade(context: &mut Context) -> Result<()> {
    boot(context, "rolled back")
}

/// All reboots.
pub(super) fn failures(context: &mut Context) -> Result<()> {
    boot(context, "forced")
}

/// The steps of one boot. The scenario ends with the checks of the stage `last`.
fn boot(context: &mut Context, last: &str) -> Result<()> {
    wait::for_systemd()?;
    let stage = fs::read_to_string(STAGE).unwrap_or_default();
    match stage.as_str() {
        "" => {
            context.check("host", host(0));
            context.check("commit_indexed", commit::indexed());
            context.check("early unit", early_unit());
            context.check("first", first());
            context.check("argument_waits", waits());
            context.check("argument_taken_away", taken_away());
            context.check("arguments_wait_again", wait_again());
            context.check("foreseen", foreseen());
            context.check("next_commit_indexed", commit::next_indexed());
            let arguments = ["run=1", "demo=blue sky=\"a b\""];
            ordered::reboots(context, "upgraded", &node::config(VERSIONS[1].branch, &arguments, "two"))
        }
        "upgraded" => {
            context.check("upgraded", upgraded());
            context.check("indexes_after_the_upgrade", commit::indexes_after_the_upgrade());
            context.check("held_back_after_the_upgrade", commit::held_back());
            context.check("put_again", put_again());
            context.check("put_back_what_a_local_file_held_back", commit::put_back());
            context.check("daemon", daemon());
            let before = history()?["applies"][0]["previous"].to_string();
            context.check(
                "default of the second",
                default_is_back(1, &["run=1", "demo=blue sky=\"a b\""], "two"),
            );
            reboots(context, "rolled back", || {
                holdfast(0, &["rollback", "--to", &before, "-o", "json"]).and_then(|printed| report(&printed))
            })
        }
        "rolled back" => {
            context.check("rolled back", rolled_back());
            if stage == last {
                // The index that was made before the upgrade is that of the booted commit again.
                context.check("commit_verified", commit::verified());
                context.check("commit_tampered", commit::tampered());
                context.check("commit_watched", commit::watched());
                context.check("usr_unlocked", commit::unlocked());
                context.check("image_of_the_cluster", cluster::image());
                context.check("staged_image_of_the_cluster", cluster::staged_image());
                extensions::checks(context)?;
                // A hotfix makes another deployment.
                context.check("usr_unlocked_otherwise", commit::unlocked_otherwise());
                return Ok(());
            }
            reboots(context, "not finished", || {
                let folder = UNFINISHED.rsplit_once('/').map_or("/", |(folder, _)| folder);
                fs::create_dir_all(folder)?;
                fs::write(UNFINISHED, "[Service]\nExecStop=\nExecStop=/bin/true\n")?;
                run("systemctl", &["daemon-reload"])?;
                apply(VERSIONS[1].branch, &["demo=blue"], "two", &[])
            })
        }
        "not finished" => {
            context.check("not finished", not_finished());
            reboots(context, "lost", || {
                apply(VERSIONS[1].branch, &["demo=blue", &format!("{LOST}=1")], "three", &[])
            })
        }
        "lost" => {
            context.check("argument lost", argument_lost());
            reboots(context, "back", || {
                holdfast(3, &["apply", "--resume", "-o", "json"]).and_then(|printed| report(&printed))
            })
        }
        "back" => {
            context.check("back by itself", back_by_itself());
            context.check("argument_changed", argument_changed());
            // This apply changes nothing of the OS. The waiting arguments come with its reboot.
            reboots(context, "waited", || apply(VERSIONS[0].branch, &["run=2"], "four", &[]))
        }
        "waited" => {
            context.check("waited", waited());
            context.check("undeployed", undeployed());
            reboots(context, "by hand", by_hand)
        }
        "by hand" => {
            context.check("by hand", other_os());
            reboots(context, "forced", || {
                apply(VERSIONS[0].branch, &["run=2", "run=3", "demo=forced"], "four", &["--force"])
            })
        }
        _ => {
            context.check("forced", forced());
            context.check(
                "default of the first",
                default_is_back(0, &["run=2", "run=3", "demo=forced"], "four"),
            );
            Ok(())
        }
    }
}

fn apply(image: &str, arguments: &[&str], content: &str, more: &[&str]) -> Result<Value> {
    fs::write("/root/new.yaml", manifest(image, arguments, content))?;
    let all = [&["apply", "/root/new.yaml", "-o", "json"], more].concat();
    holdfast(0, &all).and_then(|printed| report(&printed))
}

/// A policy for arguments that a unit also sets at run time.
const POLICY: &str = "apiVersion: holdfast.dev/v1alpha1\nkind: DisruptionPolicy\nmetadata: {name: run}\n\
                      spec:\n  kernelArguments:\n  \
                      - {name: run, actions: [{type: Restart, restart: {serviceName: run.service}}]}\n  \
                      - {name: rw, actions: [{type: None}]}\n";

/// Applies other arguments of version 1 under that policy: no reboot, and the apply is done.
fn without_reboot(arguments: &[&str], content: &str) -> Result<Value> {
    fs::write("/root/policy.yaml", POLICY)?;
    let report = apply(VERSIONS[0].branch, arguments, content, &["--policy", "/root/policy.yaml"])?;
    result(&report, "done")?;
    ensure!(report["plan"]["reboot"] == false, "{report:#}");
    Ok(report)
}

/// Whether a deployment is staged for the next boot.
fn is_staged() -> Result<bool> {
    Ok(run("ostree", &["admin", "status"])?.contains("(staged)"))
}

/// The unit that the policy restarts, until the next boot.
fn unit(command: &str) -> Result<()> {
    fs::create_dir_all("/run/systemd/system")?;
    fs::write("/run/systemd/system/run.service", format!("[Service]\nType=oneshot\nExecStart={command}\n"))?;
    run("systemctl", &["daemon-reload"]).map(drop)
}

/// An argument whose policy is a restart: the apply is done at once, and the argument waits for the next boot.
fn waits() -> Result<String> {
    unit("/bin/sh -c 'echo run >> /run/restarts'")?;
    let report = without_reboot(&["rw", "run=1"], "one")?;
    let waiting = &report["waiting"][0];
    ensure!(waiting["argument"] == "run=1" && waiting["operation"] == "add", "{report:#}");
    ensure!(fs::read_to_string("/run/restarts")?.lines().count() == 1, "the unit was not restarted once");
    ensure!(!has_argument("run=1")? && is_staged()?, "it does not wait");
    let printed = check(0, "waits: kernel argument run=1: set for the next boot")?;
    let (explained, _) = holdfast(0, &["explain", "/proc/cmdline", "--config", CURRENT])?;
    ensure!(explained.contains("waits: kernel argument run=1"), "{explained}");
    let agent = RunningDaemon::start(&["--standalone", "--config", CURRENT])?;
    let status = status::wait_for("compliant", Duration::from_mins(1))?;
    ensure!(status["waiting"][0]["argument"] == "run=1", "{status:#}");
    let (status, _) = holdfast(0, &["status"])?;
    ensure!(status.contains("waits: kernel argument run=1"), "{status}");
    let drift = agent.records()?.into_iter().find(|record| record["kind"] == "drift");
    ensure!(drift.is_none(), "{drift:?}");
    ensure!(agent.stop()?.success(), "the daemon did not end well");
    Ok(printed)
}

/// The argument is removed again before any boot: nothing waits any more.
fn taken_away() -> Result<String> {
    let report = without_reboot(&["rw"], "one")?;
    ensure!(report["waiting"].as_array().is_some_and(Vec::is_empty), "{report:#}");
    ensure!(!is_staged()?, "something waits for the next boot");
    let printed = check(0, "")?;
    ensure!(!printed.contains("waits"), "{printed}");
    Ok(printed)
}

/// One argument is added and one removed.
fn wait_again() -> Result<String> {
    let report = without_reboot(&["run=1"], "one")?;
    ensure!(report["waiting"].as_array().map(Vec::len) == Some(2) && is_staged()?, "{report:#}");
    check(0, "waits: kernel argument rw: removed at the next boot")
}

/// A change of something else keeps the waiting arguments, and so does one that fails and rolls back.
fn argument_changed() -> Result<String> {
    unit("/bin/true")?;
    without_reboot(&["run=2"], "one")?;
    ensure!(!has_argument("run=2")? && has_argument("run=1")?, "{}", fs::read_to_string("/proc/cmdline")?);
    check(0, "waits: kernel argument run=2")?;
    // The unit fails, and everything rolls back without a reboot.
    unit("/bin/false")?;
    let policy = POLICY.replace("run.service}}", "run.service}, fallback: rollback}");
    fs::write("/root/fails.yaml", policy)?;
    fs::write("/root/new.yaml", manifest(VERSIONS[0].branch, &["run=3"], "one"))?;
    let arguments = ["apply", "/root/new.yaml", "-o", "json", "--policy", "/root/fails.yaml"];
    let report = report(&holdfast(3, &arguments)?)?;
    result(&report, "rolled-back")?;
    let waiting: Vec<&str> =
        report["waiting"].as_array().into_iter().flatten().filter_map(|it| it["argument"].as_str()).collect();
    ensure!(waiting == ["run=1", "run=2"] && is_staged()?, "{report:#}");
    check(0, "waits: kernel argument run=2")
}

/// The boot for the other change included the waiting arguments.
fn waited() -> Result<String> {
    let runs = host(0)?;
    ensure!(has_argument("run=2")? && !has_argument("run=1")?, "{}", fs::read_to_string("/proc/cmdline")?);
    ensure!(file() == "four", "the file says {:?}", file());
    resumed(0, "done")?;
    let printed = check(0, "")?;
    ensure!(!printed.contains("waits"), "{printed}");
    Ok(runs)
}

/// Notes the progress, makes a change that ends in a reboot, and waits for the end of this boot.
fn reboots(context: &mut Context, next: &str, act: impl FnOnce() -> Result<Value>) -> Result<()> {
    fs::write(STAGE, next)?;
    if let Err(error) = act().and_then(|report| result(&report, "rebooting")) {
        let status = run("ostree", &["admin", "status"]).unwrap_or_default();
        let log = run("journalctl", &["-b", "-n", "40", "--no-pager", "-o", "cat"]).unwrap_or_default();
        bail!("{next}: {error:#}\n{status}\n{log}");
    }
    context.note(format!("reboots: {next}"));
    loop {
        // The boot ends here. If it does not, the host's time limit ends the scenario.
        std::thread::park();
    }
}

/// The running version, from ostree's own file, from the version's files, and from its kernel.
fn host(number: usize) -> Result<String> {
    let version = &VERSIONS[number];
    ensure!(fs::exists("/run/ostree-booted")?, "no /run/ostree-booted");
    let file = fs::read_to_string("/usr/lib/os-version")?;
    ensure!(file.trim() == version.name, "the tree says {file:?}");
    let status = run("ostree", &["admin", "status"])?;
    let booted = status.lines().skip_while(|line| !line.starts_with('*')).nth(1).unwrap_or_default();
    ensure!(booted.contains(&format!("origin refspec: {}", version.branch)), "{status}");
    let failed = run("systemctl", &["list-units", "--failed", "--no-legend", "--plain"])?;
    ensure!(failed.trim().is_empty(), "failed units: {failed}");
    let release = run("uname", &["-r"])?;
    Ok(format!("{} with kernel {}", version.name, release.trim()))
}

fn has_argument(word: &str) -> Result<bool> {
    Ok(fs::read_to_string("/proc/cmdline")?.contains(word))
}

fn file() -> String {
    fs::read_to_string(FILE).unwrap_or_default()
}

/// The config declares what the host already has: nothing is staged and nothing reboots.
fn first() -> Result<String> {
    other_default()?;
    fs::write("/root/new.yaml", manifest(VERSIONS[0].branch, &["rw"], "one"))?;
    let printed = holdfast(0, &["apply", "/root/new.yaml", "--no-acts", "-o", "json"])?;
    result(&report(&printed)?, "done")?;
    check(0, "")
}

fn resumed(code: i32, wanted: &str) -> Result<Value> {
    let report = report(&holdfast(code, &["apply", "--resume", "-o", "json"])?)?;
    result(&report, wanted)?;
    Ok(report)
}

fn last(wanted: &str, state: &str) -> Result<String> {
    let history = history()?;
    let last = &history["applies"][0];
    ensure!(last["result"] == wanted && history["standing"]["state"] == state, "{history:#}");
    Ok(last["reason"].as_str().unwrap_or_default().to_owned())
}

fn upgraded() -> Result<String> {
    let runs = host(1)?;
    ensure!(has_argument("demo=blue sky=\"a b\"")?, "{}", fs::read_to_string("/proc/cmdline")?);
    // The boot added one waiting argument and removed the other.
    ensure!(has_argument("run=1")? && !has_argument(" rw ")?, "{}", fs::read_to_string("/proc/cmdline")?);
    ensure!(file() == "two", "the file says {:?}", file());
    resumed(0, "done")?;
    last("done", "Done")?;
    check(0, "")?;
    // Another image or argument than the booted one is drift, and the text has the booted one.
    fs::write("/root/other.yaml", manifest(VERSIONS[0].branch, &["demo=red"], "two"))?;
    let (printed, _) = holdfast(1, &["check", "--config", "/root/other.yaml"])?;
    for text in [
        "expected target osImageURL \"os/v1\", have \"os/v2\"",
        "missing expected kernel arguments: [demo=red]",
    ] {
        ensure!(printed.contains(text), "{printed}");
    }
    let (printed, _) = holdfast(0, &["explain", "/proc/cmdline", "--config", CURRENT])?;
    ensure!(printed.contains("demo=blue"), "{printed}");
    Ok(runs)
}

/// The service that runs before others, and a service that reads the file, as an administrator would install them.
fn early_unit() -> Result<String> {
    let units = "/etc/systemd/system";
    fs::write(format!("{units}/holdfast-early.service"), EARLY)?;
    let reader = format!(
        "[Service]\nType=oneshot\nExecStart=/bin/cp {PINNED} {READ}\n[Install]\nWantedBy=multi-user.target\n"
    );
    fs::write(format!("{units}/reader.service"), reader)?;
    run("systemctl", &["daemon-reload"])?;
    run("systemctl", &["enable", "--quiet", "holdfast-early.service", "reader.service"])
}

/// The plan names the file that the update would overwrite.
fn foreseen() -> Result<String> {
    fs::write("/root/new.yaml", manifest(VERSIONS[1].branch, &["run=1"], "two"))?;
    let (printed, error) = holdfast(1, &["apply", "/root/new.yaml", "--dry-run"])?;
    let line = printed.lines().find(|line| line.starts_with(PINNED)).unwrap_or_default();
    ensure!(
        line.contains("Holdfast writes it again after the reboot")
            && !printed.contains(&format!("{FILE}: equals")),
        "{printed}{error}"
    );
    Ok(line.to_owned())
}

/// The update overwrote the file, and no service read it.
fn put_again() -> Result<String> {
    let shipped = fs::read_to_string(PINNED.replace("/etc/", "/usr/etc/"))?;
    ensure!(shipped == "from v2\n", "the image ships {shipped:?}");
    for place in [PINNED, READ] {
        let printed = fs::read_to_string(place)?;
        ensure!(printed == "from v1\n", "{place} has {printed:?}");
    }
    let history = history()?;
    let taken = &history["applies"][0]["put_again"];
    ensure!(taken[0]["path"] == PINNED && taken[0]["found"] == "file" && taken[1].is_null(), "{history:#}");
    let log = run("journalctl", &["-b", "-u", "holdfast-early.service", "--no-pager", "-o", "cat"])?;
    ensure!(log.contains(&format!("write {PINNED} again")), "{log}");
    Ok(log)
}

/// The daemon finds the same, and reports it as drift of the declared things.
fn daemon() -> Result<String> {
    let state = "/run/holdfast-scenario";
    let mut agent =
        RunningDaemon::start(&["--standalone", "--state", state, "--config", "/root/other.yaml"])?;
    let mut texts = Vec::new();
    for (kind, path) in [("kernel-argument", "/proc/cmdline"), ("os-image", "/run/ostree-booted")] {
        let record = agent.wait_for(kind, 0, |record| {
            record["kind"] == "drift" && record["path"] == path && record["differences"][0]["kind"] == kind
        })?;
        texts.push(record["differences"][0]["text"].as_str().unwrap_or_default().to_owned());
    }
    ensure!(agent.stop()?.success(), "it did not end well");
    Ok(texts.join("; "))
}

fn rolled_back() -> Result<String> {
    let runs = host(0)?;
    ensure!(!has_argument("demo=blue")?, "the argument is still there");
    ensure!(file() == "one", "the file says {:?}", file());
    resumed(0, "done")?;
    last("done", "Done")?;
    check(0, "")?;
    Ok(runs)
}

/// Version 2 was staged and requested, and version 1 came up again: the apply is never done, and always reports this.
fn not_finished() -> Result<String> {
    host(0)?;
    let report = resumed(3, "rolled-back")?;
    let reason = report["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("expected target osImageURL \"os/v2\", have \"os/v1\""), "{report:#}");
    ensure!(file() == "one", "the file says {:?}", file());
    let status = run("ostree", &["admin", "status"])?;
    ensure!(
        !status.contains("(staged)") && !status.contains("(pending)"),
        "something waits for the next boot:\n{status}"
    );
    check(0, "")?;
    last("rolled-back", "Degraded")
}

/// Version 2 came up without one of its arguments.
fn argument_lost() -> Result<String> {
    let runs = host(1)?;
    ensure!(file() == "three", "the file says {:?}", file());
    ensure!(!has_argument(LOST)? && has_argument("demo=blue")?, "{}", fs::read_to_string("/proc/cmdline")?);
    Ok(runs)
}

/// From there the apply rolled back by itself, with another reboot.
fn back_by_itself() -> Result<String> {
    let runs = host(0)?;
    ensure!(!has_argument("demo=blue")?, "the argument is still there");
    ensure!(file() == "one", "the file says {:?}", file());
    let report = resumed(3, "rolled-back")?;
    ensure!(report["problems"].as_array().is_some_and(Vec::is_empty), "{report:#}");
    let reason = last("rolled-back", "Degraded")?;
    ensure!(reason.contains(&format!("missing expected kernel arguments: [{LOST}=1]")), "{reason}");
    check(0, "")?;
    Ok(format!("{runs}: {reason}"))
}

/// An administrator drops the staged deployment. No command checks for this; the next boot shows it.
fn undeployed() -> Result<String> {
    unit("/bin/true")?;
    without_reboot(&["run=2", "run=3"], "four")?;
    run("ostree", &["admin", "undeploy", "0"])?;
    ensure!(!is_staged()?, "it is still staged");
    check(0, "waits: kernel argument run=3")
}

/// The host boots another version.
fn by_hand() -> Result<Value> {
    run("ostree", &["admin", "deploy", "--stage", VERSIONS[1].branch])?;
    run("systemctl", &["reboot"])?;
    Ok(serde_json::json!({"result": "rebooting"}))
}

/// Both are drift, and drift prevents an apply.
fn other_os() -> Result<String> {
    let runs = host(1)?;
    let texts = [
        "expected target osImageURL \"os/v1\", have \"os/v2\"",
        "missing expected kernel arguments: [run=3]",
    ];
    let (printed, _) = holdfast(1, &["check", "--config", CURRENT])?;
    ensure!(texts.iter().all(|text| printed.contains(text)) && !printed.contains("waits"), "{printed}");
    fs::write("/root/new.yaml", manifest(VERSIONS[0].branch, &["run=2", "run=3"], "five"))?;
    let (_, refused) = holdfast(3, &["apply", "/root/new.yaml"])?;
    ensure!(texts.iter().all(|text| refused.contains(text)), "{refused}");
    last_state("Degraded")?;
    Ok(runs)
}

fn last_state(state: &str) -> Result<()> {
    let history = history()?;
    ensure!(history["standing"]["state"] == state, "{history:#}");
    Ok(())
}

/// Image and arguments are as declared, including the lost ones and the new one.
fn forced() -> Result<String> {
    let runs = host(0)?;
    for word in ["run=2", "run=3", "demo=forced"] {
        ensure!(has_argument(word)?, "{word}: {}", fs::read_to_string("/proc/cmdline")?);
    }
    resumed(0, "done")?;
    last("done", "Done")?;
    check(0, "")?;
    Ok(runs)
}
