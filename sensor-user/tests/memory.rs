//! The heap that a managed file costs the daemon.
//!
//! In: a MachineConfig with the budget's number of files, read, watched and verified as the daemon does it. Out: bytes
//! that stay allocated, by part. The test is the only one of its binary, because the allocator counts for the whole
//! process.

use holdfast::agent::look::{Looked, Looker};
use holdfast::agent::registry::Inode;
use holdfast::desired::Desired;
use holdfast::observation::Observer;
use sensor_common::map::InodeKey;
use sensor_model::drift_policy::DriftPolicy;
use sensor_model::expectations::expectations;
use sensor_model::ignition::Purpose;
use sensor_model::machine_config::parse_for;
use sensor_model::merge::merge;
use sensor_model::protocol::{Config, Detector};
use std::alloc::System;
use std::fmt::Write;
use std::sync::Arc;

#[global_allocator]
static HEAP: &stats_alloc::StatsAlloc<System> = &stats_alloc::INSTRUMENTED_SYSTEM;

const FILES: u32 = 10_000;

/// Files in each directory.
const TOGETHER: u32 = 100;

/// Bytes that stay allocated for each file. `docs/performance.md` limits the daemon to 20 MiB in all.
const BOUND: usize = 480;

fn live() -> usize {
    let stats = HEAP.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// Paths as long as real ones: 36 bytes each.
fn config() -> String {
    let mut config = String::from(
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: {name: 50-many}\n\
         spec:\n  config:\n    ignition: {version: 3.4.0}\n    storage:\n      files:\n",
    );
    for file in 0..FILES {
        writeln!(
            config,
            "      - {{path: /etc/application.d/part-{:03}/{file:05}.conf, mode: 420, contents: {{source: 'data:,{file}'}}}}",
            file / TOGETHER
        )
        .expect("a string takes all");
    }
    config
}

#[tokio::test]
async fn a_managed_file_takes_no_more_memory_than_its_budget() {
    let root = tempfile::tempdir().unwrap();
    let start = live();

    let manifest = parse_for("many.yaml", config().as_bytes(), Purpose::Verify).unwrap();
    let mut expectations = expectations(&merge(manifest.machine_configs).unwrap()).unwrap();
    expectations.shrink_to_fit();
    let desired = Desired { expectations, policy: DriftPolicy::merge(&[]).unwrap(), ..Desired::default() };
    assert_eq!(desired.expectations.len(), FILES as usize);
    let expected = live();

    let observer = Arc::new(Observer::new(root.path()).unwrap());
    let mut looker = Looker::new(observer, root.path(), None, &desired);
    for id in 0..looker.registry.len() {
        // Inode numbers have no order.
        let ino = u64::from(id.wrapping_mul(2_654_435_761));
        let inode = Inode { key: InodeKey { ino, dev: 1, volume: 0 }, generation: id };
        looker.registry.resolved(id, Some(inode));
    }
    let watched = live();

    let mut detector = Detector::new(Config::default());
    detector.reserve(FILES as usize);
    for thing in 0..FILES {
        detector.add(thing, 1);
    }
    let mut now = 1_000_000_000;
    while let [thing, ..] = detector.due(now, 1)[..] {
        let Looked::Seen(sight) = looker.look(thing, &desired).await.unwrap() else { panic!("it is local") };
        now += 1;
        assert!(detector.conclude(thing, now, &sight.outcome).decided);
        looker.decided(thing, &sight);
    }
    assert_eq!(detector.next_deadline(), None, "nothing is left to be looked at");
    let all_done = live();

    let each = |from: usize, to: usize| to.saturating_sub(from) / FILES as usize;
    let parts = [
        ("expectation", each(start, expected)),
        ("watch", each(expected, watched)),
        ("looks and verdict", each(watched, all_done)),
    ];
    let all = each(start, all_done);
    println!("{all} bytes for each file: {parts:?}");
    assert!(all <= BOUND, "at most {BOUND}");
}
