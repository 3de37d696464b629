//! Operations while the paths of an image are watched, as `policies/drift/image.yaml` has them watched.
//!
//! In: a bare guest with one CPU whose nanoseconds are executed instructions. Out: operations on unmanaged files, and the execution of a
//! program that is as in the image, without and with the daemon. It has its own boot and base.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use sensor_common::limits::EXECUTIONS_AFTER_CHANGE_NS;

use super::changes::QUIET;
use super::many::verified;
use super::stage::{SETTLE, operations, prepare};
use crate::guest::agent::{HOLDFAST, RunningDaemon};
use crate::guest::{Context, shell, wait};
use crate::scenario::Scenario;

/// The scenario. No test runs it.
pub const SCENARIO: Scenario = Scenario {
    name: "bench-live",
    shows: "what operations cost while the paths of an image are watched, in executed instructions",
    limit: 1800,
    run,
    ..Scenario::USUAL
};

/// Files of the image.
const FILES: usize = 5_000;
/// Files in a directory.
const A_DIRECTORY: usize = 100;
/// Their directory.
const ROOT: &str = "/usr/libexec/bench";
/// The operations that are measured. The program that is executed is one of the image.
const OPERATIONS: [&str; 5] = ["open-read", "open-write", "rename", "create-unlink", "exec"];

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

const POLICY: &str = r"apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: live}
spec:
  rules:
  - {path: /bin/, image: true, action: observe}
  - {path: /usr/libexec/, image: true, action: observe}
";

fn run(context: &mut Context) -> Result<()> {
    prepare()?;
    context.note("writing the files of the image");
    for number in 0..FILES {
        let directory = Path::new(ROOT).join((number / A_DIRECTORY).to_string());
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(number.to_string()), number.to_string())?;
    }
    fs::write("/etc/bench-live", "declared")?;
    fs::write("/run/live.yaml", CONFIG)?;
    fs::write("/run/live-policy.yaml", POLICY)?;
    shell(&format!(
        "{HOLDFAST} baseline /bin /usr/libexec > /run/baseline.json && {HOLDFAST} image index --baseline /run/baseline.json"
    ))?;
    wait::pause(SETTLE);
    operations(context, "live, base", &OPERATIONS)?;
    context.note("starting");
    let arguments = ["--standalone", "--config", "/run/live.yaml", "--policy", "/run/live-policy.yaml"];
    let agent = RunningDaemon::spawn(&[&arguments[..], &["--verify-every", "36000"]].concat())?;
    verified(context, &agent, FILES)?;
    // A file that was just enrolled counts as changed.
    wait::pause(Duration::from_nanos(EXECUTIONS_AFTER_CHANGE_NS) + QUIET);
    operations(context, "live, ours", &OPERATIONS)?;
    agent.stop().map(drop)
}
