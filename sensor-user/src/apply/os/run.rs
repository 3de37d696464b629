//! Running the tools that change the OS.
//!
//! In: programs with their arguments, and limits. Out: their standard output, or the end of their standard error if they failed.
//! No shell runs them. A command that exceeds its limit is killed with every process of its group, and the error reports this.

use super::error::ToolError;
use rustix::process::{Pid, Signal, kill_process_group};
use std::{path::PathBuf, process::Stdio, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, copy, sink},
    process::{Child, Command},
    time::{Instant, sleep, timeout_at},
};

/// How long a question may take.
pub(super) const QUESTION: Duration = Duration::from_mins(1);
/// How long a change without a download may take.
pub(super) const CHANGE: Duration = Duration::from_mins(10);
/// How long one attempt of a download may take.
pub(super) const DOWNLOAD: Duration = Duration::from_mins(30);

/// The attempts of a download, as many as the Machine Config Operator makes.
const TRIES: u32 = 7;
/// The first pause between two attempts; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(10);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// How many bytes of an output are kept.
const ANSWER: u64 = 4 << 20;
/// How many bytes at the end of a failed command's standard error are reported.
const REPORTED: usize = 2000;

/// The directory of the programs, and the deadline for all commands together.
#[derive(Debug, Clone)]
pub(super) struct Tools {
    programs: PathBuf,
    until: Instant,
    pause: Duration,
}

impl Tools {
    /// Programs of one directory, with a limit for all of them from now on.
    pub(super) fn new(programs: PathBuf, limit: Duration) -> Self {
        Self { programs, until: Instant::now() + limit, pause: PAUSE }
    }

    /// With another first pause between two attempts.
    #[cfg(test)]
    pub(super) fn pausing(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// Runs a command to its end and returns its standard output.
    ///
    /// # Errors
    /// It failed, or it exceeded the limit and was killed.
    pub(super) async fn run(&self, command: &[String], limit: Duration) -> Result<Vec<u8>, ToolError> {
        let Some((program, arguments)) = command.split_first() else { return Ok(Vec::new()) };
        let started = Instant::now();
        let until = self.until.min(started + limit);
        let mut child = Command::new(self.programs.join(program))
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| ToolError::NotStarted { program: program.clone(), error })?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let group = child.id();
        let finished = timeout_at(until, async {
            let (out, err, status) = tokio::join!(read(out), read(err), child.wait());
            status.map(|status| (out, err, status))
        })
        .await;
        match finished {
            Ok(Ok((out, _, status))) if status.success() => Ok(out),
            Ok(Ok((_, stderr, status))) => {
                let stderr = end(String::from_utf8_lossy(&stderr).trim()).to_owned();
                Err(ToolError::Failed { command: command.join(" "), status, stderr })
            }
            Ok(Err(error)) => Err(ToolError::NotAwaited { command: command.join(" "), error }),
            Err(_) => {
                kill(group, &mut child).await;
                let seconds = until.duration_since(started).as_secs_f64().ceil();
                Err(ToolError::Killed { command: command.join(" "), seconds })
            }
        }
    }

    /// Runs a command that downloads. If it fails, runs it again after a growing pause.
    ///
    /// # Errors
    /// The last attempt failed.
    pub(super) async fn download(&self, command: &[String]) -> Result<Vec<u8>, ToolError> {
        let mut pause = self.pause;
        let mut tries = 1;
        loop {
            match self.run(command, DOWNLOAD).await {
                Ok(out) => return Ok(out),
                Err(error) if tries >= TRIES || Instant::now() + pause >= self.until => {
                    return Err(ToolError::NotDownloaded { last: Box::new(error), tries });
                }
                Err(error) => {
                    tracing::warn!(%error, "A download failed; it is tried again in {} s.", pause.as_secs());
                    sleep(pause).await;
                    (tries, pause) = (tries + 1, (pause * 2).min(LONGEST_PAUSE));
                }
            }
        }
    }
}

/// Reads to the end, and keeps the first [`ANSWER`] bytes.
async fn read(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    if let Some(mut stream) = stream {
        // An output that cannot be read counts as empty.
        let _ = (&mut stream).take(ANSWER).read_to_end(&mut kept).await;
        let _ = copy(&mut stream, &mut sink()).await;
    }
    kept
}

async fn kill(group: Option<u32>, child: &mut Child) {
    if let Some(group) = group.and_then(|group| i32::try_from(group).ok()).and_then(Pid::from_raw) {
        // A group without processes cannot be killed, and needs no kill.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill().await;
}

/// The end of a text.
fn end(text: &str) -> &str {
    let mut from = text.len().saturating_sub(REPORTED);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}
