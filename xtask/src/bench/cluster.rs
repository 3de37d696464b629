//! What the cluster side costs, with a real API server.
//!
//! In: a kernel series. Out: a table of the operations with the reporter beside the sensor, and one of the reporter's figures with
//! their aims, on the screen or as a section of `docs/performance.md`. API server and etcd run on this machine, sensor and reporter
//! in a guest whose nanoseconds are executed instructions while it works.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;
use vm_tests::bench::cluster::SCENARIO;
use vm_tests::guest::agent::HOLDFAST;
use vm_tests::guest::api::PROXY;
use vm_tests::guest::kube::{AUDIT, NODE};
use vm_tests::guest::pod::HOLDFAST_CLUSTER;
use vm_tests::guest::reporter::KUBECONFIG;

use super::docs::number;
use super::output::BenchFormat;
use super::rows::{self, KIB, MeasureUnit, Measured, NS};
use super::section::{self, CLUSTER};
use super::{boot, program};
use crate::cache::Cache;
use crate::dist::{self, Profile};
use crate::kernels;
use crate::kube::{ClientPlace, ControlPlane, KubeAssets, LoggedProcess, NEWEST, Wanted, installed};
use crate::qemu::Qemu;
use crate::run::{output, say};
use crate::vm::{AuditLog, GuestParts, Vm};

/// Longest time until the controllers have made the reporter's pod.
const LIMIT: Duration = Duration::from_mins(3);
/// The file of the sensor's memory in a guest, by stage, and at most.
const SENSOR_MEMORY: (&str, f64) = ("memory of the sensor with 10,000 managed files", 20.0);

/// Name of a row of the sensor, its measurement, its field, its budget in milliseconds.
type SensorTime = (&'static str, &'static str, &'static str, f64);

/// What the sensor's own budgets say about time.
const SENSOR_TIMES: [SensorTime; 5] = [
    ("CPU of the first verification of 10,000 files", "first verification", "", 2_000.0),
    ("write to verdict and record of drift, median", "drift latency", "median_ns", 2.0),
    ("write to verdict and record of drift, p99", "drift latency", "p99_ns", 10.0),
    ("write to verdict and record of recovery, median", "recovered latency", "median_ns", 2.0),
    ("write to verdict and record of recovery, p99", "recovered latency", "p99_ns", 10.0),
];

/// The requests that the steady figure does not contain. Tests of `holdfast-cluster` count them.
const OTHERS: &str = "\
The guest's clock is slower than that of the API server, so watches seem to end early there, and the next ones begin with reads: the
`get` and `list` above. In real time a watch that ends by its age begins again without a read. A test of `cargo xtask test --full` counts
the requests of ten minutes.

A scraper adds at most 32 requests an hour, whatever its interval: 20 `create tokenreviews` and 12 `create
subjectaccessreviews`. A policy that names pods adds 13 `watch pods`, and the comparisons of config and OS image with the
cluster add 6 reads. With all of these a node stays below two requests a minute: a test counts the requests of six hours at a
played API server.
";

/// Name of the figure, measurement, field, unit, divisor, at most.
type Figured = (&'static str, &'static str, &'static str, MeasureUnit, f64, Option<f64>);

const FIGURES: [Figured; 15] = [
    time("edit to DriftReport, median", "edit to report", "median_ns", None),
    time("edit to DriftReport, p99", "edit to report", "p99_ns", Some(2_000.0)),
    time("edit to condition `ConfigDrift=True`, median", "edit to condition", "median_ns", None),
    time("edit to condition `ConfigDrift=True`, p99", "edit to condition", "p99_ns", Some(2_000.0)),
    time("repair to DriftReport, median", "repair to report", "median_ns", None),
    time("repair to DriftReport, p99", "repair to report", "p99_ns", Some(1_000.0)),
    time("repair to condition `ConfigDrift=False`, median", "repair to condition", "median_ns", None),
    time("repair to condition `ConfigDrift=False`, p99", "repair to condition", "p99_ns", Some(1_000.0)),
    memory("memory of the reporter, steady", "reporter memory steady", "resident_kib", Some(20.0)),
    memory("of that not backed by the program's file", "reporter memory steady", "anonymous_kib", None),
    memory(
        "memory of the reporter after 100 drifts a minute",
        "reporter memory drifts",
        "resident_kib",
        Some(20.0),
    ),
    memory("of that not backed by the program's file", "reporter memory drifts", "anonymous_kib", None),
    memory("memory of the reporter at its highest", "reporter memory drifts", "peak_kib", Some(20.0)),
    requests("requests a minute, steady", "requests steady", Some(2.0)),
    requests("requests a minute, with 100 drifts a minute", "requests drifts", None),
];

const fn time(
    name: &'static str,
    measurement: &'static str,
    field: &'static str,
    at_most: Option<f64>,
) -> Figured {
    (name, measurement, field, MeasureUnit::Milliseconds, NS, at_most)
}

const fn memory(
    name: &'static str,
    measurement: &'static str,
    field: &'static str,
    at_most: Option<f64>,
) -> Figured {
    (name, measurement, field, MeasureUnit::Mebibytes, KIB, at_most)
}

const fn requests(name: &'static str, measurement: &'static str, at_most: Option<f64>) -> Figured {
    (name, measurement, "a_minute", MeasureUnit::AMinute, 1.0, at_most)
}

/// An operation without Holdfast, with the sensor, and with the reporter beside it.
#[derive(Debug, Serialize)]
struct Beside {
    name: &'static str,
    unit: MeasureUnit,
    base: Option<f64>,
    sensor: f64,
    both: f64,
    at_most: Option<f64>,
    pass: Option<bool>,
}

/// One figure of the reporter.
#[derive(Debug, Serialize)]
struct Figure {
    name: &'static str,
    unit: MeasureUnit,
    measured: f64,
    at_most: Option<f64>,
    pass: Option<bool>,
}

/// The result.
#[derive(Debug, Serialize)]
struct ClusterReport {
    schema: &'static str,
    date: String,
    kernel: String,
    qemu: String,
    kubernetes: String,
    operations: Vec<Beside>,
    figures: Vec<Figure>,
    /// Requests by verb and resource, steady and with drifts.
    requests: [Value; 2],
}

/// Measures, prints, and writes the section if asked to.
pub(crate) fn run(series: &str, format: BenchFormat, write_docs: bool, verbose: bool) -> Result<()> {
    let (parts, assets, qemu, kernel) = {
        let cache = Cache::open()?;
        let qemu = Qemu::ensure(&cache)?.version()?;
        let kernel = kernels::ensure(&cache, series)?;
        let assets = KubeAssets::ensure(&cache, NEWEST)?;
        (GuestParts::ensure_with(cache, &[], Profile::Release)?, assets, qemu, kernel)
    };
    let sensor = program()?;
    let reporter = dist::build_static("holdfast-cluster", "holdfast-cluster", Profile::Release, &[])?;
    let cluster = BenchCluster::start(&assets)?;
    let mut vm = Vm::new(kernel, &SCENARIO);
    vm.icount = true;
    vm.network = true;
    vm.verbose = verbose;
    vm.add_file(sensor, HOLDFAST)?;
    vm.add_file(reporter, HOLDFAST_CLUSTER)?;
    cluster.give(&mut vm)?;
    say("bench", "a boot of half an hour");
    let mut measured = Measured::default();
    let release = boot(&vm, &parts, &mut measured)?;
    let report = ClusterReport {
        schema: "holdfast.bench-cluster/v1",
        date: output(Command::new("date").args(["-u", "+%F"]))?.trim().to_owned(),
        kernel: release,
        qemu: qemu.trim_start_matches("QEMU emulator ").to_owned(),
        kubernetes: cluster.version()?,
        operations: operations(&measured)?,
        figures: figures(&measured)?,
        requests: ["steady", "drifts"].map(|when| measured.field(&format!("requests {when}"), "by")),
    };
    match format {
        BenchFormat::Json => println!("{}", serde_json::to_string_pretty(&report)?),
        BenchFormat::Table => print!("{}{}", operations_table(&report), figures_table(&report)),
    }
    if write_docs {
        section::write(CLUSTER, &text(&report))?;
    }
    Ok(())
}

/// A control plane with Holdfast installed and one Node, and what the guest needs to be that node.
struct BenchCluster {
    _proxy: LoggedProcess,
    plane: ControlPlane,
    audit: AuditLog,
    port: u16,
    folder: TempDir,
}

impl BenchCluster {
    fn start(assets: &KubeAssets) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let audit = AuditLog::of_reporters(folder.path())?;
        let flags: Vec<&str> = audit.flags.iter().map(String::as_str).collect();
        let plane = ControlPlane::start(assets, Wanted { name: "bench", nodes: &[], apiserver: &flags })?;
        let node = folder.path().join("node.json");
        fs::write(&node, installed::node(NODE).to_string())?;
        output(plane.kubectl().args(["create", "-f"]).arg(node))?;
        installed::apply(&plane, "base")?;
        let (proxy, port) = plane.proxy()?;
        Ok(Self { _proxy: proxy, plane, audit, port, folder })
    }

    /// Gives a guest the reporter's config and the ports.
    fn give(&self, vm: &mut Vm) -> Result<()> {
        let mut token = String::new();
        self.plane.until(LIMIT, || {
            token = installed::reporter_token(&self.plane, NODE)?;
            Ok(())
        })?;
        let config = self.plane.config_with(NODE, &token, ClientPlace::Guest)?;
        let ports = [(PROXY, self.port.to_string()), (AUDIT, self.audit.port.to_string())];
        for (place, content) in ports.into_iter().chain([(KUBECONFIG, config)]) {
            let source = self.folder.path().join(place.replace('/', "-"));
            fs::write(&source, content).with_context(|| format!("cannot write {}", source.display()))?;
            vm.add_file(source, place)?;
        }
        Ok(())
    }

    fn version(&self) -> Result<String> {
        let version = output(self.plane.kubectl().args(["version", "--output", "json"]))?;
        let version: Value = serde_json::from_str(&version)?;
        Ok(version["serverVersion"]["gitVersion"]
            .as_str()
            .context("no version of the API server")?
            .to_owned())
    }
}

/// The operations, with what the sensor adds and what both add, and the sensor's times and memory.
fn operations(measured: &Measured) -> Result<Vec<Beside>> {
    let stages = ["sensor", "both"].map(|stage| rows::operations(measured, stage));
    let [sensor, both] = stages;
    let rows = sensor?.into_iter().zip(both?).map(|(sensor, both)| Beside {
        name: both.name,
        unit: both.unit,
        base: both.base,
        sensor: sensor.ours,
        both: both.ours,
        at_most: both.budget,
        pass: both.pass,
    });
    let mut rows: Vec<Beside> = rows.collect();
    let idle = |stage: &str| measured.number(&format!("{stage} idle second"), "");
    rows.push(Beside {
        name: "nothing happens for a second, all CPU work",
        unit: MeasureUnit::Instructions,
        base: None,
        sensor: idle("sensor")?,
        both: idle("both")?,
        at_most: None,
        pass: None,
    });
    for (name, measurement, field, most) in SENSOR_TIMES {
        let time = |stage: &str| measured.number(&format!("{stage} {measurement}"), field);
        let (sensor, both) = (time("sensor")? / NS, time("both")? / NS);
        let unit = MeasureUnit::Milliseconds;
        rows.push(Beside {
            name,
            unit,
            base: None,
            sensor,
            both,
            at_most: Some(most),
            pass: Some(both <= most),
        });
    }
    let (name, most) = SENSOR_MEMORY;
    let memory = |stage: &str| measured.number(&format!("{stage} memory"), "resident_kib");
    let (sensor, both) = (memory("sensor")? / KIB, memory("both")? / KIB);
    let unit = MeasureUnit::Mebibytes;
    rows.push(Beside { name, unit, base: None, sensor, both, at_most: Some(most), pass: Some(both <= most) });
    Ok(rows)
}

fn figures(measured: &Measured) -> Result<Vec<Figure>> {
    let figure = |(name, measurement, field, unit, divisor, at_most): Figured| {
        let measured = measured.number(measurement, field)? / divisor;
        Ok(Figure { name, unit, measured, at_most, pass: at_most.map(|most| measured <= most) })
    };
    FIGURES.into_iter().map(figure).collect()
}

fn verdict(pass: Option<bool>) -> &'static str {
    pass.map_or("", |pass| if pass { "pass" } else { "miss" })
}

fn operations_table(report: &ClusterReport) -> String {
    let mut out =
        "| | base | sensor | with the reporter | at most | |\n|---|--:|--:|--:|--:|--:|\n".to_owned();
    for row in &report.operations {
        let plus = |value| number(value, row.unit, row.base.is_some());
        let base = row.base.map_or_else(String::new, |base| number(base, row.unit, false));
        let most = row.at_most.map_or_else(String::new, plus);
        let (sensor, both) = (plus(row.sensor), plus(row.both));
        // Writing to a string cannot fail, here and below.
        let _ =
            writeln!(out, "| {} | {base} | {sensor} | {both} | {most} | {} |", row.name, verdict(row.pass));
    }
    out
}

fn figures_table(report: &ClusterReport) -> String {
    let mut out = "\n| | measured | at most | |\n|---|--:|--:|--:|\n".to_owned();
    for figure in &report.figures {
        let most = figure.at_most.map_or_else(String::new, |most| number(most, figure.unit, false));
        let measured = number(figure.measured, figure.unit, false);
        let _ = writeln!(out, "| {} | {measured} | {most} | {} |", figure.name, verdict(figure.pass));
    }
    out
}

/// Each kind of request with its number.
fn by_kind(requests: &Value) -> String {
    let kinds = requests.as_object().into_iter().flatten();
    let kinds: Vec<String> = kinds.map(|(kind, count)| format!("{count} `{kind}`")).collect();
    kinds.join(", ")
}

fn text(report: &ClusterReport) -> String {
    let [steady, drifts] = report.requests.each_ref().map(by_kind);
    format!(
        "{CLUSTER}\nWritten by `cargo xtask bench --cluster --write-docs` on {}; kernel {}, QEMU {}, Kubernetes {}.\n\n\
         Sensor and reporter run in a virtual machine with the rights of their containers, without a kubelet. API server, etcd\n\
         and the controllers run on the host. The guest has one CPU whose nanoseconds are executed instructions while it works.\n\
         While it waits, its time is that of the host (`-icount shift=0,sleep=on`). So a time from an edit to the API is that of\n\
         a node whose CPU executes 10^9 instructions a second, and contains the real time of the API server.\n\n\
         The first table has the budgets of the sensor: in one boot without Holdfast, with the sensor, and with the reporter\n\
         beside it. The last first verification is that of a sensor that starts again while the reporter runs. A figure with a sign, or 0, is the difference to the base.\n\n{}\n\
         An edit and its repair were each made 50 times, with six seconds before each one. The end is the moment at which the\n\
         guest reads the object from a watch on the API server. Requests are those of the reporter's user in the audit log: in\n\
         ten minutes in which nothing happens, and in three minutes with 100 drifts a minute, none of which recovers.\n{}\n\
         - Steady: {steady}.\n\
         - With drifts: {drifts}.\n\n{OTHERS}",
        report.date,
        report.kernel,
        report.qemu,
        report.kubernetes,
        operations_table(report),
        figures_table(report),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_section_has_each_figure_with_its_aim_and_each_kind_of_request() {
        let figure = |measured, at_most: f64| Figure {
            name: "requests a minute, steady",
            unit: MeasureUnit::AMinute,
            measured,
            at_most: Some(at_most),
            pass: Some(measured <= at_most),
        };
        let report = ClusterReport {
            schema: "x",
            date: "2026-01-01".to_owned(),
            kernel: "6.12".to_owned(),
            qemu: "10".to_owned(),
            kubernetes: "v1.37.2".to_owned(),
            operations: Vec::new(),
            figures: vec![figure(0.7, 2.0), figure(3.0, 2.0)],
            requests: [json!({ "patch leases": 5, "patch nodes/status": 1 }), json!({})],
        };
        let text = text(&report);
        assert!(text.starts_with(CLUSTER), "{text}");
        assert!(text.contains("| requests a minute, steady | 0.7 | 2.0 | pass |"), "{text}");
        assert!(text.contains("| requests a minute, steady | 3.0 | 2.0 | miss |"), "{text}");
        assert!(text.contains("Steady: 5 `patch leases`, 1 `patch nodes/status`."), "{text}");
    }
}
