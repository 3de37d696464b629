//! A node that runs the daemon as its systemd service, and a person who logs in to it.
//!
//! In: nothing; the unit and the example MachineConfig are those of `deploy/`. Out: a node in the declared state with a running daemon,
//! alice's logins by ssh, the records, the status and the pages. It installs the files that an administrator would install, so that a
//! scenario shows the product.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::forensic::{find_record, read_records};
use super::{run, shell, wait};

/// The daemon's unit.
const UNIT: &str = include_str!("../../../deploy/systemd/holdfast.service");
/// The node's config.
pub const CONFIG: &str = include_str!("../../../deploy/examples/99-worker-baseline.yaml");
/// The node's policies.
const POLICY: &str = include_str!("../../../policies/drift/default.yaml");
/// The name of the MachineConfig in [`CONFIG`].
pub const CONFIG_NAME: &str = "99-worker-baseline";
/// How long starting, logging in and reporting may take in an emulated guest.
const LIMIT: Duration = Duration::from_mins(1);
const FORENSIC_LOG: &str = "/var/log/holdfast/forensic.jsonl";
const STATUS: &str = "/run/holdfast/status.json";
/// The address of the daemon's pages.
const PAGES: &str = "127.0.0.1:9464";
/// The arguments of ssh for a login of alice.
const SSH: &[&str] = &[
    "-i",
    "/root/.ssh-alice",
    "-o",
    "StrictHostKeyChecking=no",
    "-o",
    "UserKnownHostsFile=/dev/null",
    "-o",
    "LogLevel=ERROR",
    "-o",
    "BatchMode=yes",
    "alice@127.0.0.1",
];

/// The files that a first boot with the example config writes: path, mode, content.
const FILES: &[(&str, u32, &str)] = &[
    (
        "/etc/chrony.conf",
        0o644,
        "server time1.example.com iburst\nserver time2.example.com iburst\ndriftfile /var/lib/chrony/drift\n\
         makestep 1.0 3\nrtcsync\n",
    ),
    (
        "/etc/ssh/sshd_config.d/40-baseline.conf",
        0o600,
        "PermitRootLogin no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nX11Forwarding no\n",
    ),
    ("/etc/sysctl.d/90-baseline.conf", 0o644, "kernel.kptr_restrict = 2\nnet.ipv4.conf.all.rp_filter = 1\n"),
    (
        "/etc/systemd/system/node-inventory.service",
        0o644,
        "[Unit]\nDescription=Take down what this node is\n\n[Service]\nType=oneshot\nRemainAfterExit=yes\n\
         ExecStart=/bin/sh -c 'uname -a > /run/node-inventory'\n\n[Install]\nWantedBy=multi-user.target\n",
    ),
    ("/etc/systemd/system/node-inventory.service.d/10-priority.conf", 0o644, "[Service]\nNice=10\n"),
];

/// A node with the daemon as its service.
#[derive(Debug)]
pub struct Node {
    _private: (),
}

impl Node {
    /// Waits for systemd, brings the node into the declared state, lets alice log in, and starts the daemon. `more` are MachineConfigs
    /// beside the example, by name and text. It returns when systemd reports the daemon as started, which is after the first full
    /// verification.
    pub fn start(more: &[(&str, &str)]) -> Result<Self> {
        prepare(more)?;
        let node = Self { _private: () };
        if let Err(error) = run("systemctl", &["start", "holdfast.service"]) {
            bail!("{error:#}\n{}", journal());
        }
        Ok(node)
    }

    /// All records of the forensic log so far.
    pub fn records(&self) -> Result<Vec<Value>> {
        read_records(Path::new(FORENSIC_LOG))
    }

    /// Waits for a record after the first `skip` ones that `wanted` accepts. `what` completes "waiting for ...".
    pub fn wait_for(&self, what: &str, skip: usize, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let found = wait::until(what, LIMIT, || find_record(Path::new(FORENSIC_LOG), skip, &wanted));
        found.with_context(|| {
            let new: Vec<String> =
                self.records().unwrap_or_default().iter().skip(skip).map(Value::to_string).collect();
            format!("records since: {}\noutput of holdfast:\n{}", new.join("\n"), journal())
        })
    }

    /// The node's verdict in the status.
    pub fn status(&self) -> Result<Value> {
        let text = fs::read(STATUS).with_context(|| format!("cannot read {STATUS}"))?;
        serde_json::from_slice(&text).with_context(|| format!("no JSON in {STATUS}"))
    }

    /// Waits until the node has this verdict.
    pub fn wait_for_verdict(&self, verdict: &str) -> Result<Value> {
        let found = wait::until(&format!("the verdict {verdict}"), LIMIT, || {
            // The file appears a moment after the daemon has reported that it is ready.
            Ok(self.status().ok().filter(|status| status["verdict"] == verdict))
        });
        found.with_context(|| format!("status: {}", self.status().unwrap_or_default()))
    }

    /// Runs a command of holdfast. It gives the output if the exit code is the expected one.
    pub fn holdfast(&self, code: i32, arguments: &[&str]) -> Result<String> {
        let out =
            Command::new(super::agent::HOLDFAST).args(arguments).envs(super::command::CONSENT).output()?;
        let (printed, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        ensure!(out.status.code() == Some(code), "holdfast {arguments:?}: {}: {printed}{error}", out.status);
        Ok(printed.trim_end().to_owned())
    }

    /// A property of the daemon's unit, from systemd.
    pub fn property(&self, name: &str) -> Result<String> {
        let value = run("systemctl", &["show", "--value", "-p", name, "holdfast.service"])?;
        Ok(value.trim().to_owned())
    }

    /// The body of one of the daemon's pages.
    pub fn page(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(PAGES).with_context(|| format!("cannot connect to {PAGES}"))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {PAGES}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        Ok(body.to_owned())
    }

    /// The value of a metric without labels, or of one series of a metric, in the form of the page.
    pub fn metric(&self, series: &str) -> Result<f64> {
        let page = self.page("/metrics")?;
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        let value = value.with_context(|| format!("no {series} on the page"))?;
        value.trim().parse().with_context(|| format!("{series} is {value}"))
    }
}

/// Waits for systemd, brings the node into the declared state, lets alice log in, and installs the daemon without starting it.
pub fn prepare(more: &[(&str, &str)]) -> Result<()> {
    wait::until("systemd to finish starting", Duration::from_secs(90), || {
        let jobs = run("systemctl", &["list-jobs", "--no-legend"])?;
        Ok(jobs.trim().is_empty().then_some(()))
    })?;
    first_boot()?;
    let_alice_in()?;
    install(more)
}

/// Runs a command line in a login of alice with a terminal. It gives the output.
pub fn as_alice(line: &str) -> Result<String> {
    let out = Command::new("ssh").arg("-tt").args(SSH).arg(line).output().context("cannot start ssh")?;
    let printed = String::from_utf8_lossy(&out.stdout).replace('\r', "");
    if !out.status.success() {
        bail!("alice: {line}: {}: {printed}{}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(printed)
}

/// Writes the declared state.
fn first_boot() -> Result<()> {
    for (path, mode, content) in FILES {
        let path = Path::new(path);
        fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
        fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(*mode))?;
    }
    let key =
        CONFIG.lines().find_map(|line| line.trim().strip_prefix("- ssh-")).context("no key in the config")?;
    fs::write("/run/core-key", format!("ssh-{key}\n"))?;
    shell(
        "useradd --create-home --shell /bin/bash core && \
         install -d -m 700 -o core -g core /home/core/.ssh /home/core/.ssh/authorized_keys.d && \
         install -m 600 -o core -g core /run/core-key /home/core/.ssh/authorized_keys.d/ignition",
    )?;
    run("systemctl", &["daemon-reload"])?;
    run("systemctl", &["enable", "--now", "--quiet", "node-inventory.service"]).map(drop)
}

/// Gives alice a key, and waits until she can log in with it.
fn let_alice_in() -> Result<()> {
    shell(
        "install -d -m 700 -o alice -g alice /home/alice/.ssh && \
         ssh-keygen -q -t ed25519 -N '' -C alice@laptop -f /root/.ssh-alice && \
         install -m 600 -o alice -g alice /root/.ssh-alice.pub /home/alice/.ssh/authorized_keys",
    )?;
    run("systemctl", &["reload", "ssh.service"])?;
    wait::until("alice's login", LIMIT, || Ok(as_alice("true").ok()))?;
    Ok(())
}

/// The daemon's configs.
pub const CONFIGS: &str = "/etc/holdfast/machine-configs";

/// Installs the daemon as in docs/operations.md.
fn install(more: &[(&str, &str)]) -> Result<()> {
    fs::create_dir_all(CONFIGS)?;
    for (name, config) in [(CONFIG_NAME, CONFIG)].iter().chain(more) {
        fs::write(format!("{CONFIGS}/{name}.yaml"), config)?;
    }
    fs::create_dir_all("/etc/holdfast/policies")?;
    fs::write("/etc/holdfast/policies/default.yaml", POLICY)?;
    fs::write("/etc/systemd/system/holdfast.service", UNIT)?;
    run("systemctl", &["daemon-reload"])?;
    run("systemctl", &["enable", "--quiet", "holdfast.service"]).map(drop)
}

/// The daemon's output.
fn journal() -> String {
    run("journalctl", &["-u", "holdfast.service", "-n", "30", "--no-pager", "-o", "cat"]).unwrap_or_default()
}
