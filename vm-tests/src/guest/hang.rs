//! The diagnosis that a guest prints if its scenario takes too long.
//!
//! In: the time after which it prints. Out, on the console: a line for each thread of the guest's processes, with the functions of the
//! kernel in which it waits, and the last lines of the daemon's output. The host ends the guest soon afterwards, and its error has the end of
//! the console's log.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::{agent, wait};

/// Functions of a thread's stack in the kernel. The first ones show what the thread waits for.
const FRAMES: usize = 5;

/// Prints the diagnosis after a time, unless the guest has ended.
pub(crate) fn print_after(time: Duration) {
    thread::spawn(move || {
        wait::pause(time);
        eprintln!("{}", describe());
    });
}

/// The time since the kernel booted; zero if procfs does not have it.
pub(crate) fn uptime() -> Duration {
    let text = read(Path::new("/proc/uptime"));
    let seconds = text.split_whitespace().next().and_then(|seconds| seconds.parse().ok());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

/// The threads of all processes but the kernel's own, and the output of the daemon.
fn describe() -> String {
    let mut text = format!("{}\nthe scenario takes too long\n", agent::output_tail());
    for process in numbered(Path::new("/proc")) {
        let command = read(&process.join("cmdline")).replace('\0', " ");
        if command.is_empty() {
            continue;
        }
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}: {command}", process.display());
        for thread in numbered(&process.join("task")) {
            let status = read(&thread.join("status"));
            let value = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            let stack = read(&thread.join("stack"));
            let functions = stack.lines().take(FRAMES).filter_map(|line| line.split_whitespace().last());
            let functions = functions.collect::<Vec<_>>().join(" < ");
            let _ = writeln!(text, "  {} {}: {functions}", value("Name:").trim(), value("State:").trim());
        }
    }
    text
}

/// A text file of procfs; empty if its process has ended.
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The directories of a folder whose names are numbers.
fn numbered(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let is_number = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.bytes().all(|byte| byte.is_ascii_digit())
    };
    entries.filter(is_number).collect()
}
