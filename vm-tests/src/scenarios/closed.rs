//! Directories that a drift policy closes: each undeclared name is drift, live, with its actor, or is moved to the quarantine. So is an object
//! at a path where it expects nothing.

mod absent;
mod results;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use results::{item_of, quarantine, recovered};

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
  - {path: /etc/closed/, closed: true, action: degrade, except: [README, '*.bak'], exceptLinks: [{name: '*.wants', target: /opt/*}]}
  - {path: '/etc/glob.*', closed: true, action: observe}
  - {path: /etc/refused/, closed: true, action: deny}
  - {path: /etc/later/, closed: true, action: degrade}
  - {path: '/etc/moved.*', closed: true, action: revert}
  - {path: '/run/moved.*', closed: true, action: revert}
  - {path: /etc/single, absent: true, action: degrade}
  - {path: /etc/single.early, absent: true, action: degrade}
  - {path: /etc/missing/single, absent: true, action: degrade}
  - {path: /etc/single.refused, absent: true, action: deny}
  - {path: /etc/single.moved, absent: true, action: revert}
  - {path: /etc/single.directory, absent: true, action: revert}
";

const CLOSED: &str = "/etc/closed";

/// On the file system of the state directory, and on another one.
const BASES: [&str; 2] = ["/etc", "/run"];

/// Types of objects, with a command that makes one at `X` in one step.
const TYPES: [(&str, &str); 5] = [
    ("regular", "echo content > BASE/made && chmod 4755 BASE/made && mv BASE/made X"),
    ("directory", "mkdir -p BASE/made/deep && touch BASE/made/deep/file && mv BASE/made X"),
    ("symlink", "ln -s /etc/passwd X"),
    ("fifo", "mkfifo X"),
    ("character-device", "mknod X c 1 3"),
];

/// Puts things into closed directories, before and after the daemon's start.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    shell(
        "mkdir -p /etc/closed/sub /etc/glob.one /etc/refused && echo content > /etc/closed/declared.conf && \
         echo content > /etc/closed/sub/declared.conf && chmod 644 /etc/closed/declared.conf /etc/closed/sub/declared.conf && \
         touch /etc/closed/README /etc/closed/early /etc/single.early",
    )?;
    // The state directory is on the file system of `/etc`, and `/run` is another one. The daemon moves objects of one directory a few
    // times a minute, so each check has a directory of its own.
    for base in BASES {
        for name in TYPES
            .iter()
            .map(|(name, _)| *name)
            .chain(["socket", "any-name", "back", "mount", "early", "loop"])
        {
            fs::create_dir_all(format!("{base}/moved.{name}"))?;
        }
        fs::write(format!("{base}/moved.early/x"), "")?;
    }
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
    context.check("a_link_is_excepted_only_with_its_target", excepted_link(&mut agent));
    context.check("refused", refused(&mut agent));
    context.check("a_directory_that_begins_to_match_a_glob", begins_to_match(&mut agent));
    context.check("explain_and_repair", explained());
    for base in BASES {
        let of = base.trim_start_matches('/');
        context.check(&format!("{of}_each_type_is_moved"), moved_of_each_type(&mut agent, base));
        context.check(&format!("{of}_moved_back"), moved_back(&mut agent, &format!("{base}/moved.back")));
        context.check(
            &format!("{of}_not_across_a_mount"),
            mount_stays(&mut agent, &format!("{base}/moved.mount")),
        );
    }
    context.check("a_loop_is_bounded", loop_is_bounded(&mut agent));
    context.check("where_nothing_may_be", absent::single(&mut agent));
    context.check("where_nothing_may_be_is_refused", absent::refused(&mut agent));
    context.check("where_nothing_may_be_is_moved", absent::moved(&mut agent));
    context.check("where_nothing_may_be_a_directory_stays", absent::directory_stays(&mut agent));
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

/// A link with the excepted name and target is no drift. One with another target is, and so is a file with that name.
fn excepted_link(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    shell("ln -s /opt/tool /etc/closed/tool.wants")?;
    let made = Path::new("/etc/closed/tool.wants");
    // The later drift of another name has its record after that of the link.
    unexpected(agent, CLOSED, Path::new("/etc/closed/last"), "touch /etc/closed/last")?;
    let drifts = |agent: &mut RunningDaemon| -> Result<usize> {
        Ok(agent.records()?.iter().skip(before).filter(|record| record["kind"] == "drift").count())
    };
    ensure!(drifts(agent)? == 1, "the excepted link is drift");
    unexpected(agent, CLOSED, made, "rm /etc/closed/tool.wants && ln -s /run/tool /etc/closed/tool.wants")?;
    unexpected(agent, CLOSED, made, "echo x > /etc/closed/tool.wants")?;
    ensure!(drifts(agent)? == 3, "{} drifts", drifts(agent)?);
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

/// The directory is closed without a reload by a person: the daemon follows the names in `/etc`.
fn begins_to_match(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    shell("mkdir /etc/glob.two && touch /etc/glob.two/x")?;
    let record = drift(agent, before, "/etc/glob.two")?;
    ensure!(record["differences"][0]["found"] == "/etc/glob.two/x", "{record}");
    let before = agent.records()?.len();
    shell("touch /etc/glob.two/y")?;
    let record = drift(agent, before, "/etc/glob.two")?;
    ensure!(record["actor"]["argv"].is_array(), "{record}");
    shell("rm -r /etc/glob.two")?;
    recovered(agent, "/etc/glob.two")?;
    Ok(record["operation"].to_string())
}

/// Waits until the daemon has moved an object.
fn moved(agent: &mut RunningDaemon, before: usize, directory: &str, name: &str) -> Result<Value> {
    let path = format!("{directory}/{name}");
    let record = agent.wait_for("the move", before, |record| {
        let moved = record["detail"]["quarantined"].as_array();
        record["kind"] == "reverted"
            && moved.is_some_and(|moved| moved.iter().any(|moved| moved["path"] == path))
    })?;
    ensure!(record["path"] == directory, "{record}");
    ensure!(!Path::new(&path).is_symlink() && !Path::new(&path).exists(), "{path} is still there");
    let item = item_of(&path)?;
    let named = record["detail"]["quarantined"].as_array().context("no items")?;
    ensure!(named.iter().any(|moved| moved["item"] == item["id"]), "{record} {item}");
    Ok(item)
}

fn moved_of_each_type(agent: &mut RunningDaemon, base: &str) -> Result<String> {
    moved(agent, 0, &format!("{base}/moved.early"), "x")?;
    let mut all = Vec::new();
    for (kind, command) in TYPES {
        let directory = format!("{base}/moved.{kind}");
        let before = agent.records()?.len();
        shell(&command.replace('X', &format!("{directory}/x")).replace("BASE", base))?;
        let item = moved(agent, before, &directory, "x")?;
        ensure!(item["type"] == kind, "{item}");
        ensure!(item["actors"][0]["argv"].is_array(), "nobody made it: {item}");
        ensure!(item["rule"] == format!("{base}/moved.*"), "{item}");
        ensure!(item["copied"].as_bool().unwrap_or(false) == (base == "/run"), "{item}");
        all.push(item);
        recovered(agent, &directory)?;
    }
    let (directory, before) = (format!("{base}/moved.socket"), agent.records()?.len());
    drop(UnixListener::bind(format!("{directory}/x"))?);
    let item = moved(agent, before, &directory, "x")?;
    ensure!(item["type"] == "socket" && item["actors"][0]["pid"] == std::process::id(), "{item}");
    let (directory, before) = (format!("{base}/moved.any-name"), agent.records()?.len());
    fs::write(Path::new(OsStr::from_bytes(&[directory.as_bytes(), b"/\xff\n"].concat())), "")?;
    moved(agent, before, &directory, "\\xff\\x0a")?;
    recovered(agent, &directory)?;
    let file = &all[0];
    ensure!(file["mode"] == "4755" && file["size"] == 8 && file["sha256"].is_string(), "{file}");
    ensure!(all[4]["device"] == serde_json::json!([1, 3]), "{}", all[4]);
    ensure!(fs::read_to_string("/etc/passwd")?.contains("root"), "a link was followed");
    let mode = shell("stat -c %a /var/lib/holdfast/quarantine")?;
    ensure!(mode.trim() == "700", "{mode}");
    Ok(file.to_string())
}

/// A restored object is moved again, because the rule says so, and is the same as before.
fn moved_back(agent: &mut RunningDaemon, directory: &str) -> Result<String> {
    let before = agent.records()?.len();
    let made = directory.replace("moved.", "made.");
    shell(&format!("mkdir -p {made}/deep && echo kept > {made}/deep/file && mv {made} {directory}/back"))?;
    let item = moved(agent, before, directory, "back")?;
    recovered(agent, directory)?;
    let id = item["id"].as_str().context("no id")?.to_owned();
    // Without the daemon it stays where it was.
    agent.signal(Signal::SIGSTOP)?;
    let restored = quarantine(&format!("restore {id}")).and_then(|report| {
        let content = fs::read_to_string(format!("{directory}/back/deep/file"))?;
        ensure!(content == "kept\n" && report["items"][0]["id"] == id, "{content} {report}");
        ensure!(shell(&format!("{HOLDFAST} quarantine restore {id} 2>&1")).is_err(), "it was restored twice");
        Ok(report)
    });
    let before = agent.records()?.len();
    agent.signal(Signal::SIGCONT)?;
    let report = restored?;
    let again = moved(agent, before, directory, "back")?;
    let again = again["id"].as_str().context("no id")?;
    quarantine(&format!("remove {again} --yes"))?;
    ensure!(item_of(&format!("{directory}/back")).is_err(), "it was not removed");
    recovered(agent, directory)?;
    Ok(report.to_string())
}

fn mount_stays(agent: &mut RunningDaemon, directory: &str) -> Result<String> {
    let before = agent.records()?.len();
    let made = directory.replace("moved.", "made.");
    shell(&format!("mkdir -p {made}/deep && mount -t tmpfs held {made}/deep && touch {made}/deep/file"))?;
    // The mount moves with the directory above it.
    shell(&format!("mv {made} {directory}/held"))?;
    let record = agent.wait_for("the refusal", before, |record| {
        record["kind"] == "reverted"
            && record["detail"]["error"].as_str().is_some_and(|error| error.contains("mounted there"))
    })?;
    ensure!(Path::new(&format!("{directory}/held/deep/file")).exists(), "it was moved: {record}");
    let status = status::read()?;
    ensure!(status["verdict"] == "drifted", "{status}");
    shell(&format!("umount {directory}/held/deep"))?;
    moved(agent, before, directory, "held")?;
    recovered(agent, directory)?;
    Ok(record["detail"]["error"].to_string())
}

const LOOP: &str = "/etc/moved.loop";

/// Something that writes the file again and again: the daemon moves it a few times, and waits then.
fn loop_is_bounded(agent: &mut RunningDaemon) -> Result<String> {
    let before = agent.records()?.len();
    let mut writes = 0;
    let has_waited = |agent: &RunningDaemon| -> Result<usize> {
        let records = agent.records()?;
        Ok(records
            .iter()
            .skip(before)
            .filter(|record| record["kind"] == "reverted" && record["path"] == LOOP)
            .count())
    };
    // The limit is three attempts in a minute; earlier checks may have used some.
    let moves = wait::until("the daemon to move no more", LIMIT, || {
        // It is said after the last move, or of the next one. A file that is there later stays, so this comes before the look at the file.
        let output = fs::read_to_string("/run/holdfast-agent.log")?;
        let is_said =
            output.lines().any(|line| line.contains("Wrote the path back too often") && line.contains(LOOP));
        if !Path::new("/etc/moved.loop/x").exists() {
            writes += 1;
            ensure!(writes <= 4, "the daemon moved it {writes} times in a row");
            fs::write("/etc/moved.loop/x", writes.to_string())?;
            return Ok(None);
        }
        let open = status::read()?["drifted"]
            .as_array()
            .is_some_and(|all| all.iter().any(|thing| thing["path"] == LOOP));
        if open && is_said { has_waited(agent).map(Some) } else { Ok(None) }
    })?;
    ensure!(moves <= 3, "the daemon moved it {moves} times within a minute");
    fs::remove_file("/etc/moved.loop/x")?;
    recovered(agent, LOOP)?;
    Ok(format!("{writes} writes, {moves} moves"))
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
