//! Consent: the questions of an apply, on a terminal and without one.

use crate::{
    golden::json,
    world::{NEW, RunResult, World},
};
use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    process::{Command, Stdio},
};

/// A command without the consent that the other tests give.
fn unanswered(world: &World, arguments: &[&str]) -> Command {
    let mut command = world.prepare(arguments, "");
    command.env_remove("HOLDFAST_YES").env_remove("HOLDFAST_REBOOT");
    command
}

fn said(command: &mut Command) -> RunResult {
    RunResult::of(command.output().unwrap())
}

/// Runs a command on a new terminal, and answers its question after `meanwhile`. Returns its exit code and the terminal's text.
fn answered_after(mut command: Command, meanwhile: impl FnOnce(), answer: &str) -> (Option<i32>, String) {
    let pty = nix::pty::openpty(None, None).unwrap();
    let mut terminal = File::from(pty.master);
    command.stdin(pty.slave.try_clone().unwrap()).stderr(pty.slave).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut shown = Vec::new();
    let mut part = [0; 4096];
    while !String::from_utf8_lossy(&shown).contains("[y/N]") {
        let read = terminal.read(&mut part).unwrap();
        shown.extend(&part[..read]);
    }
    meanwhile();
    terminal.write_all(answer.as_bytes()).unwrap();
    // A terminal whose processes have all ended returns EIO.
    let _ = terminal.read_to_end(&mut shown);
    (child.wait().unwrap().code(), String::from_utf8_lossy(&shown).into_owned())
}

/// Runs a command on a new terminal, with an answer typed ahead. Returns its exit code and the terminal's text.
fn on_a_terminal(mut command: Command, answer: &str) -> (Option<i32>, String) {
    let pty = nix::pty::openpty(None, None).unwrap();
    let mut terminal = File::from(pty.master);
    terminal.write_all(answer.as_bytes()).unwrap();
    command.stdin(pty.slave.try_clone().unwrap()).stderr(pty.slave).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut shown = Vec::new();
    // A terminal whose processes have all ended returns EIO.
    let _ = terminal.read_to_end(&mut shown);
    (child.wait().unwrap().code(), String::from_utf8_lossy(&shown).into_owned())
}

fn place(line: &str, text: &str) -> usize {
    text.lines().position(|other| other.starts_with(line)).unwrap_or_else(|| panic!("no {line}: {text}"))
}

#[test]
fn without_a_terminal_and_without_consent_the_plan_is_printed_and_nothing_is_written() {
    let world = World::old();
    assert_eq!(world.apply(&["new"], "").code, Some(0));
    let (before, current) = (world.snapshot(), world.current());
    let old = world.config_file("old").display().to_string();
    for arguments in [&["apply", &old, "--no-acts"][..], &["rollback", "--no-acts"]] {
        let refused = said(&mut unanswered(&world, arguments));
        assert_eq!(refused.code, Some(2), "{arguments:?}: {}{}", refused.out, refused.err);
        assert!(refused.err.contains("`--yes` (or HOLDFAST_YES=1)"), "{}", refused.err);
        assert!(!refused.err.contains("--reboot"), "without acts nothing is rebooted: {}", refused.err);
        let (removed, changed, added) = (
            place("remove link /etc/becomes-link", &refused.out),
            place("change file /etc/app/changes", &refused.out),
            place("add file /etc/original", &refused.out),
        );
        assert!(removed < changed && changed < added, "{}", refused.out);
        let json = said(unanswered(&world, arguments).args(["-o", "json"]));
        let plan: serde_json::Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!((json.code, &plan["schema"]), (Some(2), &"holdfast.plan/v1".into()), "{}", json.err);
    }
    assert_eq!((world.snapshot(), world.current()), (before, current));
    let consent = said(unanswered(&world, &["rollback", "--no-acts"]).env("HOLDFAST_YES", "1"));
    assert_eq!(consent.code, Some(0), "{}{}", consent.out, consent.err);
    let consent = said(&mut unanswered(&world, &["rollback", "--no-acts", "--yes"]));
    assert_eq!(consent.code, Some(0), "{}{}", consent.out, consent.err);
}

#[test]
fn a_reboot_needs_a_consent_of_its_own() {
    let world = World::old();
    let new = world.config_file("new").display().to_string();
    for (more, refused) in [
        (&[][..], Some("add `--yes` (or HOLDFAST_YES=1) and `--reboot` (or HOLDFAST_REBOOT=1)")),
        (&["--yes"], Some("add `--reboot` (or HOLDFAST_REBOOT=1)")),
        (&["--reboot"], Some("add `--yes` (or HOLDFAST_YES=1)")),
        (&["--yes", "--reboot"], None),
    ] {
        let said = said(&mut unanswered(&world, &[&["apply", &new], more].concat()));
        if let Some(text) = refused {
            assert_eq!(said.code, Some(2), "{more:?}: {}{}", said.out, said.err);
            assert!(said.err.contains(text), "{more:?}: {}", said.err);
        } else {
            // This root has no systemd that could reboot.
            assert_eq!(said.code, Some(3), "{more:?}: {}{}", said.out, said.err);
            assert!(said.err.contains("has no system bus"), "{}", said.err);
        }
    }
}

#[test]
fn removals_that_need_force_are_listed_first_counted_and_in_the_json() {
    const EVIL: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx evil\n";
    let world = World::old();
    world.write("/home/core/.ssh/authorized_keys", &format!("# mine\n{EVIL}{EVIL}"));
    world.write("/home/core/.ssh/authorized_keys.d/stray", EVIL);
    world.write("/etc/systemd/system/on.service.d/99-other.conf", "");
    world.write("/run/other", "");
    let before = world.snapshot();
    let wanted_by = "WantedBy=graphical.target\n";
    let dropin = "        dropins: [{name: 20-new.conf, contents: '[Service]'}]\n";
    world.config("closes", &NEW.replace(wanted_by, &format!("{wanted_by}{dropin}")));
    let new = world.config_file("closes").display().to_string();
    let unforced = ["apply", &new, "--no-acts"];
    let dry = ["apply", &new, "--dry-run", "-o", "json"];
    let plan = json(&said(&mut unanswered(&world, &dry)), "plan");
    assert_eq!(plan.get("removed_by_force"), None, "{plan:#}");
    for by_file in [false, true] {
        let more: &[&str] = if by_file { &[] } else { &["--force"] };
        if by_file {
            world.write("/run/machine-config-daemon-force", "");
        }
        let refused = said(&mut unanswered(&world, &[&unforced, more].concat()));
        assert_eq!(refused.code, Some(2), "{}{}", refused.out, refused.err);
        let wanted = [
            "remove /etc/systemd/system/on.service.d/99-other.conf: not declared, and the apply is forced",
            "remove 2 lines of /home/core/.ssh/authorized_keys: not declared, and the apply is forced",
            "remove /home/core/.ssh/authorized_keys.d/stray: not declared, and the apply is forced",
        ];
        assert_eq!(refused.out.lines().take(3).collect::<Vec<_>>(), wanted, "{}", refused.out);
        // The plan removes the old config's drop-in, so it is not listed as undeclared.
        assert!(!refused.out.contains("10-goes.conf: not declared"), "{}", refused.out);
        let plan = json(&said(&mut unanswered(&world, &[&dry, more].concat())), "plan");
        let removed = serde_json::json!([
            {"path": "/etc/systemd/system/on.service.d/99-other.conf"},
            {"path": "/home/core/.ssh/authorized_keys", "lines": 2},
            {"path": "/home/core/.ssh/authorized_keys.d/stray"},
        ]);
        assert_eq!(plan["removed_by_force"], removed, "{plan:#}");
        let changes = plan["changes"].as_array().unwrap();
        let removals = changes.iter().filter(|change| change["operation"] == "remove").count();
        let question =
            format!("Apply this ({} changes, {} of them removals)", changes.len() + 4, removals + 4);
        let (code, shown) = on_a_terminal(unanswered(&world, &[&unforced, more].concat()), "n\n");
        assert!(code == Some(1) && shown.contains(&question), "{question}: {shown}");
    }
    fs::remove_file(world.at("/run/machine-config-daemon-force")).unwrap();
    assert_eq!(world.snapshot(), before);
}

#[test]
fn on_a_terminal_the_answer_decides() {
    let world = World::old();
    let before = world.snapshot();
    let new = world.config_file("new").display().to_string();
    let arguments = ["apply", &new, "--no-acts"];
    for answer in ["n\n", "\n", "yess\n", "\x04"] {
        let (code, shown) = on_a_terminal(unanswered(&world, &arguments), answer);
        assert_eq!(code, Some(1), "{answer:?}: {shown}");
        assert!(shown.contains("Apply this (") && shown.contains(" of them removals)? [y/N]"), "{shown}");
        assert!(place("remove file /etc/original", &shown) < place("change file", &shown), "{shown}");
        assert_eq!(world.snapshot(), before, "{answer:?}");
    }
    let (code, shown) = on_a_terminal(unanswered(&world, &["apply", &new, "--yes"]), "n\n");
    assert!(code == Some(1) && shown.contains("and reboot this host? [y/N]"), "{code:?}: {shown}");
    let (code, shown) = on_a_terminal(unanswered(&world, &arguments), "y\n");
    assert_eq!(code, Some(0), "{shown}");
    assert_ne!(world.snapshot(), before);
}

#[test]
fn a_force_file_that_appears_during_the_question_is_for_the_next_apply() {
    const FORCE: &str = "/run/machine-config-daemon-force";
    for has_drift in [true, false] {
        let world = World::old();
        world.write("/run/other", "");
        if has_drift {
            world.write("/etc/app/stays", "tampered");
        }
        let new = world.config_file("new").display().to_string();
        let command = unanswered(&world, &["apply", &new, "--no-acts"]);
        let (code, shown) = answered_after(command, || world.write(FORCE, ""), "y\n");
        assert_eq!(code, Some(if has_drift { 3 } else { 0 }), "{shown}");
        assert!(!shown.contains("forced:"), "{shown}");
        assert_eq!(world.read("/etc/app/stays"), if has_drift { "tampered" } else { "stays" });
        assert!(world.at(FORCE).exists(), "{shown}");
    }
}

#[test]
fn commands_that_write_nothing_or_end_an_earlier_apply_ask_nothing() {
    let world = World::old();
    let path = |name| world.config_file(name).display().to_string();
    let (old, new) = (path("old"), path("new"));
    for (arguments, code) in [
        (&["apply", &new, "--dry-run"][..], 1),
        (&["apply", &old, "--no-acts"], 0),
        (&["apply", "--resume", "--no-acts"], 0),
    ] {
        let said = said(&mut unanswered(&world, arguments));
        assert_eq!(said.code, Some(code), "{arguments:?}: {}{}", said.out, said.err);
    }
}
