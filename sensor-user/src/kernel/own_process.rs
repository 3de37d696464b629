//! Which process the daemon is. By this the programs distinguish it from a later process with the same number.
//!
//! In: procfs. Out: number, start and pid namespace, in the form in which the programs compare them.

use super::layout::{Layout, MISSING};
use nix::unistd::{SysconfVar, sysconf};
use sensor_common::map::Control;
use sensor_model::host::stat::Stat;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

/// The fields of [`Control`] about this process. If the programs cannot read a field on this kernel, its value matches every process.
pub(super) fn of(layout: &Layout) -> io::Result<Control> {
    let has = |global: &str| layout.values.get(global).is_some_and(|offset| *offset != MISSING);
    let mut control =
        Control { agent_tgid: std::process::id(), agent_start_before_ns: u64::MAX, ..Control::default() };
    if has("OFF_TASK_STRUCT_START_BOOTTIME") {
        let text = fs::read("/proc/self/stat")?;
        let stat = Stat::parse(&text).ok_or_else(|| io::Error::other("`/proc/self/stat` is cut short"))?;
        let tick = nanoseconds_per_tick();
        control.agent_start_ns = stat.start.saturating_mul(tick);
        control.agent_start_before_ns = control.agent_start_ns.saturating_add(tick);
    }
    if ["OFF_NSPROXY_PID_NS_FOR_CHILDREN", "OFF_PID_NAMESPACE_NS", "OFF_NS_COMMON_INUM"].into_iter().all(has)
    {
        let number = fs::metadata("/proc/self/ns/pid").map(|file| file.ino()).unwrap_or_default();
        control.agent_pid_namespace = u32::try_from(number).unwrap_or_default();
    }
    Ok(control)
}

fn nanoseconds_per_tick() -> u64 {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|ticks| u64::try_from(ticks).ok());
    1_000_000_000 / ticks.filter(|ticks| *ticks > 0).unwrap_or(100)
}
