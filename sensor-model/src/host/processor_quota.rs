//! The limit of a control group's processor time.
//!
//! In: the file `cpu.max` of a control group. Out: how much of the processors it may use.

/// How much of the processors a control group may use, of its file `cpu.max`: 0.5 is half of one. `None` without a limit
/// (Documentation/admin-guide/cgroup-v2.rst of the kernel).
pub fn processor_quota(cpu_max: &str) -> Option<f64> {
    let (quota, period) = cpu_max.trim_end().split_once(' ')?;
    let (quota, period) = (quota.parse::<u32>().ok()?, period.parse::<u32>().ok()?);
    (period > 0).then(|| f64::from(quota) / f64::from(period))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_of_processor_time_is_read_and_max_is_none() {
        assert_eq!(processor_quota("50000 100000\n"), Some(0.5));
        assert_eq!(processor_quota("max 100000\n"), None);
        assert_eq!(processor_quota("1 0"), None);
    }
}
