//! Running other programs, and printing progress.
//!
//! In: a prepared `Command`. Out: success, its output, or an error that holds the command line, its exit status and the end of
//! its output. A thread with a log writes there what it would otherwise print.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};

/// Lines of a failed program's output that an error message repeats.
const TAIL_LINES: usize = 30;
/// Lines of the cause of a failure that an error message repeats at most.
const CAUSE_LINES: usize = 100;

thread_local! {
    /// Where this thread writes what it would otherwise print.
    static LOG: RefCell<Option<Arc<ThreadLog>>> = const { RefCell::new(None) };
}

/// Where a thread writes what it would otherwise print.
#[derive(Debug)]
pub(crate) struct ThreadLog {
    path: PathBuf,
    file: File,
}

impl ThreadLog {
    /// An empty log.
    pub(crate) fn create(path: PathBuf) -> Result<Arc<Self>> {
        let file = File::options().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Arc::new(Self { path, file }))
    }

    /// What was written behind a length.
    fn since(&self, length: u64) -> Result<String> {
        let text =
            std::fs::read(&self.path).with_context(|| format!("cannot read {}", self.path.display()))?;
        let start = usize::try_from(length).unwrap_or_default().min(text.len());
        Ok(String::from_utf8_lossy(&text[start..]).into_owned())
    }
}

/// What this thread's log holds so far; nothing without one.
pub(crate) fn written() -> Result<String> {
    log().map_or(Ok(String::new()), |log| log.since(0))
}

/// Runs work with a log; without one it prints.
pub(crate) fn with_log<T>(log: Option<Arc<ThreadLog>>, work: impl FnOnce() -> T) -> T {
    let before = LOG.replace(log);
    let done = work();
    LOG.set(before);
    done
}

/// The log of this thread, for the threads that it starts.
pub(crate) fn log() -> Option<Arc<ThreadLog>> {
    LOG.with_borrow(Clone::clone)
}

/// Prints a line on standard output, or writes it to the thread's log.
pub(crate) fn print(line: &str) {
    match log() {
        // A full disk fails the parts that need one.
        Some(log) => drop(writeln!(&log.file, "{line}")),
        None => println!("{line}"),
    }
}

/// Prints a line of progress on standard error: the part, and what it begins.
pub(crate) fn say(part: &str, what: &str) {
    if log().is_some() {
        print(&format!("{part:>12} {what}"));
    } else {
        progress(part, what);
    }
}

/// As [`say`], and on standard error also where the thread has a log. A run that is cut off then shows how far it came.
pub(crate) fn say_aloud(part: &str, what: &str) {
    if log().is_some() {
        print(&format!("{part:>12} {what}"));
    }
    progress(part, what);
}

fn progress(part: &str, what: &str) {
    if std::io::stderr().is_terminal() {
        eprintln!("\x1b[1;32m{part:>12}\x1b[0m {what}");
    } else {
        eprintln!("{part:>12} {what}");
    }
}

/// The flag with which cargo prints no progress, unless standard error is a terminal.
pub(crate) fn quiet() -> Option<&'static str> {
    (log().is_some() || !std::io::stderr().is_terminal()).then_some("--quiet")
}

/// The command line as a person would type it, for messages.
fn display(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a program whose output the user should see as it comes, or find in the thread's log.
pub(crate) fn show(command: &mut Command) -> Result<()> {
    if let Some(log) = log() {
        let before = log.file.metadata()?.len();
        command.stdin(Stdio::null()).stdout(log.file.try_clone()?).stderr(log.file.try_clone()?);
        let status = command.status().with_context(|| format!("cannot start `{}`", display(command)))?;
        if !status.success() {
            bail!(
                "`{}` failed: {status}\n    {}",
                display(command),
                cause(&log.since(before)?).join("\n    ")
            );
        }
        return Ok(());
    }
    let status = command.status().with_context(|| format!("cannot start `{}`", display(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", display(command));
    }
    Ok(())
}

/// Runs a program quietly and gives its standard output; on failure the error holds the end of its output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", display(command)))?;
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.success() {
        return Ok(stdout);
    }
    let both = format!("{stdout}{}", String::from_utf8_lossy(&out.stderr));
    let lines: Vec<&str> = both.lines().collect();
    let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n    ");
    bail!("`{}` failed: {}\n    {tail}", display(command), out.status)
}

/// The lines of a failed program's output that give the cause. They are the failures of cargo's tests, else the lines from the
/// first error on, else the last lines.
fn cause(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut failures, mut inside) = (Vec::new(), false);
    for line in &lines {
        // Each list of failures comes twice: with what the tests printed, and by name.
        inside = (inside || *line == "failures:") && !line.starts_with("test result: ");
        if inside && !line.is_empty() {
            failures.push(*line);
        }
    }
    let error = lines.iter().position(|line| line.starts_with("error"));
    let chosen = match error {
        _ if !failures.is_empty() => failures.as_slice(),
        Some(start) => &lines[start..],
        None => &lines[lines.len().saturating_sub(TAIL_LINES)..],
    };
    chosen[..chosen.len().min(CAUSE_LINES)].to_vec()
}

/// The place of a program on the search path, which includes the administrator's folders.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

/// A cargo of the toolchain that runs us, free of the variables that cargo set for us.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(text);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_failed_tests_is_what_they_printed_wherever_it_stands() {
        let text = "running 2 tests\n.F\nfailures:\n\n---- a ----\npanicked\n\nfailures:\n    a\n\n\
                    test result: FAILED. 1 passed; 1 failed\nrunning 1 test\n.\ntest result: ok. 1 passed\n\
                    error: 1 target failed";
        assert_eq!(cause(text), ["failures:", "---- a ----", "panicked", "failures:", "    a"]);
    }

    #[test]
    fn the_cause_of_a_failed_build_begins_with_its_first_error_and_else_is_the_end() {
        assert_eq!(cause("checking\nerror[E0001]: no\n --> here"), ["error[E0001]: no", " --> here"]);
        let many = (0..50).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        assert_eq!(cause(&many).first(), Some(&"20"));
    }

    #[test]
    fn a_program_that_fails_with_a_log_says_why_from_its_own_output_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = ThreadLog::create(folder.path().join("log")).expect("a log");
        let error = with_log(Some(log), || {
            print("error: of what ran before");
            show(Command::new("sh").args(["-c", "echo error: mine; exit 3"]))
        });
        let error = format!("{:#}", error.expect_err("it ends with 3"));
        assert!(error.contains("error: mine") && !error.contains("before"), "{error}");
    }
}
