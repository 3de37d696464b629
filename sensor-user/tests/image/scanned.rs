//! Paths of the image that the daemon does not watch are compared at a slow pace.

use crate::world::{CONFIG, World};
use holdfast::{
    image::{Scan, ScanEnd},
    observation::Observer,
};
use sensor_model::{
    compare::Ids,
    drift_policy::{DriftPolicy, DriftPolicyFile},
    expectation::Expectation,
    image::{ScanPace, ScanRound},
};
use std::{cell::Cell, fs, io::Write as _, ops::ControlFlow, path::Path, time::Duration};

fn policy(rules: &str) -> String {
    format!(
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {{name: test}}\nspec:\n  rules:\n{rules}"
    )
}

/// A host that booted the image, with a rule that has everything compared at a slow pace.
fn booted(rules: &str) -> World {
    let (world, digest) = World::in_sync();
    world.boot(&digest);
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    world.write_host("etc/motd", "declared", 0o644);
    fs::write(world.at("policy.yaml"), policy(rules)).unwrap();
    world
}

pub(crate) fn scan(world: &World, every: &str) {
    let result = world.run(&[
        "scan",
        "CONFIG",
        "POLICY",
        "HOST",
        "STATE",
        "--processor",
        "100",
        "--every-hours",
        every,
    ]);
    assert_eq!(result.code, 0, "{result:?}");
}

/// The paths that differ.
fn drifted(world: &World) -> Vec<String> {
    let result = world.run(&["check", "CONFIG", "POLICY", "HOST", "STATE", "-o", "json"]);
    let report = result.json("check");
    assert_eq!(report["unreadable"], serde_json::json!([]), "{report}");
    let drifted = report["drifted"].as_array().unwrap().iter();
    drifted
        .map(|thing| {
            let source = thing["source"].as_str().unwrap();
            assert!(source.starts_with("layer "), "{source}");
            thing["path"].as_str().unwrap().to_owned()
        })
        .collect()
}

pub(crate) fn findings(world: &World) -> String {
    fs::read_to_string(world.at("state/scan/findings.json")).unwrap_or_default().split_whitespace().collect()
}

#[test]
fn what_a_scan_finds_is_drift_until_it_is_as_in_the_image_and_the_next_round_forgets_it() {
    let world = booted("  - {path: /, image: true, scan: true, action: observe}\n");
    world.write_host("usr/bin/tool", "evil", 0o755);
    assert_eq!(drifted(&world), [""; 0], "nothing watches it");
    scan(&world, "24");
    assert_eq!(drifted(&world), ["/usr/bin/tool"]);
    world.write_host("usr/bin/tool", "new tool", 0o755);
    assert_eq!(drifted(&world), [""; 0]);
    // The next round is not due.
    scan(&world, "24");
    assert_eq!(findings(&world), "[\"/usr/bin/tool\"]");
    scan(&world, "0");
    assert_eq!(findings(&world), "[]");
}

#[test]
fn a_scan_compares_neither_what_a_config_declares_nor_what_other_rules_watch_or_ignore() {
    let world = booted(
        "  - {path: /, image: true, scan: true, action: observe}\n  - {path: /usr/bin/, image: true, action: observe}\n  \
         - {path: /etc/app.conf, image: true, action: ignore}\n",
    );
    world.write_host("usr/bin/tool", "evil", 0o755);
    world.write_host("etc/app.conf", "a=2\n", 0o644);
    scan(&world, "24");
    assert_eq!(findings(&world), "", "/etc/motd is declared and differs from the image");
    assert_eq!(drifted(&world), ["/usr/bin/tool"]);
}

#[test]
fn a_scan_leaves_out_what_a_config_declares_also_if_a_rule_ignores_its_drift() {
    let world = booted(
        "  - {path: /, image: true, scan: true, action: observe}\n  - {path: /etc/motd, action: ignore}\n",
    );
    scan(&world, "24");
    assert_eq!(findings(&world), "", "/etc/motd is as declared, and the image has something else");
}

#[test]
fn another_index_or_rule_begins_a_round_at_once() {
    let world = booted("  - {path: /etc/, image: true, scan: true, action: observe}\n");
    world.write_host("usr/bin/tool", "evil", 0o755);
    scan(&world, "24");
    assert_eq!(findings(&world), "");
    fs::write(world.at("policy.yaml"), policy("  - {path: /, image: true, scan: true, action: observe}\n"))
        .unwrap();
    scan(&world, "24");
    assert_eq!(findings(&world), "[\"/usr/bin/tool\"]");
}

#[test]
fn a_damaged_file_of_the_scan_has_it_begin_anew() {
    let world = booted("  - {path: /, image: true, scan: true, action: observe}\n");
    world.write_host("usr/bin/tool", "evil", 0o755);
    scan(&world, "24");
    for name in ["findings", "progress"] {
        fs::write(world.at(&format!("state/scan/{name}.json")), "{").unwrap();
    }
    assert_eq!(drifted(&world), [""; 0]);
    scan(&world, "24");
    assert_eq!(drifted(&world), ["/usr/bin/tool"]);
}

#[test]
fn a_scan_that_is_interrupted_at_every_file_compares_each_path_once() {
    let world = booted("");
    world.write_host("etc/app.conf", "a=2\n", 0o644);
    world.write_host("usr/bin/tool", "evil", 0o755);
    let pauses = Cell::new(0);
    let every = Duration::from_hours(24);
    let is_declared = |expectation: &Expectation| *expectation.thing.path() == *Path::new("/etc/motd");
    let run = || {
        scan_by(&world, &observer(&world), every, &is_declared, &|_| {
            pauses.set(pauses.get() + 1);
            ControlFlow::Break(())
        })
    };
    let round = loop {
        match run() {
            ScanEnd::Interrupted => {}
            ScanEnd::Complete(round) => break round,
            ScanEnd::NotDue => panic!("the round has not ended"),
        }
        assert!(pauses.get() < 100);
    };
    assert!(pauses.get() >= 2, "two files have bytes");
    assert_eq!((round.passed, round.paths), (round.paths, round.paths));
    assert_eq!(round.differing.iter().collect::<Vec<_>>(), ["/etc/app.conf", "/usr/bin/tool"]);
    assert_eq!(run(), ScanEnd::NotDue);
}

fn observer(world: &World) -> Observer {
    Observer::new(&world.at("root")).unwrap().with_settled_contents()
}

/// Scans a whole round. `during` runs with the path of `/usr/bin/tool` on this machine after each read of a file.
fn scan_with_a_change_in_reads(world: &World, during: fn(&Path)) -> ScanRound {
    let tool = world.at("root/usr/bin/tool");
    let observer = observer(world).with_pauses(move |_, _| during(&tool));
    let is_declared = |expectation: &Expectation| *expectation.thing.path() != *Path::new("/usr/bin/tool");
    match scan_by(world, &observer, Duration::ZERO, &is_declared, &|_| ControlFlow::Continue(())) {
        ScanEnd::Complete(round) => round,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_gets_the_content_of_the_image_while_it_is_read_is_no_finding() {
    let world = booted("");
    world.write_host("usr/bin/tool", "evil tool", 0o755);
    let round = scan_with_a_change_in_reads(&world, |tool| {
        if fs::read(tool).unwrap() != b"new tool" {
            fs::write(tool, "new tool").unwrap();
        }
    });
    assert_eq!((round.compared, round.unreadable, round.found()), (1, 0, 0));
}

#[test]
fn a_file_that_changes_at_each_read_is_unreadable_whatever_its_content() {
    let world = booted("");
    let round = scan_with_a_change_in_reads(&world, |tool| {
        fs::OpenOptions::new().append(true).open(tool).unwrap().write_all(b"+").unwrap();
    });
    assert_eq!((round.compared, round.unreadable), (1, 1));
    assert!(round.differing.contains("/usr/bin/tool"), "the daemon watches it from now on");
}

/// Scans in this process, at a pace of a second for each byte, so that `pause` runs after each file.
fn scan_by(
    world: &World,
    observer: &Observer,
    every: Duration,
    is_declared: &dyn Fn(&Expectation) -> bool,
    pause: &dyn Fn(Duration) -> ControlFlow<()>,
) -> ScanEnd {
    let rules = policy("  - {path: /, image: true, scan: true, action: observe}\n");
    let policy = DriftPolicy::merge(&[DriftPolicyFile::parse("a.yaml", rules.as_bytes()).unwrap()]).unwrap();
    let scan = Scan {
        observer,
        policy: &policy,
        state: &world.at("state"),
        is_declared,
        label: &|_| (),
        ids: &Ids::default(),
        pace: ScanPace { processor: 1.0, bytes: 1.0 },
        every,
        pause,
    };
    scan.run().unwrap()
}

/// Scans a whole round. `then` changes the host after the round compared the first file, `/etc/app.conf`.
fn scan_with_a_change(world: &World, then: impl Fn(&World)) {
    let is_first = Cell::new(true);
    let ended = scan_by(world, &observer(world), Duration::ZERO, &|_| false, &|_| {
        if is_first.replace(false) {
            then(world);
        }
        ControlFlow::Continue(())
    });
    assert!(matches!(ended, ScanEnd::Complete(_)));
}

#[test]
fn a_finding_that_was_right_when_the_round_passed_it_and_differs_again_stays_one() {
    let world = booted("  - {path: /, image: true, scan: true, action: observe}\n");
    world.write_host("etc/app.conf", "a=2\n", 0o644);
    world.write_host("etc/motd", "hello\n", 0o644);
    scan_with_a_change(&world, |_| ());
    assert_eq!(findings(&world), "[\"/etc/app.conf\"]");
    world.write_host("etc/app.conf", "a=1\n", 0o644);
    scan_with_a_change(&world, |world| world.write_host("etc/app.conf", "a=3\n", 0o644));
    assert_eq!(findings(&world), "[\"/etc/app.conf\"]");
    world.write_host("etc/app.conf", "a=1\n", 0o644);
    scan_with_a_change(&world, |_| ());
    assert_eq!(findings(&world), "[]");
}

#[test]
fn a_directory_is_no_finding_for_an_attribute_that_the_daemon_does_not_compare() {
    let world = booted("  - {path: /, image: true, scan: true, action: observe}\n");
    let directory = world.at("root/usr/bin");
    rustix::fs::setxattr(directory, "user.a", b"b", rustix::fs::XattrFlags::empty()).unwrap();
    scan(&world, "24");
    assert_eq!(findings(&world), "");
}

#[test]
fn without_an_index_of_the_booted_image_nothing_is_scanned_and_what_was_found_stays() {
    let world = booted("  - {path: /, image: true, scan: true, action: observe}\n");
    world.write_host("usr/bin/tool", "evil", 0o755);
    scan(&world, "24");
    // A baseline knows one path, and says nothing about the others.
    let taken = world.run(&["baseline", "/etc/app.conf", "ROOT"]);
    fs::write(world.at("baseline.json"), &taken.out).unwrap();
    let baseline = world.at("baseline.json").display().to_string();
    assert_eq!(world.run(&["image", "index", "--baseline", &baseline, "STATE"]).code, 0, "{taken:?}");
    for entry in fs::read_dir(world.at("state/images")).unwrap() {
        let path = entry.unwrap().path();
        if !path.ends_with("baseline.index") {
            fs::remove_file(path).unwrap();
        }
    }
    scan(&world, "0");
    assert_eq!(findings(&world), "[\"/usr/bin/tool\"]");
}
