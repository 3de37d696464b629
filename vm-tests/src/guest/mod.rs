//! The guest side: from the kernel's start of `/init` to the last line and power off.
//!
//! Comes in: kernel parameters (`hf.guest`, `hf.kernel`), and on the second serial port the name of the scenario. Goes
//! out: messages on the same port. Between its hello and the name the program changes nothing, so that the host can save
//! the guest there and start each scenario from the saved state.
//!
//! Helpers for scenarios live beside this file: `agent` for the daemon, `service` for a node that runs it under systemd,
//! `status` and `page` for what the daemon publishes, `disks` for file systems, `bus` for messages of others on D-Bus,
//! `wait` for conditions. Runs only in a guest: it mounts, loads modules and powers off.

pub mod agent;
pub mod boot;
pub mod bus;
pub mod disks;
pub mod fuse;
pub mod ostree;
pub mod page;
pub mod service;
pub mod status;
pub mod wait;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use nix::fcntl::OFlag;
use nix::sys::termios::tcdrain;

use crate::protocol::{self, Ending, Message, ResultLine};
use crate::scenarios;

/// Where messages go.
const PORT: &str = "/dev/ttyS1";

/// What a scenario works with: who it is, and where its results go.
#[derive(Debug)]
pub struct Context {
    port: File,
    /// The kernel series, as the host calls it: `6.12`, or `7.x`.
    pub kernel: String,
    failed: usize,
}

impl Context {
    /// Opens the port.
    fn open() -> Result<Self> {
        let port = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NOCTTY.bits())
            .open(PORT)
            .with_context(|| format!("cannot open {PORT}"))?;
        let kernel = parameter("hf.kernel").unwrap_or_default();
        Ok(Self { port, kernel, failed: 0 })
    }

    fn send(&mut self, message: &Message) {
        // Without the port there is nobody left to tell; the host sees that the last line is missing.
        let _ = self.port.write_all(format!("{}\n", message.to_line()).as_bytes());
    }

    /// Waits for the host's line with the name of the scenario.
    fn scenario(&self) -> Result<String> {
        let mut line = String::new();
        BufReader::new(&self.port).read_line(&mut line).with_context(|| format!("cannot read {PORT}"))?;
        let name =
            protocol::started(&line).with_context(|| format!("the host named no scenario: {line:?}"))?;
        Ok(name.to_owned())
    }

    /// Waits until the host has all of it: what the driver still holds when the guest is powered off is lost.
    fn finish(&mut self) {
        self.send(&Message::Done);
        let _ = tcdrain(&self.port);
    }

    /// Says something that is no result.
    pub fn note(&mut self, text: impl Into<String>) {
        self.send(&Message::Note { text: text.into() });
    }

    /// Reports a check.
    pub fn report(&mut self, line: ResultLine) {
        if line.ending == Ending::Fail {
            self.failed += 1;
        }
        self.send(&Message::Result(line));
    }

    /// Reports a check that gave a text for people, or an error.
    pub fn check(&mut self, name: &str, result: Result<String>) {
        let (ending, detail) = match result {
            Ok(detail) => (Ending::Pass, detail),
            Err(error) => (Ending::Fail, format!("{error:#}")),
        };
        self.report(ResultLine { name: name.to_owned(), ending, detail, data: serde_json::Value::Null });
    }

    /// Reports a check that does not apply here.
    pub fn skip(&mut self, name: &str, reason: &str) {
        let line = ResultLine {
            name: name.to_owned(),
            ending: Ending::Skip,
            detail: reason.to_owned(),
            data: serde_json::Value::Null,
        };
        self.report(line);
    }

    /// Reports a measurement.
    pub fn measured(&mut self, name: &str, detail: String, data: serde_json::Value) {
        self.report(ResultLine { name: name.to_owned(), ending: Ending::Pass, detail, data });
    }
}

/// The value of a kernel parameter.
pub fn parameter(name: &str) -> Option<String> {
    let line = fs::read_to_string("/proc/cmdline").ok()?;
    line.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .find(|(n, _)| *n == name)
        .map(|(_, v)| v.to_owned())
}

/// Runs the scenario that the host names, reports it, and powers off.
pub fn run_and_power_off() -> Result<()> {
    let mut context = Context::open()?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
    context.send(&Message::Hello { release });
    let guest = parameter("hf.guest").unwrap_or_default();
    let name = context.scenario()?;
    context.send(&Message::Begun);
    let result = match scenarios::find(&guest, &name) {
        None => Err(anyhow::anyhow!("no scenario {name} for the guest {guest}")),
        Some(scenario) => catch_unwind(AssertUnwindSafe(|| (scenario.run)(&mut context)))
            .unwrap_or_else(|cause| Err(anyhow::anyhow!("panic: {}", panic_text(&*cause)))),
    };
    if let Err(error) = result {
        context.check(&name, Err(error));
    }
    context.finish();
    nix::unistd::sync();
    boot::power_off()
}

fn panic_text(cause: &(dyn std::any::Any + Send)) -> &str {
    let text = cause.downcast_ref::<&str>().copied();
    text.or_else(|| cause.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

/// Runs a program to its end; gives what it printed, or an error that holds it.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let out = Command::new(program)
        .args(arguments)
        .envs(agent::CONSENT)
        .output()
        .with_context(|| format!("cannot start {program} {}", arguments.join(" ")))?;
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        let stderr = String::from_utf8_lossy(&out.stderr);
        bail!("{program} {}: {}: {}{}", arguments.join(" "), out.status, stdout.trim(), stderr.trim());
    }
    Ok(stdout)
}

/// Runs a line of shell to its end; gives what it printed, or an error that holds it.
pub fn shell(line: &str) -> Result<String> {
    run("/bin/sh", &["-c", line])
}
