//! The same with sensor and reporter as the two containers of a pod, without containerd and kubelet.
//!
//! In: a guest that reaches the control plane on the host. Out: a check that both processes have the rights of their containers, one for an
//! edit, and those of the applies, of which the last one ends in the second boot.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::node::{is_done, reported, until};
use super::{after_reboot, applies, begin, ends_in_reboot};
use crate::guest::agent::RunningDaemon;
use crate::guest::pod::{HOLDFAST_CLUSTER, Sensor};
use crate::guest::reporter::{self, RunningReporter, USER};
use crate::guest::service::{CONFIG_NAME, as_alice, prepare};
use crate::guest::{Context, image, kube, run, wait};

const POD: &str = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f";
/// The file that alice edits.
const FILE: &str = "/etc/chrony.conf";

/// The scenario, in both boots.
pub(in crate::scenarios) fn systemd(context: &mut Context) -> Result<()> {
    if let Some(before) = super::first_boot()? {
        wait::for_systemd()?;
        kube::connect()?;
        let mut running = Running::start()?;
        context.check("an_apply_with_a_reboot", after_reboot(&before));
        return running.check();
    }
    prepare(&[])?;
    kube::connect()?;
    // A node has one daemon, and here it is the pod's, also after the reboot.
    run("systemctl", &["disable", "--quiet", "holdfast.service"])?;
    let manifests = include_str!("../../../kube/without-pods.yaml").replace("../base", "../overlays/manage");
    reporter::account(&manifests)?;
    begin()?;
    fs::copy(format!("{}/holdfast-cluster", image::files()?), HOLDFAST_CLUSTER)?;
    let mut running = Running::start()?;
    context.check("the_first_config_is_compared_before_the_node_is_done", is_done(CONFIG_NAME));
    context.check("each_process_has_the_rights_of_its_container", running.rights());
    context.check("an_edit_degrades_the_node_and_its_repair_ends_that", edited());
    let manifest = applies(context);
    running.check()?;
    ends_in_reboot(&manifest)
}

/// Both processes.
struct Running {
    sensor: RunningDaemon,
    reporter: RunningReporter,
}

impl Running {
    /// Starts them with the arguments that the manifests of the overlay `manage` have.
    fn start() -> Result<Self> {
        let user = USER.to_string();
        let arguments = ["--mode", "manage", "--enter-host", "--reporter-uid", &user];
        let sensor = Sensor { pod: POD, arguments: &arguments, own_pids: false, without: None };
        let sensor = RunningDaemon::start_by(sensor.command()?)?;
        Ok(Self { sensor, reporter: RunningReporter::start(POD, &["--mode=manage"])? })
    }

    /// Checks that the reporter still runs.
    fn check(&mut self) -> Result<()> {
        self.reporter.check()
    }

    /// The sensor is in the host's namespaces but that of the network, and can open no socket there. The reporter has no capability.
    fn rights(&self) -> Result<String> {
        let field = |process: u32, name: &str| -> Result<String> {
            let status = fs::read_to_string(format!("/proc/{process}/status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
            line.map(str::to_owned).with_context(|| format!("no {name} of process {process}"))
        };
        let (sensor, reporter) = (self.sensor.pid(), self.reporter.pid());
        ensure!(field(sensor, "Seccomp")? == "2" && field(sensor, "NoNewPrivs")? == "1", "no filter");
        ensure!(field(reporter, "Uid")?.split('\t').all(|uid| uid == USER.to_string()), "another user");
        for set in ["CapPrm", "CapEff"] {
            ensure!(field(reporter, set)?.bytes().all(|digit| digit == b'0'), "capabilities of the reporter");
        }
        let space = |process: u32, name: &str| fs::read_link(format!("/proc/{process}/ns/{name}"));
        for name in ["mnt", "cgroup", "pid"] {
            ensure!(space(sensor, name)? == space(1, name)?, "another {name} namespace");
        }
        ensure!(space(sensor, "net")? != space(1, "net")?, "the network of the host");
        Ok(format!("capabilities of the sensor: {}", field(sensor, "CapEff")?))
    }
}

/// Alice edits a file and restores it. The Machine Config Operator's text is in the annotation, and her login in the report.
fn edited() -> Result<String> {
    let before = fs::read_to_string(FILE)?;
    as_alice(&format!("sudo sed -i '1s/.*/server time.attacker.example.com iburst/' {FILE}"))?;
    until("state", "Degraded")?;
    until("reason", &format!("content mismatch for file \"{FILE}\""))?;
    let report = reported("the report to name the login", |status| {
        let drift = &status["drifts"][0];
        drift["path"] == FILE && drift["by"]["loginUser"] == "alice"
    })?;
    as_alice(&format!("sudo sed -i '1s/.*/{}/' {FILE}", before.lines().next().context("an empty file")?))?;
    is_done(CONFIG_NAME)?;
    until("reason", "")?;
    Ok(report["status"]["drifts"][0]["by"].to_string())
}
