//! Baselines of paths that nothing else describes.

use crate::{
    packages::{install, installed},
    scanned::{findings, scan},
    watched::{check, policy},
    world::{CONFIG, World},
};
use std::{
    fs,
    os::unix::fs::{FileExt as _, PermissionsExt as _, symlink},
    os::unix::net::UnixListener,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// A root with files of an admin, and its baseline as a file.
fn taken() -> World {
    let world = World::new();
    world.write_host("opt/agent/bin/agent", "program", 0o4755);
    world.write_host("opt/agent/odd\nname", "x", 0o644);
    symlink("bin/agent", world.at("root/opt/agent/link")).unwrap();
    fs::create_dir_all(world.at("root/usr/local/etc")).unwrap();
    let _socket = UnixListener::bind(world.at("root/opt/agent/socket")).unwrap();
    let result = world.run(&["baseline", "/opt/agent", "/usr/local", "/opt", "ROOT"]);
    assert_eq!(result.code, 0, "{result:?}");
    result.json("baseline");
    assert!(!result.out.contains("program") && !result.out.contains("socket"), "{}", result.out);
    fs::write(world.at("baseline.json"), &result.out).unwrap();
    world
}

fn indexed(world: &World) {
    let file = world.at("baseline.json");
    let result = world.run(&["image", "index", "--baseline", file.to_str().unwrap(), "STATE"]);
    assert_eq!(result.code, 0, "{result:?}");
    assert!(result.out.contains("indexed baseline of 20"), "{}", result.out);
}

#[test]
fn what_changed_since_a_baseline_differs_and_what_is_new_is_unexpected() {
    let world = taken();
    indexed(&world);
    fs::remove_file(world.at("root/opt/agent/socket")).unwrap();
    let verify = || {
        let result = world.run(&[
            "image",
            "verify",
            "--image",
            "baseline",
            "--unexpected",
            "ROOT",
            "STATE",
            "-o",
            "json",
        ]);
        (result.code, result.json("image-verify"))
    };
    let (code, report) = verify();
    assert_eq!((code, &report["compared"]), (0, &8.into()), "{report}");
    world.write_host("opt/agent/bin/agent", "changed", 0o4755);
    fs::set_permissions(world.at("root/usr/local/etc"), fs::Permissions::from_mode(0o700)).unwrap();
    world.write_host("usr/local/etc/new", "", 0o644);
    let (code, report) = verify();
    let differing: Vec<(&str, &str)> = report["differing"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| (found["path"].as_str().unwrap(), found["differences"][0]["kind"].as_str().unwrap()))
        .collect();
    assert_eq!(
        (code, &differing[..]),
        (1, &[("/opt/agent/bin/agent", "content"), ("/usr/local/etc", "mode")][..])
    );
    assert_eq!(report["unexpected"], serde_json::json!(["/usr/local/etc/new"]));
    assert_eq!(report["strength"], "sha256 of a baseline");
    let text = world.run(&["explain", "/opt/agent/bin/agent", "HOST", "STATE", "LOG"]);
    assert!(text.out.contains("baseline: drifted") && text.out.contains("baseline of 20"), "{}", text.out);
    let list = world.run(&["image", "list", "STATE"]).out;
    assert!(list.contains("baseline") && list.contains("8 paths"), "{list}");
}

#[test]
fn a_path_of_a_baseline_is_explained_by_it_and_one_that_only_a_package_of_dpkg_has_by_the_package() {
    let world = installed();
    world.write_host("opt/tool", "x", 0o755);
    let result = world.run(&["baseline", "/usr", "/opt", "ROOT"]);
    fs::write(world.at("baseline.json"), &result.out).unwrap();
    indexed(&world);
    install(&world, "second", &["/usr/bin/second"], &[]);
    assert_eq!(world.run(&["image", "index", "--packages", "ROOT", "STATE"]).code, 0);
    let explain = |path: &str, image: &[&str]| {
        let arguments = [&["explain", path, "HOST", "STATE", "LOG", "-o", "json"], image].concat();
        world.run(&arguments).json("explain")["image"]["source"].clone()
    };
    assert_eq!(explain("/usr/bin/tool", &[]), "baseline", "an MD5 does not overrule its SHA-256");
    assert_eq!(explain("/usr/bin/tool", &["--image", "packages"]), "packages");
    assert_eq!(explain("/usr/bin/second", &[]), "packages", "it is newer than the baseline");
    assert_eq!(explain("/opt/tool", &[]), "baseline");
}

/// A host of dpkg with an index of its packages, and with a baseline of their programs and of a configuration file.
fn packages_and_baseline() -> World {
    let world = installed();
    world.write_host("etc/motd", "declared", 0o644);
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    let result = world.run(&["baseline", "/usr", "/etc/first.conf", "ROOT"]);
    fs::write(world.at("baseline.json"), &result.out).unwrap();
    indexed(&world);
    index_packages(&world);
    world
}

fn index_packages(world: &World) {
    let result = world.run(&["image", "index", "--packages", "ROOT", "STATE"]);
    assert_eq!(result.code, 0, "{result:?}");
}

/// The paths that drifted from the baseline, with their differences.
fn drifted_from_baseline(world: &World) -> Vec<(String, String)> {
    let (code, drifted) = check(world);
    assert_eq!(code, i32::from(!drifted.is_empty()));
    let of_baseline = |(path, source, kinds): (String, String, String)| {
        assert!(source.starts_with("baseline of 20"), "{path}: {source}");
        (path, kinds)
    };
    drifted.into_iter().map(of_baseline).collect()
}

#[test]
fn an_index_of_dpkg_leaves_the_paths_of_a_baseline_to_the_baseline() {
    let world = packages_and_baseline();
    policy(
        &world,
        "  - {path: /usr/bin/, image: true, action: degrade}\n  - {path: /etc/first.conf, image: true, action: degrade}\n",
    );
    assert_eq!(drifted_from_baseline(&world), []);
    world.write_host("usr/bin/tool", "/usr/bin/tooL", 0o644);
    world.write_host("etc/first.conf", "changed", 0o644);
    let drifted = drifted_from_baseline(&world);
    let found = ["/etc/first.conf", "/usr/bin/tool"].map(|path| (path.to_owned(), "content".to_owned()));
    assert_eq!(drifted, found, "also a configuration file of a package");
    let repaired = world.run(&["repair", "--yes", "/usr/bin/tool", "CONFIG", "HOST", "STATE"]);
    assert!(repaired.code == 1 && repaired.out.contains("no contents"), "{repaired:?}");
}

#[test]
fn an_index_of_dpkg_leaves_the_paths_of_a_baseline_to_the_scan() {
    let world = packages_and_baseline();
    policy(&world, "  - {path: /usr/, image: true, scan: true, action: observe}\n");
    world.write_host("usr/bin/tool", "/usr/bin/tooL", 0o644);
    assert_eq!(drifted_from_baseline(&world), [], "nothing watches it");
    scan(&world, "24");
    assert_eq!(findings(&world), "[\"/usr/bin/tool\"]");
    let found = [("/usr/bin/tool".to_owned(), "content".to_owned())];
    assert_eq!(drifted_from_baseline(&world), found);
    scan(&world, "0");
    assert_eq!(drifted_from_baseline(&world), found, "the next round finds it again");
}

#[test]
fn a_file_of_an_upgraded_package_differs_from_an_older_baseline_and_explain_shows_that_its_package_has_it() {
    let world = packages_and_baseline();
    policy(&world, "  - {path: /usr/bin/, image: true, action: degrade}\n");
    let sums = world.at("root/var/lib/dpkg/info/first.md5sums");
    let old = fs::read_to_string(&sums).unwrap();
    let of_tool = old.lines().find(|line| line.ends_with("usr/bin/tool")).unwrap();
    // The MD5 of `new`, as `md5sum` prints it.
    fs::write(&sums, old.replace(of_tool, "22af645d1859cb5ca6da0c484f1f37ea  usr/bin/tool")).unwrap();
    fs::write(
        world.at("root/var/lib/dpkg/status.new"),
        fs::read(world.at("root/var/lib/dpkg/status")).unwrap(),
    )
    .unwrap();
    fs::rename(world.at("root/var/lib/dpkg/status.new"), world.at("root/var/lib/dpkg/status")).unwrap();
    world.write_host("usr/bin/tool", "new", 0o644);
    index_packages(&world);
    let differs = [("/usr/bin/tool".to_owned(), "content".to_owned())];
    assert_eq!(drifted_from_baseline(&world), differs);
    for sources in [&["CONFIG", "POLICY"][..], &[]] {
        let arguments =
            [&["explain", "/usr/bin/tool", "HOST", "STATE", "LOG", "-o", "json"], sources].concat();
        let result = world.run(&arguments);
        let report = result.json("explain");
        let verdict = |of: &serde_json::Value| of["entry"]["verdict"].as_str().unwrap().to_owned();
        let found = (verdict(&report["image"]), verdict(&report["below"][0]));
        assert_eq!((result.code, found), (1, ("drifted".to_owned(), "compliant".to_owned())), "{report:#}");
        assert_eq!(report["below"][0]["overruled_by"], "baseline");
    }
}

#[test]
fn a_missing_path_and_a_damaged_file_are_errors_with_the_next_step() {
    let world = taken();
    for missing in ["/none", "/opt/agent/bin/agent/none"] {
        let result = world.run(&["baseline", "/opt", missing, "ROOT"]);
        assert_eq!((result.code, result.out.as_str()), (2, ""), "{result:?}");
        let text = format!("{missing}: it does not exist on the host at WORLD/root");
        assert!(result.err.contains(&text) && result.err.contains("name paths that exist"), "{}", result.err);
    }
    let file = world.at("baseline.json");
    let good = fs::read_to_string(&file).unwrap();
    let index = || world.run(&["image", "index", "--baseline", file.to_str().unwrap(), "STATE"]);
    fs::write(&file, good.replace("\"4755\"", "\"9\"")).unwrap();
    let result = index();
    assert_eq!(result.code, 2, "{result:?}");
    assert!(result.err.contains("mode") && result.err.contains("/opt/agent/bin/agent"), "{}", result.err);
    fs::write(&file, "{}").unwrap();
    let result = index();
    assert_eq!(result.code, 2, "{result:?}");
    assert!(result.err.contains("holdfast baseline"), "{}", result.err);
    let result = world.run(&["image", "verify", "--image", "baseline", "ROOT", "STATE"]);
    assert_eq!(result.code, 2, "{result:?}");
    assert!(result.err.contains("image index --baseline"), "{}", result.err);
}

/// How often a file is explained that another thread changes all the time.
const TRIES: usize = 20;

#[test]
fn explain_calls_a_file_unknown_that_changes_each_time_that_it_is_read() {
    let world = World::new();
    world.write_host("opt/log", &"x".repeat(32 << 20), 0o644);
    let result = world.run(&["baseline", "/opt", "ROOT"]);
    fs::write(world.at("baseline.json"), &result.out).unwrap();
    indexed(&world);
    let explain = || world.run(&["explain", "/opt/log", "HOST", "STATE", "LOG"]);
    assert_eq!(explain().code, 0);
    let is_done = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::OpenOptions::new().write(true).open(world.at("root/opt/log")).unwrap();
            while !is_done.load(Ordering::Relaxed) {
                // The same content: nothing shows the change but the time.
                file.write_all_at(b"x", 0).unwrap();
            }
        });
        // On a busy machine the writer may have no time during one of the readings.
        let unknown = (0..TRIES).map(|_| explain()).find(|result| result.code == 3);
        is_done.store(true, Ordering::Relaxed);
        unknown
    });
    let result = result.expect("no change during a reading was noticed");
    assert!(result.out.contains("changed meanwhile"), "{result:?}");
}
