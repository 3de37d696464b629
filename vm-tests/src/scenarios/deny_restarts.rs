//! Deny rules over a restart of the daemon that finds other rules than the daemon before, and over an upgrade that loads other programs.
//!
//! In: a guest with the BPF LSM. Out: an error if an actor of one rule could change what another rule protects, or if an allowed actor was
//! refused, at any moment of the restart.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::programs::links::PinnedLink;

use super::upgrade;
use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::{run, shell, status, wait};

const FIRST: &str = "/etc/order/a.conf";
const LAST: &str = "/etc/order/z.conf";
/// Files between the two, so that the daemon enrols the last one long after the first one.
const BETWEEN: usize = 600;

const CONFIG: &str = "/run/order.yaml";
const POLICY: &str = "/run/order-policy.yaml";

/// The programs that the rules of the two files allow.
const OF_FIRST: &str = "/run/order/first/busybox";
const OF_LAST: &str = "/run/order/last/busybox";

/// A line for each attempt of the program of the first file to change the last one, and a line for each that succeeded.
const TRIED: &str = "/run/order/tried";
const PASSED: &str = "/run/order/passed";
/// A line for each attempt of the program of the last file, and a line for each that was refused.
const ALLOWED: &str = "/run/order/allowed";
const REFUSED: &str = "/run/order/refused";

/// The first daemon has a rule for the last file alone; the next one also has a rule for the first file, which comes before that. A third one
/// finds the programs and maps of another version.
pub(super) fn other_rules() -> Result<String> {
    for program in [OF_FIRST, OF_LAST] {
        let directory = Path::new(program).parent().unwrap_or(Path::new("/"));
        shell(&format!("mkdir -p {0} && cp /bin/busybox {0}/", directory.display()))?;
    }
    shell("rm -rf /var/lib/holdfast/apply")?;
    fs::write(CONFIG, config()?)?;
    fs::write(POLICY, policy(&[(LAST, OF_LAST)]))?;
    let agent = started()?;
    status::wait_for("compliant", Duration::from_mins(2))?;
    agent.stop()?;
    fs::write(POLICY, policy(&[(FIRST, OF_FIRST), (LAST, OF_LAST)]))?;
    let (agent, restart) = started_during_attempts().context("other rules")?;
    agent.stop()?;
    upgrade::of_another_version(&["links-", "maps-v"])?;
    let (agent, upgrade) = started_during_attempts().context("another version")?;
    agent.stop()?;
    detached()?;
    Ok(format!("{restart}; with another version {upgrade}"))
}

/// The rules refuse without a daemon, until `holdfast detach`. While another process has the links open they refuse on, and the command says so.
fn detached() -> Result<()> {
    const PINS: &str = "/sys/fs/bpf/holdfast";
    let change = format!("{OF_FIRST} chmod 600 {LAST}");
    ensure!(shell(&change).is_err(), "without a daemon the rule refused nothing");
    run(HOLDFAST, &["detach"])?;
    shell(&change).context("the rule refuses after `holdfast detach`")?;
    shell(&format!("chmod 644 {LAST}"))?;
    ensure!(!fs::exists(PINS)?, "{PINS} is left after `holdfast detach`");
    started()?.stop()?;
    let mut held = Vec::new();
    for links in
        fs::read_dir(PINS)?.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_of_links(path))
    {
        for pin in fs::read_dir(links)? {
            held.push(PinnedLink::from_pin(pin?.path())?);
        }
    }
    let printed = run(HOLDFAST, &["detach"])?;
    let running = format!("{} kernel programs still ran", held.len());
    ensure!(printed.contains(&running) && held.len() > 1, "{} links were held: {printed}", held.len());
    ensure!(shell(&change).is_err(), "the rule ended although its links are open");
    drop(held);
    wait::until("the rule to end with its links", Duration::from_secs(30), || Ok(shell(&change).ok()))?;
    shell(&format!("chmod 644 {LAST}")).map(drop)
}

fn is_of_links(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("links-"))
}

/// Starts the daemon while both programs try to change the last file. Then each rule has to allow its own program, and no other one.
fn started_during_attempts() -> Result<(RunningDaemon, String)> {
    let lines_of = |files: [&str; 2]| files.map(lines);
    let at_first = lines_of([TRIED, ALLOWED]);
    let attempts = (
        repeated(OF_FIRST, &format!("if echo drift >> {LAST}; then date >> {PASSED}; fi; echo >> {TRIED}"))?,
        repeated(OF_LAST, &format!("if ! true >> {LAST}; then date >> {REFUSED}; fi; echo >> {ALLOWED}"))?,
    );
    let since = |before: [usize; 2]| {
        let now = lines_of([TRIED, ALLOWED]);
        [now[0] - before[0], now[1] - before[1]]
    };
    wait::until("the first attempts", Duration::from_secs(30), || {
        Ok(since(at_first).iter().all(|attempts| *attempts > 4).then_some(()))
    })?;
    let before = lines_of([TRIED, ALLOWED]);
    let agent = started();
    let during = since(before);
    drop(attempts);
    let agent = agent?;
    ensure!(during.iter().all(|attempts| *attempts > 4), "only {during:?} attempts while the daemon started");
    let wrong = lines_of([PASSED, REFUSED]);
    ensure!(wrong == [0, 0], "of {during:?} attempts passed and were refused: {wrong:?}");
    ensure!(fs::read_to_string(LAST)? == CONTENT, "the content changed");
    let changed = |program: &str, file: &str| {
        shell(&format!("{program} chmod 600 {file} && {program} chmod 644 {file}"))
    };
    ensure!(changed(OF_FIRST, LAST).is_err() && changed(OF_LAST, FIRST).is_err(), "a rule refused nothing");
    changed(OF_FIRST, FIRST)?;
    changed(OF_LAST, LAST)?;
    Ok((agent, format!("{} attempts, and {} of the allowed program", during[0], during[1])))
}

const CONTENT: &str = "content\n";

/// Writes the files, and gives their config.
fn config() -> Result<String> {
    let mut config = machine_config!("99-order", "").to_owned();
    shell("mkdir -p /etc/order")?;
    let between = (0..BETWEEN).map(|number| format!("/etc/order/m{number}.conf"));
    for path in [FIRST.to_owned()].into_iter().chain(between).chain([LAST.to_owned()]) {
        fs::write(&path, CONTENT)?;
        write!(
            config,
            "      - path: {path}\n        mode: 420\n        contents: {{source: 'data:,content%0A'}}\n"
        )?;
    }
    shell("chmod 644 /etc/order/*.conf")?;
    Ok(config)
}

fn policy(rules: &[(&str, &str)]) -> String {
    let rule = |(path, exe): &(&str, &str)| {
        format!("  - path: {path}\n    action: deny\n    allowedActors: {{exes: [{exe}]}}\n")
    };
    let rules: String = rules.iter().map(rule).collect();
    format!(
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {{name: order}}\nspec:\n  rules:\n{rules}"
    )
}

/// A program that makes attempts until this is dropped.
struct Attempts(Child);

impl Drop for Attempts {
    fn drop(&mut self) {
        // It ends by itself only if it could not start, which the number of attempts shows.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a line again and again in a shell of this program.
fn repeated(program: &str, line: &str) -> Result<Attempts> {
    let every = format!("while :; do {line}; sleep 0.01; done");
    Ok(Attempts(Command::new(program).args(["ash", "-c", &every]).stderr(Stdio::null()).spawn()?))
}

/// The number of a file's lines, which may not exist yet.
fn lines(file: &str) -> usize {
    fs::read(file).map_or(0, |text| text.split(|byte| *byte == b'\n').count() - 1)
}

fn started() -> Result<RunningDaemon> {
    RunningDaemon::start(&["--standalone", "--config", CONFIG, "--policy", POLICY])
}
