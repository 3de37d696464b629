//! Deny and revert rules: changes are refused with EPERM and recorded, allowed actors pass, and drift is written back.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use super::deny_node::{FILE, POLICY, refused};
use super::{deny_actors, deny_restarts, deny_ways, watched};
use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::command::CONSENT;
use crate::guest::disks::{FileSystem, find};
use crate::guest::files::load_module;
use crate::guest::{Context, run, shell, status, wait};
use crate::vectors::prepare;

const CONFIG: &str = machine_config!(
    "99-worker-deny",
    r#"      - path: /etc/deny/protected.conf
        mode: 420
        contents: {source: "data:,content%0A"}
      - path: /etc/deny/reverted.conf
        mode: 384
        contents: {source: "data:,declared%0A"}
      - path: /etc/deny/open.conf
        mode: 420
        contents: {source: "data:,content%0A"}
      - path: /etc/deny/program.conf
        mode: 420
        contents: {source: "data:,content%0A"}
"#
);

/// Tries to change a protected file in several ways, and once as an allowed actor.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    shell(
        "mkdir -p /etc/deny && for f in protected open program; do echo content > /etc/deny/$f.conf; done",
    )?;
    shell("echo declared > /etc/deny/reverted.conf")?;
    shell(
        "chmod 644 /etc/deny/*.conf && chmod 600 /etc/deny/reverted.conf && mkdir /run/allowed && cp /bin/busybox /run/allowed/",
    )?;
    fs::write("/run/deny.yaml", CONFIG)?;
    fs::write("/run/policy.yaml", POLICY)?;
    let mut agent = RunningDaemon::start(&[
        "--standalone",
        "--config",
        "/run/deny.yaml",
        "--policy",
        "/run/policy.yaml",
    ])?;
    agent.wait_for("the first gap to close", 0, |record| record["detail"]["until"].is_string())?;
    for (name, command, operation) in [
        ("write", format!("echo drift >> {FILE}"), "open-write"),
        ("chmod", format!("chmod 600 {FILE}"), "set-attributes"),
        ("unlink", format!("rm -f {FILE}"), "unlink"),
        ("rename_away", format!("mv {FILE} /etc/deny/elsewhere"), "rename"),
        ("rename_over", format!("echo x > /etc/deny/new && mv -f /etc/deny/new {FILE}"), "rename-over"),
    ] {
        context.check(name, refused(&mut agent, &command, operation));
    }
    context.check("another_holdfast", another(&mut agent));
    context.check("apply", apply(&mut agent));
    context.check("refused_after_apply", refused(&mut agent, &format!("echo drift >> {FILE}"), "open-write"));
    context.check("rollback", rollback(&mut agent));
    context.check("others_are_not_protected", others(&mut agent));
    context.check("allowed_actor", allowed(&mut agent));
    context.check("mounted_over_the_allowed_program", deny_actors::mounted_over(&mut agent));
    context.check("repair", repair(&mut agent));
    context.check("a_replacement_is_protected_at_once", replaced(&mut agent));
    context.check("a_failed_replacement_is_not_protected", not_replaced(&mut agent));
    context.check("a_replacement_has_writers_of_its_own", distinguished(&mut agent));
    context.check("revert_content", reverted(&mut agent, "echo drift >> /etc/deny/reverted.conf"));
    context.check("revert_mode", reverted(&mut agent, "chmod 644 /etc/deny/reverted.conf"));
    context.check("revert_removal", reverted(&mut agent, "rm /etc/deny/reverted.conf"));
    context.check("interrupted_apply", interrupted(agent));
    context.check("missing_pins", missing_pins());
    context.check("allowed_unit_and_user", deny_actors::by_group_and_login());
    context.check("other_rules_after_a_restart", deny_restarts::other_rules());
    match subvolumes() {
        Ok(Some(printed)) => context.check("subvolumes_are_distinguished", Ok(printed)),
        Ok(None) => context.skip("subvolumes_are_distinguished", "this kernel has no types of modules"),
        Err(error) => context.check("subvolumes_are_distinguished", Err(error)),
    }
    deny_ways::check(context)?;
    Ok(())
}

/// Each subvolume of Btrfs numbers its inodes separately, on one superblock. A rule for a file in one refuses nothing
/// in another. The file system is mounted after the daemon's start. `None` if the kernel does not say which subvolume
/// an inode is in.
fn subvolumes() -> Result<Option<String>> {
    const PLACE: &str = "/srv/subvolumes";
    const CONTENT: &str = "content\n";
    let (one, two) = (format!("{PLACE}/one/file"), format!("{PLACE}/two/file"));
    fs::write("/run/deny.yaml", CONFIG.replace(FILE, &one))?;
    fs::write("/run/policy.yaml", POLICY.replace(FILE, &one))?;
    // A state directory of its own, because otherwise the config applied last would be used.
    let mut agent = RunningDaemon::start(&[
        "--standalone",
        "--config",
        "/run/deny.yaml",
        "--policy",
        "/run/policy.yaml",
        "--state",
        "/run/subvolumes",
    ])?;
    load_module("btrfs")?;
    if !Path::new("/sys/kernel/btf/btrfs").exists() {
        agent.stop()?;
        return Ok(None);
    }
    let allowed = |command: &str| shell(&format!("/run/allowed/busybox {command}"));
    let device = find("btrfs")?;
    allowed(&format!("mkdir -p {PLACE}"))?;
    allowed(&format!("mount -t btrfs {} {PLACE}", device.display()))?;
    for file in [&one, &two] {
        let directory = Path::new(file).parent().unwrap_or(Path::new(PLACE));
        prepare::subvolume(directory)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        allowed(&format!("sh -c 'umask 022; echo content > {file}'"))?;
    }
    let number = |file: &str| fs::metadata(file).map(|file| file.ino());
    ensure!(number(&one)? == number(&two)?, "the two have not one number");
    status::wait_for("compliant", Duration::from_mins(1))?;
    let before = agent.records()?.len();
    wait::until("the rule", Duration::from_secs(30), || {
        Ok(shell(&format!("chmod 644 {one}")).is_err().then_some(()))
    })?;
    shell(&format!("echo more >> {two} && chmod 600 {two}"))?;
    ensure!(shell(&format!("echo more >> {one}")).is_err(), "it was not refused");
    agent.wait_for("denied", before, |record| {
        record["kind"] == "denied" && record["path"] == one && record["operation"] == "open-write"
    })?;
    let drift = agent.records()?.into_iter().skip(before).find(|record| record["kind"] == "drift");
    ensure!(drift.is_none() && fs::read_to_string(&one)? == CONTENT, "{drift:?}");
    allowed(&format!("umount {PLACE}"))?;
    agent.stop()?;
    Ok(Some(String::new()))
}

/// An apply and the daemon are killed when the protected file is written and another one is not. The daemon's next
/// start restores the file, under the deny rules that stayed in the kernel.
fn interrupted(mut agent: RunningDaemon) -> Result<String> {
    const OTHER: &str = "/srv/first/a";
    let config = |content: &str| {
        let other = format!(
            "      - path: {OTHER}\n        mode: 420\n        contents: {{source: 'data:,{content}'}}\n"
        );
        CONFIG.replacen("content%0A", &format!("{content}%0A"), 1) + &other
    };
    FileSystem::Ext4.mount(Path::new(watched::FIRST))?;
    let before = agent.records()?.len();
    fs::write(watched::CONFIG, config("whole"))?;
    // An earlier check left an unprotected file drifted.
    run(HOLDFAST, &["apply", watched::CONFIG, "--no-acts", "--force"])?;
    started_anew(&mut agent, before)?;
    fs::write(watched::CONFIG, config("half"))?;
    let mut apply = watched::held()?;
    ensure!(fs::read_to_string(FILE)? == "half\n", "the protected file was not written yet");
    let before = agent.records()?.len();
    let pid = agent.pid();
    agent.kill()?;
    apply.kill()?;
    shell(&format!("fsfreeze --unfreeze {}", watched::FIRST))?;
    apply.wait()?;
    let left = (fs::read_to_string(FILE)?, fs::read_to_string(OTHER)?);
    ensure!(left == ("half\n".to_owned(), "whole".to_owned()), "{left:?}");
    // No daemon runs, and still only allowed actors may write.
    let written = shell(&format!("echo drift >> {FILE}"));
    ensure!(written.is_err(), "the deny rule ended with the daemon");
    ensure!(!by_process(pid, &format!("echo drift >> {FILE}"))?, "the dead daemon's number may write");
    let mut agent = RunningDaemon::start(&[
        "--standalone",
        "--config",
        "/run/deny.yaml",
        "--policy",
        "/run/policy.yaml",
    ])?;
    status::wait_for("compliant", Duration::from_mins(1))?;
    ensure!(fs::read_to_string(FILE)? == "whole\n", "the protected file was not given back");
    ensure!(!Path::new("/var/lib/holdfast/apply/journal").exists(), "the journal is still open");
    let ours = agent
        .records()?
        .into_iter()
        .skip(before)
        .find(|record| record["kind"] == "denied" && record["actor"]["exe"] == HOLDFAST);
    ensure!(ours.is_none(), "the daemon was refused something: {ours:?}");
    refused(&mut agent, &format!("echo drift >> {FILE}"), "open-write")?;
    agent.stop()?;
    Ok(String::new())
}

/// If a map's pin is missing, the daemon creates the map again with all programs and all other maps, and the rules
/// apply as before.
fn missing_pins() -> Result<String> {
    for map in ["CONTROL", "CHANGES", "ALLOWED"] {
        run("/bin/sh", &["-c", &format!("rm /sys/fs/bpf/holdfast/maps-v*/{map}")])?;
        let mut agent = started()?;
        let records = agent.records()?;
        let start = records.iter().rfind(|record| record["kind"] == "start");
        let detail = start.map_or(&serde_json::Value::Null, |start| &start["detail"]);
        ensure!(detail["backend"] == "lsm" && detail["adopted"] == false, "without {map}: {detail}");
        status::wait_for("compliant", Duration::from_mins(1))?;
        refused(&mut agent, &format!("chmod 600 {FILE}"), "set-attributes")?;
        shell(&format!("/run/allowed/busybox chmod 644 {FILE}"))?;
        agent.stop()?;
    }
    Ok(String::new())
}

fn started() -> Result<RunningDaemon> {
    RunningDaemon::start(&["--standalone", "--config", "/run/deny.yaml", "--policy", "/run/policy.yaml"])
}

/// Whether a line of shell succeeds in a process with this number, which no process has now.
fn by_process(pid: u32, line: &str) -> Result<bool> {
    wait::until("a process to get the number", Duration::from_mins(1), || {
        // The next process gets the following number, unless another process is faster.
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string())?;
        let mut shell = Command::new("/bin/sh").args(["-c", line]).spawn()?;
        let done = shell.wait()?.success();
        Ok((shell.id() == pid).then_some(done))
    })
}

/// Changes the file under the revert rule; expects drift with an actor, the declared state, and recovery.
fn reverted(agent: &mut RunningDaemon, command: &str) -> Result<String> {
    const FILE: &str = "/etc/deny/reverted.conf";
    let before = agent.records()?.len();
    shell(command)?;
    let find = |agent: &mut RunningDaemon, kind: &str| {
        agent.wait_for(kind, before, |record| record["kind"] == kind && record["path"] == FILE)
    };
    let drift = find(agent, "drift")?;
    ensure!(drift["actor"]["holdfast"] == false, "{drift}");
    let done = find(agent, "reverted")?;
    ensure!(done["detail"]["actions"].is_array(), "{done}");
    find(agent, "recovered")?;
    ensure!(fs::read_to_string(FILE)? == "declared\n", "the content was not written back");
    ensure!(fs::metadata(FILE)?.permissions().mode() & 0o7777 == 0o600, "the mode was not set back");
    Ok(done["detail"]["actions"].to_string())
}

fn others(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    shell("echo drift >> /etc/deny/open.conf")?;
    agent.wait_for("drift", before, |record| {
        record["kind"] == "drift" && record["path"] == "/etc/deny/open.conf"
    })?;
    Ok(String::new())
}

fn allowed(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    shell(&format!("/run/allowed/busybox chmod 640 {FILE}"))?;
    let record =
        agent.wait_for("drift", before, |record| record["kind"] == "drift" && record["path"] == FILE)?;
    ensure!(record["detail"]["policy"] == "observe" && record["detail"]["allowed"] == true, "{record}");
    Ok(String::new())
}

/// What an allowed actor puts in the place of a protected file is protected before the daemon has received the event.
fn replaced(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    let new = format!("{FILE}.new");
    shell(&format!("echo content > {new} && chmod 644 {new}"))?;
    agent.signal(Signal::SIGSTOP)?;
    let moved = shell(&format!("/run/allowed/busybox mv -f {new} {FILE}"));
    let written = shell(&format!("echo drift >> {FILE}"));
    agent.signal(Signal::SIGCONT)?;
    moved?;
    ensure!(written.is_err(), "it was not refused");
    let record = agent.wait_for("denied", before, |record| record["kind"] == "denied")?;
    ensure!(record["path"] == FILE && record["operation"] == "open-write", "{record}");
    refused(agent, &format!("echo drift >> {FILE}"), "open-write")
}

/// A failed rename leaves no rule on the object that it would have moved.
fn not_replaced(agent: &mut RunningDaemon) -> Result<String> {
    let new = format!("{FILE}.new");
    shell(&format!("echo content > {new} && chmod 644 {new}"))?;
    // After the hook, the kernel refuses to rename a mount point.
    shell(&format!("mount --bind {new} {new}"))?;
    let moved = shell(&format!("/run/allowed/busybox mv -f {new} {FILE}"));
    shell(&format!("umount {new}"))?;
    ensure!(moved.is_err(), "a mount point was moved");
    // The first refused attempt makes the daemon find that this file is not protected.
    let refusal = shell(&format!("echo more >> {new}")).is_err();
    wait::until("the end of the rule", Duration::from_mins(1), || {
        Ok(shell(&format!("echo more >> {new}")).is_ok().then_some(()))
    })?;
    shell(&format!("rm {new}"))?;
    refused(agent, &format!("echo drift >> {FILE}"), "open-write")?;
    Ok(format!("refused once: {refusal}"))
}

/// The actor that replaces a file and the actor that changes the new one at once are distinguished.
fn distinguished(agent: &mut RunningDaemon) -> Result<String> {
    const FILE: &str = "/etc/deny/open.conf";
    let before = agent.records()?.len();
    shell("echo content > /etc/deny/open.new && chmod 644 /etc/deny/open.new")?;
    agent.signal(Signal::SIGSTOP)?;
    let done = shell(&format!("mv -f /etc/deny/open.new {FILE}"))
        .and_then(|_| shell(&format!("/run/allowed/busybox chmod 600 {FILE}")));
    agent.signal(Signal::SIGCONT)?;
    done?;
    let record = agent.wait_for("drift", before, |record| {
        record["kind"] == "drift" && record["path"] == FILE && record["differences"][0]["kind"] == "mode"
    })?;
    ensure!(record["actor"]["exe"] == "/run/allowed/busybox", "{record}");
    ensure!(record["operation"] == "set-attributes", "{record}");
    shell(&format!("chmod 644 {FILE}"))?;
    status::wait_for("compliant", Duration::from_mins(1))?;
    Ok(String::new())
}

/// Applies the config with other content of the protected file.
fn try_apply(program: &str, content: &str) -> Result<(Option<i32>, String)> {
    fs::write("/run/new.yaml", CONFIG.replacen("content%0A", &format!("{content}%0A"), 1))?;
    let out = Command::new(program)
        .args(["apply", "/run/new.yaml", "--current", "/run/deny.yaml", "--no-acts"])
        .envs(CONSENT)
        .output()?;
    let text = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Ok((out.status.code(), text))
}

/// A copy of the program is not the daemon's own. The rule refuses it, and the apply rolls back.
fn another(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    fs::copy(HOLDFAST, "/run/another-holdfast")?;
    let (code, text) = try_apply("/run/another-holdfast", "evil")?;
    ensure!(
        code == Some(3) && text.contains("not permitted") && text.contains("does not accept this process"),
        "{code:?}: {text}"
    );
    ensure!(fs::read_to_string(FILE)? == "content\n", "the content changed");
    let record = agent.wait_for("denied", before, |record| record["kind"] == "denied")?;
    ensure!(record["actor"]["exe"] == "/run/another-holdfast", "{record}");
    ensure!(record["actor"]["holdfast"] == false, "{record}");
    started_anew(agent, before)?;
    Ok(String::new())
}

/// The daemon has started to use the new config after an apply, and has verified everything.
fn started_anew(agent: &mut RunningDaemon, before: usize) -> Result<()> {
    agent.wait_for("the daemon to begin again", before, |record| record["kind"] == "start")?;
    status::wait_for("compliant", Duration::from_mins(1)).map(drop)
}

fn apply(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    let (code, text) = try_apply(HOLDFAST, "applied")?;
    ensure!(code == Some(0), "{code:?}: {text}");
    ensure!(fs::read_to_string(FILE)? == "applied\n", "it was not written");
    started_anew(agent, before)?;
    let refusal = agent.records()?.into_iter().skip(before).find(|record| record["kind"] == "denied");
    ensure!(refusal.is_none(), "a rule refused the apply something: {refusal:?}");
    Ok(String::new())
}

/// Rolls back to the config before, which must exist.
fn rollback(agent: &mut RunningDaemon) -> Result<String> {
    let (code, text) = try_apply(HOLDFAST, "second")?;
    ensure!(code == Some(0), "{code:?}: {text}");
    let before = agent.records()?.len();
    run(HOLDFAST, &["rollback", "--no-acts"])?;
    ensure!(fs::read_to_string(FILE)? == "applied\n", "it was not written back");
    started_anew(agent, before)?;
    // The state that the other checks need.
    let before = agent.records()?.len();
    let (code, text) = try_apply(HOLDFAST, "content")?;
    ensure!(code == Some(0), "{code:?}: {text}");
    started_anew(agent, before)?;
    Ok(String::new())
}

/// `repair` restores what an allowed actor changed, if the result is what the daemon expects.
fn repair(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    let config = "/var/lib/holdfast/apply/current";
    fs::write("/run/evil.yaml", CONFIG.replacen("content%0A", "evil%0A", 1))?;
    let evil = run(HOLDFAST, &["repair", "--yes", "--config", "/run/evil.yaml", FILE]);
    let is_told = format!("{evil:?}").contains("expects another state of these paths");
    ensure!(is_told && fs::read_to_string(FILE)? == "content\n", "{evil:?}");
    run(HOLDFAST, &["repair", "--yes", "--config", config, FILE])?;
    agent.wait_for("recovery", before, |record| record["kind"] == "recovered" && record["path"] == FILE)?;
    ensure!(fs::metadata(FILE)?.permissions().mode() & 0o7777 == 0o644, "the mode was not set back");
    Ok(String::new())
}
