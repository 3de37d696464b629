//! The applies of `manage`, with sensor and reporter as the two containers of a pod, and without containerd and kubelet.
//!
//! In: a guest that reaches the control plane on the host. Out: a check that both processes have the rights of their containers, one for an
//! edit, those of the applies, of which the last one ends in the second boot, and there some without the API server and without the sensor.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::node::{LIMIT, REBOOT, ROLLOUT, apply_object, configured, is_done, reported, seen, until};
use super::planned::Asked;
use super::rollout::{self, End};
use super::{after_reboot, applies, begin, ends_in_reboot};
use crate::guest::agent::RunningDaemon;
use crate::guest::kube::NODE;
use crate::guest::pod::{HOLDFAST_CLUSTER, Sensor};
use crate::guest::reporter::{self, NAMESPACE, RunningReporter, USER};
use crate::guest::service::{CONFIG_NAME, as_alice, prepare};
use crate::guest::{Context, api, capabilities, image, kube, run, shell, wait};
use crate::scenarios::kube::KEPT;

const POD: &str = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f";
/// The file that alice edits.
const FILE: &str = "/etc/chrony.conf";

/// A policy about what an image has.
const UNINDEXED: &str = "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: unindexed}\nspec:\n  rules:\n  \
                         - {path: /usr/bin/, image: true, action: observe}\n";

/// The scenario, in both boots.
pub(in crate::scenarios) fn systemd(context: &mut Context) -> Result<()> {
    if let Some(before) = super::first_boot()? {
        wait::for_systemd()?;
        kube::connect()?;
        let mut running = Running::start()?;
        context.check("an_apply_with_a_reboot", after_reboot(&before));
        context.check("an_edit_while_no_api_server_answers_is_reported_afterwards", running.cut_off());
        context.check("the_lease_is_the_reporters", lease());
        context.check("without_its_sensor_the_nodes_state_is_unknown", running.without_sensor());
        return Ok(());
    }
    prepare(&[])?;
    kube::connect()?;
    // A node has one daemon, and here it is the pod's, also after the reboot.
    run("systemctl", &["disable", "--quiet", "holdfast.service"])?;
    let base = include_str!("../../../kube/without-pods.yaml");
    let manifests = base.replace("../base", "../overlays/manage");
    ensure!(manifests != base, "the kustomization has no base");
    reporter::account(&manifests)?;
    begin()?;
    fs::copy(format!("{}/holdfast-cluster", image::files()?), HOLDFAST_CLUSTER)?;
    let mut running = Running::start()?;
    context.check("the_first_config_is_compared_before_the_node_is_done", is_done(CONFIG_NAME));
    context.check("each_process_has_the_rights_of_its_container", running.rights());
    context.check("an_edit_degrades_the_node_and_its_repair_ends_that", edited());
    context.check("a_gap_makes_the_state_of_the_node_unknown_until_it_ends", gap());
    let manifest = configured(&applies(context, Asked::Report), &ROLLOUT);
    let stopped = running.another_sensor(&manifest);
    context.check("an_apply_survives_another_sensor_and_a_sigterm", stopped);
    running.reporter.check()?;
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
        Ok(Self { sensor: Self::sensor()?, reporter: RunningReporter::start(POD, &["--mode=manage"])? })
    }

    fn sensor() -> Result<RunningDaemon> {
        let user = USER.to_string();
        let arguments = ["--mode", "manage", "--enter-host", "--reporter-uid", &user];
        let sensor = Sensor { pod: POD, arguments: &arguments, own_pids: false, without: None };
        RunningDaemon::start_by(sensor.command()?)
    }

    /// The sensor gets a SIGTERM in mid-apply, and another one starts. Then the apply itself gets one.
    fn another_sensor(&mut self, manifest: &str) -> Result<String> {
        let replace = || {
            self.sensor.signal(Signal::SIGTERM)?;
            let ended = self.sensor.ends()?;
            ensure!(ended.success(), "the sensor ended with {ended}");
            self.sensor = Self::sensor()?;
            Ok(())
        };
        let look = || {
            let node = kube::get("node", NODE)?;
            Ok(node["metadata"]["annotations"].to_string())
        };
        let seen = rollout::survives(manifest, End::Stop, replace, look)?;
        self.reporter.check()?;
        Ok(seen)
    }

    /// A file is edited while the node has no route to the API server: the log has the edit at once, and the cluster has it when the API
    /// server answers again.
    fn cut_off(&mut self) -> Result<String> {
        let route = format!("unreachable {}/32", kube::HOST);
        shell(&format!("ip route add {route}"))?;
        let before = self.sensor.records()?.len();
        let content = fs::read_to_string(FILE)?;
        let edited = fs::write(FILE, format!("{content}# edited\n"));
        let is_drift = |record: &Value| record["kind"] == "drift" && record["path"] == FILE;
        let record = self.sensor.wait_for("the drift", before, is_drift);
        let answer = kube::get("node", NODE);
        shell(&format!("ip route del {route}"))?;
        edited?;
        ensure!(answer.is_err(), "the API server answers");
        let record = record?;
        reported("the report of the edit", |status| status["drifts"][0]["path"] == FILE)?;
        until("state", "Degraded")?;
        fs::write(FILE, content)?;
        is_done(REBOOT.name)?;
        self.reporter.check()?;
        Ok(record["actor"]["argv"].to_string())
    }

    /// The sensor ends, and another one starts later.
    fn without_sensor(mut self) -> Result<String> {
        conditions("False", "True")?;
        ensure!(self.sensor.stop()?.success(), "the sensor did not end well");
        conditions("Unknown", "False")?;
        self.sensor = Self::sensor()?;
        conditions("False", "True")?;
        self.reporter.check()?;
        ensure!(self.sensor.stop()?.success(), "the second sensor did not end well");
        Ok(String::new())
    }

    /// The sensor is in the host's namespaces but that of the network, and has the filter that refuses network sockets. Both have the
    /// capabilities of their containers.
    fn rights(&self) -> Result<String> {
        let (sensor, reporter) = (self.sensor.pid(), self.reporter.pid());
        let status = |process: u32| fs::read_to_string(format!("/proc/{process}/status"));
        ensure!(status(sensor)?.contains("\nSeccomp:\t2\n"), "no filter: {}", status(sensor)?);
        let uid = format!("\nUid:\t{USER}\t{USER}\t{USER}\t{USER}\n");
        ensure!(status(reporter)?.contains(&uid), "another user: {}", status(reporter)?);
        let space = |process: u32, name: &str| fs::read_link(format!("/proc/{process}/ns/{name}"));
        for name in ["mnt", "cgroup", "pid"] {
            ensure!(space(sensor, name)? == space(1, name)?, "another {name} namespace");
        }
        ensure!(space(sensor, "net")? != space(1, "net")?, "the network of the host");
        let of_sensor = capabilities::are_exactly(&sensor.to_string(), &KEPT).context("sensor")?;
        let of_reporter = capabilities::are_exactly(&reporter.to_string(), &[]).context("reporter")?;
        Ok(format!("{of_sensor}; {of_reporter}"))
    }
}

/// The reporter renews the Lease of the node.
fn lease() -> Result<String> {
    let lease = api::get(&format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{NODE}"))?;
    let spec = &lease["spec"];
    ensure!(spec["renewTime"].is_string() && spec["leaseDurationSeconds"].is_u64(), "{lease}");
    ensure!(spec["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty()), "{lease}");
    Ok(spec.to_string())
}

/// Waits until the Node has these two conditions.
fn conditions(drift: &str, sensor: &str) -> Result<()> {
    let found = wait::until(&format!("ConfigDrift={drift}, SensorReady={sensor}"), LIMIT, || {
        let node = kube::get("node", NODE)?;
        let is = |kind: &str, wanted: &str| kube::condition(&node, kind).as_deref() == Some(wanted);
        Ok((is("ConfigDrift", drift) && is("holdfast.dev/SensorReady", sensor)).then_some(()))
    });
    found.with_context(seen)
}

/// A policy of the cluster needs an index that the node does not have. While it exists, a part of the node's state is unknown.
fn gap() -> Result<String> {
    apply_object(UNINDEXED)?;
    conditions("Unknown", "True")?;
    let report = reported("the gap", |status| status["gaps"][0]["reason"] == "image-not-indexed")?;
    kube::kubectl(&["delete", "driftpolicy", "unindexed"])?;
    conditions("False", "True")?;
    is_done(CONFIG_NAME)?;
    Ok(report["status"]["gaps"].to_string())
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
