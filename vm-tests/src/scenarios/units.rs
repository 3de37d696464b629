//! Sensor and reporter as two units of the host's systemd, without a pod and a kubelet.
//!
//! In: a guest with systemd, which reaches the control plane on the host. Out: a check that the sensor serves the reporter's unit and
//! refuses another process of the same user, and checks of what happens while the node's clock is wrong.

mod clock;
mod node;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::pod;
use crate::guest::reporter::USER;
use crate::guest::service::Node;
use crate::guest::{Context, image, kube, run, wait};
use node::{REPORTER, drifted, edit, in_sync, install, repair, seen, sensor_for};

/// The scenario.
pub(super) fn systemd(context: &mut Context) -> Result<()> {
    wait::for_systemd()?;
    kube::connect()?;
    install()?;
    context.note("the cluster has its manifests, and the reporter its token");
    sensor_for(REPORTER)?;
    let node = Node::start(&[])?;
    image::files()?;
    run("systemctl", &["start", REPORTER])?;
    context.check("a_reporter_in_its_unit_reports", in_sync());
    context.check("an_edit_is_reported_with_its_login", reported());
    context.check("another_process_of_the_same_user_is_refused", refused());
    context.check("nothing_is_lost_or_said_twice_by_a_clock_two_years_fast", clock::two_years_fast(&node));
    context.check("nothing_is_lost_or_said_twice_by_a_clock_a_day_slow", clock::a_day_slow(&node));
    context.check("no_drift_has_two_events", events());
    context.check("the_log_is_one_chain", node.holdfast(0, &["log", "verify"]));
    Ok(())
}

fn reported() -> Result<String> {
    let events = clock::Events::now()?;
    edit("time.attacker.example.com")?;
    let report = drifted()?;
    repair()?;
    in_sync()?;
    events.and_one_of_each()?;
    Ok(report["status"]["drifts"][0]["by"].to_string())
}

/// Each of the three drifts that the cluster got has one Event, and so has its end.
fn events() -> Result<String> {
    let events = clock::Events::now()?;
    ensure!(events == clock::Events { drifts: 3, recoveries: 3 }, "{events:?}\n{}", seen());
    Ok(format!("{events:?}"))
}

/// A process of the reporter's user is answered in the reporter's unit alone.
fn refused() -> Result<String> {
    let counted = || -> Result<f64> {
        let page = pod::request(&json!({ "user": 0, "path": "/metrics" }))?;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix("holdfast_reporter_refused_total{reason=\"unit\"} "));
        line.context("no count of refusals by unit")?.trim().parse().context("the count is no number")
    };
    let before = counted()?;
    let own = format!("/sys/fs/cgroup/system.slice/{REPORTER}");
    let answer = pod::request(&json!({ "user": USER, "group": own, "path": "/v1/status" }))?;
    ensure!(answer.contains(" 200 ") && answer.contains("holdfast.status/v1"), "in its unit: {answer}");
    // A unit of the system, and one of the user's own systemd that has the reporter's name.
    let of_user = format!("user.slice/user-{USER}.slice/user@{USER}.service/{REPORTER}");
    for group in ["system.slice/other.service", &of_user] {
        let asked = json!({ "user": USER, "group": format!("/sys/fs/cgroup/{group}"), "path": "/v1/status" });
        let answer = pod::request(&asked)?;
        ensure!(answer.trim().is_empty(), "in {group}: {answer}");
    }
    let after = counted()?;
    ensure!(after - before > 1.5, "{after} refusals, and {before} before");
    Ok(format!("{} refused", after - before))
}
