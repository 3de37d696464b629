//! Operations under the shipped rules about the paths of an image and about closed directories.
//!
//! In: a bare guest with one CPU whose nanoseconds are executed instructions. Out: operations on unmanaged files, and the execution of a
//! program that is as in the image, without and with the daemon. It has its own boot and base.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use sensor_common::limits::EXECUTIONS_AFTER_CHANGE_NS;

use super::changes::QUIET;
use super::many::verified;
use super::operations::ALL;
use super::stage::{SETTLE, operations, prepare};
use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::{Context, shell, wait};
use crate::scenario::Scenario;

/// The scenario. No test runs it.
pub const SCENARIO: Scenario = Scenario {
    name: "bench-live",
    shows: "what operations cost under the shipped rules for the image and closed directories, in executed instructions",
    limit: 1800,
    run,
    ..Scenario::USUAL
};

/// The shipped rules.
const POLICIES: [(&str, &str); 2] = [
    ("/run/image.yaml", include_str!("../../../policies/drift/image.yaml")),
    ("/run/closed.yaml", include_str!("../../../policies/drift/closed.yaml")),
];
/// The files of the image that the rules have watched: where, and how many.
const WATCHED: [(&str, usize); 5] = [
    ("/usr/bin", 1_500),
    ("/usr/sbin", 500),
    ("/usr/libexec/bench", 500),
    ("/usr/lib/systemd/bench", 1_500),
    ("/etc/bench", 1_000),
];

const CONFIG: &str = r#"apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: 99-worker-live, labels: {machineconfiguration.openshift.io/role: worker}}
spec:
  config:
    ignition: {version: 3.4.0}
    storage:
      files:
      - {path: /etc/bench-live, mode: 420, contents: {source: "data:,declared"}}
"#;

fn run(context: &mut Context) -> Result<()> {
    prepare()?;
    context.note("writing the files of the image");
    merge_usr()?;
    let mut files = 0;
    for (directory, number) in WATCHED {
        fs::create_dir_all(directory)?;
        for number in 0..number {
            fs::write(Path::new(directory).join(format!("bench-{number}")), number.to_string())?;
        }
        files += number;
    }
    let closed = close()?;
    fs::write("/etc/bench-live", "declared")?;
    fs::write("/run/live.yaml", CONFIG)?;
    shell(&format!(
        "{HOLDFAST} baseline /usr /etc > /run/baseline.json && {HOLDFAST} image index --baseline /run/baseline.json"
    ))?;
    wait::pause(SETTLE);
    operations(context, "live, base", &ALL)?;
    context.note("starting");
    let [(image, _), (directories, _)] = POLICIES;
    let arguments =
        ["--standalone", "--config", "/run/live.yaml", "--policy", image, "--policy", directories];
    let agent = RunningDaemon::spawn(&[&arguments[..], &["--verify-every", "36000"]].concat())?;
    verified(context, &agent, files + closed)?;
    // A file that was just enrolled counts as changed.
    wait::pause(Duration::from_nanos(EXECUTIONS_AFTER_CHANGE_NS) + QUIET);
    operations(context, "live, ours", &ALL)?;
    agent.stop().map(drop)
}

/// Moves the guest's programs to `/usr/bin`, where hosts have them, so that the measured program is one of the image.
fn merge_usr() -> Result<()> {
    shell("mkdir -p /usr/bin && cp -a /bin/. /usr/bin/")?;
    fs::rename("/bin", "/bin.before")?;
    symlink("usr/bin", "/bin").map_err(Into::into)
}

/// Writes the policies, and makes a directory for each rule that closes one. It gives the number of these directories.
fn close() -> Result<usize> {
    let mut closed = 0;
    for (place, text) in POLICIES {
        fs::write(place, text)?;
        let mut lines = text.lines().map(str::trim);
        while let Some(line) = lines.next() {
            if let Some(path) = line.strip_prefix("- path: ")
                && lines.next() == Some("closed: true")
            {
                fs::create_dir_all(path.trim_matches('\'').replace('*', "bench"))?;
                closed += 1;
            }
        }
    }
    ensure!(closed > 30, "the shipped rules close {closed} directories");
    Ok(closed)
}
