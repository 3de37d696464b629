//! An error in an input names file, field and reason, and the exit code is 2.

use crate::world::World;
use insta::assert_snapshot;
use nix::fcntl::{Flock, FlockArg};
use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::net::{UnixListener, UnixStream},
    process::Stdio,
};

#[test]
fn a_bad_manifest_is_refused_by_file_field_and_reason() {
    let world = World::new();
    world.write(
        "config/bad.yaml",
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: {name: bad}\nspec: {config: {ignition: {version: 3.4.0}, storage: {files: [{path: etc/x}]}}}\n",
    );
    assert_snapshot!(world.run(&["check", "CONFIG"]).golden());
}

#[test]
fn a_bad_policy_is_refused_by_file_field_and_reason() {
    let world = World::new();
    world.write(
        "policy/bad.yaml",
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: bad}\nspec: {rules: [{path: /etc/x, action: explode}]}\n",
    );
    assert_snapshot!(world.run(&["explain", "/etc/x", "CONFIG"]).golden());
}

#[test]
fn the_daemon_refuses_a_bad_manifest_with_the_same_code() {
    let world = World::new();
    world.write(
        "config/bad.yaml",
        "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: {name: bad}\nspec: {config: {ignition: {version: 3.4.0}, storage: {files: [{path: etc/x}]}}}\n",
    );
    let at = |path: &str| world.at(path).display().to_string();
    let result = world.run(&[
        "agent",
        "--standalone",
        "--config",
        &at("config"),
        "--host-root",
        &at("root"),
        "--run",
        &at("run"),
        "--state",
        &at("state"),
        "--log",
        &at("log"),
        "--no-pins",
        "--listen",
        "none",
    ]);
    assert_eq!(result.code, 2, "{}", result.golden());
    assert!(result.err.contains("bad.yaml"), "{}", result.err);
}

#[test]
fn a_second_daemon_names_the_first_and_touches_nothing_of_it() {
    let world = World::new();
    let at = |path: &str| world.at(path).display().to_string();
    let arguments = |state: &str, run: &str| {
        let more = ["--config", &at("config"), "--host-root", &at("root"), "--log", &at("log"), "--no-pins"];
        let own = ["--state", &at(state), "--run", &at(run), "--listen", "none"];
        more.iter().chain(&own).map(ToString::to_string).collect::<Vec<_>>()
    };
    let directory = world.at("state");
    std::fs::create_dir_all(directory.join("apply")).unwrap();
    let socket = UnixListener::bind(directory.join("apply/daemon.sock")).unwrap();
    let lock = File::create(directory.join("agent.lock")).unwrap();
    let _lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).unwrap();
    // What the first one has from a cluster belongs to another mode than that of the second.
    let rule = r#"{"path": "/etc/x", "action": "deny"}"#;
    let policies = format!(
        r#"{{"kind": "DriftPolicyList", "apiVersion": "holdfast.dev/v1alpha1", "items": [{{"apiVersion": "holdfast.dev/v1alpha1",
            "kind": "DriftPolicy", "metadata": {{"name": "one"}}, "spec": {{"rules": [{rule}]}}}}]}}"#
    );
    let left = [("state/cluster-policies.json", &*policies), ("state/order/ordered/name.json", "{}")];
    for (path, text) in left {
        world.write(path, text);
    }
    let modes = [&["--standalone"][..], &["--mode", "observe"]];
    let each = modes.into_iter().flat_map(|mode| [(mode, "state", "run"), (mode, "other", "state")]);
    for (mode, state, run) in each {
        let mut all = vec!["agent".to_owned()];
        all.extend(mode.iter().map(ToString::to_string));
        let arguments = [all, arguments(state, run)].concat();
        let result = world.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let holder = format!("process {}", std::process::id());
        assert!(result.code == 3 && result.err.contains(&holder), "{}", result.golden());
    }
    for (path, text) in left {
        assert_eq!(fs::read_to_string(world.at(path)).unwrap(), text, "{path}");
    }
    UnixStream::connect(directory.join("apply/daemon.sock")).expect("the first daemon's socket is there");
    drop(socket);
}

#[test]
fn options_of_the_daemon_that_do_not_fit_are_refused() {
    let world = World::new();
    for (arguments, reason) in [
        (&["--mode", "manage"][..], "--mode manage needs --reporter-uid"),
        (&["--standalone", "--mode", "observe"], "cannot be used with"),
        (&["--enter-host", "--listen", "127.0.0.1:9464"], "cannot be used with"),
        (&["--enter-host", "--host-root", "/host"], "cannot be used with"),
        (&["--reporter-unit", "x.service"], "--reporter-uid"),
        (&["--reporter-uid", "0"], "--reporter-uid"),
    ] {
        let result = world.run(&[&["agent"], arguments].concat());
        assert!(result.code == 2 && result.err.contains(reason), "{arguments:?}: {}", result.golden());
    }
}

#[test]
fn a_missing_path_is_named() {
    let world = World::new();
    let root = world.at("root").display().to_string();
    assert_snapshot!(
        "no_config",
        world.run(&["check", "--config", "/nonexistent/config", "--host-root", &root]).golden()
    );
    assert_snapshot!(
        "no_root",
        world.run(&["check", "--config", "/nonexistent/config", "--host-root", "/nonexistent/root"]).golden()
    );
    assert_snapshot!("no_log", world.run(&["who", "/etc/x", "--log", "/nonexistent/log"]).golden());
    assert_snapshot!("not_managed", world.run(&["repair", "/etc/x", "--yes", "CONFIG"]).golden());
}

#[test]
fn wrong_usage_and_failure_have_different_exit_codes() {
    let world = World::new();
    for arguments in [
        &["check"][..],
        &["check", "--config"],
        &["who", "relative/path"],
        &["who", "/etc/../shadow"],
        &["who", "/etc/x", "--audit-log", "/nonexistent/audit.log", "LOG"],
        &["who", "/etc/x", "--audit-log", "/", "LOG"],
        &["who", "/etc/x", "--pod-logs", "/", "LOG"],
        &["repair", "CONFIG"],
        &["repair", "--all", "/etc/x", "CONFIG"],
        &["adopt", "/etc/x", "--name", "Not A Name", "CONFIG"],
        &["log", "show", "--kind", "nonsense", "LOG"],
        &["log", "show", "--since", "yesterday", "LOG"],
        &["completions", "tcsh"],
        &["nonsense"],
    ] {
        let result = world.run(arguments);
        assert_eq!(result.code, 2, "{arguments:?}: {}", result.golden());
        assert!(
            result.out.is_empty() && result.err.starts_with("error:"),
            "{arguments:?}: {}",
            result.golden()
        );
    }
}

#[test]
fn a_reader_that_exits_is_no_error() {
    let world = World::in_sync();
    crate::forensic::log(&world);
    let mut child = world
        .command(&["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let status = child.wait().unwrap();
    let mut result = String::new();
    child.stderr.take().unwrap().read_to_string(&mut result).unwrap();
    assert_eq!((status.code(), result.as_str()), (Some(0), ""));
}

#[test]
fn the_exit_code_is_the_same_when_the_reader_exits() {
    let world = World::in_sync();
    crate::forensic::log(&world);
    let code_with_closed_pipe = |arguments: &[&str]| {
        let closed: Stdio = io::pipe().unwrap().1.into();
        world.command(arguments).stdout(closed).stderr(Stdio::null()).status().unwrap().code()
    };
    let run = world.at("run").display().to_string();
    let questions = [
        &["check", "CONFIG"][..],
        &["check", "-o", "json", "CONFIG"],
        &["explain", "/etc/app/app.conf", "LOG", "CONFIG"],
        &["who", "/etc/app/app.conf", "LOG"],
        &["log", "show", "LOG"],
        &["log", "tail", "LOG"],
        &["log", "tail", "-f", "LOG"],
        &["log", "verify", "LOG"],
        &["status", "--run", &run],
    ];
    assert_eq!(questions.map(code_with_closed_pipe), [0, 0, 0, 0, 0, 0, 0, 0, 3].map(Some));
    fs::write(world.host("/etc/app/app.conf"), "drift").unwrap();
    assert_eq!(questions.map(code_with_closed_pipe), [1, 1, 1, 0, 0, 0, 0, 0, 3].map(Some));
    let path = world.at("log/forensic.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"pid\":4711", "\"pid\":4712")).unwrap();
    assert_eq!(questions.map(code_with_closed_pipe), [1, 1, 3, 3, 3, 3, 3, 1, 3].map(Some));
}

#[test]
fn a_host_is_not_compared_with_another_config_if_the_applied_one_is_unreadable() {
    let world = World::in_sync();
    let config = fs::read_to_string(world.at("config/99-worker-app.yaml")).unwrap();
    world.write("root/etc/holdfast/machine-configs/a.yaml", &config);
    let (root, state) = (world.at("root").display().to_string(), world.at("state"));
    let check = ["check", "--host-root", &root, "--state", state.to_str().unwrap()];
    fs::create_dir(&state).unwrap();
    let result = world.run(&check);
    assert_eq!(result.code, 0, "nothing was applied: {}", result.golden());
    let fails_and_names = |path: &str| {
        let result = world.run(&check);
        let path = format!("[HERE]/state/{path}: ");
        let hint = "name a config by --config";
        assert!(
            result.code == 3 && result.err.contains(&path) && result.err.contains(hint),
            "{}",
            result.golden()
        );
    };
    std::os::unix::fs::symlink("apply", state.join("apply")).unwrap();
    fails_and_names("apply");
    fs::remove_file(state.join("apply")).unwrap();
    world.write("state/apply/generations/1/config/a.yaml", &config);
    world.write("state/apply/current", "no link");
    fails_and_names("apply/current");
    fs::remove_file(state.join("apply/current")).unwrap();
    std::os::unix::fs::symlink("elsewhere", state.join("apply/current")).unwrap();
    fails_and_names("apply/current");
    fs::remove_file(state.join("apply/current")).unwrap();
    std::os::unix::fs::symlink("generations/1/config", state.join("apply/current")).unwrap();
    let result = world.run(&check);
    assert_eq!(result.code, 0, "{}", result.golden());
}
