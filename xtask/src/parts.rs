//! The parts of a run of all tests: their logs, their times, and the causes of failures.
//!
//! In: named work. Out: for each part, a log in `target/test-logs`, and at its end a line with the closing lines of its test
//! runners. At the end of all parts: a table of times, and an error with the cause and the log of each failure. The output of a
//! part appears in its log alone, apart from a line for each virtual machine: a run that is cut off shows how far it came.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::run::{ThreadLog, print, say, with_log};

/// A part that ran.
#[derive(Debug)]
struct Part {
    name: &'static str,
    took: Duration,
    result: Result<()>,
    log: PathBuf,
}

/// The parts that ran. Threads may run parts beside each other.
#[derive(Debug)]
pub(crate) struct TestParts {
    folder: PathBuf,
    start: Instant,
    done: Mutex<Vec<Part>>,
}

impl TestParts {
    /// No part yet; logs of earlier runs are removed.
    pub(crate) fn new(folder: PathBuf) -> Result<Self> {
        crate::cache::remove_tree(&folder)?;
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { folder, start: Instant::now(), done: Mutex::new(Vec::new()) })
    }

    /// Runs a part, and prints how it ended.
    pub(crate) fn run(&self, name: &'static str, work: impl FnOnce() -> Result<()>) {
        say("test", name);
        let start = Instant::now();
        let path = self.folder.join(format!("{}.log", name.replace(|c: char| !c.is_alphanumeric(), "-")));
        let result = ThreadLog::create(path.clone()).and_then(|log| with_log(Some(log), work));
        let part = Part { name, took: start.elapsed(), result, log: path };
        // One lock for all lines, so that those of two parts do not mix.
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let log = fs::read(&part.log).unwrap_or_default();
        for line in closing(&String::from_utf8_lossy(&log)) {
            print(line);
        }
        let ending = if part.result.is_ok() { "passed" } else { "FAILED" };
        say(ending, &format!("{name} ({:.0} s)", part.took.as_secs_f64()));
        done.push(part);
    }

    /// Prints the table of times. The error names the parts that failed, each with its cause and its log.
    pub(crate) fn finish(self) -> Result<()> {
        let all = self.start.elapsed();
        let done = self.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        let times: Vec<(&str, Duration)> = done.iter().map(|part| (part.name, part.took)).collect();
        print(&table(&times, all));
        let failed: Vec<&Part> = done.iter().filter(|part| part.result.is_err()).collect();
        if failed.is_empty() {
            say("test", "everything passed");
            return Ok(());
        }
        let mut text = String::new();
        for part in &failed {
            if let Err(error) = &part.result {
                // Writing to a string cannot fail.
                let _ = write!(text, "\n\n{}: {error:#}\nlog: {}", part.name, shown(&part.log));
            }
        }
        bail!("{} of {} parts failed{text}", failed.len(), done.len())
    }
}

/// A path in its shorter form.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}

/// The lines with which test runners close: those of cargo, and that of the virtual machines.
fn closing(log: &str) -> impl Iterator<Item = &str> {
    let is_sum = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        matches!(words[..], [_, "passed,", _, "failed"] | [_, "started", "twice"])
    };
    log.lines().filter(move |line| line.starts_with("test result: ") || is_sum(line))
}

/// Each part with its seconds and its share of all of them. Parts that ran beside each other add up to more than all.
fn table(parts: &[(&str, Duration)], all: Duration) -> String {
    let whole = all.as_secs_f64().max(f64::EPSILON);
    let mut text = format!("{:<40} {:>8} {:>6}", "part", "seconds", "share");
    for (name, took) in parts.iter().copied().chain([("all", all)]) {
        let seconds = took.as_secs_f64();
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{name:<40} {seconds:>8.0} {:>4.0} %", 100.0 * seconds / whole);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(folder: &Path) -> TestParts {
        TestParts::new(folder.join("logs")).unwrap()
    }

    #[test]
    fn a_part_that_fails_keeps_no_other_from_running_and_its_cause_and_log_come_last() {
        let folder = tempfile::tempdir().unwrap();
        let parts = parts(folder.path());
        parts.run("one part", || bail!("the cause"));
        parts.run("other", || {
            print("said by the one that passed");
            Ok(())
        });
        let error = format!("{:#}", parts.finish().unwrap_err());
        assert!(error.starts_with("1 of 2 parts failed"), "{error}");
        assert!(error.contains("one part: the cause\nlog: "), "{error}");
        assert!(error.ends_with("one-part.log"), "{error}");
        assert!(!error.contains("said"), "{error}");
    }

    #[test]
    fn what_a_part_prints_is_in_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let parts = parts(folder.path());
        parts.run("a: b", || {
            print("a line");
            say("word", "and more");
            Ok(())
        });
        parts.finish().unwrap();
        let log = fs::read_to_string(folder.path().join("logs/a--b.log")).unwrap();
        assert_eq!(log, "a line\n        word and more\n");
    }

    #[test]
    fn closing_lines_of_both_runners_are_kept_and_nothing_else() {
        let log = "running 3 tests\n...\ntest result: ok. 3 passed; 0 failed\nsaid passed, not failed here\n\
                   1 started twice\n45 passed, 0 failed\n";
        let kept: Vec<&str> = closing(log).collect();
        assert_eq!(kept, ["test result: ok. 3 passed; 0 failed", "1 started twice", "45 passed, 0 failed"]);
    }

    #[test]
    fn the_table_gives_each_part_its_seconds_and_its_share() {
        let seconds = Duration::from_secs;
        let table = table(&[("lints", seconds(20)), ("tests", seconds(60))], seconds(80));
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["lints", "20", "25", "%"]);
        assert_eq!(rows[2], ["tests", "60", "75", "%"]);
        assert_eq!(rows[3], ["all", "80", "100", "%"]);
    }
}
