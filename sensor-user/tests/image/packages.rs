//! The packages of a host as an image: dpkg itself installs them here, and checks them too.

use crate::{
    watched::{check, policy},
    world::{CONFIG, World},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::Command,
};

fn dpkg(program: &str, arguments: &[&str], world: &World) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(world.at(""))
        // dpkg wants its helpers, which are in the directories of an admin.
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Builds and installs a package with these files, each with its own path as content.
pub(crate) fn install(world: &World, name: &str, files: &[&str], conffiles: &[&str]) {
    let tree = world.at(name);
    let control = tree.join("DEBIAN");
    fs::create_dir_all(&control).unwrap();
    let mut sums = String::new();
    for file in files.iter().chain(conffiles) {
        let path = tree.join(&file[1..]);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
        let sum = dpkg("md5sum", &[&format!("{name}{file}")], world);
        if !conffiles.contains(file) {
            writeln!(sums, "{}  {}", &sum[..32], &file[1..]).unwrap();
        }
    }
    symlink("target", tree.join(format!("usr/link-{name}"))).unwrap();
    fs::write(
        control.join("control"),
        format!("Package: {name}\nVersion: 1:2.0-1\nArchitecture: amd64\nMaintainer: a <a@example.org>\nDescription: test\n"),
    )
    .unwrap();
    fs::write(control.join("md5sums"), sums).unwrap();
    let list = [conffiles, &[""]].concat().join("\n");
    fs::write(control.join("conffiles"), list).unwrap();
    dpkg("dpkg-deb", &["--root-owner-group", "--build", name], world);
    let root = format!("--root={}", world.at("root").display());
    let options = ["--force-not-root", "--force-architecture", "--force-script-chrootless"];
    dpkg("dpkg", &[&[root.as_str()], &options[..], &["-i", &format!("{name}.deb")]].concat(), world);
}

pub(crate) fn installed() -> World {
    let world = World::new();
    for directory in ["root/var/lib/dpkg/info", "root/var/lib/dpkg/updates", "root/var/log"] {
        fs::create_dir_all(world.at(directory)).unwrap();
    }
    for file in ["status", "available"] {
        fs::write(world.at("root/var/lib/dpkg").join(file), "").unwrap();
    }
    // What the tool of the first package has is moved away for the second.
    fs::write(world.at("root/var/lib/dpkg/diversions"), "/usr/bin/shared\n/usr/bin/shared.first\nsecond\n")
        .unwrap();
    install(&world, "first", &["/usr/bin/tool", "/usr/bin/shared", "/usr/share/doc/a"], &["/etc/first.conf"]);
    world
}

fn verify(world: &World) -> (i32, Value) {
    let result = world.run(&["image", "verify", "--image", "packages", "ROOT", "STATE", "-o", "json"]);
    assert!(!result.out.is_empty(), "{result:?}");
    (result.code, result.json("image-verify"))
}

fn differing(report: &Value) -> BTreeSet<String> {
    let all = report["differing"].as_array().unwrap();
    all.iter().map(|path| path["path"].as_str().unwrap().to_owned()).collect()
}

/// What `dpkg --verify` finds.
fn found_by_dpkg(world: &World) -> BTreeSet<String> {
    let root = format!("--root={}", world.at("root").display());
    let output = Command::new("dpkg").args([&root, "--verify"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line[line.find('/').unwrap()..].trim_end().to_owned()).collect()
}

#[test]
fn what_differs_from_packages_is_what_dpkg_finds_and_diverted_files_and_is_blamed_on_the_package() {
    let world = installed();
    let result = world.run(&["image", "index", "--packages", "ROOT", "STATE"]);
    assert_eq!(result.code, 0, "{result:?}");
    assert!(result.out.contains("indexed 1 package of dpkg"), "{}", result.out);
    let (code, report) = verify(&world);
    assert_eq!((code, differing(&report)), (0, BTreeSet::new()), "{report}");
    assert_eq!(found_by_dpkg(&world), BTreeSet::new());
    world.write_host("usr/bin/tool", "evil", 0o755);
    world.write_host("usr/bin/shared", "of the second package", 0o755);
    world.write_host("usr/bin/shared.first", "changed", 0o755);
    world.write_host("etc/first.conf", "changed by an admin", 0o644);
    fs::remove_file(world.at("root/usr/share/doc/a")).unwrap();
    let (code, report) = verify(&world);
    assert_eq!(code, 1);
    let mut found = differing(&report);
    // dpkg 1.21 does not check files of a diversion.
    assert!(found.remove("/usr/bin/shared.first") && !found.contains("/usr/bin/shared"), "{found:?}");
    assert_eq!(found, found_by_dpkg(&world), "{report:#}");
    let of = |path: &str| {
        let all = report["differing"].as_array().unwrap();
        all.iter().find(|found| found["path"] == path).unwrap().clone()
    };
    let tool = of("/usr/bin/tool");
    assert_eq!(tool["layer"]["package"]["name"], "first");
    assert_eq!(tool["layer"]["package"]["version"], "1:2.0-1");
    assert_eq!(tool["strength"], "md5 of a package");
    assert_eq!(of("/etc/first.conf")["config"], true);
}

#[test]
fn explain_names_the_package_and_its_version_and_shows_no_content() {
    let world = installed();
    assert_eq!(world.run(&["image", "index", "--packages", "ROOT", "STATE"]).code, 0);
    let explain = |path: &str| world.run(&["explain", path, "HOST", "STATE", "LOG"]);
    let result = explain("/usr/bin/tool");
    assert_eq!(result.code, 0, "{result:?}");
    world.write_host("usr/bin/tool", "evil", 0o755);
    let result = explain("/usr/bin/tool");
    assert_eq!(result.code, 1, "{result:?}");
    for part in ["packages: drifted", "package first 1:2.0-1 (amd64)", "content mismatch", "md5 of a package"]
    {
        assert!(result.out.contains(part), "{part}: {}", result.out);
    }
    assert!(!result.out.contains("evil"), "{}", result.out);
    let result = world.run(&["explain", "/usr/bin/tool", "HOST", "STATE", "LOG", "-o", "json"]);
    let report = result.json("explain");
    assert_eq!(report["image"]["source"], "packages");
    symlink("usr/bin", world.at("root/bin")).unwrap();
    let by_link = explain("/bin/tool");
    assert!(
        by_link.out.contains("package first") && by_link.out.contains("/usr/bin/tool"),
        "{}",
        by_link.out
    );
    let other = explain("/usr/bin/other");
    assert!(other.out.contains("packages: none has this path"), "{}", other.out);
}

#[test]
fn names_that_no_package_has_are_unexpected_and_a_directory_of_two_packages_is_not() {
    let world = installed();
    install(&world, "second", &["/usr/bin/of-second"], &[]);
    assert_eq!(world.run(&["image", "index", "--packages", "ROOT", "STATE"]).code, 0);
    world.write_host("usr/bin/backdoor", "x", 0o755);
    let result = world.run(&[
        "image",
        "verify",
        "--image",
        "packages",
        "--unexpected",
        "/usr",
        "ROOT",
        "STATE",
        "-o",
        "json",
    ]);
    assert_eq!(result.code, 1, "{result:?}");
    assert_eq!(result.json("image-verify")["unexpected"], serde_json::json!(["/usr/bin/backdoor"]));
}

#[test]
fn a_program_of_a_package_in_sbin_is_found_where_it_is_if_sbin_is_a_link_to_bin() {
    let world = installed();
    symlink("bin", world.at("root/usr/sbin")).unwrap();
    symlink("usr/sbin", world.at("root/sbin")).unwrap();
    install(&world, "second", &["/usr/sbin/agent"], &[]);
    assert_eq!(fs::read_to_string(world.at("root/usr/bin/agent")).unwrap(), "/usr/sbin/agent");
    assert_eq!(world.run(&["image", "index", "--packages", "ROOT", "STATE"]).code, 0);
    let verify = ["image", "verify", "--image", "packages", "--unexpected", "/usr", "ROOT", "STATE"];
    let result = world.run(&verify);
    assert_eq!(result.code, 0, "{result:?}");
    for path in ["/usr/bin/agent", "/usr/sbin/agent", "/sbin/agent"] {
        let text = world.run(&["explain", path, "HOST", "STATE", "LOG"]).out;
        assert!(text.contains("package second") && text.contains("/usr/bin/agent"), "{text}");
    }
}

#[test]
fn an_index_that_is_older_than_the_packages_is_refused_and_says_what_to_do() {
    let world = installed();
    let result = world.run(&["image", "verify", "--image", "packages", "ROOT", "STATE"]);
    assert_eq!(result.code, 2, "{result:?}");
    assert!(result.err.contains("holdfast image index --packages"), "{}", result.err);
    assert_eq!(world.run(&["image", "index", "--packages", "ROOT", "STATE"]).code, 0);
    let before = world.run(&["image", "list", "STATE"]).out;
    assert!(before.contains("packages") && before.contains("1 package"), "{before}");
    install(&world, "second", &["/usr/bin/of-second"], &[]);
    let result = world.run(&["image", "verify", "--image", "packages", "ROOT", "STATE"]);
    assert_eq!(result.code, 2, "{result:?}");
    assert!(result.err.contains("packages changed"), "{}", result.err);
    let nothing = World::new();
    fs::create_dir_all(nothing.at("root")).unwrap();
    let result = nothing.run(&["image", "index", "--packages", "ROOT", "STATE"]);
    assert_eq!(result.code, 2, "{result:?}");
    assert!(result.err.contains("no database of packages") && !Path::new(&nothing.at("state")).exists());
}

#[test]
fn show_and_policy_take_the_root_of_the_index_and_errors_name_the_root_that_was_looked_at() {
    let world = installed();
    let index = || world.run(&["image", "index", "--packages", "ROOT", "STATE"]);
    assert_eq!(index().code, 0);
    let show = ["image", "show", "/usr/bin/tool", "--image", "packages", "STATE"];
    let at_root = [&show[..], &["ROOT"]].concat();
    let shown = world.run(&at_root);
    assert!(shown.code == 0 && shown.out.contains("package first"), "{shown:?}");
    let elsewhere = world.run(&show);
    assert!(elsewhere.code == 2 && elsewhere.err.contains("on the host at / since"), "{elsewhere:?}");
    assert!(elsewhere.err.contains("image index --packages`"), "{elsewhere:?}");

    // An index beside another one must be current, too.
    world.write_host("opt/tool", "tool", 0o755);
    let baseline = world.run(&["baseline", "/opt", "ROOT"]);
    fs::write(world.at("baseline.json"), baseline.out).unwrap();
    let file = world.at("baseline.json");
    assert_eq!(world.run(&["image", "index", "--baseline", file.to_str().unwrap(), "STATE"]).code, 0);
    let policy = ["image", "policy", "--format", "ima", "--image", "baseline", "--and", "packages", "STATE"];
    let with_root = [&policy[..], &["ROOT"]].concat();
    let both = world.run(&with_root);
    assert!(both.code == 0 && both.out.contains("/opt/tool"), "{both:?}");
    install(&world, "second", &["/usr/bin/other"], &[]);
    for old in [&at_root[..], &with_root[..]] {
        let refused = world.run(old);
        assert!(refused.code == 2 && refused.out.is_empty(), "{refused:?}");
        for part in ["on the host at WORLD/root since", "image index --packages --root WORLD/root`"] {
            assert!(refused.err.contains(part), "{part}: {refused:?}");
        }
    }
    assert_eq!(index().code, 0);
    assert_eq!(world.run(&with_root).code, 0);
}

/// A host of dpkg with a rule about what the packages have in `/usr/bin`.
fn ruled() -> World {
    let world = installed();
    world.write_host("etc/motd", "declared", 0o644);
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    policy(&world, "  - {path: /usr/bin/, image: true, action: degrade}\n");
    world
}

#[test]
fn a_rule_watches_content_mode_and_capabilities_of_a_program_of_dpkg_and_blames_its_package() {
    let world = ruled();
    assert_eq!(world.run(&["image", "index", "--packages", "ROOT", "STATE"]).code, 0);
    assert_eq!(check(&world), (0, Vec::new()));
    let drift = |path: &str, kinds: &str| {
        (1, vec![(path.to_owned(), "package first 1:2.0-1 (amd64)".to_owned(), kinds.to_owned())])
    };
    let tool = world.at("root/usr/bin/tool");
    let mode = fs::metadata(&tool).unwrap().permissions();
    fs::set_permissions(&tool, Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(check(&world), drift("/usr/bin/tool", "mode"));
    fs::set_permissions(&tool, mode).unwrap();
    // cap_net_raw+ep, in the form of the kernel.
    let capability = b"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    world.set_capability("usr/bin/tool", capability);
    assert_eq!(check(&world), drift("/usr/bin/tool", "xattr"));
    world.remove_capability("usr/bin/tool");
    assert_eq!(check(&world), (0, Vec::new()));
    // The package's file is where another package diverts it to.
    fs::write(world.at("root/usr/bin/shared.first"), "evil").unwrap();
    assert_eq!(check(&world), drift("/usr/bin/shared.first", "content"));
    let result = world.run(&["image", "verify", "--image", "packages", "ROOT", "STATE", "-o", "json"]);
    let found = &result.json("image-verify")["differing"][0];
    assert_eq!(found["differences"].as_array().unwrap().len(), 1, "one digest is compared: {found}");
    assert_eq!(found["strength"], "md5 of a package");
    let text = world.run(&["explain", "/usr/bin/tool", "HOST", "STATE", "LOG"]).out;
    assert!(text.contains("md5:") && text.contains("when the index was made sha256:"), "{text}");
}

#[test]
fn files_without_the_md5_of_their_package_are_named_when_the_index_is_made_and_found_by_a_comparison() {
    let world = ruled();
    world.write_host("usr/bin/tool", "evil", 0o755);
    let index =
        |more: &[&str]| world.run(&[&["image", "index", "--packages", "ROOT", "STATE"], more].concat());
    let text = index(&[]);
    for part in [
        "indexed 1 package of dpkg",
        "differs /usr/bin/tool (package first 1:2.0-1 (amd64)): it does not have the MD5 of its package",
        "1 file of packages without the MD5",
        "cannot watch 1",
    ] {
        assert!(text.code == 0 && text.out.contains(part), "{part}: {text:?}");
    }
    assert!(text.err.contains("/usr/bin/tool: it does not have the MD5"), "{}", text.err);
    let report = index(&["-o", "json"]).json("image-index");
    let unmatched = &report["unmatched"];
    assert_eq!((&unmatched["count"], &unmatched["kept"]), (&1.into(), &0.into()), "{report:#}");
    assert_eq!(unmatched["first"][0]["path"], "/usr/bin/tool");
    assert_eq!(check(&world), (0, Vec::new()), "nothing watches it");
    let (code, report) = verify(&world);
    assert_eq!((code, differing(&report)), (1, BTreeSet::from(["/usr/bin/tool".to_owned()])));
    // An index of the restored file has it watched, also after a later change.
    world.write_host("usr/bin/tool", "/usr/bin/tool", 0o755);
    assert!(index(&["-o", "json"]).json("image-index")["unmatched"].is_null());
    world.write_host("usr/bin/tool", "evil", 0o755);
    let report = index(&["-o", "json"]).json("image-index");
    assert_eq!(
        (&report["unmatched"]["kept"], &report["unmatched"]["first"][0]["kept"]),
        (&1.into(), &true.into())
    );
    assert_eq!(check(&world).1[0].0, "/usr/bin/tool", "a new index ends no drift of a content");
}
