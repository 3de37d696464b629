//! `check`, `explain`, `repair`, `adopt`, `status`, `doctor`, `completions`.

use crate::world::World;
use insta::assert_snapshot;
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

/// Changes a content, a mode and a link's target, adds an undeclared drop-in, and disables a unit.
fn tamper(world: &World) {
    fs::write(world.host("/etc/app/app.conf"), "key=other\n").unwrap();
    world.mode("/etc/app/secret", 0o666);
    fs::remove_file(world.host("/etc/app/current")).unwrap();
    fs::write(world.host("/etc/systemd/system/app.service.d/99-\u{1b}[31mevil.conf"), "").unwrap();
    fs::remove_file(world.host("/etc/systemd/system/multi-user.target.wants/app.service")).unwrap();
}

#[test]
fn check_reports_that_everything_is_in_sync_and_what_it_did_not_check() {
    let world = World::in_sync();
    let result = world.run(&["check", "CONFIG"]);
    assert_snapshot!(result.golden());
    let report = world.run(&["check", "-o", "json", "CONFIG"]).json("check");
    assert_eq!(report["verdict"], "compliant");
    assert_eq!(report["drifted"].as_array().unwrap().len(), 0);
}

#[test]
fn check_names_every_difference_of_every_thing() {
    let world = World::in_sync();
    tamper(&world);
    let result = world.run(&["check", "CONFIG"]);
    assert_snapshot!(result.golden());
    let report = world.run(&["check", "-o", "json", "CONFIG"]);
    assert_eq!(report.code, 1);
    assert_eq!(report.json("check")["drifted"].as_array().unwrap().len(), 5);
}

#[test]
fn check_compares_kernel_arguments_where_a_kernel_runs() {
    let world = World::in_sync();
    fs::create_dir_all(world.host("/proc")).unwrap();
    fs::write(world.host("/proc/cmdline"), "root=/dev/vda quiet\n").unwrap();
    let result = world.run(&["check", "CONFIG"]);
    assert_eq!((result.code, result.out.contains("not checked")), (0, false), "{}{}", result.out, result.err);
    fs::write(world.host("/proc/cmdline"), "root=/dev/vda quietly\n").unwrap();
    let result = world.run(&["check", "CONFIG"]);
    assert_eq!(result.code, 1);
    assert!(result.out.contains("missing expected kernel arguments: [quiet]"), "{}", result.out);
    let explained = world.run(&["explain", "/proc/cmdline", "-o", "json", "CONFIG"]);
    assert_eq!(explained.json("explain")["things"][0]["thing"]["type"], "kernel-arguments");
    // Kernel arguments are no file, so no repair can write them.
    let repaired = world.run(&["repair", "--all", "--yes", "CONFIG"]);
    assert_eq!(repaired.code, 1, "{}{}", repaired.out, repaired.err);
    assert!(
        format!("{}{}", repaired.out, repaired.err).contains("changes only with a reboot"),
        "{}",
        repaired.out
    );
}

#[test]
fn check_takes_many_files_in_one_option() {
    let world = World::in_sync();
    let config = world.at("config/99-worker-app.yaml").display().to_string();
    world.write(
        "other.yaml",
        "ignition: {version: 3.4.0}\nstorage: {files: [{path: /etc/x, contents: {source: 'data:,x'}}]}\n",
    );
    let other = world.at("other.yaml").display().to_string();
    let root = world.at("root").display().to_string();
    let result = world.run(&["check", "--config", &config, &other, "--host-root", &root]);
    assert_eq!(result.code, 1, "{}{}", result.out, result.err);
    assert!(result.out.contains("/etc/x"), "{}", result.out);
}

#[test]
fn an_unreadable_path_is_unknown_and_not_drifted_and_check_fails() {
    let world = World::in_sync();
    // Root can read everything except an endless link.
    fs::remove_dir_all(world.host("/etc/app")).unwrap();
    symlink("app", world.host("/etc/app")).unwrap();
    let result = world.run(&["check", "CONFIG"]);
    assert_eq!(result.code, 3, "{}", result.golden());
    assert!(result.out.contains("unknown /etc/app/app.conf"), "{}", result.golden());
    assert!(result.out.contains("could not read file \"/etc/app/app.conf\": "), "{}", result.golden());
    assert!(
        !result.out.contains("in sync") && result.out.contains("could not be read"),
        "{}",
        result.golden()
    );
    let report = world.run(&["check", "-o", "json", "CONFIG"]).json("check");
    let paths = report["unreadable"].as_array().unwrap().iter().map(|thing| thing["path"].as_str().unwrap());
    assert!(paths.clone().any(|path| path == "/etc/app/app.conf"), "{report:#}");
}

#[test]
fn repair_restores_everything_and_then_finds_nothing_to_do() {
    let world = World::in_sync();
    tamper(&world);
    let result = world.run(&["repair", "--all", "--yes", "CONFIG"]);
    assert_snapshot!(result.golden());
    assert_snapshot!(world.run(&["repair", "--all", "--yes", "CONFIG"]).golden());
    assert_eq!(world.run(&["check", "CONFIG"]).code, 0);
}

#[test]
fn repair_of_one_path_leaves_the_others_and_reports_as_json() {
    let world = World::in_sync();
    tamper(&world);
    let result = world.run(&["repair", "/etc/app/app.conf", "--yes", "-o", "json", "CONFIG"]);
    let report = result.json("repair");
    assert_eq!((result.code, &report["repaired"][0]["actions"][0]), (0, &"content written".into()));
    assert!(!result.out.contains("key="), "no content is shown: {}", result.out);
    let mode = fs::metadata(world.host("/etc/app/secret")).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o666);
}

#[test]
fn repair_names_the_reason_for_each_refusal() {
    let world = World::in_sync();
    let path = world.host("/etc/app/app.conf");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("kept"), "").unwrap();
    let result = world.run(&["repair", "/etc/app/app.conf", "--yes", "CONFIG"]);
    assert_snapshot!(result.golden());
    assert!(path.join("kept").exists());
}

#[test]
fn repair_without_a_terminal_asks_for_yes_and_changes_nothing() {
    let world = World::in_sync();
    tamper(&world);
    assert_snapshot!(world.run(&["repair", "--all", "CONFIG"]).golden());
    assert_eq!(fs::read_to_string(world.host("/etc/app/app.conf")).unwrap(), "key=other\n");
}

#[test]
fn repair_of_an_undeclared_file_names_the_command_for_its_directory() {
    let world = World::in_sync();
    let path = "/etc/systemd/system/app.service.d/99-evil.conf";
    fs::write(world.host(path), "").unwrap();
    assert_snapshot!(world.run(&["repair", path, "--yes", "CONFIG"]).golden());
    assert!(world.host(path).exists());
}

#[test]
fn explain_shows_expectation_state_policy_and_last_change() {
    let world = World::in_sync();
    tamper(&world);
    crate::forensic::log(&world);
    assert_snapshot!(world.run(&["explain", "/etc/app/app.conf", "LOG", "CONFIG"]).golden());
    let result = world.run(&["explain", "/etc/app/secret", "-o", "json", "LOG", "CONFIG"]);
    let report = result.json("explain");
    assert_eq!((result.code, &report["policy"]["action"]), (1, &"revert".into()));
    assert!(!result.out.contains("hunter2"), "no content is shown");
}

#[test]
fn explain_shows_a_units_file_and_its_enablement() {
    let world = World::in_sync();
    crate::forensic::log(&world);
    assert_snapshot!(world.run(&["explain", "/etc/systemd/system/app.service", "LOG", "CONFIG"]).golden());
}

#[test]
fn explain_shows_an_undeclared_path_and_what_closes_its_directory() {
    let world = World::in_sync();
    crate::forensic::log(&world);
    assert_snapshot!(world.run(&["explain", "/etc/hostname", "LOG", "CONFIG"]).golden());
    let path = "/etc/systemd/system/app.service.d/99-evil.conf";
    fs::write(world.host(path), "").unwrap();
    assert_snapshot!(world.run(&["explain", path, "LOG", "CONFIG"]).golden());
}

#[test]
fn adopt_prints_a_manifest_under_which_the_present_state_is_in_sync() {
    let world = World::in_sync();
    tamper(&world);
    let result = world.run(&["adopt", "/etc/app/app.conf", "--name", "99-zz", "CONFIG"]);
    assert_snapshot!(result.golden());
    world.write("config/zz.yaml", &result.out);
    let check = world.run(&["check", "CONFIG"]);
    assert!(!check.out.contains("/etc/app/app.conf"), "{}", check.out);
}

#[test]
fn adopt_leaves_out_secret_contents_unless_asked_for_them() {
    let world = World::in_sync();
    let result = world.run(&["adopt", "/etc/app/secret", "CONFIG"]);
    assert_snapshot!(result.golden());
    let result = world.run(&["adopt", "/etc/app/secret", "--secrets", "CONFIG"]);
    assert!(result.code == 0 && result.out.contains("aHVudGVyMg"), "{}", result.golden());
}

#[test]
fn adopt_of_undeclared_names_in_a_closed_directory_prints_a_manifest_that_declares_them() {
    let world = World::in_sync();
    follow(&world, &["{path: /etc/closed/, closed: true, action: degrade}"]);
    world.write("root/etc/closed/late.conf", "late=1\n");
    world.mode("/etc/closed/late.conf", 0o640);
    symlink("late.conf", world.host("/etc/closed/link")).unwrap();
    let check = || world.run(&["check", "CONFIG"]);
    let before = check();
    for path in ["/etc/closed/late.conf", "/etc/closed/link"] {
        assert!(before.code == 1 && before.out.contains(path), "{path}: {}", before.golden());
    }
    let paths = ["adopt", "/etc/closed/late.conf", "/etc/closed/link", "--name", "99-late", "CONFIG"];
    let result = world.run(&paths);
    assert_eq!((result.code, result.err.as_str()), (0, ""), "{}", result.golden());
    world.write("config/late.yaml", &result.out);
    let after = check();
    assert_eq!(after.code, 0, "{}", after.golden());
    // Content and mode are declared, too.
    world.mode("/etc/closed/late.conf", 0o600);
    assert!(check().out.contains("/etc/closed/late.conf"), "{}", check().golden());
    world.mode("/etc/closed/late.conf", 0o640);
    world.write("root/etc/closed/late.conf", "late=2\n");
    assert!(check().out.contains("/etc/closed/late.conf"), "{}", check().golden());
}

/// A policy with these rules.
fn follow(world: &World, rules: &[&str]) {
    let rules: Vec<String> = rules.iter().map(|rule| format!("  - {rule}\n")).collect();
    let policy = format!(
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {{name: test}}\nspec:\n  rules:\n{}",
        rules.concat()
    );
    world.write("policy/test.yaml", &policy);
}

/// A policy that expects nothing at a path.
fn expect_nothing(world: &World, action: &str) {
    let reason = "the loader takes it into each program";
    let rule = format!("{{path: /etc/ld.so.preload, absent: true, action: {action}, reason: {reason}}}");
    follow(world, &[&rule]);
}

#[test]
fn explain_names_both_the_closed_directory_and_the_rule_of_a_path_in_it() {
    let world = World::in_sync();
    let rules = [
        "{path: /etc/closed/, closed: true, action: degrade}",
        "{path: /etc/closed/x, absent: true, action: observe}",
    ];
    follow(&world, &rules);
    world.write("root/etc/closed/x", "");
    let explained = world.run(&["explain", "/etc/closed/x", "CONFIG"]);
    for text in ["must not exist by", "closed directory /etc/closed: drifted"] {
        assert!(explained.out.contains(text), "no {text}: {}", explained.golden());
    }
    let repaired = world.run(&["repair", "/etc/closed/x", "--yes", "CONFIG"]);
    assert!(repaired.code == 1 && world.host("/etc/closed/x").exists(), "{}", repaired.golden());
}

#[test]
fn check_explain_and_repair_name_the_policy_that_expects_nothing_at_a_path_and_keep_what_is_there() {
    let world = World::in_sync();
    expect_nothing(&world, "degrade");
    assert_eq!(world.run(&["check", "CONFIG"]).code, 0, "nothing is there");
    let explain = || world.run(&["explain", "/etc/ld.so.preload", "-o", "json", "CONFIG"]).json("explain");
    assert_eq!(explain()["verdict"], "compliant");
    world.write("root/etc/ld.so.preload", "/tmp/evil.so\n");
    world.mode("/etc/ld.so.preload", 0o644);
    let check = world.run(&["check", "CONFIG"]);
    let text = "unexpected regular file \"/etc/ld.so.preload\"";
    assert!(check.code == 1 && check.out.contains(text), "{}", check.golden());
    let report = world.run(&["check", "-o", "json", "CONFIG"]).json("check");
    assert_eq!(report["drifted"][0]["differences"][0]["kind"], "unexpected");
    let explained = world.run(&["explain", "/etc/ld.so.preload", "CONFIG"]);
    for part in ["must not exist by", "test.yaml", "nothing at the path", text, "the loader takes it"] {
        assert!(explained.out.contains(part), "{part}: {}", explained.golden());
    }
    let report = explain();
    assert_eq!(
        (&report["verdict"], &report["things"][0]["expected"]["state"]),
        (&"drifted".into(), &"absent".into())
    );
    for paths in [&["/etc/ld.so.preload"][..], &["--all"]] {
        let repaired = world.run(&[&["repair", "--yes", "CONFIG"], paths].concat());
        assert!(repaired.code != 0 && world.host("/etc/ld.so.preload").exists(), "{}", repaired.golden());
        assert!(
            format!("{}{}", repaired.out, repaired.err).contains("holdfast adopt"),
            "{}",
            repaired.golden()
        );
    }
}

#[test]
fn adopt_of_an_unexpected_file_prints_a_manifest_that_declares_it_so_that_it_is_no_drift() {
    let world = World::in_sync();
    expect_nothing(&world, "degrade");
    world.write("root/etc/ld.so.preload", "/usr/lib/tool.so\n");
    world.mode("/etc/ld.so.preload", 0o644);
    let result = world.run(&["adopt", "/etc/ld.so.preload", "--name", "99-late", "CONFIG"]);
    assert_eq!((result.code, result.err.as_str()), (0, ""), "{}", result.golden());
    world.write("config/late.yaml", &result.out);
    let check = world.run(&["check", "CONFIG"]);
    assert_eq!(check.code, 0, "{}", check.golden());
    // The declared content is compared from now on.
    world.write("root/etc/ld.so.preload", "/tmp/evil.so\n");
    let check = world.run(&["check", "CONFIG"]);
    assert!(check.out.contains("content mismatch"), "{}", check.golden());
}

fn status(world: &World, boot: &str, pid: u32) {
    world.write("proc/sys/kernel/random/boot_id", "boot-1\n");
    world.write("proc/7/comm", "holdfast\n");
    world.write("proc/8/comm", "sshd\n");
    let status = serde_json::json!({
        "schema": "holdfast.status/v1", "verdict": "drifted", "degraded": true, "backend": "lsm",
        "time": "2026-01-02T03:04:05.000000000Z", "pid": pid, "boot_id": boot, "sources": ["99-worker-app"],
        "drifted": [{
            "path": "/etc/app/app.conf", "since": "2026-01-02T03:04:00.000000000Z", "source": "99-worker-app",
            "differences": [{"kind": "content", "expected": "sha256:aa (1 bytes)", "found": "sha256:bb (1 bytes)",
                "text": "content mismatch for file \"/etc/app/app.conf\""}],
            "actor": null,
        }],
        "gaps": [{"since": "2026-01-02T03:04:01.000000000Z", "until": null, "reason": "ring-loss"}],
        "counters": {"managed": 7},
    });
    world.write("run/status.json", &status.to_string());
}

#[test]
fn status_shows_what_the_running_daemon_wrote() {
    let world = World::new();
    status(&world, "boot-1", 7);
    let (run, proc) = (world.at("run").display().to_string(), world.at("proc").display().to_string());
    let result = world.run(&["status", "--run", &run, "--proc", &proc]);
    assert_snapshot!(result.golden());
    let report = world.run(&["status", "--run", &run, "--proc", &proc, "-o", "json"]).json("status");
    assert_eq!((&report["running"], &report["verdict"]), (&true.into(), &"drifted".into()));
}

#[test]
fn status_shows_that_the_config_is_not_in_use() {
    let world = World::new();
    status(&world, "boot-1", 7);
    let path = world.at("run/status.json");
    let mut written: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    written["config_refused"] = "a.yaml: spec.confg: unknown field".into();
    world.write("run/status.json", &written.to_string());
    let (run, proc) = (world.at("run").display().to_string(), world.at("proc").display().to_string());
    let result = world.run(&["status", "--run", &run, "--proc", &proc]);
    let line = "config refused; the last usable one is in force: a.yaml: spec.confg: unknown field";
    assert!(result.out.lines().any(|printed| printed == line), "{}", result.golden());
    let report = world.run(&["status", "--run", &run, "--proc", &proc, "-o", "json"]).json("status");
    assert_eq!(report["config_refused"], "a.yaml: spec.confg: unknown field");
}

#[test]
fn status_of_a_daemon_that_has_ended_is_unknown() {
    let world = World::new();
    let (run, proc) = (world.at("run").display().to_string(), world.at("proc").display().to_string());
    let arguments = ["status", "--run", &run, "--proc", &proc];
    assert_snapshot!("no_status", world.run(&arguments).golden());
    status(&world, "boot-0", 7);
    assert_snapshot!("another_boot", world.run(&arguments).golden());
    // The process exists, and is stopped or hangs.
    status(&world, "boot-1", 7);
    let path = world.at("run/status.json");
    let mut result: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    result["beat_seconds"] = 5.into();
    result["verdict"] = "compliant".into();
    world.write("run/status.json", &result.to_string());
    let code = || world.run(&arguments).code;
    assert_eq!(code(), 0);
    let before = std::time::SystemTime::now() - std::time::Duration::from_mins(1);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
    assert_eq!(code(), 3);
    // Another process has this number now.
    status(&world, "boot-1", 8);
    let result = world.run(&["status", "--run", &run, "--proc", &proc, "-o", "json"]);
    assert_eq!((result.code, &result.json("status")["verdict"]), (3, &"unknown".into()));
}

#[test]
fn doctor_reports_by_its_schema_whatever_the_kernel() {
    let world = World::new();
    let result = world.run(&["doctor", "-o", "json"]);
    let report = result.json("doctor");
    assert_eq!(result.code == 0, report["healthy"] == true, "{}", result.out);
    let modes: Vec<&str> =
        report["modes"].as_array().unwrap().iter().filter_map(|mode| mode["mode"].as_str()).collect();
    assert_eq!(modes, ["lsm", "fentry", "fanotify"]);
    let text = world.run(&["doctor"]);
    assert!(text.out.contains("the daemon would use"), "{}", text.golden());
}

#[test]
fn completions_know_every_command() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let result = world.run(&["completions", shell]);
        assert_eq!(result.code, 0);
        for command in ["agent", "check", "status", "who", "explain", "log", "repair", "adopt", "doctor"] {
            assert!(result.out.contains(command), "{shell}: {command}");
        }
    }
}
