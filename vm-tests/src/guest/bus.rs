//! Forged signals of a user without rights on the system bus.
//!
//! In: the user, and the content of the signals. Out: signals.

use anyhow::Result;

use super::run;

/// Sends a signal that the job of a unit ended with a result, as a broadcast and directly to each Holdfast on the bus. It gives whether
/// the unit had a job.
///
/// # Errors
/// A program does not start, or the bus accepts no signals.
pub fn forge(user: &str, unit: &str, result: &str) -> Result<bool> {
    let jobs = run("systemctl", &["list-jobs", "--no-legend"])?;
    let job = jobs.lines().find(|line| line.contains(unit)).and_then(|line| line.split_whitespace().next());
    let Some(job) = job else { return Ok(false) };
    let path = format!("/org/freedesktop/systemd1/job/{job}");
    let connections = run("busctl", &["list", "--unique", "--no-legend"])?;
    let holdfasts = connections.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        (words.nth(1)? == "holdfast").then(|| format!("--destination={name}"))
    });
    for destination in std::iter::once(None).chain(holdfasts.map(Some)) {
        let mut emit = vec!["-u", user, "--", "busctl", "--system"];
        emit.extend(destination.as_deref());
        emit.extend(["emit", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "JobRemoved"]);
        emit.extend(["uoss", job, &path, unit, result]);
        run("runuser", &emit)?;
    }
    Ok(true)
}
