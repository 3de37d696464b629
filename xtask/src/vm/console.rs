//! Watching a running guest.
//!
//! Comes in: the console and the message port, byte by byte. Goes out: the messages, and how the guest ended. Every
//! line is kept in a log, without the escape codes that firmware sends. A guest that says nothing for too long, or
//! takes too long in all, is killed.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use vm_tests::protocol::{Message, ResultLine};

/// How a guest ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// It said that it was done, and powered off.
    Done,
    /// Its kernel panicked; the line that said so.
    Panic(String),
    /// It ended without saying that it was done.
    Died,
    /// It said nothing for this many seconds.
    Silent(u64),
    /// It was not done after this many seconds.
    TooLong(u64),
}

/// What came out of a guest.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Its results, in order.
    pub(crate) results: Vec<ResultLine>,
    /// The release of its kernel, once its program ran.
    pub(crate) release: Option<String>,
    /// A kernel has begun to boot, for the first time or again, and the program has not run since.
    pub(crate) booting: bool,
    /// How it ended.
    pub(crate) end: End,
}

/// The two limits of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Longest time without a line.
    pub(crate) silence: Duration,
    /// Longest time in all.
    pub(crate) total: Duration,
}

/// Reads lines in a thread of its own until the stream ends.
pub(crate) fn read_lines(stream: impl Read + Send + 'static, lines: Sender<String>) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if lines.send(plain(&String::from_utf8_lossy(&line))).is_err() {
                return;
            }
            line.clear();
        }
    });
}

/// A pair for `read_lines` and `watch`.
pub(crate) fn lines() -> (Sender<String>, Receiver<String>) {
    channel()
}

/// Follows a guest to its end. `mirror` is the name under which each line is repeated on standard error; `narrate` is
/// given the scenario's notes as they come.
pub(crate) fn watch(
    guest: &mut Child,
    lines: &Receiver<String>,
    limits: Limits,
    log: &mut File,
    mirror: Option<&str>,
    narrate: Option<fn(&str)>,
) -> Result<Seen> {
    let start = Instant::now();
    let mut seen = Seen { results: Vec::new(), release: None, booting: true, end: End::Died };
    loop {
        let left = limits.total.saturating_sub(start.elapsed());
        let line = match lines.recv_timeout(left.min(limits.silence)) {
            Ok(line) => line,
            // Both streams are closed: the emulator ended.
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                seen.end = if start.elapsed() >= limits.total {
                    End::TooLong(limits.total.as_secs())
                } else {
                    End::Silent(limits.silence.as_secs())
                };
                guest.kill()?;
                break;
            }
        };
        writeln!(log, "{:8.3} {line}", start.elapsed().as_secs_f64())?;
        if let Some(name) = mirror {
            eprintln!("{name} | {line}");
        }
        match Message::from_line(&line) {
            Some(Message::Hello { release }) => {
                seen.release = Some(release);
                seen.booting = false;
            }
            Some(Message::Result(result)) => seen.results.push(result),
            Some(Message::Done) if seen.end == End::Died => seen.end = End::Done,
            None if is_panic(&line) => seen.end = End::Panic(line),
            None if line.contains("] Linux version ") => seen.booting = true,
            Some(Message::Note { text }) => narrate.into_iter().for_each(|tell| tell(&text)),
            Some(_) | None => {}
        }
    }
    guest.wait()?;
    Ok(seen)
}

impl Seen {
    /// Whether it is the emulator's doing rather than the guest's: nothing of ours ran yet, or a later boot stood still
    /// before anything of ours ran. (With two CPUs the emulated timers lose a wake-up now and then.)
    pub(crate) fn is_worth_another_try(&self) -> bool {
        self.release.is_none() || (self.booting && matches!(self.end, End::Silent(_)))
    }
}

/// Whether the kernel gives up with this line.
fn is_panic(line: &str) -> bool {
    line.contains("Kernel panic - not syncing") && !line.contains("end Kernel panic")
}

/// A line without escape sequences and control characters.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '\x1b' {
            if !c.is_control() || c == '\t' {
                out.push(c);
            }
            continue;
        }
        if rest.next_if_eq(&'[').is_some() {
            // Parameters, then one letter that ends the sequence.
            while rest.next().is_some_and(|c| !('@'..='~').contains(&c)) {}
        } else {
            rest.next();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_codes_of_the_firmware_are_gone_and_text_stays() {
        assert_eq!(plain("\x1b[2J\x1b[01;01H\x1bcHF {\"is\":\"done\"}\r\n"), "HF {\"is\":\"done\"}");
    }

    #[test]
    fn a_boot_that_stands_still_is_tried_again_and_a_program_that_does_is_not() {
        let seen = |release: Option<&str>, booting, end| Seen {
            results: Vec::new(),
            release: release.map(str::to_owned),
            booting,
            end,
        };
        assert!(seen(None, true, End::Died).is_worth_another_try());
        assert!(seen(Some("6.1"), true, End::Silent(120)).is_worth_another_try());
        assert!(!seen(Some("6.1"), false, End::Silent(120)).is_worth_another_try());
        assert!(!seen(Some("6.1"), true, End::Panic("p".into())).is_worth_another_try());
    }

    #[test]
    fn only_the_first_line_of_a_panic_counts() {
        assert!(is_panic("[ 1.0] Kernel panic - not syncing: Attempted to kill init!"));
        assert!(!is_panic("[ 1.1] ---[ end Kernel panic - not syncing: Attempted to kill init! ]---"));
        assert!(!is_panic("panic=-1"));
    }
}
