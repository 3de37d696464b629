//! Files that an update of the OS overwrites, because the config declares them as the image ships them.

use crate::{
    recovery::{PreparedHost, act, begin, interrupted, recover, this_boot},
    standing::{engine, run},
    world::World,
};
use holdfast::{
    apply::{Recovered, ResumeLimit},
    store::HistoryEntry,
};
use sensor_model::journal::{
    Action, ApplyEnd, Begin, Boot, Fallback, FileState, JournalRecord, Metadata, OverwrittenPath, PathState,
    machine::MachineEnd,
};
use sha2::{Digest as _, Sha256};
use std::{fs, os::unix::fs::PermissionsExt as _};

/// Declared by the old config and by the new one.
const PATH: &str = "/etc/app/stays";
const SHIPPED: &str = "/usr/etc/app/stays";
const DECLARED: &str = "stays";

fn file(text: &str) -> PathState {
    let metadata = Metadata { mode: 0o644, ..Metadata::default() };
    let sha256 = hex::encode(Sha256::digest(text));
    PathState::File(FileState {
        metadata,
        sha256,
        size: text.len() as u64,
        modified_ns: None,
        hard: None,
        names: 0,
    })
}

/// An apply staged an update in this boot, and foresees that the update overwrites the file.
fn asked(boot: Boot) -> World {
    let acts = vec![act(Action::Os, "", Fallback::Rollback)];
    let again = OverwrittenPath { path: PATH.into(), state: file(DECLARED) };
    let begin = Begin { boot: boot.clone(), reboot: true, overwritten: vec![again], ..begin("", acts) };
    let records = [
        JournalRecord::Started { act: 0 },
        JournalRecord::Finished { act: 0 },
        JournalRecord::RebootRequested { boot },
    ];
    let world = interrupted(begin, &records);
    let apply = world.state().join("apply");
    let name = hex::encode(Sha256::digest(DECLARED));
    fs::write(apply.join("contents").join(name), DECLARED).unwrap();
    // Its history exists from the start.
    let first = fs::read_to_string(apply.join("generations/1/history.json")).unwrap();
    let mut entry: serde_json::Value = serde_json::from_str(&first).unwrap();
    entry["id"] = 2.into();
    entry["result"] = serde_json::Value::Null;
    fs::write(apply.join("generations/2/history.json"), entry.to_string()).unwrap();
    world
}

/// Makes the host one of ostree whose image ships the file with this content.
fn ship(world: &World, content: &str) {
    fs::create_dir_all(world.at("/ostree")).unwrap();
    world.write(SHIPPED, content);
}

/// The same in the next boot. The new image ships another file, which overwrote the declared one.
fn updated() -> World {
    let world = asked(Boot::of_kernel("another"));
    ship(&world, "of the new image");
    world.write(PATH, "of the new image");
    world
}

fn overwritten(world: &World) -> Vec<(String, String)> {
    let entry: HistoryEntry = engine(world).store().history(2).unwrap().unwrap();
    entry.overwritten.into_iter().map(|taken| (taken.path.display().to_string(), taken.found)).collect()
}

fn temporaries(world: &World) -> Vec<String> {
    let found = world.snapshot().into_keys().map(|path| path.display().to_string());
    found.filter(|path| path.contains(".holdfast-apply-")).collect()
}

#[test]
fn a_path_that_an_update_overwrote_is_written_again_and_causes_no_rollback() {
    let world = updated();
    let applied = recover(&world, &mut PreparedHost::default(), ResumeLimit::Unlimited);
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::Done), "{applied:?}");
    assert_eq!(world.read(PATH), DECLARED);
    assert_eq!(overwritten(&world), [(PATH.to_owned(), "file".to_owned())]);
    assert_eq!(temporaries(&world), [""; 0]);
    let history = world.run(&["history"], "").out;
    assert!(
        history.contains(&format!("written again, since the update of the OS replaced it: {PATH}")),
        "{history}"
    );
}

#[test]
fn a_path_that_the_new_image_no_longer_ships_is_written_again_too() {
    let world = updated();
    for path in [PATH, SHIPPED] {
        fs::remove_file(world.at(path)).unwrap();
    }
    let applied = recover(&world, &mut PreparedHost::default(), ResumeLimit::NoOsChange);
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::Done), "{applied:?}");
    assert_eq!(world.read(PATH), DECLARED);
    assert_eq!(overwritten(&world), [(PATH.to_owned(), "absent".to_owned())]);
}

#[test]
fn before_services_start_only_overwritten_paths_are_written_again() {
    let world = updated();
    let mut host = PreparedHost::default();
    for _ in 0..2 {
        let recovered =
            run(engine(&world).recover(&mut host, ResumeLimit::BeforeServices, &mut |_| {})).unwrap();
        assert!(matches!(recovered, Recovered::Over(applied) if !applied.rolls_back));
        assert_eq!(world.read(PATH), DECLARED);
        assert!(world.has_journal() && host.asked.is_empty(), "{:?}", host.asked);
    }
    assert_eq!(overwritten(&world).len(), 1);
    let standing = engine(&world).store().standing().unwrap().unwrap();
    assert_eq!(standing.reason, "", "the apply goes on: {standing:?}");
    let said = world.run(&["apply", "--resume", "--early"], "");
    assert_eq!((said.code, said.out.as_str()), (Some(0), ""), "{}", said.err);
    assert_eq!(recover(&world, &mut host, ResumeLimit::Unlimited).end, MachineEnd::Closed(ApplyEnd::Done));
    // Without an apply in progress it does nothing.
    assert_eq!(world.run(&["apply", "--resume", "--early"], "").code, Some(0));
    let before = World::old();
    assert_eq!(before.run(&["apply", "--resume", "--early"], "").code, Some(0));
}

#[test]
fn before_the_reboot_no_path_is_written_again() {
    let world = asked(Boot::of_kernel(&this_boot()));
    // Another process wrote this, and not the update.
    ship(&world, "of the new image");
    world.write(PATH, "of the new image");
    let recovered =
        run(engine(&world).recover(&mut PreparedHost::default(), ResumeLimit::BeforeServices, &mut |_| {}))
            .unwrap();
    assert_eq!(recovered, Recovered::Nothing);
    assert_eq!(
        recover(&world, &mut PreparedHost::default(), ResumeLimit::Unlimited).end,
        MachineEnd::Rebooting
    );
    assert_eq!(world.read(PATH), "of the new image");
}

#[test]
fn a_change_of_another_process_there_is_left_and_causes_a_rollback() {
    let world = updated();
    world.write(PATH, "another process");
    let applied = recover(&world, &mut PreparedHost::default(), ResumeLimit::Unlimited);
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::RolledBack), "{applied:?}");
    assert!(applied.reason.contains(PATH), "{applied:?}");
    assert_eq!(world.read(PATH), "another process");
    assert_eq!((overwritten(&world).len(), temporaries(&world).len()), (0, 0));
    // Another mode is a change of another process, too.
    let world = updated();
    fs::set_permissions(world.at(PATH), fs::Permissions::from_mode(0o600)).unwrap();
    let applied = recover(&world, &mut PreparedHost::default(), ResumeLimit::Unlimited);
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::RolledBack), "{applied:?}");
    assert_eq!(world.read(PATH), "of the new image");
}

#[cfg(feature = "fault-injection")]
#[test]
fn killed_at_any_call_the_next_start_writes_it_again() {
    use crate::faults::{every, met};
    for resume in [&["apply", "--resume", "--early"][..], &["apply", "--resume", "--no-acts"]] {
        let calls = every(|number| {
            let world = updated();
            let said = world.run(resume, &format!("kill:{number}"));
            if !met(&said) {
                return false;
            }
            let said = world.resume("");
            assert_eq!(said.code, Some(0), "killed at call {number}: {}{}", said.out, said.err);
            assert_eq!((world.read(PATH).as_str(), world.has_journal()), (DECLARED, false), "{number}");
            assert_eq!(temporaries(&world), [""; 0], "killed at call {number}");
            // If the process dies after the record that says it is done, nothing is left to resume.
            assert_eq!(overwritten(&world).len(), 1, "killed at call {number}");
            true
        });
        assert!(calls > 10, "only {calls} calls");
    }
}

#[test]
fn a_plan_with_another_image_lists_what_the_update_would_overwrite() {
    let world = World::old();
    ship(&world, DECLARED);
    world.write("/usr/etc/app/changes", "of the image");
    // Their directory is declared, too, and differs in the image.
    fs::set_permissions(world.at("/usr/etc/app"), fs::Permissions::from_mode(0o700)).unwrap();
    let old = crate::world::OLD;
    world.config("update", &format!("{}\n  osImageURL: os/v2\n", old.trim_end()));
    let said = world.run(&["apply", world.config_file("update").to_str().unwrap(), "--dry-run"], "");
    let lines: Vec<&str> = said.out.lines().filter(|line| line.contains("writes it again")).collect();
    assert_eq!(lines.len(), 1, "{}{}", said.out, said.err);
    assert!(lines[0].starts_with(&format!("{PATH}: ")), "{lines:?}");
    // Without another image there is no update.
    let said = world.run(&["apply", world.config_file("new").to_str().unwrap(), "--dry-run"], "");
    assert!(!said.out.contains("writes it again"), "{}", said.out);
    // An update of Flatcar merges nothing.
    fs::create_dir_all(world.at("/usr/share/flatcar")).unwrap();
    fs::rename(world.at("/usr/etc"), world.at("/usr/share/flatcar/etc")).unwrap();
    let said = world.run(&["apply", world.config_file("update").to_str().unwrap(), "--dry-run"], "");
    assert!(!said.out.contains("writes it again"), "{}", said.out);
}
