//! What people of a cluster do with a node: `kubectl holdfast` asks it, and `kubectl exec` and `kubectl debug` change a file on it.
//!
//! In: a node with the `DaemonSet`'s pod, an API server that reaches its kubelet, and that server's audit log. Out: checks of the answers
//! of the plugin, and of the user whom the audit log names.

use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::guest::agent::HOLDFAST;
use crate::guest::kube::{self, ADMIN, AUDIT, HOST, NODE, kubectl};
use crate::guest::service::CONFIG_NAME;
use crate::guest::{Context, image, run, wait};

/// How long each step may take in an emulated guest.
const LIMIT: Duration = Duration::from_secs(100);
const NAMESPACE: &str = "holdfast-system";
/// The account whose token the plugin sends to the node.
const READER: &str = "log-reader";
/// Where the guest keeps its copy of the audit log.
const COPY: &str = "/run/audit.log";
/// Where `kubectl holdfast log -f` writes.
const FOLLOWED: &str = "/run/followed.jsonl";
/// The pod in which people run commands, and its container.
const POD: &str = "shell";
/// The ephemeral container of `kubectl debug`.
const DEBUGGER: &str = "debugger";

/// The edit in a container. Each one writes another value.
fn edit_in_container(value: &str, path: &str) -> [String; 5] {
    ["/busybox", "sed", "-i", &format!("s/time1.example.com/{value}/"), path].map(str::to_owned)
}

/// The plugin asks the node whose file alice has edited and restored.
pub(super) fn plugin(context: &mut Context, file: &str) {
    context.check("kubectl_holdfast_status_says_in_sync", status());
    context.check("kubectl_holdfast_diff_and_plan_ask_the_node", asks_the_node());
    context.check("kubectl_holdfast_who_asks_the_node_with_the_callers_token", who(file, &[]));
    context.check("kubectl_holdfast_who_asks_the_node_with_an_accounts_token", who_by_account(file));
    context.check("kubectl_holdfast_log_has_the_logs_own_lines", log());
}

/// `kubectl holdfast` from the product's image.
fn command(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(format!("{}/holdfast-cluster", image::files()?));
    command.arg("kubectl").args(arguments).env("KUBECONFIG", ADMIN);
    Ok(command)
}

/// Runs `kubectl holdfast`. Gives its output if the exit code is the expected one.
pub(super) fn holdfast(code: i32, arguments: &[&str]) -> Result<String> {
    let out = command(arguments)?.output()?;
    let (printed, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    ensure!(out.status.code() == Some(code), "{arguments:?}: {}: {printed}{error}", out.status);
    Ok(printed.into_owned())
}

fn status() -> Result<String> {
    let printed = holdfast(0, &["status"])?;
    ensure!(printed.contains(NODE) && printed.contains("InSync"), "{printed}");
    Ok(printed)
}

fn who(file: &str, more: &[&str]) -> Result<String> {
    let printed = holdfast(0, &[&["who", NODE, file], more].concat())?;
    ensure!(printed.contains("root login alice via sed"), "{printed}");
    Ok(printed)
}

/// The account has no right at first: the node's reporter refuses, and the message names the right.
fn who_by_account(file: &str) -> Result<String> {
    kubectl(&["-n", NAMESPACE, "create", "serviceaccount", READER])?;
    let option = ["--service-account", READER];
    let refused = holdfast(3, &[&["who", NODE, file][..], &option].concat()).map(drop);
    refused.context("an account without the right")?;
    let subject = format!("--serviceaccount={NAMESPACE}:{READER}");
    kubectl(&["create", "clusterrolebinding", READER, "--clusterrole=holdfast-log-reader", &subject])?;
    // The reporter believes the refusal for some seconds.
    wait::until("the right of the account", LIMIT, || Ok(who(file, &option).ok()))
}

/// The lines of the plugin are those of the file.
fn log() -> Result<String> {
    let printed = holdfast(0, &["log", NODE, "--lines", "3", "-o", "json"])?;
    let log = fs::read_to_string("/var/log/holdfast/forensic.jsonl")?;
    ensure!(printed.lines().count() == 3, "{printed}");
    for line in printed.lines() {
        ensure!(log.lines().any(|written| written == line), "not in the log: {line}");
    }
    Ok(String::new())
}

/// A user changes the file by `kubectl exec`: the report names pod and container, the audit log the user, and the plugin shows the edit.
pub(super) fn exec(context: &mut Context, file: &str) {
    let followed = Followed::start();
    context.check("an_edit_by_kubectl_exec_matches_its_user_in_the_audit_log", edit_by_exec(file));
    let arrived = followed.and_then(|mut followed| followed.arrived(file));
    context.check("kubectl_holdfast_log_follows_the_edit", arrived);
    context.check("kubectl_holdfast_explain_names_values_pod_and_container", explain(file));
    context.check("kubectl_holdfast_diff_names_pod_and_container", diff(file));
    context.check("kubectl_holdfast_plan_says_that_nothing_is_planned", plan());
}

/// `kubectl holdfast log -f`, which runs until this value is dropped.
struct Followed(Child);

impl Followed {
    /// Starts it, and waits for the newest entry.
    fn start() -> Result<Self> {
        let output = fs::File::create(FOLLOWED)?;
        let mut command = command(&["log", NODE, "--lines", "1", "-f", "-o", "json"])?;
        let mut followed = Self(command.stdout(output).stderr(Stdio::inherit()).spawn()?);
        followed.until("the newest entry of the log", |_| true)?;
        Ok(followed)
    }

    /// Waits for the drift of the file by the edit in the pod.
    fn arrived(&mut self, file: &str) -> Result<String> {
        self.until("the followed log to show the edit", |entry| {
            entry["kind"] == "drift" && entry["path"] == file && entry["actor"]["pod_uid"].is_string()
        })
    }

    /// Waits for a whole line that is as wanted, while the command runs.
    fn until(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<String> {
        wait::until(what, LIMIT, || {
            let ended = self.0.try_wait()?;
            ensure!(ended.is_none(), "`kubectl holdfast log -f` ended: {ended:?}");
            let printed = fs::read_to_string(FOLLOWED)?;
            let mut whole = printed.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let line = whole.find(|line| serde_json::from_str(line).is_ok_and(|entry| is_so(&entry)));
            Ok(line.map(str::to_owned))
        })
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn edit_by_exec(file: &str) -> Result<String> {
    const MANIFEST: &str = "/run/shell.yaml";
    fs::write(MANIFEST, include_str!("../../kube/shell.yaml"))?;
    kubectl(&["apply", "-f", MANIFEST])?;
    kubectl(&["-n", "team", "wait", "--for=condition=Ready", "pod/shell", "--timeout=100s"])?;
    let edit = edit_in_container("time.exec.example", &format!("/host/{}", name_of(file)?));
    let edit: Vec<&str> = edit.iter().map(String::as_str).collect();
    kubectl(&[&["-n", "team", "exec", POD, "--"][..], &edit].concat())?;
    // The pod has one container, and exec's process is in it.
    let user = named(file, ("team", POD), "shell")?;
    ensure!(user["user"] == "admin" && user["request"] == "exec" && user["container"] == "shell", "{user}");
    Ok(user.to_string())
}

/// A user changes the file from an ephemeral container. It sees the mounts of the container whose processes it sees.
pub(super) fn debug(file: &str) -> Result<String> {
    let path = format!("/proc/1/root/host/{}", name_of(file)?);
    let edit = edit_in_container("time.debug.example", &path);
    let edit: Vec<&str> = edit.iter().map(String::as_str).collect();
    let pod = format!("pod/{POD}");
    let (target, image) = (format!("--target={POD}"), "--image=localhost/tools:1");
    let debug = ["-n", "team", "debug", &pod, image, "--image-pull-policy=Never", &target];
    kubectl(&[&debug[..], &["--profile=general", "-c", DEBUGGER, "--"], &edit].concat())?;
    let user = named(file, ("team", POD), DEBUGGER).with_context(|| {
        kubectl(&["-n", "team", "get", &pod, "-o", "jsonpath={.status}"]).unwrap_or_default()
    })?;
    let is_so = user["user"] == "admin" && user["request"] == "ephemeral-container";
    ensure!(is_so && user["pod"] == POD && user["namespace"] == "team", "{user}");
    Ok(user.to_string())
}

/// A user changes the file by `kubectl debug node`, which makes a pod with the files of the node.
pub(super) fn debug_node(file: &str) -> Result<String> {
    let edit = edit_in_container("time.node.example", &format!("/host{file}"));
    let edit: Vec<&str> = edit.iter().map(String::as_str).collect();
    let node = format!("node/{NODE}");
    let debug =
        ["debug", &node, "--image=localhost/tools:1", "--image-pull-policy=Never", "--profile=general", "--"];
    let printed = kubectl(&[&debug[..], &edit].concat())?;
    let pod = printed.split_whitespace().find(|word| word.starts_with("node-debugger-"));
    let pod = pod.with_context(|| format!("no pod in {printed}"))?;
    let user = named(file, ("default", pod), DEBUGGER)?;
    ensure!(user["user"] == "admin" && user["request"] == "create" && user["pod"] == pod, "{user}");
    kubectl(&["delete", "pod", pod, "--wait=false"])?;
    Ok(user.to_string())
}

fn name_of(file: &str) -> Result<String> {
    Ok(Path::new(file).file_name().context("no file name")?.to_string_lossy().into_owned())
}

/// Waits until the report names the pod, by namespace and name, and this container for the file. Gives the one user whose request matches by the audit log.
fn named(file: &str, (namespace, pod): (&str, &str), container: &str) -> Result<Value> {
    let report = wait::until("the report to name pod and container", LIMIT, || {
        let report = kube::get("driftreport", NODE)?;
        let by = &report["status"]["drifts"][0]["by"];
        let is_so =
            by["podName"] == pod && by["podNamespace"] == namespace && by["containerName"] == container;
        Ok(is_so.then_some(report))
    });
    let report = report.with_context(|| kube::get("driftreport", NODE).unwrap_or_default().to_string())?;
    ensure!(report["status"]["drifts"][0]["path"] == file, "{report}");
    let text = format!("pod {namespace}/{pod} container {container} via busybox");
    ensure!(report["status"]["newest"]["by"] == text, "{report}");
    fs::write(COPY, audit_log()?)?;
    let printed = run(HOLDFAST, &["who", file, "-n", "1", "--audit-log", COPY, "-o", "json"])?;
    let answer: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
    let users = answer["changes"][0]["users"].as_array().context("no users")?;
    ensure!(users.len() == 1, "{answer:#}");
    Ok(users[0].clone())
}

fn explain(file: &str) -> Result<String> {
    let printed = holdfast(1, &["explain", NODE, file])?;
    let texts = [
        &format!("declared by {CONFIG_NAME}"),
        "expected ",
        "found ",
        "last change:",
        "by pod team/shell container shell via busybox",
    ];
    let left = texts.into_iter().find(|text| !printed.contains(*text));
    ensure!(left.is_none(), "no `{}` in {printed}", left.unwrap_or_default());
    Ok(printed)
}

fn diff(file: &str) -> Result<String> {
    let printed = holdfast(1, &["diff", NODE])?;
    let row = printed.lines().find(|line| line.starts_with(file)).with_context(|| printed.clone())?;
    let is_so = row.contains("pod team/shell container shell via busybox") && row.contains(CONFIG_NAME);
    ensure!(is_so, "{printed}");
    Ok(row.to_owned())
}

/// On a node that matches, `diff` and `plan` are empty. Both answers are from the node.
fn asks_the_node() -> Result<String> {
    let printed = holdfast(0, &["diff", NODE, "-o", "json"])?;
    let answer: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
    // A report has no such list.
    ensure!(
        answer["things"].as_array().is_some_and(Vec::is_empty) && answer["state"] == "InSync",
        "{printed}"
    );
    let printed = holdfast(0, &["plan", NODE, "-o", "json"])?;
    let answer: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
    // Only an answer of the node has the key `progress`. In the mode `observe` it is null.
    ensure!(answer["plan"].is_null() && answer.get("progress").is_some(), "{printed}");
    plan()
}

/// Nothing is planned, also while a file differs.
fn plan() -> Result<String> {
    let printed = holdfast(0, &["plan", NODE])?;
    ensure!(printed.contains("applies nothing at present"), "{printed}");
    Ok(printed)
}

/// The API server's audit log, from the host.
fn audit_log() -> Result<String> {
    let port = fs::read_to_string(AUDIT).with_context(|| format!("cannot read {AUDIT}"))?;
    let mut log = String::new();
    TcpStream::connect(format!("{HOST}:{}", port.trim()))?.read_to_string(&mut log)?;
    ensure!(!log.is_empty(), "the API server has no audit log");
    Ok(log)
}
