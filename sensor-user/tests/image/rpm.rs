//! Packages that Debian's rpm builds, installs into a database and checks.
//!
//! `HOLDFAST_RPM` names a directory with the programs `rpm` and `rpmbuild`. `cargo xtask test` sets it.

use crate::{
    watched::{check, index_baseline, policy},
    world::{CONFIG, World},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// The beginning of a package's recipe, up to its files.
const SPEC: &str = "%global _unpackaged_files_terminate_build 0
Name: tool
Epoch: 1
Version: 2.0
Release: 3
Summary: A tool
License: None
AutoReqProv: no
%description
%install
%files
%defattr(-,root,root)
";

/// The files of the package.
const FILES: &str = "/usr/bin
/usr/share/doc/a
%config /etc/tool.conf
%ghost /etc/tool.state
%config(missingok) /etc/tool.local
%missingok /usr/share/tool.extra
";

fn rpm(program: &str, arguments: &[&str]) -> Output {
    let programs = std::env::var_os("HOLDFAST_RPM").expect("HOLDFAST_RPM names the directory with rpm");
    Command::new(PathBuf::from(programs).join(program)).args(arguments).output().unwrap()
}

fn done(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A root with these files and the database of the package that has them.
fn installed() -> World {
    let world = World::new();
    for (path, content, mode) in [
        ("usr/bin/tool", "tool\n", 0o755),
        ("usr/bin/other", "other\n", 0o755),
        ("usr/share/doc/a", "doc\n", 0o644),
        ("etc/tool.conf", "a=1\n", 0o644),
        ("etc/tool.state", "of this host\n", 0o600),
        ("etc/tool.local", "", 0o644),
        ("usr/share/tool.extra", "extra\n", 0o644),
    ] {
        world.write_host(path, content, mode);
    }
    symlink("tool", world.at("root/usr/bin/link")).unwrap();
    install(&world, FILES);
    world
}

/// Makes a package of files of the root, and a database that has the package.
pub(crate) fn install(world: &World, files: &str) {
    fs::write(world.at("tool.spec"), format!("{SPEC}{files}")).unwrap();
    let (root, top) = (world.at("root").display().to_string(), world.at("top"));
    let define = format!("_topdir {}", top.display());
    let spec = world.at("tool.spec").display().to_string();
    done(&rpm("rpmbuild", &["-bb", "--buildroot", &root, "--define", &define, &spec]));
    // Root for rpm is the user that runs the test.
    let of = fs::metadata(world.at("root")).unwrap();
    world.write_host("etc/passwd", &format!("root:x:{}:{}::/:/bin/sh\n", of.uid(), of.gid()), 0o644);
    world.write_host("etc/group", &format!("root:x:{}:\n", of.gid()), 0o644);
    fs::create_dir_all(world.at("root/var/lib/rpm")).unwrap();
    let package = made(&top.join("RPMS")).display().to_string();
    done(&rpm("rpm", &["--root", &root, "--install", "--justdb", "--nodeps", &package]));
}

/// The only package below a directory.
fn made(directory: &Path) -> PathBuf {
    let of_processor = fs::read_dir(directory).unwrap().next().unwrap().unwrap().path();
    fs::read_dir(of_processor).unwrap().next().unwrap().unwrap().path()
}

fn verify(world: &World) -> (i32, Value) {
    let result = world.run(&["image", "verify", "--image", "packages", "ROOT", "STATE", "-o", "json"]);
    assert!(!result.out.is_empty(), "{result:?}");
    (result.code, result.json("image-verify"))
}

/// What `rpm -Va` finds.
fn found_by_rpm(world: &World) -> BTreeSet<String> {
    let output = rpm("rpm", &["--root", &world.at("root").display().to_string(), "-Va"]);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line[line.find('/').unwrap()..].trim_end().to_owned()).collect()
}

#[test]
#[ignore = "it needs rpm, which `cargo xtask test` fetches"]
fn what_differs_from_a_package_of_rpm_is_what_rpm_finds_and_is_blamed_on_the_package() {
    let world = installed();
    let result = world.run(&["image", "index", "--packages", "ROOT", "STATE"]);
    assert_eq!(result.code, 0, "{result:?}");
    assert!(result.out.contains("indexed 1 package of rpm"), "{}", result.out);
    let (code, report) = verify(&world);
    assert_eq!((code, &report["differing"]), (0, &serde_json::json!([])), "{report}");
    assert_eq!(found_by_rpm(&world), BTreeSet::new());
    fs::remove_file(world.at("root/etc/tool.local")).unwrap();
    fs::remove_file(world.at("root/usr/share/tool.extra")).unwrap();
    let (code, report) = verify(&world);
    assert_eq!((code, found_by_rpm(&world)), (0, BTreeSet::new()), "files that may be missing: {report}");
    world.write_host("usr/share/tool.extra", "changed\n", 0o644);
    world.write_host("usr/bin/tool", "evil\n", 0o755);
    fs::set_permissions(world.at("root/usr/bin/other"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::remove_file(world.at("root/usr/share/doc/a")).unwrap();
    fs::remove_file(world.at("root/usr/bin/link")).unwrap();
    symlink("other", world.at("root/usr/bin/link")).unwrap();
    world.write_host("etc/tool.conf", "a=2\n", 0o644);
    world.write_host("etc/tool.state", "changed\n", 0o600);
    let (code, report) = verify(&world);
    assert_eq!(code, 1);
    let all = report["differing"].as_array().unwrap();
    let found: BTreeSet<String> = all.iter().map(|path| path["path"].as_str().unwrap().to_owned()).collect();
    let expected = [
        "/etc/tool.conf",
        "/usr/bin/link",
        "/usr/bin/other",
        "/usr/bin/tool",
        "/usr/share/doc/a",
        "/usr/share/tool.extra",
    ];
    assert_eq!(found, expected.map(str::to_owned).into(), "{report:#}");
    assert_eq!(found, found_by_rpm(&world));
    for of in all {
        let package = &of["layer"]["package"];
        assert_eq!((&package["name"], &package["version"]), (&"tool".into(), &"1:2.0-3".into()), "{of}");
        assert_eq!(of["config"] == true, of["path"] == "/etc/tool.conf", "{of}");
    }
    let tool = all.iter().find(|of| of["path"] == "/usr/bin/tool").unwrap();
    assert_eq!(tool["strength"], "sha256 of a package");
}

#[test]
#[ignore = "it needs rpm, which `cargo xtask test` fetches"]
fn a_rule_watches_the_files_of_a_package_of_rpm_which_stands_above_a_baseline() {
    let world = installed();
    let result = world.run(&["image", "index", "--packages", "ROOT", "STATE"]);
    assert_eq!(result.code, 0, "{result:?}");
    world.write_host("etc/motd", "declared", 0o644);
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    policy(
        &world,
        "  - {path: /usr/bin/, image: true, action: degrade}\n  - {path: /etc/, image: true, action: observe}\n",
    );
    assert_eq!(check(&world), (0, Vec::new()));
    // Each host is expected to change the configuration file of a package.
    world.write_host("etc/tool.conf", "a=2\n", 0o644);
    fs::set_permissions(world.at("root/usr/bin/other"), fs::Permissions::from_mode(0o4755)).unwrap();
    world.write_host("usr/bin/tool", "evil\n", 0o755);
    let expected = (1, vec![of_package("/usr/bin/other", "mode"), of_package("/usr/bin/tool", "content")]);
    assert_eq!(check(&world), expected);
    // The SHA-256 and the mode that rpm has are those of the package, whatever an admin accepted later.
    index_baseline(&world, "/usr/bin");
    assert_eq!(check(&world), expected);
    world.write_host("usr/bin/tool", "tool\n", 0o755);
    fs::set_permissions(world.at("root/usr/bin/other"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(check(&world), (0, Vec::new()));
}

/// A drift from the package, as `check` shows it.
fn of_package(path: &str, kinds: &str) -> (String, String, String) {
    (path.to_owned(), format!("package tool 1:2.0-3 ({})", std::env::consts::ARCH), kinds.to_owned())
}
