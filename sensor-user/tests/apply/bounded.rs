//! Files that others made as large as a disk, and devices: Holdfast names them and does not read them.

use crate::world::{RunResult, World};
use std::{
    fs::{self, File},
    process::{Command, Stdio},
};

const TERABYTE: u64 = 1 << 40;

/// Runs a command with at most 4 GiB of address space.
fn limited(command: &Command) -> RunResult {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -v 4194304; exec \"$0\" \"$@\""])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    RunResult::of(shell.stdin(Stdio::null()).output().unwrap())
}

#[test]
fn a_users_file_of_a_terabyte_stops_an_apply_by_its_name_and_is_not_read() {
    const KEYS: &str = "/home/core/.ssh/authorized_keys.d/ignition";
    let world = World::old();
    File::options().write(true).open(world.at(KEYS)).unwrap().set_len(TERABYTE).unwrap();
    for more in [&["new"][..], &["new", "--force"], &["nothing"]] {
        let said = limited(&world.command(more, ""));
        assert_eq!(said.code, Some(3), "{more:?}: {}{}", said.out, said.err);
        let reason = format!("{KEYS}: it has {TERABYTE} bytes, and 268435456 bytes are the limit");
        assert!(said.err.contains(&reason), "{more:?}: {}", said.err);
    }
}

#[test]
fn the_first_names_of_a_users_key_directory_are_listed_and_the_others_counted() {
    const KEYS: &str = "/home/core/.ssh/authorized_keys.d";
    let world = World::new();
    fs::create_dir_all(world.at(KEYS)).unwrap();
    for number in 0..1100 {
        File::create(world.at(&format!("{KEYS}/{number:04}"))).unwrap();
    }
    let said = world.apply(&["keys"], "");
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert_eq!(said.err.matches("the new config closes its directory").count(), 1024, "{}", said.err);
    for part in [&format!("{KEYS}/0000: "), &format!("{KEYS}/1023: "), "it has at least 76 more such names"] {
        assert!(said.err.contains(part), "{part}: {}", said.err);
    }
    // Nothing is removed that was not listed.
    for more in [&["keys", "--force"][..], &["keys", "--force", "--dry-run"]] {
        let said = world.apply(more, "");
        assert_eq!(said.code, Some(3), "{more:?}: {}{}", said.out, said.err);
        let reason = format!("{KEYS}: more than 1024 names in it are not declared");
        assert!(said.err.contains(&reason), "{more:?}: {}", said.err);
    }
    assert_eq!(fs::read_dir(world.at(KEYS)).unwrap().count(), 1100);
}

#[test]
fn a_users_file_of_keys_that_is_too_large_stops_an_apply_that_declares_keys() {
    const KEYS: &str = "/home/core/.ssh/authorized_keys";
    let world = World::new();
    world.write(KEYS, "");
    File::options().write(true).open(world.at(KEYS)).unwrap().set_len(TERABYTE).unwrap();
    let said = limited(&world.command(&["keys"], ""));
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    let reason = format!("preflight: {KEYS}: it has {TERABYTE} bytes, and 4194304 bytes are the limit");
    assert!(said.err.contains(&reason), "{}", said.err);
}

#[test]
fn a_config_that_is_a_device_or_has_no_end_is_refused_by_its_name() {
    let world = World::old();
    let large = world.at("../large.yaml");
    File::create(&large).unwrap().set_len(TERABYTE).unwrap();
    let large = large.display().to_string();
    let too_large = format!("it has {TERABYTE} bytes, and 67108864 bytes are the limit");
    for (path, reason) in [("/dev/zero", "it is a device, not a file"), (&large, &too_large)] {
        for arguments in
            [&["check", "--config", path][..], &["apply", path], &["explain", "/a", "--config", path]]
        {
            let said = limited(&world.prepare(arguments, ""));
            assert_eq!(said.code, Some(2), "{arguments:?}: {}{}", said.out, said.err);
            assert!(said.err.contains(path) && said.err.contains(reason), "{arguments:?}: {}", said.err);
        }
    }
}
