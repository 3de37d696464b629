//! Local files of `/etc` that keep what the booted commit ships from taking effect.

use crate::{
    ostree::{indexed, verify},
    watched::{check, policy},
    world::CONFIG,
};
use std::fs;

#[test]
fn a_local_file_that_holds_back_what_the_booted_commit_ships_is_named() {
    let (world, _) = indexed();
    let other = "a".repeat(64);
    let shipped = format!("ostree/deploy/os/deploy/{other}.0/usr/etc/app.conf");
    world.write_host("etc/app.conf", "a=local\n", 0o644);
    world.write_host(&shipped, "a=2\n", 0o644);
    assert!(verify(&world).1["differing"][0]["other_content_in"].is_null(), "both ship the same");
    world.write_host(&shipped, "a=1\n", 0o644);
    let (_, report) = verify(&world);
    assert_eq!(report["differing"][0]["other_content_in"], format!("{other}.0"), "{report}");
    let text = world.run(&["explain", "/etc/app.conf", "HOST", "STATE", "LOG"]).out;
    assert!(text.contains("holds back"), "{text}");
}

#[test]
fn a_newer_deployment_ships_what_the_booted_one_does_not_have_yet_and_nothing_is_held_back() {
    let (world, repository) = indexed();
    world.write_host("etc/app.conf", "a=local\n", 0o644);
    // A commit of the same time may be the earlier one: some builds give all commits one time.
    for (seconds, is_named) in [(-1, true), (0, true), (1, false)] {
        let name = format!("{}.0", repository.commit_later(seconds));
        let deployment = world.at(&format!("root/ostree/deploy/os/deploy/{name}"));
        world.write_host(&format!("ostree/deploy/os/deploy/{name}/usr/etc/app.conf"), "a=1\n", 0o644);
        let (_, report) = verify(&world);
        let named = report["differing"][0]["other_content_in"].as_str();
        assert_eq!(named, is_named.then_some(&*name), "{seconds}: {report}");
        fs::remove_dir_all(deployment).unwrap();
    }
}

#[test]
fn a_held_back_default_is_a_difference_of_its_own_of_a_watched_path_until_all_deployments_ship_the_same() {
    let (world, _) = indexed();
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    policy(&world, "  - {path: /etc/app.conf, image: true, action: observe}\n");
    world.write_host("etc/motd", "declared", 0o644);
    world.write_host("etc/app.conf", "a=local\n", 0o644);
    let kinds = || {
        let (_, drifted) = check(&world);
        let [(path, source, kinds)] = &drifted[..] else { panic!("{drifted:?}") };
        assert!(path == "/etc/app.conf" && source.ends_with("(version 2)"), "{drifted:?}");
        kinds.clone()
    };
    assert_eq!(kinds(), "content");
    let shipped = format!("ostree/deploy/os/deploy/{}.0/usr/etc/app.conf", "a".repeat(64));
    for (content, expected) in [("a=1\n", "content held-back"), ("a=2\n", "content")] {
        world.write_host(&shipped, content, 0o644);
        assert_eq!(kinds(), expected, "{content}");
    }
    // The content is what the booted commit ships. So only the mode is kept.
    world.write_host(&shipped, "a=1\n", 0o644);
    world.write_host("etc/app.conf", "a=2\n", 0o600);
    assert_eq!(kinds(), "mode");
}
