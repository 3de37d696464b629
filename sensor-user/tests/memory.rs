//! The heap that the daemon uses for managed files and sealed trees.
//!
//! In: a MachineConfig with the budget's number of files, and a tree of 100,000 entries, handled as in the daemon. Out: bytes that stay
//! allocated, by part. The allocator counts the bytes of the whole process, so a second
//! test in this binary would change the result.

use holdfast::agent::registry::{Inode, WatchRegistry};
use holdfast::agent::verifier::{Verifier, VerifyOutcome};
use holdfast::desired::Desired;
use holdfast::observation::{Observer, Route};
use sensor_common::map::InodeKey;
use sensor_model::drift_policy::DriftPolicy;
use sensor_model::expectation::{Expectation, Expected, ImageLayer, SealedTree, Thing, TreeExpectation};
use sensor_model::expectations::expectations;
use sensor_model::ignition::Purpose;
use sensor_model::machine_config::parse_for;
use sensor_model::merge::merge;
use sensor_model::protocol::{Detector, ThingId, Timing};
use sensor_model::strength::SealKind;
use std::alloc::System;
use std::fmt::Write;
use std::path::Path;
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

/// One test for all, because the allocations of the harness for another one would count, too.
#[tokio::test]
async fn files_and_sealed_trees_take_no_more_memory_than_their_budgets() {
    managed_files().await;
    sealed_tree();
}

/// A managed file takes no more memory than its budget.
async fn managed_files() {
    let root = tempfile::tempdir().expect("a temporary directory can be made");
    let start = live();

    let manifest = parse_for("many.yaml", config().as_bytes(), Purpose::Verify).expect("the config is valid");
    let mut expectations = expectations(&merge(manifest.machine_configs).expect("it can be merged"))
        .expect("its contents can be decoded");
    expectations.shrink_to_fit();
    let desired = Desired {
        expectations,
        policy: DriftPolicy::merge(&[]).expect("no policy is valid"),
        ..Desired::default()
    };
    assert_eq!(desired.expectations.len(), FILES as usize);
    let expected = live();

    let observer = Arc::new(Observer::new(root.path()).expect("the root is there"));
    let mut verifier = Verifier::new(observer, root.path(), None, &desired);
    for watch_id in 0..verifier.registry.len() {
        // Inode numbers have no order.
        let ino = u64::from(watch_id.wrapping_mul(2_654_435_761));
        let inode = Inode { key: InodeKey { ino, dev: 1, volume: 0 }, generation: watch_id };
        verifier.registry.set_inode(watch_id, Some(inode));
    }
    let watched = live();

    let mut detector = Detector::new(Timing::default());
    detector.reserve(FILES as usize);
    for thing in (0..FILES).map(ThingId) {
        detector.add(thing, 1);
    }
    let mut now = 1_000_000_000;
    while let [thing, ..] = detector.due(now, 1)[..] {
        let VerifyOutcome::Verified(seen) = verifier.verify(thing, &desired).await.expect("no map refuses")
        else {
            panic!("it is local")
        };
        now += 1;
        assert!(detector.conclude(thing, now, &seen.verification).decided);
        verifier.remember_decided(thing, &seen);
    }
    assert_eq!(detector.next_deadline(), None, "no verification is due");
    let all_done = live();

    let each = |from: usize, to: usize| to.saturating_sub(from) / FILES as usize;
    let parts = [
        ("expectation", each(start, expected)),
        ("watch", each(expected, watched)),
        ("verifications and verdict", each(watched, all_done)),
    ];
    let all = each(start, all_done);
    println!("{all} bytes for each file: {parts:?}");
    assert!(all <= BOUND, "at most {BOUND}");
}

/// Entries of a sealed tree, as many as an image may have.
const ENTRIES: u32 = 100_000;

/// Bytes for a sealed tree with all its entries.
const TREE: usize = 8192;

/// A sealed tree takes no memory for each entry.
fn sealed_tree() {
    let start = live();
    let layer = ImageLayer { layer: "sealed tree /usr".into(), image: "sha256:image".into(), strength: None };
    let sealed = SealedTree { by: SealKind::DmVerity, image: [7; 32] };
    let expectation = Expectation {
        thing: Thing::Tree { path: Path::new("/usr").into() },
        expected: Expected::Tree(TreeExpectation { sealed, entries: ENTRIES }),
        ssh_keys: false,
        label: None,
        source: layer.into(),
    };
    let registry = WatchRegistry::new(&[expectation], |_| Route::default(), |_| Vec::new());
    let kept = live() - start;
    println!("{kept} bytes for a sealed tree with {ENTRIES} entries");
    assert!(kept <= TREE, "{kept} bytes, at most {TREE}");
    assert_eq!(registry.len(), 0, "no path of it is watched");
}
