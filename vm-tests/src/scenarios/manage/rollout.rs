//! Another sensor in mid-apply, as by a rollout of the `DaemonSet`, and the end of the apply's process.
//!
//! In: a node in the mode `manage`, a config whose apply restarts a unit, and what replaces the sensor. Out: one check. The unit
//! waits for a writer of a pipe, so the apply works for as long as the scenario wants.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use nix::fcntl::OFlag;

use super::node::{DRAIN, LIMIT, ROLLOUT, annotate, annotation, apply_object, is_done, seen};
use crate::guest::forensic::read_records;
use crate::guest::kube::{self, kubectl};
use crate::guest::{run, wait};
use crate::scenarios::apply::history;

const NAMESPACE: &str = "holdfast-system";
/// The unit that applies.
const APPLY: &str = "holdfast-apply.service";
/// The pipe for which `ssh.service` waits while it exists.
const HOLD: &str = "/run/rollout-hold";
/// The drop-in with which it waits.
const DROP_IN: &str = "/run/systemd/system/ssh.service.d/10-hold.conf";
const WAITS: &str = "[Service]\nTimeoutStartSec=infinity\nExecStartPre=/bin/sh -c '! test -p /run/rollout-hold || cat /run/rollout-hold'\n";
const JOURNAL: &str = "/var/lib/holdfast/apply/journal";
const LOG: &str = "/var/log/holdfast/forensic.jsonl";
/// What a sensor logs when it starts the process of an apply again.
const AGAIN: &str = "The process of an apply is gone: it is started again.";

/// The end of the apply's process while the unit waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It is killed. The sensor starts it again, and it goes on from its journal.
    Kill,
    /// It is asked to end, as at the host's shutdown. It goes on to its next safe point: all is written here, so it is done.
    Stop,
}

/// The apply works through the end of the old sensor. Then its process is to end, and the config is applied all the same. Gives what `look`
/// sees then.
pub(super) fn survives(
    manifest: &str,
    end: End,
    replace: impl FnOnce() -> Result<()>,
    look: impl FnOnce() -> Result<String>,
) -> Result<String> {
    fs::create_dir_all(Path::new(DROP_IN).parent().context("a drop-in is in a folder")?)?;
    fs::write(DROP_IN, WAITS)?;
    run("mkfifo", &[HOLD])?;
    run("systemctl", &["daemon-reload"])?;
    let records = read_records(Path::new(LOG))?.len();
    apply_object(manifest)?;
    annotate("desiredConfig", ROLLOUT.name)?;
    let pipe = works()?;
    let works = process()?;
    ensure!(Path::new(JOURNAL).exists(), "there is no {JOURNAL}");
    let current = annotation("currentConfig")?;
    ensure!(current.as_deref() == Some(DRAIN.name), "currentConfig is {current:?}");

    replace()?;
    let survivor = process()?;
    ensure!(survivor == works, "the process {works} applied, and now {survivor} does");
    let has_ended = || Ok((!Path::new("/proc").join(&works).exists()).then_some(()));
    match end {
        End::Kill => {
            run("systemctl", &["kill", "--signal=KILL", APPLY])?;
            wait::until("the killed process to be gone", LIMIT, has_ended)?;
            ensure!(Path::new(JOURNAL).exists(), "the journal went with its process");
            fs::remove_file(HOLD)?;
            drop(pipe);
        }
        End::Stop => {
            run("systemctl", &["kill", "--signal=TERM", APPLY])?;
            fs::remove_file(HOLD)?;
            drop(pipe);
            wait::until("the stopped process to be gone", LIMIT, has_ended).with_context(seen)?;
        }
    }

    is_done(ROLLOUT.name)?;
    let seen = look()?;
    let file = fs::read_to_string("/etc/ssh/sshd_config.d/40-baseline.conf")?;
    ensure!(file.contains("MaxAuthTries 4"), "the file is {file}");
    ensure!(!Path::new(JOURNAL).exists(), "the journal stays");
    let history = history()?;
    ensure!(history["applies"][0]["result"] == "done", "{history:#}");
    let drift =
        read_records(Path::new(LOG))?.into_iter().skip(records).find(|record| record["kind"] == "drift");
    ensure!(drift.is_none(), "{drift:?}");
    fs::remove_file(DROP_IN)?;
    run("systemctl", &["daemon-reload"])?;
    Ok(seen)
}

/// A rollout of the `DaemonSet` replaces the pod, and the apply is killed. Gives the line with which the new pod's sensor starts it again.
pub(super) fn of_the_daemonset(manifest: &str) -> Result<String> {
    let (old_pod, old_sensor) = (pod()?.context("no pod that is ready")?, sensor()?);
    let replace = || {
        kubectl(&["-n", NAMESPACE, "rollout", "restart", "daemonset/holdfast"])?;
        let ended = wait::until("the old pod's sensor to end", LIMIT, || {
            Ok((!Path::new("/proc").join(&old_sensor).exists()).then_some(()))
        });
        ended.with_context(kube::pods)
    };
    survives(manifest, End::Kill, replace, || {
        let new_pod = wait::until("another pod", LIMIT, || Ok(pod()?.filter(|pod| *pod != old_pod)));
        let new_pod = new_pod.with_context(seen)?;
        let log = kubectl(&["-n", NAMESPACE, "logs", &new_pod, "-c", "sensor"])?;
        log.lines().find(|line| line.contains(AGAIN)).map(str::to_owned).with_context(|| log.clone())
    })
}

/// The pod of the `DaemonSet` that is ready and not about to end.
fn pod() -> Result<Option<String>> {
    let pods = kube::daemonset_pods()?;
    let ready = pods["items"].as_array().into_iter().flatten().find(|pod| {
        pod["metadata"]["deletionTimestamp"].is_null()
            && kube::condition(pod, "Ready") == Some("True".to_owned())
    });
    Ok(ready.and_then(|pod| pod["metadata"]["name"].as_str()).map(str::to_owned))
}

/// The process of the pod's sensor.
fn sensor() -> Result<String> {
    let pids = run("pgrep", &["-f", "^/holdfast agent"])?;
    pids.lines().next().map(str::to_owned).context("no sensor")
}

/// The process that applies.
fn process() -> Result<String> {
    let pid = run("systemctl", &["show", "--value", "-p", "MainPID", APPLY])?.trim().to_owned();
    ensure!(pid != "0", "{APPLY} does not run");
    Ok(pid)
}

/// Waits until the apply restarts the unit, and the unit waits for the pipe. Gives the pipe.
fn works() -> Result<File> {
    let nonblocking = OFlag::O_NONBLOCK.bits();
    wait::until("the unit to be restarted", LIMIT, || {
        // Without a reader of the pipe this fails.
        Ok(OpenOptions::new().write(true).custom_flags(nonblocking).open(HOLD).ok())
    })
    .with_context(seen)
}
