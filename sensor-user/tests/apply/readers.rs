//! Readers of an apply's output that exit, or that stay and read nothing.

use crate::world::World;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
};
use std::{
    io::{self, Read as _},
    process::{Command, Stdio},
};

/// The exit code of a command whose output is never read.
fn without_reader(mut command: Command) -> Option<i32> {
    let gone = || -> Stdio { io::pipe().unwrap().1.into() };
    command.stdout(gone()).stderr(gone()).status().unwrap().code()
}

#[test]
fn an_apply_without_readers_ends_as_with_them_and_with_the_same_exit_code() {
    let world = World::old();
    let old = world.snapshot();
    assert_eq!(without_reader(world.command(&["new"], "")), Some(0));
    assert_eq!((world.has_journal(), world.current().as_deref()), (false, Some("generations/2/config")));
    assert_eq!(without_reader(world.prepare(&["rollback", "--no-acts", "-o", "json"], "")), Some(0));
    assert_eq!((world.has_journal(), world.current().as_deref()), (false, Some("generations/3/config")));
    assert_eq!(world.snapshot().len(), old.len());
    world.write("/etc/app/stays", "drift");
    assert_eq!(without_reader(world.command(&["new"], "")), Some(3), "a preflight that refuses");
    assert_eq!(without_reader(world.command(&["old"], "")), Some(1), "drift");
}

/// A pipe that accepts no byte until a process reads.
fn full_pipe() -> (io::PipeReader, io::PipeWriter) {
    let (reader, writer) = io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    for size in [4096, 1] {
        while nix::unistd::write(&writer, &vec![b'x'; size]) != Err(Errno::EAGAIN) {}
    }
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (reader, writer)
}

#[test]
fn an_apply_without_a_reader_of_its_progress_prints_its_whole_report() {
    let world = World::old();
    let (mut reader, writer) = full_pipe();
    let mut command = world.command(&["new", "-o", "json"], "");
    let said = command.stderr(writer).output().unwrap();
    drop(command);
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!((said.status.code(), &report["result"]), (Some(0), &"done".into()), "{report:#}");
    assert_eq!((world.has_journal(), world.current().as_deref()), (false, Some("generations/2/config")));
    let mut there = String::new();
    reader.read_to_string(&mut there).unwrap();
    assert!(there.bytes().all(|byte| byte == b'x'), "it was full: {there}");
}

#[cfg(feature = "fault-injection")]
#[test]
fn a_rollback_without_readers_is_not_reported_as_done() {
    let world = World::old();
    let old = world.snapshot();
    // The last names of paths are written by then.
    let said = world.command(&["new"], "EIO:62").output().unwrap();
    assert_eq!(said.status.code(), Some(3), "{}", String::from_utf8_lossy(&said.stderr));
    let world = World::old();
    assert_eq!(without_reader(world.command(&["new"], "EIO:62")), Some(3));
    assert!(!world.has_journal() && world.snapshot() == old);
}
