//! An apply with a running daemon. The apply's own writes are no drift. Other writes are, even if only the new config
//! declares the path.
//!
//! In: a bare guest. Out: a check for each. A frozen file system holds an apply when a check needs it. The apply's
//! first file is there, so the apply has notified the daemon and written nothing yet.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::command::CONSENT;
use crate::guest::disks::FileSystem;
use crate::guest::{Context, shell, status, wait};

const LIMIT: Duration = Duration::from_mins(1);
pub(super) const CONFIG: &str = "/run/watched.yaml";
/// The file system that is frozen, and another one.
pub(super) const FIRST: &str = "/srv/first";
const SECOND: &str = "/srv/second";

/// Files by path, all with the same content.
fn config(files: &[&str], content: &str) -> String {
    let mut text = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\n\
                    metadata: {name: 99-watched, labels: {machineconfiguration.openshift.io/role: worker}}\n\
                    spec:\n  config:\n    ignition: {version: 3.4.0}\n    storage:\n      files:\n"
        .to_owned();
    for file in files {
        text.extend(["      - {path: ", file, ", mode: 420, contents: {source: 'data:,", content, "'}}\n"]);
    }
    text
}

const OLD: &[&str] = &["/srv/first/a", "/srv/second/old"];
const NEW: &[&str] = &["/srv/first/a", "/srv/second/old", "/srv/second/new", "/srv/second/deep/er/new"];

/// The scenario.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    FileSystem::Ext4.mount(Path::new(FIRST))?;
    FileSystem::Tmpfs.mount(Path::new(SECOND))?;
    // So that alice can write to files that she should not change.
    shell(&format!("chmod 777 {SECOND}"))?;
    for path in OLD {
        fs::write(path, "one")?;
        shell(&format!("chmod 666 {path}"))?;
    }
    fs::write(CONFIG, config(OLD, "one").replace("420", "438"))?;
    let mut agent = RunningDaemon::start(&["--standalone", "--config", CONFIG])?;
    agent.wait_for("the first gap to close", 0, |record| record["detail"]["until"].is_string())?;
    done(&mut agent, &apply(&["--current", CONFIG])?)?;

    context.check("own_writes", own(&mut agent));
    context.check("foreign_new_path", foreign(&mut agent, "three", "/srv/second/three"));
    context.check("foreign_old_path", foreign_old(&mut agent));
    context.check("abandoned", abandoned(&mut agent));
    context.check("daemon_begins_meanwhile", restarted(agent));
    Ok(())
}

/// Starts an apply of the config.
fn spawn(arguments: &[&str]) -> Result<Child> {
    Command::new(HOLDFAST)
        .args(arguments)
        .envs(CONSENT)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start holdfast")
}

/// Exit code and everything that it printed.
pub(super) type ExitAndOutput = (Option<i32>, String);

pub(super) fn finish(child: Child) -> Result<ExitAndOutput> {
    let out = child.wait_with_output()?;
    let text = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Ok((out.status.code(), text))
}

pub(super) fn holdfast(arguments: &[&str]) -> Result<ExitAndOutput> {
    finish(spawn(arguments)?)
}

fn apply(more: &[&str]) -> Result<ExitAndOutput> {
    holdfast(&[&["apply", CONFIG, "--no-acts"], more].concat())
}

/// The apply succeeded, and the daemon uses the new config.
fn done(agent: &mut RunningDaemon, (code, text): &ExitAndOutput) -> Result<()> {
    ensure!(*code == Some(0), "{code:?}: {text}");
    settled(agent, "compliant")
}

/// The daemon uses the current config, and has verified everything.
fn settled(agent: &mut RunningDaemon, verdict: &str) -> Result<()> {
    let current = fs::canonicalize("/var/lib/holdfast/apply/current")?;
    let things = |path: &Path| -> Result<usize> { Ok(fs::read_to_string(path)?.matches("path:").count()) };
    let manifest = fs::read_dir(&current)?.next().context("no manifest")??.path();
    let wanted = things(&manifest)?;
    let found = wait::until("the daemon to run with the current config", LIMIT, || {
        let status = status::read()?;
        let as_wanted = status["verdict"] == verdict && status["counters"]["managed"] == wanted;
        Ok(as_wanted.then_some(()))
    });
    found.with_context(|| format!("{}; {:?}", status::read().unwrap_or_default(), agent.records()))
}

/// Everything is written, and the log has no entry about it.
fn own(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    fs::write(CONFIG, config(NEW, "two"))?;
    done(agent, &apply(&[])?)?;
    for path in NEW {
        ensure!(fs::read_to_string(path)? == "two", "{path} was not written");
    }
    fs::write(CONFIG, config(OLD, "two"))?;
    done(agent, &apply(&[])?)?;
    ensure!(!Path::new("/srv/second/deep").exists(), "what is declared no more is still there");
    let records = agent.records()?.split_off(before);
    let record = records.iter().find(|record| record["kind"] != "start" && record["kind"] != "stop");
    ensure!(
        record.is_none(),
        "the apply's own writes must have no record: {}",
        record.unwrap_or(&Value::Null)
    );
    Ok(format!("{} records, all of them starts and stops", records.len()))
}

/// Starts an apply that is held before its first file, after it has notified the daemon.
pub(super) fn held() -> Result<Child> {
    // A failed check may have left it frozen.
    let _ = shell(&format!("fsfreeze --unfreeze {FIRST}"));
    shell(&format!("fsfreeze --freeze {FIRST}"))?;
    let apply = spawn(&["apply", CONFIG, "--no-acts"])?;
    let journal = Path::new("/var/lib/holdfast/apply/journal");
    wait::until("the apply to stand still", LIMIT, || {
        Ok((journal.exists() && waits_for_frozen(apply.id())?).then_some(()))
    })?;
    Ok(apply)
}

/// Whether a process waits in a system call on the frozen file system. It may also wait for a disk, for a moment, with a file of another
/// file system open for writing.
fn waits_for_frozen(pid: u32) -> Result<bool> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let state = text.rsplit(')').next().and_then(|rest| rest.trim().chars().next());
    if state != Some('D') {
        return Ok(false);
    }
    // Number and arguments of the system call; `running` if it has gone on.
    let call = fs::read_to_string(format!("/proc/{pid}/syscall"))?;
    let number = call.split_whitespace().nth(1).and_then(|number| number.strip_prefix("0x"));
    let Some(number) = number.and_then(|number| u32::from_str_radix(number, 16).ok()) else {
        return Ok(false);
    };
    Ok(fs::read_link(format!("/proc/{pid}/fd/{number}")).is_ok_and(|path| path.starts_with(FIRST)))
}

/// A process logged in as alice writes.
fn alice(line: &str) -> Result<()> {
    shell(&format!("echo 1000 > /proc/self/loginuid && exec su -s /bin/sh alice -c '{line}'")).map(drop)
}

/// The drift of a path, with alice as its actor.
fn drift(agent: &mut RunningDaemon, before: usize, path: &str) -> Result<Value> {
    let record =
        agent.wait_for("drift", before, |record| record["kind"] == "drift" && record["path"] == path)?;
    let actor = &record["actor"];
    ensure!(actor["uid"] == 1000 && actor["login_uid"] == 1000, "{record}");
    ensure!(actor["exe"].as_str().is_some_and(|exe| matches!(exe, "/bin/sh" | "/bin/busybox")), "{record}");
    ensure!(actor["holdfast"] == false && record["source"] == "99-watched", "{record}");
    Ok(record)
}

/// Alice writes to a path that only the new config declares. The apply is undone and names her.
fn foreign(agent: &mut RunningDaemon, content: &'static str, new: &str) -> Result<String> {
    let before = agent.records()?.len();
    fs::write(CONFIG, config(&[OLD, &[new]].concat(), content))?;
    let apply = held()?;
    alice(&format!("echo evil > {new}"))?;
    let record = drift(agent, before, new)?;
    shell(&format!("fsfreeze --unfreeze {FIRST}"))?;
    let (code, text) = finish(apply)?;
    ensure!(code == Some(3) && text.contains("rolled-back"), "{code:?}: {text}");
    ensure!(text.contains("by ") && text.contains("alice"), "it does not say who: {text}");
    ensure!(fs::read_to_string(new)? == "evil\n", "what she wrote was lost");
    let kept = OLD.iter().all(|path| fs::read_to_string(path).is_ok_and(|text| text == "two"));
    ensure!(kept, "the old config is not back: {text}");
    agent.wait_for("its release", before, |record| {
        record["kind"] == "recovered" && record["path"] == new && record["detail"]["released"].is_string()
    })?;
    settled(agent, "compliant")?;
    fs::remove_file(new)?;
    Ok(record["actor"].to_string())
}

/// Alice writes to a path that the old config declares as well. It stays drifted after the apply is undone.
fn foreign_old(agent: &mut RunningDaemon) -> Result<String> {
    const FILE: &str = "/srv/second/old";
    let before = agent.records()?.len();
    shell(&format!("chmod 644 {FILE}"))?;
    fs::write(CONFIG, config(OLD, "four"))?;
    let apply = held()?;
    alice(&format!("echo evil > {SECOND}/mine; chmod 644 {SECOND}/mine; mv -f {SECOND}/mine {FILE}"))?;
    let record = drift(agent, before, FILE)?;
    shell(&format!("fsfreeze --unfreeze {FIRST}"))?;
    let (code, text) = finish(apply)?;
    ensure!(code == Some(3) && text.contains("alice"), "{code:?}: {text}");
    ensure!(fs::read_to_string(FILE)? == "evil\n", "what she wrote was lost");
    settled(agent, "drifted")?;
    fs::write("/srv/second/mine", "two")?;
    shell(&format!("chmod 644 {SECOND}/mine; mv {SECOND}/mine {FILE}"))?;
    settled(agent, "compliant")?;
    Ok(record["differences"].to_string())
}

/// The daemon restores by itself what a killed apply left.
fn abandoned(agent: &mut RunningDaemon) -> Result<String> {
    let before = OLD.iter().map(fs::read_to_string).collect::<Result<Vec<_>, _>>()?;
    fs::write(CONFIG, config(NEW, "killed"))?;
    let mut apply = held()?;
    // It dies at the end of the call that is held.
    apply.kill()?;
    shell(&format!("fsfreeze --unfreeze {FIRST}"))?;
    let ended = apply.wait()?;
    wait::until("the daemon to work the apply off", LIMIT, || {
        Ok((!Path::new("/var/lib/holdfast/apply/journal").exists()).then_some(()))
    })?;
    settled(agent, "compliant")?;
    let after = OLD.iter().map(fs::read_to_string).collect::<Result<Vec<_>, _>>()?;
    ensure!(after == before && !Path::new(NEW[2]).exists(), "{before:?} became {after:?}");
    let (code, text) = holdfast(&["history"])?;
    ensure!(code == Some(0) && text.contains("rolled back"), "{text}");
    Ok(format!("the apply ended with {ended}"))
}

/// A daemon that starts during an apply watches what the apply writes, and its deny rules let the apply write.
fn restarted(agent: RunningDaemon) -> Result<String> {
    const FILE: &str = "/srv/second/five";
    const DENIED: &str = OLD[1];
    const POLICY: &str = "/run/watched-policy.yaml";
    let rule = format!("spec:\n  rules:\n  - {{path: {DENIED}, action: deny}}\n");
    let head = "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: watched}\n";
    fs::write(POLICY, format!("{head}{rule}"))?;
    fs::write(CONFIG, config(&[OLD, &[FILE]].concat(), "five"))?;
    let apply = held()?;
    agent.kill()?;
    let mut agent = RunningDaemon::start(&["--standalone", "--config", CONFIG, "--policy", POLICY])?;
    status::wait_for("compliant", LIMIT)?;
    let before = agent.records()?.len();
    alice(&format!("echo evil > {FILE}"))?;
    drift(&mut agent, before, FILE)?;
    ensure!(fs::read_to_string(DENIED)? != "five", "the apply has written what the rule protects already");
    ensure!(shell(&format!("echo evil > {DENIED}")).is_err(), "no rule protects {DENIED}");
    shell(&format!("rm {FILE} && fsfreeze --unfreeze {FIRST}"))?;
    let finished = finish(apply)?;
    let records = agent.records()?.split_off(before);
    let denied = records.iter().find(|one| one["kind"] == "denied" && one["actor"]["exe"] == HOLDFAST);
    ensure!(denied.is_none(), "the apply was refused a write: {}", denied.unwrap_or(&Value::Null));
    done(&mut agent, &finished)?;
    ensure!(fs::read_to_string(DENIED)? == "five", "the protected file was not written");
    agent.stop()?;
    Ok(finished.1)
}
