//! Baselines of paths that nothing else describes.

use crate::world::World;
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
fn a_path_of_a_package_is_explained_by_the_package_and_another_one_by_the_baseline() {
    let world = crate::packages::installed();
    world.write_host("opt/tool", "x", 0o755);
    let result = world.run(&["baseline", "/usr", "/opt", "ROOT"]);
    fs::write(world.at("baseline.json"), &result.out).unwrap();
    indexed(&world);
    assert_eq!(world.run(&["image", "index", "--packages", "ROOT", "STATE"]).code, 0);
    let explain = |path: &str, image: &[&str]| {
        let arguments = [&["explain", path, "HOST", "STATE", "LOG", "-o", "json"], image].concat();
        world.run(&arguments).json("explain")["image"]["source"].clone()
    };
    assert_eq!(explain("/usr/bin/tool", &[]), "packages");
    assert_eq!(explain("/usr/bin/tool", &["--image", "baseline"]), "baseline");
    assert_eq!(explain("/opt/tool", &[]), "baseline");
}

#[test]
fn a_missing_path_and_a_damaged_file_are_errors_with_the_next_step() {
    let world = taken();
    let result = world.run(&["baseline", "/opt", "/none", "ROOT"]);
    assert_eq!((result.code, result.out.as_str()), (3, ""), "{result:?}");
    assert!(result.err.contains("/none"), "{}", result.err);
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
        let result = explain();
        is_done.store(true, Ordering::Relaxed);
        result
    });
    assert_eq!(result.code, 3, "{result:?}");
    assert!(result.out.contains("changed meanwhile"), "{result:?}");
}
