//! Directories that a drift policy closes: each undeclared name is drift, live, with its actor.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::{Context, run, shell, status, wait};

const LIMIT: Duration = Duration::from_mins(1);

const CONFIG: &str = machine_config!(
    "99-worker-closed",
    r#"      - {path: /etc/closed/declared.conf, mode: 420, contents: {source: "data:,content%0A"}}
      - {path: /etc/closed/sub/declared.conf, mode: 420, contents: {source: "data:,content%0A"}}
"#
);

const POLICY: &str = r"apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: closed}
spec:
  rules:
  - {path: /etc/closed/, closed: true, action: degrade, except: [README, '*.bak']}
  - {path: '/etc/glob.*', closed: true, action: observe}
  - {path: /etc/refused/, closed: true, action: deny}
  - {path: /etc/later/, closed: true, action: degrade}
";

const CLOSED: &str = "/etc/closed";

/// Puts things into closed directories, before and after the daemon's start.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    shell(
        "mkdir -p /etc/closed/sub /etc/glob.one /etc/refused && echo content > /etc/closed/declared.conf && \
         echo content > /etc/closed/sub/declared.conf && chmod 644 /etc/closed/declared.conf /etc/closed/sub/declared.conf && \
         touch /etc/closed/README /etc/closed/early",
    )?;
    // A package put this file there.
    shell(
        "mkdir -p /var/lib/dpkg/info && touch /etc/closed/packaged && \
         printf '/.\\n/etc\\n/etc/closed\\n/etc/closed/packaged\\n' > /var/lib/dpkg/info/closed.list",
    )?;
    fs::write("/run/closed.yaml", CONFIG)?;
    fs::write("/run/policy.yaml", POLICY)?;
    let arguments = ["--standalone", "--config", "/run/closed.yaml", "--policy", "/run/policy.yaml"];
    let mut agent = RunningDaemon::start(&arguments)?;
    agent.wait_for("the first gap to close", 0, |record| record["detail"]["until"].is_string())?;
    context.check("what_was_there_at_the_start", early(&mut agent));
    for (name, made, command) in [
        ("file", Path::new("/etc/closed/late"), "echo x > /etc/closed/late"),
        ("directory", Path::new("/etc/closed/directory"), "mkdir /etc/closed/directory"),
        ("link", Path::new("/etc/closed/link"), "ln -s /etc/passwd /etc/closed/link"),
        ("pipe", Path::new("/etc/closed/pipe"), "mkfifo /etc/closed/pipe"),
        ("moved_in", Path::new("/etc/closed/moved"), "touch /run/moved && mv /run/moved /etc/closed/moved"),
    ] {
        context.check(name, unexpected(&mut agent, CLOSED, made, command));
    }
    context.check("any_name", any_name(&mut agent));
    let deep = Path::new("/etc/closed/sub/deep");
    context.check(
        "in_a_sub_directory",
        unexpected(&mut agent, "/etc/closed/sub", deep, "touch /etc/closed/sub/deep"),
    );
    let glob = Path::new("/etc/glob.one/x");
    context.check("by_a_glob", unexpected(&mut agent, "/etc/glob.one", glob, "touch /etc/glob.one/x"));
    let later = Path::new("/etc/later/x");
    context.check(
        "in_a_directory_made_later",
        unexpected(&mut agent, "/etc/later", later, "mkdir /etc/later && touch /etc/later/x"),
    );
    context.check("exceptions_and_declared_names_are_no_drift", quiet(&mut agent));
    context.check("refused", refused(&mut agent));
    context.check("explain_and_repair", explained());
    agent.stop()?;
    Ok(())
}

/// The drift of a closed directory after `before` records.
fn drift(agent: &mut RunningDaemon, before: usize, directory: &str) -> Result<Value> {
    let record =
        agent.wait_for("drift", before, |record| record["kind"] == "drift" && record["path"] == directory)?;
    ensure!(record["thing"] == "closed-directory", "{record}");
    ensure!(record["differences"][0]["kind"] == "unexpected", "{record}");
    Ok(record)
}

fn recovered(agent: &mut RunningDaemon, directory: &str) -> Result<()> {
    // The record is written before the status is, so a status without the drift may still be the one of before it.
    wait::until("the record of the recovery", LIMIT, || {
        let records = agent.records()?;
        let last = records.iter().rev().find(|record| record["path"] == directory);
        Ok(last.filter(|last| last["kind"] == "recovered").map(drop))
    })?;
    status::wait_until("no drift", LIMIT, |status| {
        let drifted = status["drifted"].as_array();
        drifted.is_some_and(|all| all.iter().all(|thing| thing["path"] != directory))
    })?;
    Ok(())
}

fn early(agent: &mut RunningDaemon) -> Result<String> {
    let record = drift(agent, 0, CLOSED)?;
    let differences = record["differences"].as_array().context("no differences")?;
    ensure!(differences.len() == 1 && differences[0]["found"] == "/etc/closed/early", "{record}");
    ensure!(record["actor"].is_null() && record["source"] == "/etc/closed/", "{record}");
    fs::remove_file("/etc/closed/early")?;
    recovered(agent, CLOSED)?;
    Ok(record.to_string())
}

/// A command makes an object that nothing declares; then it goes away again.
fn unexpected(agent: &mut RunningDaemon, directory: &str, made: &Path, command: &str) -> Result<String> {
    let before = agent.records()?.len();
    shell(command)?;
    let record = drift(agent, before, directory)?;
    ensure!(record["differences"][0]["found"] == made.to_string_lossy().as_ref(), "{record}");
    ensure!(record["actor"]["argv"].is_array(), "{record}");
    if made.is_dir() {
        fs::remove_dir(made)?;
    } else {
        fs::remove_file(made)?;
    }
    recovered(agent, directory)?;
    Ok(record["operation"].to_string())
}

/// A name that is neither text nor one line.
fn any_name(agent: &mut RunningDaemon) -> Result<String> {
    let made = Path::new(OsStr::from_bytes(b"/etc/closed/\xff\n"));
    let before = agent.records()?.len();
    fs::write(made, "")?;
    let record = drift(agent, before, CLOSED)?;
    ensure!(record["actor"]["pid"] == std::process::id(), "{record}");
    fs::remove_file(made)?;
    recovered(agent, CLOSED)?;
    Ok(record["differences"][0]["found"].to_string())
}

/// Names that may be there: excepted, packaged and declared ones. A later drift has its record after theirs.
fn quiet(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    shell(
        "touch /etc/closed/a.bak && rm /etc/closed/README /etc/closed/packaged && touch /etc/closed/packaged",
    )?;
    unexpected(agent, CLOSED, Path::new("/etc/closed/last"), "touch /etc/closed/last")?;
    let records = agent.records()?;
    let drifts = records.iter().skip(before).filter(|record| record["kind"] == "drift").count();
    ensure!(drifts == 1, "{drifts} drifts");
    Ok(String::new())
}

fn refused(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    for command in
        ["touch /etc/refused/x", "mkdir /etc/refused/x", "touch /run/y && mv /run/y /etc/refused/y"]
    {
        ensure!(shell(command).is_err(), "`{command}` was not refused");
    }
    let record = agent.wait_for("the refusal", before, |record| record["kind"] == "denied")?;
    ensure!(record["path"] == "/etc/refused" || record["path"] == "/etc/refused/x", "{record}");
    ensure!(fs::read_dir("/etc/refused")?.next().is_none(), "a name was made");
    Ok(record["operation"].to_string())
}

/// `explain` of an undeclared file names the rule, and `who` its maker. A repair does not remove the file.
fn explained() -> Result<String> {
    fs::write("/etc/closed/kept", "")?;
    status::wait_until("drift", LIMIT, |status| status["verdict"] == "drifted")?;
    let of = |command: &str| {
        format!(
            "{HOLDFAST} {command} --config /run/closed.yaml --policy /run/policy.yaml 2>&1; echo \"ended with $?\""
        )
    };
    let who = shell(&format!("{HOLDFAST} who /etc/closed/kept"))?;
    ensure!(who.contains("unexpected file \"/etc/closed/kept\"") && who.contains("pid "), "{who}");
    let printed = shell(&of("explain /etc/closed/kept"))?;
    ensure!(printed.contains("rule /etc/closed/") && printed.contains("/etc/closed/kept"), "{printed}");
    ensure!(printed.contains("ended with 1"), "{printed}");
    let repaired = shell(&of("repair /etc/closed --yes"))?;
    ensure!(Path::new("/etc/closed/kept").exists(), "{repaired}");
    run("rm", &["/etc/closed/kept"])?;
    Ok(format!("{printed}\n{repaired}"))
}
