//! An apply announces its writes to each daemon that starts while the apply works: a daemon does not know whom an earlier one allowed
//! to write what its deny rules protect.

use crate::{
    recovery::PreparedHost,
    standing::{request, run},
    world::World,
};
use holdfast::{
    apply::{Applied, ApplyOptions, ApplyRequest, Engine, OperatorRule},
    observation::Observer,
};
use sensor_model::journal::{ApplyEnd, machine::MachineEnd};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

/// What an apply announces.
const ANNOUNCED: &str = "{\"apply\":2}\n";

fn socket(world: &World) -> PathBuf {
    world.state().join("apply/daemon.sock")
}

/// Takes the announcement of one writer.
fn announcement(listener: &UnixListener) -> (UnixStream, String) {
    let (stream, _) = listener.accept().unwrap();
    let mut line = String::new();
    BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
    (stream, line)
}

/// Answers a writer that the daemon accepts it and watches everything.
fn answer(stream: &mut UnixStream) {
    // The test's own connection without an announcement does not read.
    let _ = stream.write_all(b"{\"stranger\":\"\",\"unwatched\":\"\"}\n");
}

/// Applies the new config without acts.
fn apply(world: &World, progress: &mut dyn FnMut(&str)) -> Applied {
    let (root, state) = (world.at("/"), world.state());
    let observer = Arc::new(Observer::new(&root).unwrap());
    let options = ApplyOptions { root, state, operator: OperatorRule::Never, asks_daemon: true };
    let asked = ApplyRequest { act: false, ..request(world, Some(1)) };
    let engine = Engine::new(options, &observer).unwrap();
    run(engine.apply(asked, &mut PreparedHost::default(), progress)).unwrap()
}

/// A daemon that ends and starts again when it is asked to.
struct Restarts {
    ask: Sender<()>,
    done: Receiver<()>,
}

impl Restarts {
    fn restart(&self) {
        self.ask.send(()).unwrap();
        self.done.recv().unwrap();
    }
}

/// Applies with a daemon, or without one before the first restart. `on_line` takes each line of progress, and may restart the daemon. `seen`
/// runs when the daemon that started last has an announcement and has not answered it. Gives the end of the apply, and the announcement.
fn apply_with(
    world: &World,
    is_there: bool,
    mut on_line: impl FnMut(&str, &Restarts),
    seen: impl FnOnce() + Send,
) -> (Applied, String) {
    let path = &socket(world);
    let first = is_there.then(|| UnixListener::bind(path).unwrap());
    let (ask, asked) = channel();
    let (did, done) = channel();
    let restarts = Restarts { ask, done };
    thread::scope(|scope| {
        let daemon = scope.spawn(move || {
            let kept = first.map(|listener| {
                let (mut stream, line) = announcement(&listener);
                assert_eq!(line, ANNOUNCED);
                answer(&mut stream);
                (listener, stream)
            });
            asked.recv().unwrap();
            if let Some((_, stream)) = &kept {
                // A process that another test forks at this moment has the descriptor, too, until it executes its program.
                let _ = stream.shutdown(Shutdown::Both);
            }
            drop(kept);
            let _ = fs::remove_file(path);
            let listener = UnixListener::bind(path).unwrap();
            did.send(()).unwrap();
            let (mut stream, line) = announcement(&listener);
            seen();
            answer(&mut stream);
            // The daemon keeps the connection.
            (stream, line)
        });
        let applied = apply(world, &mut |line| on_line(line, &restarts));
        // Ends the daemon's wait if the apply has not announced itself again.
        drop(UnixStream::connect(path));
        (applied, daemon.join().unwrap().1)
    })
}

/// Restarts the daemon at the first line that begins so.
fn at_line(wanted: &'static str) -> impl FnMut(&str, &Restarts) {
    let mut is_over = false;
    move |line, daemon| {
        if !is_over && line.starts_with(wanted) {
            is_over = true;
            daemon.restart();
        }
    }
}

const WRITTEN: &str = "/etc/app/changes";
const NOT_WRITTEN: &str = "/etc/unfolds/deep/file";

#[test]
fn an_apply_announces_its_writes_to_a_daemon_that_started_before_the_next_write() {
    for is_there in [true, false] {
        let world = World::old();
        let seen = || {
            assert_eq!(world.read(WRITTEN), "new", "it was written before the restart");
            assert!(!world.at(NOT_WRITTEN).exists(), "it waits for the answer");
        };
        let (applied, announced) = apply_with(&world, is_there, at_line("write /etc/app/changes"), seen);
        assert_eq!(announced, ANNOUNCED, "{is_there}");
        assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::Done), "{applied:?}");
        assert!(world.at(NOT_WRITTEN).exists());
    }
}

#[test]
fn a_rollback_announces_its_writes_to_a_daemon_that_started_before_the_next_write() {
    let world = World::old();
    let mut restart = at_line("rolling back");
    let on_line = |line: &str, daemon: &Restarts| {
        if line == "write /etc/app/changes" {
            world.write("/etc/becomes-link", "another process writes");
        }
        restart(line, daemon);
    };
    let seen = || assert_eq!(world.read(WRITTEN), "new", "it is restored after the answer");
    let (applied, announced) = apply_with(&world, true, on_line, seen);
    assert_eq!(announced, ANNOUNCED);
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::RolledBack), "{applied:?}");
    assert_eq!(world.read(WRITTEN), "old");
}

#[test]
fn an_edit_that_a_starting_daemon_refused_is_made_after_the_announcement() {
    let world = World::old();
    let (present, away) = (world.at("/etc/app"), world.at("/etc/away"));
    let mut restart = at_line("write /etc/app/changes");
    let mut is_refused = false;
    let on_line = |line: &str, daemon: &Restarts| {
        restart(line, daemon);
        if line == "write /etc/app/changes" && !is_refused {
            // In the place of a deny rule, which only the kernel has.
            is_refused = true;
            fs::rename(&present, &away).unwrap();
        }
    };
    let seen = || fs::rename(&away, &present).unwrap();
    let (applied, announced) = apply_with(&world, true, on_line, seen);
    assert_eq!(announced, ANNOUNCED);
    assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::Done), "{applied:?}");
    assert_eq!(world.read(WRITTEN), "new");
}

#[test]
fn a_daemon_that_gives_no_answer_again_and_again_does_not_stop_an_apply() {
    let world = World::old();
    let (listener, connections) = (UnixListener::bind(socket(&world)).unwrap(), AtomicUsize::new(0));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let connection = listener.accept().unwrap();
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                connections.fetch_add(1, Ordering::SeqCst);
                drop(connection);
            }
        });
        let applied = apply(&world, &mut |_| {});
        is_over.store(true, Ordering::SeqCst);
        drop(UnixStream::connect(socket(&world)));
        assert_eq!(applied.end, MachineEnd::Closed(ApplyEnd::Done), "{applied:?}");
    });
    assert_eq!(connections.into_inner(), 3);
    assert!(world.at(NOT_WRITTEN).exists());
}
