//! The heap that the daemon uses for managed files and sealed trees.
//!
//! In: a MachineConfig with the budget's number of files, and trees of 100,000 entries, handled as in the daemon. Out: bytes that stay
//! allocated, by part. The allocator counts the bytes of the whole process, so a second
//! test in this binary would change the result.

use holdfast::agent::registry::trees::{FIRST_TREE, TreeIndex, scan};
use holdfast::agent::registry::{Inode, RecordTarget, WatchRegistry};
use holdfast::agent::verifier::{Verifier, VerifyOutcome};
use holdfast::desired::Desired;
use holdfast::observation::{Observer, Route};
use sensor_common::map::InodeKey;
use sensor_model::drift_policy::DriftPolicy;
use sensor_model::expectation::{Expectation, Expected, ImageLayer, Thing, TreeExpectation};
use sensor_model::expectations::expectations;
use sensor_model::ignition::Purpose;
use sensor_model::machine_config::parse_for;
use sensor_model::merge::merge;
use sensor_model::protocol::{Detector, ThingId, Timing};
use std::alloc::System;
use std::fmt::Write;
use std::path::{Path, PathBuf};
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
async fn files_and_the_entries_of_trees_take_no_more_memory_than_their_budgets() {
    managed_files().await;
    scanned_tree();
    live_tree();
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

/// Entries of a sealed tree, as many as an image layer may have.
const ENTRIES: u32 = 100_000;

/// Bytes for all entries of a tree that is only scanned.
const SCANNED: usize = 8192;

/// Bytes for each entry of a tree that is watched live, beside the kernel's map.
const LIVE: usize = 64;

/// The index of a tree whose paths need no memory: `part-007/00742.so`.
struct Layer;

impl TreeIndex for Layer {
    fn entries(&self) -> u32 {
        ENTRIES
    }

    fn append(&self, entry: u32, path: &mut PathBuf) {
        path.push(format!("part-{:03}/{entry:05}.so", entry / TOGETHER));
    }
}

/// Inodes come in no order.
fn inode(entry: u32) -> Inode {
    let ino = u64::from(entry.wrapping_mul(2_654_435_761));
    Inode { key: InodeKey { ino, dev: 1, volume: 0 }, generation: entry }
}

/// A registry with the tree alone.
fn tree(live: bool) -> WatchRegistry {
    let layer = ImageLayer { layer: "sha256:layer".into(), image: "sha256:image".into(), strength: None };
    let expectation = Expectation {
        thing: Thing::Tree { path: Path::new("/usr/lib/layer").into() },
        expected: Expected::Tree(TreeExpectation { index: [7; 32], entries: ENTRIES, live }),
        ssh_keys: false,
        label: None,
        source: layer.into(),
    };
    WatchRegistry::new(&[expectation], |_| Route::default(), |_| Vec::new())
}

/// A tree that is only scanned takes no memory for each entry.
fn scanned_tree() {
    let start = live();
    let registry = tree(false);
    let found = scan(Path::new("/usr/lib/layer"), &Layer, |entry, path| {
        entry % 1000 != 999 && path.starts_with("/usr/lib/layer")
    });
    let kept = live() - start;
    println!("{kept} bytes for {ENTRIES} entries");
    assert_eq!((found.differing, found.paths.len()), (100, 16));
    assert_eq!(found.paths[0], Path::new("/usr/lib/layer/part-009/00999.so"));
    assert!(kept <= SCANNED, "{kept} bytes, at most {SCANNED}");
    assert_eq!(
        registry.watches_of_record(FIRST_TREE, inode(0).key),
        [FIRST_TREE],
        "its entries have numbers"
    );
    assert_eq!(registry.enrolment(inode(0).key), None, "none of them is enrolled");
}

/// A tree that is watched live takes few bytes for each entry, and finds each entry by its record.
fn live_tree() {
    let start = live();
    let mut registry = tree(true);
    let enrolled =
        registry.set_tree_inodes(ThingId(0), (0..ENTRIES).map(|entry| (entry, inode(entry), false)));
    assert_eq!(enrolled.len(), ENTRIES as usize);
    drop(enrolled);
    let each = (live() - start) / ENTRIES as usize;
    println!("{each} bytes for each entry");
    assert!(each <= LIVE, "{each} bytes for each entry, at most {LIVE}");
    for entry in (0..ENTRIES).step_by(7_919) {
        let inode = inode(entry);
        let (number, _) = registry.enrolment(inode.key).expect("it is enrolled");
        let about = registry.watches_of_record(number, inode.key);
        assert_eq!(about, [FIRST_TREE + entry]);
        assert_eq!(registry.tree_entry(number), Some((ThingId(0), entry)));
        assert_eq!(registry.concerned(&about, None, false, false).in_evidence, [ThingId(0)]);
        let own = RecordTarget { inode, is_name: false, moves: false };
        assert!(registry.matches(number, &own), "the record names the actor");
        let reused = RecordTarget { inode: Inode { generation: inode.generation + 1, ..inode }, ..own };
        assert!(!registry.matches(number, &reused), "a later inode of the same number is another one");
    }
}
