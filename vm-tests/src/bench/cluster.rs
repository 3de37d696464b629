//! What the cluster side costs: sensor and reporter of a node, and a real API server on the host.
//!
//! In: a bare guest with one CPU. While it works, its nanoseconds are executed instructions; while it waits, they are those of the
//! host, because the API server runs there. Out: the operations, the verdicts and the first verification without Holdfast, with the
//! sensor, and with the reporter beside it; the time from an edit to the API; memory and requests of the reporter.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::api::{Watch, network, requests};
use super::changes::QUIET;
use super::files;
use super::files::BenchFile;
use super::latency;
use super::operations::ALL;
use super::stage::{FILES, SETTLE, detach, one, operations, prepare, writers};
use super::usage::{self, Busy, nanoseconds};
use crate::guest::agent::RunningDaemon;
use crate::guest::kube::condition;
use crate::guest::pod::Sensor;
use crate::guest::reporter::{RunningReporter, USER};
use crate::guest::{Context, wait};
use crate::scenario::Scenario;

/// The scenario. No test runs it.
pub const SCENARIO: Scenario = Scenario {
    name: "bench-cluster",
    shows: "what the cluster side costs",
    limit: 2 * 60 * 60,
    run,
    ..Scenario::USUAL
};

const POD: &str = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f";
/// Edits, and as many repairs, whose time is measured.
const TIMED: usize = 50;
/// After this time without a finding the reporter writes the next one at once.
const APART: Duration = Duration::from_secs(6);
/// How long the requests are counted while nothing happens: five renewals of the Lease, one refresh of all objects.
const STEADY: Duration = Duration::from_mins(10);
/// How long drifts come.
const DRIFTING: Duration = Duration::from_mins(3);
/// Drifts in each minute of it.
const A_MINUTE: u32 = 100;
/// The interval at which the guest reports that it still waits. The host treats a silent guest as stuck.
const NOTE: Duration = Duration::from_mins(1);
/// How long a change of the API may take.
const LIMIT: Duration = Duration::from_mins(1);

fn run(context: &mut Context) -> Result<()> {
    prepare()?;
    network()?;
    context.note("writing the managed files");
    files::make(FILES)?;
    wait::pause(SETTLE);
    operations(context, "base", &ALL)?;
    let user = USER.to_string();
    let arguments =
        ["--mode", "observe", "--enter-host", "--config", files::CONFIGS, "--reporter-uid", &user];
    let container = Sensor { pod: POD, arguments: &arguments, own_pids: false, without: None };
    let sensor = verified(context, "sensor", &container)?;
    costs(context, "sensor", &sensor)?;
    let mut reporter = RunningReporter::start(POD, &[])?;
    let nodes = || Watch::start("the Node", "/api/v1/nodes");
    nodes()?.until(LIMIT, |node| drift_is(node, "False"))?;
    sensor.stop()?;
    detach()?;
    let sensor = verified(context, "both", &container)?;
    costs(context, "both", &sensor)?;
    steady(context, &reporter)?;
    // A new watch: an older one has the events of the changes before.
    let nodes = nodes()?;
    latency(context, &nodes)?;
    drifts(context, &nodes, &reporter)?;
    one(context, "sensor memory at end", json!({ "resident_kib": usage::memory(sensor.pid(), "VmRSS")? }));
    reporter.check()?;
    sensor.stop().map(drop)
}

/// Starts the sensor, and notes the CPU time of its first verification.
fn verified(context: &mut Context, stage: &str, sensor: &Sensor<'_>) -> Result<RunningDaemon> {
    context.note(format!("{stage}: the sensor starts"));
    let mut sensor = RunningDaemon::start_by(sensor.command()?)?;
    let (known, before) = (sensor.records()?, usage::cpu_time(sensor.pid())?);
    let is_of_this_start = |record: &Value| record["detail"]["until"].is_string() && !known.contains(record);
    sensor.wait_for("the first verification", 0, is_of_this_start)?;
    let time = usage::cpu_time(sensor.pid())? - before;
    one(context, &format!("{stage} first verification"), json!(time));
    Ok(sensor)
}

/// Notes the memory of the reporter.
fn memory(context: &mut Context, reporter: &RunningReporter, when: &str) -> Result<()> {
    let of = |field| usage::memory(reporter.pid(), field);
    let data =
        json!({ "resident_kib": of("VmRSS")?, "anonymous_kib": of("RssAnon")?, "peak_kib": of("VmHWM")? });
    one(context, &format!("reporter memory {when}"), data);
    Ok(())
}

fn drift_is(node: &Value, status: &str) -> bool {
    condition(node, "ConfigDrift").as_deref() == Some(status)
}

/// The operations and the verdicts of the budgets, and the memory of the sensor.
fn costs(context: &mut Context, stage: &str, sensor: &RunningDaemon) -> Result<()> {
    wait::pause(QUIET);
    let links = usage::links(sensor.pid())?;
    operations(context, stage, &ALL)?;
    // The kernel frees the hooks of writers some time after they are detached, which would delay a verdict.
    latency::measure(context, &format!("{stage} "), sensor)?;
    writers(context, stage, sensor, links)?;
    one(
        context,
        &format!("{stage} memory"),
        json!({ "resident_kib": usage::memory(sensor.pid(), "VmRSS")? }),
    );
    wait::pause(QUIET);
    context.note(format!("{stage}: nothing happens"));
    let busy = Busy::start()?;
    wait::pause(NOTE);
    let each = busy.nanoseconds()? / NOTE.as_secs_f64();
    one(context, &format!("{stage} idle second"), json!(each));
    Ok(())
}

/// Requests and memory while nothing changes.
fn steady(context: &mut Context, reporter: &RunningReporter) -> Result<()> {
    let count = Requests::start()?;
    while count.start.elapsed() < STEADY {
        context.note("steady: nothing happens");
        wait::pause(NOTE.min(STEADY.saturating_sub(count.start.elapsed())));
    }
    count.report(context, "steady")?;
    memory(context, reporter, "steady")
}

/// The time from before an edit until the guest reads it from a watch, for drift and recovery in turns.
fn latency(context: &mut Context, nodes: &Watch) -> Result<()> {
    let reports = Watch::start("the DriftReport", "/apis/holdfast.dev/v1alpha1/driftreports")?;
    let mut times: [[Vec<u64>; 2]; 2] = Default::default();
    for turn in 0..TIMED * 2 {
        if turn % 10 == 0 {
            context.note(format!("edits: {} of {TIMED}", turn / 2));
        }
        wait::pause(APART);
        let target = BenchFile::new(turn / 2);
        let (state, status) = [("Drifted", "True"), ("InSync", "False")][turn % 2];
        let start = Instant::now();
        if turn % 2 == 0 {
            target.spoil()?;
        } else {
            target.rewrite()?;
        }
        let report = reports.until(LIMIT, |report| report["status"]["state"] == state)?;
        let condition = nodes.until(LIMIT, |node| drift_is(node, status))?;
        for (object, at) in [report, condition].into_iter().enumerate() {
            let time =
                at.checked_duration_since(start).context("the watch has an event of before the change")?;
            times[object][turn % 2].push(nanoseconds(time));
        }
    }
    for (object, times) in ["report", "condition"].into_iter().zip(&mut times) {
        for (change, times) in ["edit", "repair"].into_iter().zip(times) {
            times.sort_unstable();
            let data =
                json!({ "median_ns": times[times.len() / 2], "p99_ns": times[times.len() * 99 / 100] });
            one(context, &format!("{change} to {object}"), data);
        }
    }
    Ok(())
}

/// Requests and memory while files drift, one after another, and stay so.
fn drifts(context: &mut Context, nodes: &Watch, reporter: &RunningReporter) -> Result<()> {
    let targets: Vec<BenchFile> = (TIMED..).take(count(DRIFTING)).map(BenchFile::new).collect();
    let requests = Requests::start()?;
    let each = Duration::from_mins(1) / A_MINUTE;
    for (number, target) in targets.iter().enumerate() {
        if number % 50 == 0 {
            context.note(format!("drifts: {number} of {}", targets.len()));
        }
        target.spoil()?;
        let next = each * u32::try_from(number + 1)?;
        wait::pause(next.saturating_sub(requests.start.elapsed()));
    }
    requests.report(context, "drifts")?;
    memory(context, reporter, "drifts")?;
    targets.iter().try_for_each(BenchFile::rewrite)?;
    nodes.until(LIMIT, |node| drift_is(node, "False")).map(drop)
}

/// Drifts in a stretch of time.
fn count(time: Duration) -> usize {
    usize::try_from(time.as_secs() * u64::from(A_MINUTE) / 60).unwrap_or(usize::MAX)
}

/// The requests of the reporter since a moment.
struct Requests {
    start: Instant,
    before: BTreeMap<String, u64>,
}

impl Requests {
    fn start() -> Result<Self> {
        Ok(Self { start: Instant::now(), before: requests()? })
    }

    fn report(&self, context: &mut Context, when: &str) -> Result<()> {
        let minutes = self.start.elapsed().as_secs_f64() / 60.0;
        let mut by = requests()?;
        for (name, count) in &mut by {
            *count -= self.before.get(name).copied().unwrap_or(0);
        }
        by.retain(|_, count| *count > 0);
        let all: u64 = by.values().sum();
        #[expect(clippy::cast_precision_loss, reason = "hundreds")]
        let data = json!({ "a_minute": all as f64 / minutes, "requests": all, "by": by });
        one(context, &format!("requests {when}"), data);
        Ok(())
    }
}
