//! The daemon's metrics page.
//!
//! In: nothing. Out: the page, or a value on it.

use std::time::Duration;

use anyhow::Result;

use super::{run, wait};

const LIMIT: Duration = Duration::from_secs(30);

/// The present page.
pub fn metrics() -> Result<String> {
    run("wget", &["-q", "-O", "-", "http://127.0.0.1:9464/metrics"])
}

/// Whether the daemon reports that it is ready.
pub fn is_ready() -> bool {
    run("wget", &["-q", "-O", "-", "http://127.0.0.1:9464/readyz"]).is_ok()
}

/// The sum of a metric's lines that `wanted` accepts.
pub fn sum(metric: &str, wanted: impl Fn(&str) -> bool) -> Result<f64> {
    let page = metrics()?;
    let lines = page.lines().filter(|line| line.starts_with(metric) && wanted(line));
    Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}

/// Waits until a hook that is attached only at times is attached.
pub fn wait_for_hook(name: &str) -> Result<()> {
    let start = format!("holdfast_hook_attached{{hook=\"{name}\"");
    wait::until(&format!("the hook {name}"), LIMIT, || {
        let page = metrics()?;
        Ok(page.lines().any(|line| line.starts_with(&start) && line.ends_with(" 1")).then_some(()))
    })
}
