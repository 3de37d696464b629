//! The shipped rules about closed directories, on a root as RHEL has it, and on whole Debians.
//!
//! `HOLDFAST_DEBIAN_ROOT` names a directory with a Debian, and with another one in `srv/other`. `cargo xtask test` sets it.

use crate::{rpm::install, world::World};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

const CONFIG: &str = "apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-nothing
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  config:
    ignition: {version: 3.4.0}
";
const WANTS: &str = "etc/systemd/system/multi-user.target.wants";
/// Files of the package systemd of RHEL, at paths where the shipped rules expect nothing otherwise.
const RC_LOCAL: &str = "/etc/rc.d/rc.local\n/etc/rc.local\n";

/// What the recipe of the guests' disks adds (`xtask/src/vm/images.rs`), and a file of the program that installs the Debians. The recipe also
/// masks units and generators, by links to `/dev/null`.
const ADDED: [&str; 4] = [
    "/etc/apt/apt.conf.d/99mmdebstrap",
    "/etc/ssh/sshd_config.d/guest.conf",
    "/etc/sudoers.d/alice",
    "/etc/systemd/system/holdfast-scenario.service",
];

/// What the recipe added below a root, in two of the directories that it fills.
fn added(root: &Path) -> BTreeSet<String> {
    let mut added: BTreeSet<String> = ADDED.map(str::to_owned).into();
    for directory in ["etc/systemd/system", "etc/systemd/system-generators"] {
        for entry in fs::read_dir(root.join(directory)).unwrap() {
            let entry = entry.unwrap();
            if fs::read_link(entry.path()).is_ok_and(|target| target == Path::new("/dev/null")) {
                added.insert(format!("/{directory}/{}", entry.file_name().to_str().unwrap()));
            }
        }
    }
    added
}

/// The undeclared names by the shipped rules.
fn undeclared(world: &World, root: &Path) -> (BTreeSet<String>, u64) {
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/drift/closed.yaml");
    let (root, policy) = (root.to_str().unwrap(), policy.to_str().unwrap());
    let options = ["--host-root", root, "--policy", policy, "-o", "json"];
    let result = world.run(&[&["check", "CONFIG", "STATE"], &options[..]].concat());
    let report = result.json("check");
    let nothing = serde_json::json!([]);
    assert_eq!((&report["unreadable"], &report["not_checked"]), (&nothing, &nothing), "{result:?}");
    let all = report["drifted"].as_array().unwrap().iter();
    let differences = all.flat_map(|thing| thing["differences"].as_array().unwrap());
    // The text has the path, also where a rule expects nothing at a path.
    let name = |difference: &serde_json::Value| {
        assert_eq!(difference["kind"], "unexpected", "{difference}");
        let text = difference["text"].as_str().unwrap();
        text.split('"').nth(1).unwrap().to_owned()
    };
    (differences.map(name).collect(), report["checked"].as_u64().unwrap())
}

/// A host as RHEL makes it: `/etc/init.d` and `/etc/rc.local` are links, a package owns the directory of the links of enabled units, and the
/// first boot enabled a unit. A config has one more.
fn red_hat() -> World {
    let world = World::new();
    let unit = "[Install]\nWantedBy=multi-user.target\n";
    for path in
        ["etc/rc.d/init.d/functions", "usr/lib/systemd/system/sshd.service", "etc/systemd/system/on.service"]
    {
        world.write_host(path, unit, 0o644);
    }
    let link = |target: &str, path: &str| {
        let path = world.at("root").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    };
    link("rc.d/init.d", "etc/init.d");
    world.write_host("etc/rc.d/rc.local", "#!/bin/sh\n", 0o644);
    link("rc.d/rc.local", "etc/rc.local");
    link("/usr/lib/systemd/system/sshd.service", &format!("{WANTS}/sshd.service"));
    link("/etc/systemd/system/on.service", &format!("{WANTS}/on.service"));
    let units = format!(
        "    systemd:\n      units:\n      - {{name: on.service, enabled: true, contents: {unit:?}}}\n"
    );
    fs::write(world.at("config.yaml"), CONFIG.to_owned() + &units).unwrap();
    world
}

/// Checks a host of [`red_hat`] whose packages have its files.
fn only_new_files_are_reported(world: &World) {
    let root = world.at("root");
    assert_eq!(undeclared(world, &root).0, BTreeSet::new());
    let new = [
        "/etc/ld.so.preload",
        "/etc/rc.d/init.d/new",
        "/etc/systemd/system/new.service",
        "/usr/lib/systemd/system/new.service",
        "/usr/lib/udev/rules.d/new.rules",
    ];
    for path in new {
        world.write_host(&path[1..], "", 0o755);
    }
    assert_eq!(undeclared(world, &root).0, new.map(str::to_owned).into());
}

#[test]
fn of_a_host_of_rhel_with_an_enabled_unit_the_shipped_rules_report_new_files_alone() {
    let world = red_hat();
    let list = format!(
        "/{WANTS}\n/etc/init.d\n/etc/rc.d/init.d/functions\n/usr/lib/systemd/system/sshd.service\n{RC_LOCAL}"
    );
    world.write_host("var/lib/dpkg/info/systemd.list", &list, 0o644);
    only_new_files_are_reported(&world);
}

#[test]
#[ignore = "it needs rpm, which `cargo xtask test` fetches"]
fn names_that_packages_of_rpm_only_own_are_declared_by_them() {
    let world = red_hat();
    let files = format!(
        "%ghost %dir /{WANTS}\n/etc/init.d\n/etc/rc.d/init.d/functions\n/usr/lib/systemd/system/sshd.service\n{RC_LOCAL}"
    );
    install(&world, &files);
    only_new_files_are_reported(&world);
}

#[test]
#[ignore = "it needs whole Debians, which `cargo xtask test` fetches"]
fn on_a_new_debian_the_shipped_rules_report_what_no_package_put_there_and_nothing_else() {
    let debian = PathBuf::from(std::env::var_os("HOLDFAST_DEBIAN_ROOT").expect("HOLDFAST_DEBIAN_ROOT"));
    for root in [debian.join("srv/other"), debian] {
        let world = World::new();
        // A config that declares the directory of the links of enabled units, as it is.
        let wants = fs::metadata(root.join(WANTS)).unwrap();
        let (mode, uid, gid) = (wants.permissions().mode() & 0o7777, wants.uid(), wants.gid());
        let directory = format!(
            "    storage:\n      directories:\n      - {{path: /{WANTS}, mode: {mode}, user: {{id: {uid}}}, group: {{id: {gid}}}}}\n"
        );
        fs::write(world.at("config.yaml"), CONFIG.to_owned() + &directory).unwrap();
        let (found, checked) = undeclared(&world, &root);
        assert_eq!(found, added(&root), "below {}", root.display());
        // Most of the directories exist there.
        assert!(checked > 30, "{checked}");
    }
}
