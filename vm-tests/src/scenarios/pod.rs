//! The daemon in a container of a pod, and the reporter beside it.
//!
//! In: a bare guest. Out: a check for each property. The container has a mount, a control-group and a network namespace of its
//! own, and the host's process ids. The program's file is in the container alone, as in an image.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use super::pod_capabilities::{PRIVATE, PRIVATE_CONFIG, effects, without_each};
use super::simple;
use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::pod::{Sensor, become_user, enter_group, group};
use crate::guest::{Context, run, shell, status};

/// The helper that asks as a reporter: `act reporter FILE`.
pub(crate) const REPORTER: &str = "reporter";

const LIMIT: Duration = Duration::from_mins(1);
const CONFIG: &str = "/run/pod.yaml";
const POLICY: &str = "/run/pod-policy.yaml";
/// The config of a file that root reads with a capability alone.
const PRIVATE_FILE: &str = "/run/pod-private.yaml";
const SOCKET: &str = "/run/holdfast/reporter.sock";
/// The pod of sensor and reporter.
pub(super) const OWN: &str = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f";
const OTHER: &str = "99999999-0a1b-0a1b-0a1b-0a1b2c3d4e5f";
/// The user of the reporter.
pub(super) const USER: u32 = 61_234;

const RULES: &str = "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: pod}\nspec:\n  rules:\n  \
                     - path: /etc/pod/0001\n    action: revert\n";

/// The scenario.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    let files = simple::files(Path::new("/etc/pod"), 2, Path::new(CONFIG))?;
    fs::write(PRIVATE_FILE, PRIVATE_CONFIG)?;
    shell(&format!(
        "mkdir -p /etc/pod-private && printf private > {PRIVATE} && chmod 600 {PRIVATE} && chown 4711 {PRIVATE}"
    ))?;
    fs::write(POLICY, RULES)?;
    context.check("without_host_pid", without_host_pid());
    let user = USER.to_string();
    let arguments = [
        "--mode",
        "observe",
        "--enter-host",
        "--config",
        CONFIG,
        "--config",
        PRIVATE_FILE,
        "--policy",
        POLICY,
        "--reporter-uid",
        &user,
    ];
    let mut agent = RunningDaemon::start_by(sensor(&arguments).command()?)?;
    status::wait_for("compliant", LIMIT)?;
    context.check("in_the_hosts_namespaces", in_host(&agent));
    context.check("no_network", no_network(&agent));
    context.check("an_edit_on_the_host", edit(&mut agent, &files[0]));
    context.check("nothing_is_written_back", stays(&mut agent, &files[1]));
    context.check("the_reporter_is_answered", answered(&agent));
    context.check("others_are_refused", refused());
    context.check("a_container_in_the_group_of_the_reporter_is_refused", in_stolen_group());
    context.check("a_hostile_reporter_hides_no_edit", hostile(&mut agent, &files[0]));
    context.check("a_second_daemon", second());
    agent.stop()?;
    context.check("beside_the_hosts_daemon", beside_the_hosts_daemon(&arguments));
    let container = |without: &str| Sensor { without: Some(without), ..sensor(&arguments) }.command();
    for (name, result) in effects(&container) {
        context.check(name, result);
    }
    for (name, result) in without_each(&context.kernel, &container) {
        context.check(&format!("without_{name}"), result);
    }
    Ok(())
}

/// The sensor's container.
fn sensor<'a>(arguments: &'a [&'a str]) -> Sensor<'a> {
    Sensor { pod: OWN, arguments, own_pids: false, without: None }
}

/// Asks the socket as a user in a control group, and prints the answer.
pub(crate) fn ask_as(spec: &Path) -> Result<()> {
    let spec: Value = serde_json::from_str(&fs::read_to_string(spec)?)?;
    let user = u32::try_from(spec["user"].as_u64().context("no user")?)?;
    if spec["pids"] == true {
        // The namespace of the children of this process.
        unshare(CloneFlags::CLONE_NEWPID).context("cannot make a process-id namespace")?;
        let mut spec = spec;
        spec["pids"] = false.into();
        println!("{}", request(&spec)?);
        return Ok(());
    }
    if let Some(group) = spec["group"].as_str() {
        enter_group(group)?;
    }
    become_user(user)?;
    let mut stream = UnixStream::connect(SOCKET).context("cannot connect")?;
    let field = |name: &str| spec[name].as_str().unwrap_or_default();
    let (path, body) = (field("path"), field("body"));
    let method = spec["method"].as_str().unwrap_or("GET");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = String::new();
    // The daemon may have closed the connection already.
    let _ = stream.write_all(request.as_bytes());
    let _ = stream.read_to_string(&mut answer);
    println!("{answer}");
    Ok(())
}

fn ask(user: u32, group: &str, path: &str) -> Result<String> {
    request(&json!({ "user": user, "group": group, "path": path }))
}

/// Asks the socket as a user: with `user` and `path`, and with `group`, `method` and `body` if they are there.
pub(super) fn request(spec: &Value) -> Result<String> {
    let file = "/tmp/pod-ask.json";
    fs::write(file, spec.to_string())?;
    run("/proc/self/exe", &["act", REPORTER, file])
}

/// Asks as the reporter of a pod, or of a host whose reporter is in no pod. An answer without success is an error.
pub(super) fn ask_as_reporter(pod: Option<&str>, method: &str, path: &str, body: &Value) -> Result<Value> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let group = pod.map(|pod| group(pod, "reporter"));
    let answer =
        request(&json!({ "user": USER, "group": group, "method": method, "path": path, "body": body }))?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("no answer: {answer}"))?;
    let body: Value = serde_json::from_str(body.trim()).with_context(|| answer.clone())?;
    ensure!(head.starts_with("HTTP/1.1 20"), "{method} {path}: {answer}");
    Ok(body)
}

fn without_host_pid() -> Result<String> {
    let out = Sensor { own_pids: true, ..sensor(&["--enter-host"]) }.command()?.output()?;
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure!(!out.status.success() && error.contains("hostPID: true"), "{error}");
    Ok(error)
}

fn in_host(agent: &RunningDaemon) -> Result<String> {
    for name in ["mnt", "cgroup", "pid"] {
        let number = |process: u32| fs::metadata(format!("/proc/{process}/ns/{name}")).map(|file| file.ino());
        ensure!(number(agent.pid())? == number(1)?, "another {name} namespace");
    }
    let group = fs::read_to_string(format!("/proc/{}/cgroup", agent.pid()))?;
    ensure!(group.contains(OWN), "{group}");
    let program = fs::read_link(format!("/proc/{}/exe", agent.pid()))?;
    ensure!(!program.exists(), "the program has a path on the host");
    Ok(program.display().to_string())
}

fn no_network(agent: &RunningDaemon) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
    ensure!(status.contains("\nSeccomp:\t2\n") && status.contains("\nNoNewPrivs:\t1\n"), "{status}");
    let sockets = fs::read_dir(format!("/proc/{}/fd", agent.pid()))?
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned))
        .collect::<Vec<_>>();
    let unix = fs::read_to_string(format!("/proc/{}/net/unix", agent.pid()))?;
    for socket in &sockets {
        ensure!(unix.split_whitespace().any(|word| word == socket), "socket {socket} is none of this host");
    }
    Ok(format!("{} sockets", sockets.len()))
}

fn edit(agent: &mut RunningDaemon, file: &Path) -> Result<String> {
    let before = agent.records()?.len();
    run("/bin/sh", &["-c", &format!("echo drift >> {}", file.display())])?;
    let record = agent.wait_for("the drift", before, |record| simple::is_drift(record, file))?;
    ensure!(record["actor"]["argv"][0] == "/bin/sh", "{record}");
    Ok(record.to_string())
}

/// A rule that would write back degrades the node in this mode.
fn stays(agent: &mut RunningDaemon, file: &Path) -> Result<String> {
    edit(agent, file)?;
    status::wait_for("drifted", LIMIT)?;
    let before = agent.records()?.len();
    // A second edit after the first verdict: a repair of the first would come before it.
    run("/bin/sh", &["-c", &format!("chmod 600 {}", file.display())])?;
    agent.wait_for("the second drift", before, |record| simple::is_drift(record, file))?;
    let reverted = agent.records()?.into_iter().any(|record| record["kind"] == "reverted");
    ensure!(!reverted && fs::read_to_string(file)?.ends_with("drift\n"), "it was written back");
    Ok(status::read()?["degraded"].to_string())
}

fn answered(agent: &RunningDaemon) -> Result<String> {
    let group = group(OWN, "reporter");
    let status = ask(USER, &group, "/v1/status")?;
    ensure!(status.contains("holdfast.status/v1") && status.contains("/etc/pod/0000"), "{status}");
    let records = ask(USER, &group, "/v1/records?from=1")?;
    let lines = records.lines().filter(|line| line.starts_with('{')).count();
    ensure!(lines >= agent.records()?.len().min(2), "{records}");
    let log = ask(USER, &group, "/v1/log")?;
    ensure!(log.contains("holdfast.log-checkpoint/v1"), "{log}");
    ensure!(ask(0, "/sys/fs/cgroup/root", "/readyz")?.contains(" 200 "), "root of the host");
    Ok(log)
}

fn refused() -> Result<String> {
    for (user, group) in [(USER, group(OTHER, "reporter")), (0, group(OTHER, "root"))] {
        let answer = ask(user, &group, "/v1/status")?;
        ensure!(answer.trim().is_empty(), "{answer}");
    }
    match ask(USER + 1, &group(OWN, "other"), "/v1/status") {
        Err(error) if format!("{error:#}").contains("cannot connect") => {}
        other => bail!("another user: {other:?}"),
    }
    let metrics = ask(USER, &group(OWN, "reporter"), "/metrics")?;
    for reason in ["pod", "container"] {
        let line = format!("holdfast_reporter_refused_total{{reason=\"{reason}\"}} 1");
        ensure!(metrics.contains(&line), "{metrics}");
    }
    Ok(String::new())
}

/// Root of a container to which the host's control groups are mounted moves itself to a group that is served.
fn in_stolen_group() -> Result<String> {
    let asked = |user: u32, group: &str, pids: bool| {
        request(&json!({ "user": user, "group": group, "path": "/v1/status", "pids": pids }))
    };
    for (user, group) in [(USER, group(OWN, "reporter")), (0, "/sys/fs/cgroup/root".to_owned())] {
        let answer = asked(user, &group, true)?;
        ensure!(answer.trim().is_empty(), "{answer}");
        ensure!(asked(user, &group, false)?.contains(" 200 "), "{group}");
    }
    Ok(String::new())
}

/// A reporter hands in other policies again and again, and holds connections open. An edit has its record all the same.
fn hostile(agent: &mut RunningDaemon, file: &Path) -> Result<String> {
    let before = fs::read_to_string(file)?;
    let mut taken = 0;
    for number in 0..20 {
        let policy = json!({
            "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": { "name": "other" },
            "spec": { "rules": [{ "path": file, "action": if number % 2 == 0 { "ignore" } else { "observe" } }] },
        });
        let policies = json!({ "policies": [policy] });
        let answer = request(&json!({
            "user": USER, "group": group(OWN, "reporter"), "method": "PUT", "path": "/v1/policies", "body": policies.to_string(),
        }))?;
        taken += usize::from(answer.contains("HTTP/1.1 20"));
    }
    let idle: Vec<_> = (0..64).filter_map(|_| UnixStream::connect(SOCKET).ok()).collect();
    ensure!(!idle.is_empty(), "no connection was made");
    let record = edit(agent, file);
    drop(idle);
    fs::write(file, before)?;
    record?;
    ensure!(taken == 20, "{taken} of 20 policies were taken");
    Ok(format!("{taken} policies"))
}

fn second() -> Result<String> {
    match run(HOLDFAST, &["agent", "--standalone", "--config", CONFIG]) {
        Err(error) if error.to_string().contains(&format!("in the pod {OWN}")) => Ok(error.to_string()),
        other => bail!("{other:?}"),
    }
}

/// A host that runs a daemon by itself refuses the pod, and the error names the process.
fn beside_the_hosts_daemon(arguments: &[&str]) -> Result<String> {
    let own = RunningDaemon::start(&["--standalone", "--config", CONFIG])?;
    let out = sensor(arguments).command()?.output()?;
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure!(!out.status.success() && error.contains(&format!("process {}:", own.pid())), "{error}");
    ensure!(own.stop()?.success(), "the host's daemon did not end well");
    Ok(error)
}
