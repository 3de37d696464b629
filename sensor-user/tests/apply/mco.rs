//! While the Machine Config Operator's daemon runs, an apply writes nothing, whenever that daemon starts.

use crate::{
    standing::{Slow, engine, request, run},
    world::World,
};
use holdfast::apply::ApplyRequest;
use sensor_model::journal::{ApplyEnd, machine::MachineEnd};
use std::fs;

const CONFIG: &str = "/etc/machine-config-daemon/currentconfig";

fn starts(world: &World) {
    world.write("/proc/4711/cmdline", "/usr/bin/machine-config-daemon\0start\0");
}

#[test]
fn a_daemon_that_runs_or_may_start_is_named_with_a_hint_and_nothing_is_written() {
    type Prepare = fn(&World);
    let cases: [(Prepare, &[&str]); 2] = [
        (starts, &["machine-config-daemon runs here (process 4711)", "--beside-mco"]),
        (|world| world.write(CONFIG, "{}"), &[CONFIG, "move that file away", "--beside-mco"]),
    ];
    for (prepare, parts) in cases {
        let world = World::old();
        prepare(&world);
        let before = world.snapshot();
        let said = world.apply(&["new"], "");
        assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
        for part in parts {
            assert!(said.err.contains(part), "{part}: {}", said.err);
        }
        assert_eq!(world.apply(&["new", "--force"], "").code, Some(3), "force is for drift");
        assert_eq!(world.snapshot(), before);
        assert_eq!(world.current().as_deref(), Some("generations/1/config"));
        let said = world.apply(&["new", "--beside-mco"], "");
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    }
}

#[test]
fn a_daemon_that_starts_after_the_preflight_is_found_before_the_journal_begins() {
    let world = World::old();
    let before = world.snapshot();
    let asked = ApplyRequest { act: false, ..request(&world, Some(1)) };
    let mut reported = Vec::new();
    let applied = run(engine(&world).apply(asked, &mut Slow, &mut |line| {
        // The last line before the first record.
        if line.starts_with("journal ") {
            starts(&world);
        }
        reported.push(line.to_owned());
    }));
    let applied = applied.unwrap();
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::Abandoned), "{reported:?}");
    assert!(applied.reason.contains("process 4711"), "{}", applied.reason);
    assert!(!world.has_journal());
    fs::remove_dir_all(world.at("/proc")).unwrap();
    assert_eq!(world.snapshot(), before);
    let said = world.apply(&["new"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
}

#[test]
#[cfg(feature = "fault-injection")]
fn an_interrupted_apply_is_left_to_a_person_if_the_operators_daemon_started_since() {
    for arguments in [&["new"][..], &["new", "--beside-mco"]] {
        let world = World::old();
        world.apply(arguments, "kill:202");
        assert!(world.has_journal(), "killed before or after");
        starts(&world);
        let before = world.snapshot();
        let mut said = world.resume("");
        if arguments.len() == 1 {
            assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
            assert!(said.err.contains("process 4711") && said.err.contains("--beside-mco"), "{}", said.err);
            assert_eq!(world.snapshot(), before);
            assert!(world.has_journal());
            said = world.run(&["apply", "--resume", "--no-acts", "--beside-mco"], "");
        }
        assert!(!world.has_journal(), "{}{}", said.out, said.err);
        assert_ne!(world.snapshot(), before);
    }
}
