//! Signals in the middle of an apply. The apply waits before a writing call until it has noticed them.

use crate::{
    faults::every,
    world::{RunResult, World},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Read as _},
    process::{ChildStderr, Command, Stdio},
};

/// Reads lines up to one with this start; `false` if there is none.
fn until(lines: &mut BufReader<ChildStderr>, start: &str, heard: &mut String) -> bool {
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).unwrap() == 0 {
            return false;
        }
        heard.push_str(&line);
        if line.starts_with(start) {
            return true;
        }
    }
}

/// The same command with the default actions: `nohup` ignores SIGHUP, and a shell SIGINT for what runs in the background.
fn hanging_up(command: &Command) -> Command {
    let mut other = Command::new("env");
    other.arg("--default-signal=HUP,INT").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    other
}

/// An apply that gets signals right before a call, each after it noticed the one before. `None` if it has no such call.
fn interrupted(world: &World, call: u64, signals: &[(Signal, &str)]) -> Option<RunResult> {
    let mut command = hanging_up(&world.command(&["new"], &format!("wait:{call}")));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let process = Pid::from_child(&child);
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut err = String::new();
    let met = until(&mut lines, "fault: waits", &mut err);
    for (signal, name) in signals.iter().filter(|_| met) {
        kill_process(process, *signal).unwrap();
        assert!(until(&mut lines, &format!("{name}: "), &mut err), "{err}");
    }
    drop(child.stdin.take());
    lines.read_to_string(&mut err).unwrap();
    let mut said = RunResult::of(child.wait_with_output().unwrap());
    said.err = err;
    met.then_some(said)
}

#[test]
fn whenever_an_apply_is_interrupted_it_ends_old_or_new_without_a_journal_and_says_which() {
    let world = World::old();
    let old = world.snapshot();
    assert_eq!(world.apply(&["new"], "").code, Some(0));
    let new = world.snapshot();
    let (int, term, hup) = ((Signal::INT, "SIGINT"), (Signal::TERM, "SIGTERM"), (Signal::HUP, "SIGHUP"));
    for (signals, wanted) in [
        // A second signal changes nothing.
        (&[int, int][..], ["abandoned", "done", "rolled-back"].as_slice()),
        (&[hup, term], &["abandoned", "done", "rolled-back"]),
        // After the first write it continues without a terminal.
        (&[hup], &["abandoned", "done"]),
    ] {
        let results = std::sync::Mutex::new(BTreeSet::new());
        let calls = every(|number| {
            let call = number * 7 - 6;
            let world = World::old();
            let Some(said) = interrupted(&world, call, signals) else { return false };
            let reported = format!("{signals:?} at {call}: {:?} {}{}", said.code, said.out, said.err);
            // If the signal comes while it looks for an earlier apply, it begins nothing and has nothing to report.
            let is_early = said.out.is_empty() && said.err.contains("no new apply was started");
            let result =
                if is_early { "abandoned" } else { said.out.split_whitespace().next().unwrap_or_default() };
            let result = result.to_owned();
            let is_new = result == "done";
            assert_eq!(said.code, Some(if is_new { 0 } else { 3 }), "{reported}");
            assert!(!world.has_journal(), "a journal is left: {reported}");
            assert_eq!(world.current().as_deref() == Some("generations/2/config"), is_new, "{reported}");
            assert!(is_new || reported.contains("interrupted by SIG"), "{reported}");
            assert!(world.snapshot() == if is_new { new.clone() } else { old.clone() }, "{reported}");
            results.lock().unwrap().insert(result);
            true
        });
        assert!(calls > 10, "{calls}");
        assert_eq!(results.into_inner().unwrap().into_iter().collect::<Vec<_>>(), wanted, "{signals:?}");
    }
}
