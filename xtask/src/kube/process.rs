//! A program that runs beside this one, with a log.
//!
//! In: a command and the path of its log. Out: a process that dies with its value, and a way to wait until it is
//! ready. Waiting ends at once if the process ends.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Pause between two questions whether a process is ready.
const POLL: Duration = Duration::from_millis(200);
/// Lines of a log that an error repeats.
const TAIL_LINES: usize = 15;

/// A running process.
#[derive(Debug)]
pub(crate) struct LoggedProcess {
    name: &'static str,
    child: Child,
    log: PathBuf,
    /// Disconnected when the process, and with it the writer of its output, has ended.
    output: Receiver<()>,
}

impl LoggedProcess {
    /// Starts it. What it prints is appended to its log.
    pub(crate) fn start(name: &'static str, command: &mut Command, log: &Path) -> Result<Self> {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let (mut reader, writer) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        // The command holds the writing end too.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let (sender, output) = channel();
        std::thread::spawn(move || {
            // With a full disk the log is cut, and the process goes on.
            let _ = io::copy(&mut reader, &mut file);
            drop(sender);
        });
        Ok(Self { name, child, log: log.to_owned(), output })
    }

    /// Waits until the process is ready. `is_ready` gives the reason while it is not.
    pub(crate) fn until(&self, limit: Duration, mut is_ready: impl FnMut() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        loop {
            let Err(reason) = is_ready() else { return Ok(()) };
            if start.elapsed() > limit {
                let seconds = limit.as_secs();
                return Err(reason.context(format!(
                    "{} is not ready after {seconds} s{}",
                    self.name,
                    self.tail()
                )));
            }
            // It ends the pause when the process ends.
            let _ = self.output.recv_timeout(POLL);
            self.check()?;
        }
    }

    /// Fails if the process has ended.
    pub(crate) fn check(&self) -> Result<()> {
        match self.output.try_recv() {
            Err(TryRecvError::Disconnected) => bail!("{} has ended{}", self.name, self.tail()),
            _ => Ok(()),
        }
    }

    /// Kills it, and waits for its end.
    pub(super) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The log's path and its last lines.
    fn tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n    ");
        format!("; its log is {}:\n    {tail}", self.log.display())
    }
}

impl Drop for LoggedProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str, log: &Path) -> LoggedProcess {
        LoggedProcess::start("sh", Command::new("sh").args(["-c", script]), log).unwrap()
    }

    #[test]
    fn a_process_that_ends_is_not_waited_for_and_its_last_lines_are_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let process = start("echo cause >&2", &folder.path().join("log"));
        let error = process.until(Duration::from_hours(1), || bail!("no port")).unwrap_err();
        assert!(error.to_string().starts_with("sh has ended"), "{error}");
        assert!(error.to_string().ends_with("cause"), "{error}");
    }

    #[test]
    fn a_process_that_is_never_ready_gives_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let process = start("exec tail -f /dev/null", &folder.path().join("log"));
        let error = process.until(Duration::ZERO, || bail!("no port")).unwrap_err();
        assert!(format!("{error:#}").ends_with("no port"), "{error:#}");
    }

    #[test]
    fn a_process_dies_with_its_value() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        crate::run::output(Command::new("mkfifo").arg(&fifo)).unwrap();
        let script = format!("exec 3>'{}'; exec tail -f /dev/null", fifo.display());
        let process = start(&script, &folder.path().join("log"));
        let mut fifo = File::open(&fifo).unwrap();
        drop(process);
        // The end of the fifo is the end of its last writer.
        io::copy(&mut fifo, &mut io::sink()).unwrap();
    }
}
