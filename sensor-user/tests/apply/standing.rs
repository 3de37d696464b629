//! Which config is current, the states after Degraded, and the effects of a dry run.

use crate::world::World;
use holdfast::{
    apply::{
        ActError, ActFuture, ActResult, ActRunner, ApplyError, ApplyOptions, ApplyRequest, Engine,
        OperatorRule, Recovered, ResumeLimit, UndoResult, UnitAfterBoot,
    },
    observation::Observer,
};
use sensor_model::{
    ignition::Purpose,
    journal::{Act, Begin, OsChange, machine::MachineEnd},
    machine_config::parse_for,
    merge::{self, Rendered},
    node_disruption::DisruptionPolicy,
    node_state::NodeState,
    plan::plan,
};
use std::{fs, future::Future, path::Path, process::Command, sync::Arc};

/// A host that accepts a reboot, but boots later.
pub(crate) struct Slow;

impl ActRunner for Slow {
    fn act<'a>(&'a mut self, _: &'a Act, _: &'a Begin) -> ActFuture<'a, ActResult> {
        Box::pin(async { Ok(ActResult::Done) })
    }

    fn unit_after_boot<'a>(&'a mut self, _: &'a Act, _: &'a Begin) -> ActFuture<'a, UnitAfterBoot> {
        Box::pin(async { Ok(UnitAfterBoot::Settled) })
    }

    fn undo<'a>(&'a mut self, _: &'a Act, _: &'a Begin) -> ActFuture<'a, UndoResult> {
        Box::pin(async { Ok(UndoResult::Done) })
    }

    fn is_back(&mut self, _: &OsChange) -> Result<(), ActError> {
        Ok(())
    }

    fn reboot(&mut self) -> ActFuture<'_> {
        Box::pin(async { Err(ActError::Other("logind does not answer".into())) })
    }
}

pub(crate) fn engine(world: &World) -> Engine {
    let (root, state) = (world.at("/"), world.state());
    let observer = Arc::new(Observer::new(&root).unwrap());
    Engine::new(ApplyOptions { root, state, operator: OperatorRule::Never, asks_daemon: false }, &observer)
        .unwrap()
}

/// One of the world's configs, and its bytes.
fn config(world: &World, name: &str) -> (Rendered, Vec<u8>) {
    let bytes = fs::read(world.at(&format!("../{name}.yaml"))).unwrap();
    let mut parsed = parse_for(name, &bytes, Purpose::Verify).unwrap().machine_configs;
    (merge::rendered(parsed.remove(0)).unwrap(), bytes)
}

/// From the world's old config to its new one.
pub(crate) fn request(world: &World, previous: Option<u64>) -> ApplyRequest {
    let ((old, _), (new, bytes)) = (config(world, "old"), config(world, "new"));
    let plan = plan(Some(&old), Some(&new), &DisruptionPolicy::shipped().unwrap()).unwrap();
    let manifests = vec![("000-new.yaml".to_owned(), bytes)];
    ApplyRequest { manifests, old, previous, new, plan, force: false, act: true, rollback_to: None }
}

pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn state(world: &World) -> String {
    world.run(&["history"], "").out.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn check_and_repair_use_the_config_that_was_applied_last() {
    let world = World::old();
    assert_eq!(world.apply(&["new"], "").code, Some(0));
    let before = world.snapshot();
    let said = world.run(&["check"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    let said = world.run(&["repair", "--all", "--yes"], "");
    assert_eq!((said.code, said.out.as_str()), (Some(0), "in sync: nothing to repair\n"), "{}", said.err);
    assert_eq!(world.snapshot(), before);
    world.write("/etc/app/changes", "tampered");
    assert_eq!(world.run(&["check"], "").code, Some(1));
    assert_eq!(world.run(&["repair", "/etc/app/changes", "--yes"], "").code, Some(0));
    assert_eq!(world.read("/etc/app/changes"), "new");
}

#[test]
fn a_repair_does_not_write_beside_an_apply() {
    let world = World::old();
    world.write("/etc/app/changes", "tampered");
    let lock = fs::File::open(world.state().join("apply/lock")).unwrap();
    let held = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusiveNonblock).unwrap();
    let said = world.run(&["repair", "--all", "--yes"], "");
    assert_eq!(said.code, Some(3), "{}", said.out);
    assert!(said.err.contains("another apply is at work"), "{}", said.err);
    assert_eq!(world.read("/etc/app/changes"), "tampered");
    drop(held);
    assert_eq!(world.run(&["repair", "--all", "--yes"], "").code, Some(0));
}

#[test]
fn a_plan_that_was_made_for_another_config_is_not_followed() {
    let world = World::old();
    let before = world.snapshot();
    for previous in [None, Some(7)] {
        let asked = ApplyRequest { act: false, ..request(&world, previous) };
        let said = run(engine(&world).apply(asked, &mut Slow, &mut |_| {}));
        assert!(matches!(said, Err(ApplyError::Overtaken(_))), "{said:?}");
    }
    assert_eq!(world.snapshot(), before);
    assert_eq!(world.current().as_deref(), Some("generations/1/config"));
}

#[test]
fn a_wait_for_a_reboot_names_its_reason_and_any_boot_ends_it() {
    let world = World::old();
    let socket = world.at("/run/dbus/system_bus_socket");
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let _bus = std::os::unix::net::UnixListener::bind(socket).unwrap();
    let engine = engine(&world);
    let said = run(engine.apply(request(&world, Some(1)), &mut Slow, &mut |_| {})).unwrap();
    assert!(matches!(said.end, MachineEnd::Halted(_) | MachineEnd::Rebooting), "{said:?}");
    assert!(world.has_journal());
    let said = run(engine.recover(&mut Slow, ResumeLimit::NoReboot, &mut |_| {})).unwrap();
    assert!(matches!(said, Recovered::Over(_)), "{said:?}");
    let standing = engine.store().standing().unwrap().unwrap();
    assert!(standing.waiting_for.contains("`holdfast apply --resume`"), "{standing:?}");
    assert_ne!(standing.state, NodeState::Done);
    // Other commands report this, and a repair writes nothing while an apply is unfinished.
    for arguments in [&["repair", "--all", "--yes"][..], &["rollback", "--no-acts"]] {
        let said = world.run(arguments, "");
        assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
        assert!(said.err.contains("--resume"), "{}", said.err);
    }
    let before = world.snapshot();
    let new = world.at("../new.yaml").display().to_string();
    let said = world.run(&["apply", &new, "--dry-run"], "");
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(said.err.contains("number 2 was interrupted"), "{}", said.err);
    assert!(world.has_journal() && world.snapshot() == before);
}

#[test]
fn a_degraded_node_that_matches_again_is_done() {
    let world = World::old();
    world.write("/etc/app/stays", "tampered");
    assert_eq!(world.apply(&["new"], "").code, Some(3));
    assert!(state(&world).starts_with("state Degraded: "), "{}", state(&world));
    let said = world.apply(&["old", "-o", "json"], "");
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(said.out.contains("\"drifted\"") && said.out.contains("/etc/app/stays"), "{}", said.out);
    assert!(state(&world).starts_with("state Degraded: "), "{}", state(&world));
    world.write("/etc/app/stays", "stays");
    assert_eq!(world.apply(&["old"], "").code, Some(0));
    assert!(state(&world).starts_with("state Done, "), "{}", state(&world));
}

#[test]
fn a_dry_run_creates_nothing_and_shows_the_effect_of_force() {
    let world = World::new();
    assert_eq!(world.apply(&["old", "--dry-run"], "").code, Some(1));
    assert!(!world.state().exists(), "not even a directory");
    assert_eq!(world.run(&["rollback", "--dry-run"], "").code, Some(2));
    assert_eq!(world.run(&["apply", "--resume", "--dry-run"], "").code, Some(2));
    let world = World::old();
    assert_eq!(world.apply(&["old", "--dry-run"], "").code, Some(0));
    let forced = world.apply(&["old", "--dry-run", "--force"], "");
    assert_eq!(forced.code, Some(1), "{}", forced.out);
    assert!(forced.out.contains("reboot") && forced.out.contains("forced: "), "{}", forced.out);
    world.write("/run/machine-config-daemon-force", "");
    assert_eq!(world.apply(&["old", "--dry-run"], "").out, forced.out);
    assert!(world.at("/run/machine-config-daemon-force").exists());
}

#[test]
fn a_policy_for_pools_applies_to_them_and_needs_the_nodes_pool() {
    let world = World::old();
    let policy = "apiVersion: holdfast.dev/v1alpha1\nkind: DisruptionPolicy\nmetadata: {name: a}\n\
                  spec: {pools: [worker], files: [{path: /etc/app/changes, actions: [{type: None}]}]}\n";
    fs::write(world.at("../policy.yaml"), policy).unwrap();
    let policy = world.at("../policy.yaml").display().to_string();
    let changes = |more: &[&str]| {
        let said = world.apply(&[&["new", "--dry-run", "--policy", &policy], more].concat(), "");
        said.out.lines().find(|line| line.contains("/etc/app/changes")).unwrap_or_default().to_owned()
    };
    assert!(changes(&[]).contains("/etc/app/changes: none"), "by the role: {}", changes(&[]));
    assert!(changes(&["--pool", "master"]).contains("/etc/app/changes: reboot"));
    let new = world.at("../new.yaml");
    let without = fs::read_to_string(&new)
        .unwrap()
        .replace(", labels: {machineconfiguration.openshift.io/role: worker}", "");
    fs::write(&new, without).unwrap();
    let said = world.apply(&["new", "--dry-run", "--policy", &policy], "");
    assert_eq!(said.code, Some(2), "{}{}", said.out, said.err);
    assert!(said.err.contains("--pool"), "{}", said.err);
    assert!(changes(&["--pool", "worker"]).contains("/etc/app/changes: none"));
}

#[test]
fn a_config_that_this_node_cannot_have_is_refused_whatever_was_applied_before() {
    if std::env::consts::ARCH == "aarch64" {
        return;
    }
    let world = World::new();
    let config = fs::read_to_string(world.at("../nothing.yaml")).unwrap();
    fs::write(world.at("../large.yaml"), format!("{config}\n  kernelType: 64k-pages\n")).unwrap();
    let large = world.at("../large.yaml");
    // On the real host; the command reads only its kind.
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.arg("apply").arg(&large).arg("--current").arg(&large).arg("--dry-run");
    let said = crate::world::RunResult::of(command.arg("--state").arg(world.state()).output().unwrap());
    assert_eq!(said.code, Some(4), "{}{}", said.out, said.err);
    assert!(said.out.contains("needs a node of architecture aarch64"), "{}", said.out);
}

#[test]
fn what_an_apply_without_actions_leaves_out_is_reported_and_planned_again() {
    let world = World::old();
    let config = fs::read_to_string(world.at("../old.yaml")).unwrap();
    fs::write(
        world.at("../os.yaml"),
        format!("{config}  kernelArguments: [nosmt]\n  kernelType: realtime\n"),
    )
    .unwrap();
    let said = world.apply(&["os"], "");
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert!(said.err.contains("add kernel-argument nosmt, change kernel-type realtime"), "{}", said.err);
    let said = world.apply(&["os", "--dry-run"], "");
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(said.out.contains("add kernel-argument nosmt: reboot"), "{}", said.out);
    // Also if further applies come in between.
    world.config("other", crate::world::OLD);
    assert_eq!(world.apply(&["new"], "").code, Some(0));
    assert_eq!(world.apply(&["os"], "").code, Some(0));
    assert!(world.apply(&["os", "--dry-run"], "").out.contains("add kernel-argument nosmt: reboot"));
}

#[test]
fn a_damaged_stored_config_is_not_reported_as_bad_input() {
    let world = World::old();
    let kept = world.state().join("apply/generations/1/config");
    for entry in fs::read_dir(&kept).unwrap() {
        fs::write(entry.unwrap().path(), "kind: MachineConfig").unwrap();
    }
    let said = world.apply(&["new"], "");
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert!(said.err.contains(&Path::new("generations/1/config").display().to_string()), "{}", said.err);
}
