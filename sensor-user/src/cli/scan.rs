//! `holdfast scan`: compares what the image has and the daemon does not watch, in a process of its own.

use super::{background::give_way, desired::Read, exit::IN_SYNC};
use crate::{
    apply::waits_or_none,
    bounded,
    desired::{DesiredWithConfig, Overruled, declared},
    image::{Scan, ScanEnd, ScanFiles, pauses_in_a_file},
    labels::Labels,
    observation::Observer,
};
use sensor_model::{host::processor_quota::processor_quota, image::ScanPace};
use std::{ops::ControlFlow, path::Path, thread, time::Duration};

/// The control group of this process.
const OWN_GROUP: &str = "/proc/self/cgroup";
/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";
/// Most bytes of a file of a control group.
const GROUP_BYTES: u64 = 64 << 10;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct ScanCommand {
    #[command(flatten)]
    read: Read,
    /// Percent of a processor that the scan may use, of the part that its control group may use.
    #[arg(long, default_value_t = 2.0, value_name = "PERCENT", value_parser = percent)]
    processor: f64,
    /// MiB a second that it may read.
    #[arg(long, default_value_t = 8, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    read_mebibytes: u32,
    /// Hours from the end of a round to the beginning of the next one.
    #[arg(long, default_value_t = 24, value_name = "NUMBER")]
    every_hours: u32,
}

impl ScanCommand {
    /// Runs the round that is due.
    ///
    /// # Errors
    /// Configs, policies or an index cannot be read, or the progress cannot be kept.
    pub fn run(self) -> anyhow::Result<u8> {
        give_way();
        let (root, state) = (self.read.host_root.clone(), self.read.state.clone());
        let pace = ScanPace {
            processor: self.processor / 100.0,
            bytes: f64::from(self.read_mebibytes) * f64::from(1 << 20),
        };
        let pace = pace.within(quota(Path::new(OWN_GROUP), Path::new(GROUPS)));
        let in_a_file = pauses_in_a_file(pace, |time| {
            // The daemon ends this process with a signal, also during a pause.
            let _ = pause(time);
        });
        let sealed = ScanFiles::of(&state).sealed();
        let observer = Observer::guarded(&root)?.with_settled_contents();
        let observer = observer.with_pauses(in_a_file).with_sealed_on(sealed, self.read.verity_devices());
        let DesiredWithConfig { rendered, desired } =
            self.read.arguments().load_with_config(&observer, waits_or_none)?;
        let declared = declared(&rendered)?;
        // A scan takes long, and needs no contents.
        drop(rendered);
        let overruled = Overruled::by(declared.iter());
        let labels = Labels::read(&desired.policy, &observer);
        let scan = Scan {
            observer: &observer,
            policy: &desired.policy,
            state: &state,
            is_declared: &|expectation| overruled.has(expectation),
            label: &|expectation| labels.set(expectation),
            ids: &desired.ids,
            pace,
            every: Duration::from_hours(self.every_hours.into()),
            pause: &pause,
        };
        if let ScanEnd::Complete(round) = scan.run()? {
            tracing::info!(
                compared = round.compared,
                differing = round.found(),
                unreadable = round.unreadable,
                sealed = round.sealed,
                "A scan of what the image has is complete."
            );
        }
        Ok(IN_SYNC)
    }
}

#[expect(clippy::disallowed_methods, reason = "the pace of the scan is no event")]
fn pause(pause: Duration) -> ControlFlow<()> {
    thread::sleep(pause);
    ControlFlow::Continue(())
}

/// How much of a processor a process may use by the limits of its control group and of those above it; `None` without a limit. `own`: the
/// file that names its group, `groups`: where control groups are.
fn quota(own: &Path, groups: &Path) -> Option<f64> {
    let read = |path: &Path| {
        let bytes = bounded::read(path, GROUP_BYTES).ok()?;
        String::from_utf8(bytes).ok()
    };
    let own = read(own)?;
    let group = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let directory = groups.join(group.trim_start_matches('/'));
    let limits = directory.ancestors().take_while(|above| above.starts_with(groups));
    limits.filter_map(|above| processor_quota(&read(&above.join("cpu.max"))?)).reduce(f64::min)
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("must be a number above 0, at most 100".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_least_limit_of_the_own_control_group_and_of_those_above_it_is_the_quota() {
        let folder = tempfile::tempdir().unwrap();
        let (own, groups) = (folder.path().join("own"), folder.path().join("groups"));
        fs::create_dir_all(groups.join("a/b")).unwrap();
        fs::create_dir_all(groups.join("other")).unwrap();
        let limit = |group: &str, text: &str| fs::write(groups.join(group).join("cpu.max"), text).unwrap();
        fs::write(&own, "0::/a/b\n").unwrap();
        assert_eq!(quota(&own, &groups), None, "the root of all groups has no such file");
        limit("other", "1000 100000\n");
        limit("a/b", "max 100000\n");
        assert_eq!(quota(&own, &groups), None);
        limit("a/b", "150000 100000\n");
        assert_eq!(quota(&own, &groups), Some(1.5));
        limit("a", "25000 100000\n");
        assert_eq!(quota(&own, &groups), Some(0.25));
        limit("a/b", "10000 100000\n");
        assert_eq!(quota(&own, &groups), Some(0.1));
        // A group that another namespace names.
        fs::write(&own, "0::/../gone\n").unwrap();
        assert_eq!(quota(&own, &groups), None);
    }
}
