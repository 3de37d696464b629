//! The usual metrics of a process, read from procfs at each scrape.
//!
//! In: `/proc/self`. Out: metrics `process_*`, by the names that all Prometheus clients use. A value that cannot be read is left
//! out and fails no scrape.

use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};
use std::fs;

#[derive(Debug)]
pub(super) struct ProcessCollector {
    /// Start of the process, Unix seconds.
    pub(super) started: f64,
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        if let Some(seconds) = cpu_seconds() {
            let counter = ConstCounter::new(seconds);
            let descriptor = encoder.encode_descriptor(
                "process_cpu_seconds",
                "User and system CPU time spent",
                None,
                counter.metric_type(),
            )?;
            counter.encode(descriptor)?;
        }
        let gauges = [
            ("process_resident_memory_bytes", "Resident memory size", resident_bytes()),
            ("process_open_fds", "Open file descriptors", open_descriptors()),
            ("process_start_time_seconds", "Start time since the Unix epoch", Some(self.started)),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            let descriptor = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(descriptor)?;
        }
        Ok(())
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The process chooses its name in parentheses, so fields are counted from the end of that: utime is the 14th of all.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u32>().ok()?.checked_add(fields.next()?.parse().ok()?)?;
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten()?;
    Some(f64::from(ticks) / f64::from(u32::try_from(per_second).ok()?))
}

fn resident_bytes() -> Option<f64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages = statm.split_whitespace().nth(1)?.parse::<u32>().ok()?;
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten()?;
    Some(f64::from(pages) * f64::from(u32::try_from(page).ok()?))
}

fn open_descriptors() -> Option<f64> {
    let count = fs::read_dir("/proc/self/fd").ok()?.count();
    Some(f64::from(u32::try_from(count).ok()?))
}
