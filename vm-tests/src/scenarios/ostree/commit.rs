//! The booted commit as the source of what is expected: of `/usr`, of the first state of `/etc`, on demand and live.

use std::fs;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::super::apply::holdfast;
use super::super::extensions::merged::{drift_at, is_of, recovered, recovered_at};
use super::node::{CURRENT, PINNED};
use crate::guest::agent::RunningDaemon;
use crate::guest::ostree::{IMAGE, LAYERS, VERSIONS};
use crate::guest::{run, shell, status};

/// A file that each version has with another content.
const FILE: &str = "/usr/lib/os-version";
/// A program of the commit's first layer.
const PROGRAM: &str = "/usr/bin/nproc";
/// A file of `/etc` that no config of the scenario declares.
pub(super) const UNDECLARED: &str = "/etc/debian_version";

/// The index of the booted commit.
const INDEX: &str = "/var/lib/holdfast/images/ostree.index";

const POLICY_FILE: &str = "/root/commit-policy.yaml";
const POLICY: &str = r"apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: commit}
spec:
  rules:
  - {path: /usr/lib/os-version, image: true, action: degrade}
  - {path: /usr/bin/nproc, image: true, action: observe}
  - {path: /etc/debian_version, image: true, action: observe}
";

/// What the shipped policy has watched.
const SHIPPED_FILE: &str = "/root/image-policy.yaml";
const SHIPPED: &str = include_str!("../../../../policies/drift/image.yaml");

/// Indexes the booted commit, which was made from an image, and compares its files.
pub(super) fn indexed() -> Result<String> {
    let (printed, _) = holdfast(0, &["image", "index", "--ostree"])?;
    let version = VERSIONS[0].name;
    ensure!(printed.contains("ostree commit") && printed.contains(&format!("({version})")), "{printed}");
    ensure!(printed.contains(IMAGE) && LAYERS.iter().all(|[.., line]| printed.contains(line)), "{printed}");
    let differing = verify(0, "/usr/lib/systemd")?;
    ensure!(differing.is_empty(), "{differing:?}");
    Ok(printed)
}

/// Indexes the commit of the next version before its deployment, and compares it with the booted one.
pub(super) fn next_indexed() -> Result<String> {
    let checksum = run("ostree", &["rev-parse", VERSIONS[1].branch])?;
    let (printed, _) = holdfast(0, &["image", "index", &format!("--ostree={}", checksum.trim())])?;
    ensure!(printed.contains(&format!("({})", VERSIONS[1].name)), "{printed}");
    let (changes, _) = holdfast(1, &["image", "diff", "ostree", &format!("ostree-{}", &checksum[..12])])?;
    ensure!(changes.contains(&format!("changed (content) {FILE} ")), "{changes}");
    Ok(printed)
}

/// After the upgrade the index of the last commit is refused, and that of the next one is the booted commit's.
pub(super) fn indexes_after_the_upgrade() -> Result<String> {
    let (_, refused) = holdfast(2, &["image", "verify", FILE, "--image", "ostree"])?;
    ensure!(refused.contains("another ostree commit"), "{refused}");
    holdfast(0, &["image", "verify", FILE])?;
    let (differing, _) = opened(|| holdfast(1, &["image", "verify", FILE]))?;
    ensure!(differing.contains(FILE) && differing.contains(VERSIONS[1].name), "{differing}");
    Ok(differing)
}

/// After the upgrade a file of `/etc` that has what the earlier version shipped, or a local state, holds back what the booted one ships.
pub(super) fn held_back() -> Result<String> {
    let (printed, _) = holdfast(1, &["image", "verify", PINNED, "-o", "json"])?;
    let report: Value = serde_json::from_str(&printed)?;
    let earlier = run("ostree", &["rev-parse", VERSIONS[0].branch])?;
    let other = &report["differing"][0]["other_content_in"];
    ensure!(other.as_str().is_some_and(|name| name.starts_with(earlier.trim())), "{report:#}");
    fs::write(POLICY_FILE, POLICY)?;
    let content = fs::read(UNDECLARED)?;
    fs::write(UNDECLARED, "local\n")?;
    let checked = holdfast(1, &["check", "--config", CURRENT, "--policy", POLICY_FILE, "-o", "json"]);
    fs::write(UNDECLARED, content)?;
    let report: Value = serde_json::from_str(&checked?.0)?;
    let drifted = report["drifted"].as_array().into_iter().flatten().find(|one| one["path"] == UNDECLARED);
    ensure!(drifted.is_some_and(|one| kinds(one) == ["content", "held-back"]), "{report:#}");
    Ok(other.to_string())
}

/// A daemon reports the same live. `repair --image-etc` puts back what the booted image ships at each path that no rule ignores.
pub(super) fn put_back() -> Result<String> {
    fs::write(POLICY_FILE, format!("{POLICY}  - {{path: '/etc/**', image: true, action: ignore}}\n"))?;
    let mut agent = RunningDaemon::start(&["--standalone", "--policy", POLICY_FILE])?;
    status::wait_for("compliant", Duration::from_mins(1))?;
    let before = agent.records()?.len();
    let shipped = fs::read(UNDECLARED)?;
    fs::write(UNDECLARED, "local\n")?;
    let record = drift_at(&mut agent, before, UNDECLARED)?;
    ensure!(kinds(&record) == ["content", "held-back"] && record["actor"]["pid"].is_u64(), "{record}");
    let (printed, _) = holdfast(0, &["repair", "--yes", "--image-etc", "--policy", POLICY_FILE])?;
    recovered_at(&mut agent, before, UNDECLARED)?;
    ensure!(fs::read(UNDECLARED)? == shipped, "{UNDECLARED} is not as shipped: {printed}");
    ensure!(printed.lines().count() == 1 && printed.contains(UNDECLARED), "{printed}");
    ensure!(agent.stop()?.success(), "the daemon did not end well");
    Ok(record["differences"].to_string())
}

/// The kinds of the differences of a record or of a report's entry.
fn kinds(of: &Value) -> Vec<&Value> {
    of["differences"].as_array().into_iter().flatten().map(|difference| &difference["kind"]).collect()
}

/// A change of the opened `/usr` and one of `/etc`, as `image verify` finds them.
pub(super) fn verified() -> Result<String> {
    let differing = opened(|| verify(1, FILE))?;
    ensure!(differing.len() == 1 && differing[0]["path"] == FILE, "{differing:?}");
    let [_, [copied, _, line]] = LAYERS;
    let layer = &differing[0]["layer"];
    ensure!(layer["number"] == 2 && layer["digest"] == copied && layer["history"] == line, "{differing:?}");
    ensure!(differing[0]["strength"] == "sha256 of an ostree object", "{differing:?}");
    ensure!(verify(0, FILE)?.is_empty(), "it was put back");
    let content = fs::read(PINNED)?;
    fs::write(PINNED, "local\n")?;
    let differing = verify(1, "/etc/demo-shipped");
    fs::write(PINNED, content)?;
    let differing = differing?;
    ensure!(differing.len() == 1 && differing[0]["config"] == true, "{differing:?}");
    ensure!(differing[0]["layer"]["number"] == 1, "{differing:?}");
    // The other version ships another content. But it is the newer one.
    ensure!(differing[0]["other_content_in"].is_null(), "{differing:?}");
    Ok(format!("{differing:?}"))
}

/// The same, as the daemon sees them with the shipped policy about the image. It makes the index itself.
pub(super) fn watched() -> Result<String> {
    fs::remove_file(INDEX)?;
    fs::write(POLICY_FILE, POLICY)?;
    fs::write(SHIPPED_FILE, SHIPPED)?;
    // The config is the one that was applied last. The daemon finds the new index with a beat of the canary.
    let arguments =
        ["--standalone", "--policy", POLICY_FILE, "--policy", SHIPPED_FILE, "--canary-every", "1"];
    let mut agent = RunningDaemon::start(&arguments)?;
    agent.wait_for("the gap", 0, |record| {
        record["kind"] == "gap" && record["detail"]["reason"] == "image-not-indexed"
    })?;
    let status = status::wait_for("compliant", Duration::from_mins(3))?;
    ensure!(fs::exists(INDEX)?, "the daemon made no index");
    let programs = fs::read_dir("/usr/bin")?.count();
    let managed = status["counters"]["managed"].as_u64().context("no number of things")?;
    ensure!(
        managed > u64::try_from(programs)?,
        "{managed} things, and {programs} programs in /usr/bin alone"
    );
    let before = agent.records()?.len();
    let record = opened(|| {
        agent.wait_for("drift", before, |record| record["kind"] == "drift" && record["path"] == FILE)
    })?;
    let source = record["source"].as_str().unwrap_or_default();
    ensure!(source.starts_with("layer 2 of 2, sha256:") && source.contains(LAYERS[1][2]), "{record}");
    ensure!(record["actor"]["argv"].is_array(), "{record}");
    agent
        .wait_for("the recovery", before, |record| record["kind"] == "recovered" && record["path"] == FILE)?;
    executed(&mut agent)?;
    let before = agent.records()?.len();
    let content = fs::read(UNDECLARED)?;
    fs::write(UNDECLARED, "local\n")?;
    let local = agent
        .wait_for("drift", before, |record| record["kind"] == "drift" && record["path"] == UNDECLARED)?;
    ensure!(local["detail"]["policy"] == "observe", "{local}");
    ensure!(local["actor"]["pid"] == std::process::id(), "this process changed it: {local}");
    // The other version ships another content. But it is the newer one.
    ensure!(kinds(&local) == ["content"], "{local}");
    fs::write(UNDECLARED, content)?;
    agent.wait_for("the recovery", before, |record| {
        record["kind"] == "recovered" && record["path"] == UNDECLARED
    })?;
    ensure!(agent.stop()?.success(), "the daemon did not end well");
    Ok(format!("{managed} things: {record}"))
}

/// A program that differs from the commit runs: the record has who ran it, and the layer that has another program.
fn executed(agent: &mut RunningDaemon) -> Result<()> {
    let before = agent.records()?.len();
    let is = |record: &Value, kind: &str| record["kind"] == kind && record["path"] == PROGRAM;
    let other = format!("printf '#!/bin/sh\\necho 64\\n' > {PROGRAM}.new && chmod 755 {PROGRAM}.new");
    let record = replaced(PROGRAM, &other, || {
        agent.wait_for("the drift of the program", before, |record| is(record, "drift"))?;
        ensure!(run(PROGRAM, &[])?.trim() == "64", "the other program did not run");
        agent.wait_for("the execution", before, |record| is(record, "exec") && record["verdict"] == "drifted")
    })?;
    let source = record["source"].as_str().unwrap_or_default();
    ensure!(source.starts_with("layer 1 of 2, sha256:") && source.contains(LAYERS[0][2]), "{record}");
    ensure!(record["actor"]["argv"].to_string().contains(PROGRAM), "{record}");
    agent.wait_for("the recovery of the program", before, |record| is(record, "recovered")).map(drop)
}

/// A process writes into a file of `/usr` in place, and so into the repository's object, before the index is made: the index has all other
/// paths, and names this one until its content is back.
pub(super) fn tampered() -> Result<String> {
    fs::remove_file(INDEX)?;
    shell("mount -o remount,rw /usr")?;
    let content = fs::read(FILE)?;
    let put = |content: &[u8]| -> Result<()> {
        // Opened without truncation or replacement: the deployed file and the object are one inode.
        let mut file = fs::OpenOptions::new().write(true).open(FILE)?;
        file.write_all(content)?;
        Ok(file.set_len(content.len() as u64)?)
    };
    put(b"evil\n")?;
    let made = holdfast(1, &["image", "index", "--ostree"]);
    let differing = verify(1, "/usr/lib");
    put(&content)?;
    shell("mount -o remount,bind,ro /usr")?;
    let (printed, _) = made?;
    ensure!(
        printed.contains(&format!("damaged {FILE}: ")) && printed.contains("1 file of the commit"),
        "{printed}"
    );
    let differing = differing?;
    ensure!(differing.len() == 1 && differing[0]["path"] == FILE, "{differing:?}");
    ensure!(differing[0]["strength"] == "checksum of an ostree object", "{differing:?}");
    // The index has the commit's checksum, so it needs no change when the content is right again.
    ensure!(verify(0, FILE)?.is_empty(), "it was put back");
    Ok(printed)
}

/// `ostree admin unlock` puts an overlay over `/usr`: one drift with its actor. A file that is changed in the overlay is another one. An unmount
/// closes both.
pub(super) fn unlocked() -> Result<String> {
    let mut agent = unlockable()?;
    let before = agent.records()?.len();
    let text = unlock(&mut agent, "ostree admin unlock", "(development)")?;
    let (printed, _) = holdfast(1, &["image", "verify", "/usr/lib/systemd", "--image", "ostree"])?;
    ensure!(printed.contains("over /usr: ") && !printed.contains("differs "), "{printed}");
    let of_file = |record: &Value, kind: &str| record["kind"] == kind && record["path"] == FILE;
    let after = agent.records()?.len();
    shell(&format!("echo evil >> {FILE}"))?;
    let changed = agent.wait_for("the drift of the file", after, |record| of_file(record, "drift"))?;
    let source = changed["source"].as_str().unwrap_or_default();
    ensure!(source.starts_with("layer 2 of 2, sha256:") && source.contains(LAYERS[1][2]), "{changed}");
    let line = changed["actor"]["argv"].as_array().and_then(|argv| argv.last()?.as_str());
    ensure!(line == Some(&*format!("echo evil >> {FILE}")), "{changed}");
    let (printed, _) = holdfast(1, &["image", "verify", FILE, "--image", "ostree"])?;
    ensure!(printed.contains("over /usr: ") && printed.contains(&format!("differs {FILE}")), "{printed}");
    lock(&mut agent)?;
    agent.wait_for("the recovery of the file", after, |record| of_file(record, "recovered"))?;
    let drifts: Vec<Value> =
        agent.records()?.into_iter().skip(before).filter(|record| record["kind"] == "drift").collect();
    ensure!(drifts.len() == 2, "{drifts:?}");
    ensure!(agent.stop()?.success(), "the daemon did not end well");
    Ok(text)
}

/// An overlay that stays until the next update, and one that only its maker can write to, have the same drift in other words.
pub(super) fn unlocked_otherwise() -> Result<String> {
    let mut agent = unlockable()?;
    let mut texts = String::new();
    for state in ["transient", "hotfix"] {
        // The note of the unlock before outlives its unmount.
        shell("rm -rf /run/ostree/deployment-state")?;
        let ending = format!("({state})");
        texts += &unlock(&mut agent, &format!("ostree admin unlock --{state}"), &ending)?;
        lock(&mut agent)?;
    }
    ensure!(agent.stop()?.success(), "the daemon did not end well");
    Ok(texts)
}

/// A daemon under a rule for `/usr` itself.
fn unlockable() -> Result<RunningDaemon> {
    let policy = format!("{POLICY}  - {{path: /usr, image: true, action: degrade}}\n");
    fs::write("/root/unlock-policy.yaml", policy)?;
    let agent = RunningDaemon::start(&["--standalone", "--policy", "/root/unlock-policy.yaml"])?;
    status::wait_for("compliant", Duration::from_mins(1))?;
    Ok(agent)
}

/// Puts an overlay over `/usr` by a command of ostree. Gives the text of the drift, which ends with `ending`.
fn unlock(agent: &mut RunningDaemon, command: &str, ending: &str) -> Result<String> {
    let before = agent.records()?.len();
    shell(command)?;
    let record = agent.wait_for("the drift of /usr", before, |record| is_of(record, "/usr", "drift"))?;
    let text = record["differences"][0]["text"].as_str().unwrap_or_default();
    ensure!(text.contains("by `ostree admin unlock") && text.ends_with(ending), "{record}");
    let exe = record["actor"]["exe"].as_str().unwrap_or_default();
    ensure!(exe.ends_with("/ostree") && record["detail"]["policy"] == "degrade", "{record}");
    Ok(text.to_owned())
}

/// Removes the overlay.
fn lock(agent: &mut RunningDaemon) -> Result<()> {
    let before = agent.records()?.len();
    shell("umount -l /usr")?;
    recovered(agent, before, "/usr")
}

/// What differs from the commit at a path, by a verification that ends with this code.
fn verify(code: i32, path: &str) -> Result<Vec<Value>> {
    let (printed, _) = holdfast(code, &["image", "verify", path, "--image", "ostree", "-o", "json"])?;
    let report: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
    report["differing"].as_array().cloned().context("no list")
}

/// Opens `/usr` for writing, without the overlay that `ostree admin unlock` makes, and puts another file in the place of one: that of the same
/// name with `.new`, which this line makes. Afterwards everything is as before. Another name of the file keeps its inode, which is the
/// repository's object.
fn replaced<T>(file: &str, line: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
    shell("mount -o remount,rw /usr")?;
    shell(&format!("ln {file} {file}.kept && {line} && mv {file}.new {file}"))?;
    let result = act();
    shell(&format!("mv {file}.kept {file} && mount -o remount,bind,ro /usr"))?;
    result
}

/// The same for [`FILE`] and a content that differs by a line.
fn opened<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    replaced(FILE, &format!("cp -a {FILE} {FILE}.new && echo evil >> {FILE}.new"), act)
}
