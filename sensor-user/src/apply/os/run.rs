//! Running the tools that change the OS.
//!
//! In: programs with their arguments, and limits. Out: what they printed, or what they said when they failed. Nothing is
//! run by a shell. A command that takes too long is killed with every process of its group, and that is said.

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
/// How long a download may take, each time it is tried.
pub(super) const DOWNLOAD: Duration = Duration::from_mins(30);

/// How often a download is tried, as the Machine Config Operator does it.
const TRIES: u32 = 7;
/// The first pause between two tries; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(10);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Of an answer more is not read.
const ANSWER: u64 = 4 << 20;
/// Of what a failed command said, the end is told.
const TOLD: usize = 2000;

/// Where programs are, and until when they may run in all.
#[derive(Debug, Clone)]
pub(super) struct Tools {
    programs: PathBuf,
    until: Instant,
    pause: Duration,
}

impl Tools {
    /// Programs of one directory, for so long from now.
    pub(super) fn new(programs: PathBuf, limit: Duration) -> Self {
        Self { programs, until: Instant::now() + limit, pause: PAUSE }
    }

    /// With another first pause between two tries.
    #[cfg(test)]
    pub(super) fn pausing(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// Runs a command to its end and gives what it printed.
    ///
    /// # Errors
    /// What it said when it failed, or that it took too long and was killed.
    pub(super) async fn run(&self, command: &[String], limit: Duration) -> Result<Vec<u8>, String> {
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
            .map_err(|error| format!("{program}: cannot be started: {error}"))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let group = child.id();
        let finished = timeout_at(until, async {
            let (out, err, status) = tokio::join!(read(out), read(err), child.wait());
            status.map(|status| (out, err, status))
        })
        .await;
        match finished {
            Ok(Ok((out, _, status))) if status.success() => Ok(out),
            Ok(Ok((_, said, status))) => {
                let said = String::from_utf8_lossy(&said);
                Err(format!("{}: {status}: {}", command.join(" "), end(said.trim())))
            }
            Ok(Err(error)) => Err(format!("{}: cannot be awaited: {error}", command.join(" "))),
            Err(_) => {
                kill(group, &mut child).await;
                let seconds = until.duration_since(started).as_secs_f64().ceil();
                Err(format!("{}: not done within {seconds} s; it was killed", command.join(" ")))
            }
        }
    }

    /// Runs a command that downloads; tries again, with growing pauses, when it fails.
    ///
    /// # Errors
    /// What the last try said.
    pub(super) async fn download(&self, command: &[String]) -> Result<Vec<u8>, String> {
        let mut pause = self.pause;
        let mut tries = 1;
        loop {
            match self.run(command, DOWNLOAD).await {
                Ok(out) => return Ok(out),
                Err(error) if tries >= TRIES || Instant::now() + pause >= self.until => {
                    return Err(format!("{error} (tried {tries} times)"));
                }
                Err(error) => {
                    tracing::warn!(%error, "A download is tried again in {} s.", pause.as_secs());
                    sleep(pause).await;
                    (tries, pause) = (tries + 1, (pause * 2).min(LONGEST_PAUSE));
                }
            }
        }
    }
}

/// Reads to the end, and keeps what is not too much.
async fn read(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    if let Some(mut stream) = stream {
        // What cannot be read is as good as not said.
        let _ = (&mut stream).take(ANSWER).read_to_end(&mut kept).await;
        let _ = copy(&mut stream, &mut sink()).await;
    }
    kept
}

async fn kill(group: Option<u32>, child: &mut Child) {
    if let Some(group) = group.and_then(|group| i32::try_from(group).ok()).and_then(Pid::from_raw) {
        // The group is gone only where its processes are.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill().await;
}

fn end(said: &str) -> &str {
    let mut from = said.len().saturating_sub(TOLD);
    while !said.is_char_boundary(from) {
        from += 1;
    }
    &said[from..]
}
