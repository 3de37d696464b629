//! The state of a node says what the node waits for.

use crate::{
    host::whole,
    recovery::{PreparedHost, act, begin, interrupted, recover, this_boot},
    standing::{engine, request, run},
    world::World,
};
use holdfast::{
    apply::{ApplyOptions, ApplyRequest, Engine, OperatorRule, ResumeLimit, Store},
    observation::Observer,
};
use nix::fcntl::{FcntlArg, fcntl};
use sensor_model::{
    journal::{Action, Boot, Fallback, JournalRecord, machine::MachineEnd},
    node_state::Wait,
};
use std::{collections::BTreeSet, fs, path::Path, sync::Arc};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixListener,
};

/// What the node waits for now, and its text.
fn wait(state: &Path) -> Option<(Wait, String)> {
    let standing = Store::open_existing(state).unwrap()?.standing().unwrap()?;
    standing.wait.map(|wait| (wait, standing.waiting_for))
}

/// Every wait at a step that the apply reports to people.
fn steps(world: &World, work: impl FnOnce(&mut dyn FnMut(&str))) -> Vec<(String, Option<(Wait, String)>)> {
    let (mut steps, state) = (Vec::new(), world.state());
    work(&mut |line| steps.push((line.to_owned(), wait(&state))));
    steps
}

#[test]
fn the_state_names_the_wait_for_files_and_for_the_comparison() {
    let world = World::old();
    let asked = ApplyRequest { act: false, ..request(&world, Some(1)) };
    let steps = steps(&world, |progress| {
        let engine = engine(&world);
        let applied = run(engine.apply(asked, &mut PreparedHost::default(), progress)).unwrap();
        assert!(matches!(applied.end, MachineEnd::Closed(_)), "{applied:?}");
    });
    for (line, wait) in &steps {
        let wanted = match line.split(' ').next().unwrap() {
            "compare" => Wait::Comparison,
            "write" | "remove" => Wait::Files,
            _ => continue,
        };
        assert_eq!(wait.as_ref().map(|(wait, _)| *wait), Some(wanted), "{line}");
    }
    assert!(steps.iter().any(|(line, _)| line.starts_with("compare")), "{steps:?}");
    assert_eq!(wait(&world.state()), None, "it is over");
}

#[test]
fn the_state_names_the_wait_for_an_action_its_rollback_and_its_unit_after_a_boot() {
    let restart = || vec![act(Action::Restart, "a.service", Fallback::Rollback)];
    let world = interrupted(begin(&this_boot(), restart()), &[]);
    let reported = steps(&world, |progress| {
        let mut host = PreparedHost { acts: Some("it failed"), ..PreparedHost::default() };
        run(engine(&world).recover(&mut host, ResumeLimit::Unlimited, progress)).unwrap();
    });
    let reported: Vec<_> = reported.into_iter().filter_map(|(_, wait)| wait).map(|(_, what)| what).collect();
    for wanted in ["restart a.service, 30 s at most", "restart a.service with the old config, 30 s at most"] {
        assert!(reported.iter().any(|what| what == wanted), "{reported:?}");
    }
    let world = interrupted(begin("another", restart()), &[]);
    let reported = steps(&world, |progress| {
        run(engine(&world).recover(&mut PreparedHost::default(), ResumeLimit::Unlimited, progress)).unwrap();
    });
    let looked = (Wait::Act, "the result after the reboot: restart a.service".to_owned());
    assert!(reported.iter().any(|(_, wait)| wait.as_ref() == Some(&looked)), "{reported:?}");
}

#[test]
fn the_state_names_the_wait_for_the_os_a_reboot_and_the_next_start() {
    let os = || vec![act(Action::Os, "", Fallback::Rollback)];
    let back = [JournalRecord::Started { act: 0 }, JournalRecord::RollingBack { reason: "first".to_owned() }];
    let world = interrupted(begin(&this_boot(), os()), &back);
    let mut seen = BTreeSet::new();
    let reported = steps(&world, |progress| {
        let mut host = PreparedHost { undoes: Some("no"), ..PreparedHost::default() };
        run(engine(&world).recover(&mut host, ResumeLimit::Unlimited, progress)).unwrap();
    });
    seen.extend(reported.into_iter().filter_map(|(_, wait)| wait));
    seen.extend(wait(&world.state()));
    let asked = [JournalRecord::RebootRequested { boot: Boot::of_kernel(&this_boot()) }];
    let world = interrupted(begin(&this_boot(), os()), &asked);
    recover(&world, &mut PreparedHost::default(), ResumeLimit::NoReboot);
    seen.extend(wait(&world.state()));
    recover(&world, &mut PreparedHost::default(), ResumeLimit::Unlimited);
    seen.extend(wait(&world.state()));
    let wanted = [
        // What the dead process waited for.
        (Wait::Files, "files to be written"),
        (Wait::Act, "the rollback of the OS, 30 s at most"),
        (Wait::Reboot, "a reboot, which `holdfast apply --resume` asks for"),
        (Wait::Reboot, "the reboot"),
        (Wait::NextStart, "the next start"),
    ];
    assert_eq!(seen, wanted.map(|(wait, what)| (wait, what.to_owned())).into());
}

#[test]
fn the_state_names_the_wait_for_the_lock_of_another_process() {
    let world = World::old();
    let lock = fs::File::options().write(true).open(world.at("/etc/.pwd.lock")).unwrap();
    // A lock of the open file description, because the test's own process is the other one, too.
    fcntl(&lock, FcntlArg::F_OFD_SETLK(&whole())).unwrap();
    let (state, asked) = (world.state(), ApplyRequest { act: false, ..request(&world, Some(1)) });
    let others = async {
        let what = loop {
            match wait(&state) {
                Some((Wait::Lock, what)) => break what,
                _ => tokio::task::yield_now().await,
            }
        };
        drop(lock);
        what
    };
    let (engine, mut host) = (engine(&world), PreparedHost::default());
    let mut quiet = |_: &str| {};
    let (applied, what) = run(async { tokio::join!(engine.apply(asked, &mut host, &mut quiet), others) });
    assert!(matches!(applied.unwrap().end, MachineEnd::Closed(_)));
    assert_eq!(what, "/etc/.pwd.lock, which another process keeps locked, 15 s at most");
    assert_eq!(wait(&world.state()), None);
}

#[test]
fn the_wait_of_a_process_that_died_before_its_apply_began_is_removed() {
    let world = World::old();
    let path = world.state().join("apply/state.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut standing: serde_json::Value = serde_json::from_str(&text).unwrap();
    standing["wait"] = "lock".into();
    standing["waiting_for"] = "a file".into();
    fs::write(&path, standing.to_string()).unwrap();
    assert!(world.run(&["history"], "").out.contains("waits for a file"));
    run(engine(&world).recover(&mut PreparedHost::default(), ResumeLimit::Unlimited, &mut |_| {})).unwrap();
    assert_eq!(wait(&world.state()), None);
}

#[test]
fn the_state_names_the_wait_for_the_daemon_before_anything_is_written() {
    let world = World::old();
    let (root, state) = (world.at("/"), world.state());
    let observer = Arc::new(Observer::new(&root).unwrap());
    let options =
        ApplyOptions { root, state: state.clone(), operator: OperatorRule::Never, asks_daemon: true };
    let engine = Engine::new(options, &observer).unwrap();
    let (before, asked) = (world.snapshot(), ApplyRequest { act: false, ..request(&world, Some(1)) });
    let mut host = PreparedHost::default();
    let mut quiet = |_: &str| {};
    run(async {
        let daemon = UnixListener::bind(state.join("apply/daemon.sock")).unwrap();
        let answers = async {
            let (mut writer, _) = daemon.accept().await.unwrap();
            assert_ne!(writer.read(&mut [0; 1024]).await.unwrap(), 0);
            let waits = wait(&state);
            assert_eq!(world.snapshot(), before);
            writer.write_all(b"{\"stranger\":\"\",\"unwatched\":\"\"}\n").await.unwrap();
            waits
        };
        let (applied, waits) = tokio::join!(engine.apply(asked, &mut host, &mut quiet), answers);
        assert!(matches!(applied.unwrap().end, MachineEnd::Closed(_)));
        assert_eq!(waits, Some((Wait::Daemon, "the daemon to watch it, 10 s at most".to_owned())));
    });
    assert_eq!(wait(&world.state()), None);
}
