//! An apply without faults.

use crate::world::World;
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
};

#[test]
fn everything_that_a_config_declares_is_on_the_host_afterwards() {
    let world = World::old();
    let said = world.apply(&["new"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert_eq!(world.read("/etc/app/changes"), "new");
    assert_eq!(fs::metadata(world.at("/etc/app/mode")).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::metadata(world.at("/etc/app")).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::metadata(world.at("/etc/new/deep")).unwrap().mode() & 0o7777, 0o700);
    let inode = |path: &str| fs::symlink_metadata(world.at(path)).unwrap().ino();
    assert_eq!(inode("/etc/app/hard"), inode("/etc/app/changes"));
    let target = |path: &str| fs::read_link(world.at(path)).unwrap().to_str().unwrap().to_owned();
    assert_eq!(target("/etc/app/link"), "changes");
    assert_eq!(target("/etc/becomes-link"), "app/stays");
    assert_eq!(world.read("/etc/original"), "what the host came with", "the original is back");
    assert!(!world.at("/etc/goes").join("deep").exists());
    assert_eq!(world.read("/etc/unfolds/deep/file"), "unfolds", "a file turned into a directory");
    assert_eq!(world.read("/etc/leads/changes"), "leads", "a link turned into a directory");
    assert_eq!(target("/etc/folds"), "app", "a directory turned into a link");
    let system = "/etc/systemd/system";
    assert_eq!(
        target(&format!("{system}/graphical.target.wants/on.service")),
        "/etc/systemd/system/on.service"
    );
    for gone in [
        "multi-user.target.wants/on.service",
        "a.target.wants/off.service",
        "never.service",
        "on.service.d/10-goes.conf",
    ] {
        assert!(fs::symlink_metadata(world.at(&format!("{system}/{gone}"))).is_err(), "{gone}");
    }
    assert_eq!(target(&format!("{system}/masked.service")), "/dev/null");
    let keys = world.at("/home/core/.ssh/authorized_keys.d/ignition");
    assert_eq!(fs::read_to_string(&keys).unwrap().lines().count(), 2);
    let ssh = fs::metadata(world.at("/home/core/.ssh")).unwrap();
    assert_eq!((ssh.mode() & 0o7777, ssh.uid()), (0o700, 1000));
    assert!(world.read("/etc/shadow").contains("core:$6$new:"));
    assert_eq!(fs::metadata(world.at("/etc/shadow")).unwrap().mode() & 0o7777, 0o640);
    assert!(!world.has_journal());
    assert_eq!(world.current().as_deref(), Some("generations/2/config"));
}

#[test]
fn applying_back_restores_every_byte_and_attribute() {
    let world = World::old();
    let shadow = |text: &String| text.contains("$6$");
    let mut before = world.snapshot();
    assert_eq!(world.apply(&["new"], "").code, Some(0));
    let said = world.run(&["rollback", "--no-acts"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let mut after = world.snapshot();
    // The day of a password change is today, after the rollback, too.
    before.retain(|_, text| !shadow(text));
    after.retain(|_, text| !shadow(text));
    assert_eq!(after, before);
    assert!(world.read("/etc/shadow").contains("core:$6$old:"));
    let said = world.run(&["history", "-o", "json"], "");
    let history: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(history["current"], 3);
    assert_eq!(history["applies"][0]["rollback_to"], 1);
    assert_eq!(history["standing"]["state"], "Done");
}

#[test]
fn a_host_that_no_config_declares_any_more_is_as_it_was_before_the_first_one() {
    let world = World::new();
    let mut before = world.snapshot();
    assert_eq!(world.apply(&["old"], "").code, Some(0));
    assert_eq!(world.apply(&["new"], "").code, Some(0));
    let said = world.apply(&["nothing"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let mut after = world.snapshot();
    assert!(world.read("/etc/shadow").contains("core:*:"), "no password fits a hash that is not declared");
    for snapshot in [&mut before, &mut after] {
        // Directories that an apply created as parents stay, and so do those of ssh keys.
        snapshot.retain(|path, text| !text.starts_with('4') && !path.ends_with("shadow"));
    }
    assert_eq!(after, before);
}

#[test]
fn a_directory_with_undeclared_content_is_not_replaced() {
    let world = World::old();
    world.write("/etc/folds/deep/mine", "another process's");
    let before = world.snapshot();
    let said = world.apply(&["new"], "");
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    let reason = "/etc/folds: a directory that is not empty is in its place; move it away first, or this object in it: /etc/folds/deep/mine";
    assert!(said.err.contains(reason), "{}", said.err);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn what_the_host_had_below_a_directory_is_restored_with_it() {
    let world = World::new();
    world.write("/etc/tree/a", "the host's");
    let before = world.snapshot();
    let file = |path: &str| {
        format!("{{path: {path}, mode: 420, overwrite: true, contents: {{source: 'data:,declared'}}}}")
    };
    world.config("below", &format!("    storage: {{files: [{}]}}\n", file("/etc/tree/a")));
    world.config("above", &format!("    storage: {{files: [{}]}}\n", file("/etc/tree")));
    for config in ["below", "above"] {
        let said = world.apply(&[config], "");
        assert_eq!(said.code, Some(0), "{config}: {}{}", said.out, said.err);
    }
    assert_eq!(world.read("/etc/tree"), "declared");
    let said = world.apply(&["nothing"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert_eq!(world.read("/etc/tree/a"), "the host's");
    assert_eq!(world.snapshot(), before);
}

#[test]
fn the_same_config_again_under_another_file_name_changes_nothing() {
    let world = World::old();
    let before = world.snapshot();
    let said = world.apply(&["old", "-o", "json"], "");
    assert_eq!((said.code, said.out.contains("\"unchanged\"")), (Some(0), true), "{}", said.err);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn a_dry_run_prints_the_plan_and_writes_nothing() {
    let world = World::old();
    let before = world.snapshot();
    let said = world.apply(&["new", "--dry-run"], "");
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.out.contains("change file /etc/app/changes"), "{}", said.out);
    assert_eq!(world.snapshot(), before);
    assert_eq!(world.current().as_deref(), Some("generations/1/config"));
}

#[test]
fn drift_stops_an_apply_and_is_reported_and_force_overrides_it() {
    let world = World::old();
    world.write("/etc/app/stays", "tampered");
    let before = world.snapshot();
    let said = world.apply(&["new"], "");
    assert_eq!(said.code, Some(3));
    assert!(said.err.contains("content mismatch for file \"/etc/app/stays\""), "{}", said.err);
    assert_eq!(world.snapshot(), before);
    let said = world.run(&["history"], "");
    assert!(said.out.starts_with("state Degraded: "), "{}", said.out);
    let said = world.apply(&["new", "--force"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert_eq!(world.read("/etc/app/stays"), "stays");
}

#[test]
fn the_operators_force_file_forces_once() {
    let world = World::old();
    world.write("/etc/app/stays", "tampered");
    world.write("/run/machine-config-daemon-force", "");
    let said = world.apply(&["old"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert_eq!(world.read("/etc/app/stays"), "stays");
    assert!(!world.at("/run/machine-config-daemon-force").exists());
}

#[test]
fn an_obstacle_is_named_before_anything_is_written() {
    type Prepare = fn(&World);
    let cases: [(Prepare, &str); 4] = [
        (
            |world| world.write("/etc/becomes-link/x", ""),
            "/etc/becomes-link: a directory that is not empty is in its place",
        ),
        (|world| world.write("/etc/new", "a file"), "/etc/new"),
        (
            |world| symlink("/nowhere", world.at("/etc/new")).unwrap(),
            "/etc/new: a link to a missing target is in its place",
        ),
        (
            |world| {
                nix::unistd::mkfifo(&world.at("/etc/becomes-link"), nix::sys::stat::Mode::S_IRWXU).unwrap();
            },
            "a device, FIFO or socket is in its place",
        ),
    ];
    for (prepare, wanted) in cases {
        let world = World::new();
        prepare(&world);
        let before = world.snapshot();
        let said = world.apply(&["new"], "");
        assert_eq!(said.code, Some(3), "{wanted}: {}{}", said.out, said.err);
        assert!(said.err.contains(wanted), "{wanted}: {}", said.err);
        assert_eq!(world.snapshot(), before, "{wanted}");
    }
}

#[test]
fn undeclared_keys_and_drop_ins_block_and_only_force_removes_them() {
    let world = World::new();
    world.write(
        "/home/core/.ssh/authorized_keys",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx evil\n",
    );
    world.write("/etc/systemd/system/on.service.d/99-other.conf", "");
    let said = world.apply(&["old"], "");
    assert_eq!(said.code, Some(3));
    assert!(
        said.err.contains("1 keys in it are not declared") && said.err.contains("99-other.conf"),
        "{}",
        said.err
    );
    let said = world.apply(&["old", "--force"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert_eq!(world.read("/home/core/.ssh/authorized_keys"), "");
    assert!(!world.at("/etc/systemd/system/on.service.d/99-other.conf").exists());
}

#[test]
fn a_config_that_is_not_reconcilable_changes_nothing_and_every_reason_is_reported() {
    let world = World::old();
    world.config("groups", "    passwd: {groups: [{name: a}], users: [{name: bob, passwordHash: x}]}\n");
    let before = world.snapshot();
    let said = world.apply(&["groups"], "");
    assert_eq!(said.code, Some(4), "{}{}", said.out, said.err);
    assert!(said.err.contains("Groups") && said.err.contains("non-core user"), "{}", said.err);
    assert_eq!(world.snapshot(), before);
    let said = world.run(&["history"], "");
    assert!(said.out.starts_with("state Unreconcilable: "), "{}", said.out);
}

#[test]
fn actions_run_on_the_host_that_is_written_or_nowhere() {
    let world = World::old();
    let before = world.snapshot();
    let new = world.at("../new.yaml").display().to_string();
    let said = world.run(&["apply", &new], "");
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert!(said.err.contains("has no system bus") && said.err.contains("--no-acts"), "{}", said.err);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn two_applies_do_not_run_at_the_same_time() {
    let world = World::old();
    let lock = fs::File::open(world.state().join("apply/lock")).unwrap();
    let _held = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusiveNonblock).unwrap();
    let said = world.apply(&["new"], "");
    assert_eq!(said.code, Some(3));
    assert!(said.err.contains("another apply is at work"), "{}", said.err);
}

#[test]
fn a_changed_journal_stays_and_so_does_the_host() {
    let world = World::old();
    fs::write(world.state().join("apply/journal"), "no journal\nat all\n").unwrap();
    let before = world.snapshot();
    let said = world.apply(&["new"], "");
    assert_eq!(said.code, Some(3));
    assert!(said.err.contains("apply journal, line 1"), "{}", said.err);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn only_root_can_read_the_store_and_it_keeps_no_contents_after_an_apply() {
    let world = World::old();
    let apply = world.state().join("apply");
    for directory in ["", "contents", "originals", "generations", "generations/1/config"] {
        let mode = fs::metadata(apply.join(directory)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{directory}");
    }
    assert_eq!(fs::read_dir(apply.join("contents")).unwrap().count(), 0);
}

#[test]
fn the_output_contains_no_content() {
    let world = World::old();
    for arguments in [&["new"][..], &["old", "--force"]] {
        let said = world.apply(arguments, "");
        assert!(!format!("{}{}", said.out, said.err).contains("$6$"), "{}{}", said.out, said.err);
    }
}
