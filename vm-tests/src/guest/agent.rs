//! The daemon as a child of a scenario.
//!
//! In: arguments of `holdfast agent`. Out: a running daemon, the records of its forensic log, and its
//! exit. Dropping it kills the daemon, so that a failed scenario leaves none behind.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, PipeReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use serde_json::Value;

use super::forensic::{find_record, read_records};
use super::{parameter, wait};

/// The program in every guest whose scenario needs it.
pub const HOLDFAST: &str = "/usr/local/bin/holdfast";
/// The daemon's default log.
const FORENSIC_LOG: &str = "/var/log/holdfast/forensic.jsonl";
/// The file with the daemon's output.
const OUTPUT: &str = "/run/holdfast-agent.log";
/// How long starting, stopping and reporting may take in an emulated guest.
const LIMIT: Duration = Duration::from_mins(1);

/// A running daemon.
#[derive(Debug)]
pub struct RunningDaemon {
    child: Child,
    log: PathBuf,
}

/// The environment of the service's unit, which limits the daemon's memory.
fn environment() -> impl Iterator<Item = (&'static str, &'static str)> {
    const UNIT: &str = include_str!("../../../deploy/systemd/holdfast.service");
    UNIT.lines().filter_map(|line| line.strip_prefix("Environment=")?.split_once('='))
}

/// Copies the daemon's output to its file and to the console, until the daemon has ended.
fn repeat(from: PipeReader, mut to: File) {
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let text = String::from_utf8_lossy(&line);
        // If the write fails, the end of the file is missing, which its readers see.
        let _ = writeln!(to, "{text}");
        println!("{text}");
    }
}

impl RunningDaemon {
    /// Starts `holdfast agent` with more arguments. It does not wait until the daemon is ready.
    pub fn spawn(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(HOLDFAST);
        command.arg("agent").args(arguments);
        Self::spawn_by(command)
    }

    /// Starts the daemon by a command whose process becomes the daemon.
    fn spawn_by(mut command: Command) -> Result<Self> {
        let output = File::options().create(true).append(true).open(OUTPUT)?;
        command.envs(environment()).stdin(Stdio::null());
        if parameter("hf.verbose").is_some() {
            let (reader, writer) = io::pipe()?;
            command.stdout(writer.try_clone()?).stderr(writer);
            thread::spawn(move || repeat(reader, output));
        } else {
            command.stdout(output.try_clone()?).stderr(output);
        }
        let child =
            command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self { child, log: PathBuf::from(FORENSIC_LOG) })
    }

    /// Starts the daemon and waits for its start record.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        Self::spawn(arguments)?.started()
    }

    /// Starts the daemon by a command, and ends it after its first verification, if it does not end by itself. It gives what the
    /// daemon wrote.
    pub fn try_out(command: Command) -> Result<String> {
        let start = usize::try_from(fs::metadata(OUTPUT)?.len())?;
        let mut daemon = Self::spawn_by(command)?;
        let before = daemon.records()?.len();
        wait::until("the daemon to start or to end", LIMIT, || {
            let has_started = daemon.records()?.iter().skip(before).any(|record| record["kind"] == "start");
            Ok((daemon.child.try_wait()?.is_some() || has_started).then_some(()))
        })?;
        if daemon.child.try_wait()?.is_none() {
            daemon.stop()?;
        }
        Ok(fs::read_to_string(OUTPUT)?.get(start..).unwrap_or_default().to_owned())
    }

    /// The same as `start` by a command whose process becomes the daemon.
    pub fn start_by(command: Command) -> Result<Self> {
        Self::spawn_by(command)?.started()
    }

    fn started(mut self) -> Result<Self> {
        let before = self.records()?.len();
        self.wait_for("the start record", before, |record| record["kind"] == "start")?;
        Ok(self)
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All records of the forensic log so far, without an incomplete last line.
    pub fn records(&self) -> Result<Vec<Value>> {
        read_records(&self.log)
    }

    /// Waits for a record after the first `skip` ones that `wanted` accepts. `what` completes "waiting for ...".
    pub fn wait_for(&mut self, what: &str, skip: usize, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let found = wait::until(what, LIMIT, || {
            if let Some(status) = self.child.try_wait()? {
                bail!("holdfast ended ({status}) before {what}");
            }
            find_record(&self.log, skip, &wanted)
        });
        found.with_context(output_tail)
    }

    /// Sends a signal. After SIGSTOP it waits until no thread of the daemon runs.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        kill(pid, signal).context("cannot signal holdfast")?;
        if signal == Signal::SIGSTOP {
            // `WNOWAIT` leaves the daemon's end, if it ends instead, for a later wait.
            let wanted = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
            waitid(Id::Pid(pid), wanted).context("holdfast does not stop")?;
        }
        Ok(())
    }

    /// Asks the daemon to end, and waits for its end.
    pub fn stop(mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.ends()
    }

    /// Waits until the daemon ends by itself.
    pub fn end(mut self) -> Result<ExitStatus> {
        self.ends()
    }

    /// Waits until the daemon has ended, by itself or by a signal.
    pub fn ends(&mut self) -> Result<ExitStatus> {
        wait::until("holdfast to end", LIMIT, || Ok(self.child.try_wait()?))
    }

    /// Kills the daemon at once, as a crash would, and waits for its end.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for RunningDaemon {
    fn drop(&mut self) {
        // The calls fail if the daemon has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last lines that daemons wrote, with a heading.
pub(crate) fn output_tail() -> String {
    let text = fs::read_to_string(OUTPUT).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    format!("output of holdfast:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"))
}
