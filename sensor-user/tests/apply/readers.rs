//! Readers of what an apply prints that go away.

use crate::world::World;
use std::{
    io,
    process::{Command, Stdio},
};

/// The exit code of a command that nobody listens to from its first word on.
fn unheard(mut command: Command) -> Option<i32> {
    let gone = || -> Stdio { io::pipe().unwrap().1.into() };
    command.stdout(gone()).stderr(gone()).status().unwrap().code()
}

#[test]
fn an_apply_whose_readers_are_gone_ends_as_with_them_and_its_exit_code_says_how() {
    let world = World::old();
    let old = world.snapshot();
    assert_eq!(unheard(world.command(&["new"], "")), Some(0));
    assert_eq!((world.has_journal(), world.current().as_deref()), (false, Some("generations/2/config")));
    assert_eq!(unheard(world.prepare(&["rollback", "--no-acts", "-o", "json"], "")), Some(0));
    assert_eq!((world.has_journal(), world.current().as_deref()), (false, Some("generations/3/config")));
    assert_eq!(world.snapshot().len(), old.len());
    world.write("/etc/app/stays", "drift");
    assert_eq!(unheard(world.command(&["new"], "")), Some(3), "a preflight that refuses");
    assert_eq!(unheard(world.command(&["old"], "")), Some(1), "drift");
}

#[cfg(feature = "fault-injection")]
#[test]
fn an_apply_that_goes_back_unheard_does_not_pass_for_done() {
    let world = World::old();
    let old = world.snapshot();
    // The last names of paths are written by then.
    let said = world.command(&["new"], "EIO:60").output().unwrap();
    assert_eq!(said.status.code(), Some(3), "{}", String::from_utf8_lossy(&said.stderr));
    let world = World::old();
    assert_eq!(unheard(world.command(&["new"], "EIO:60")), Some(3));
    assert!(!world.has_journal() && world.snapshot() == old);
}
