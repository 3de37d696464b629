//! The shipped rules about closed directories, on whole Debians.
//!
//! `HOLDFAST_DEBIAN_ROOT` names a directory with a Debian, and with another one in `srv/other`. `cargo xtask test` sets it.

use crate::world::World;
use std::{
    collections::BTreeSet,
    fs,
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

#[test]
#[ignore = "it needs whole Debians, which `cargo xtask test` fetches"]
fn on_a_new_debian_the_shipped_rules_report_what_no_package_put_there_and_nothing_else() {
    let debian = PathBuf::from(std::env::var_os("HOLDFAST_DEBIAN_ROOT").expect("HOLDFAST_DEBIAN_ROOT"));
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/drift/closed.yaml");
    for root in [debian.join("srv/other"), debian] {
        let world = World::new();
        fs::write(world.at("config.yaml"), CONFIG).unwrap();
        let (root, policy) = (root.to_str().unwrap(), policy.to_str().unwrap());
        let options = ["--host-root", root, "--policy", policy, "-o", "json"];
        let result = world.run(&[&["check", "CONFIG", "STATE"], &options[..]].concat());
        let report = result.json("check");
        let nothing = serde_json::json!([]);
        assert_eq!((&report["unreadable"], &report["not_checked"]), (&nothing, &nothing), "{result:?}");
        let all = report["drifted"].as_array().unwrap().iter();
        let differences = all.flat_map(|thing| thing["differences"].as_array().unwrap());
        let found: BTreeSet<String> = differences
            .map(|difference| {
                assert_eq!(difference["kind"], "unexpected", "{difference}");
                difference["found"].as_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(found, added(Path::new(root)), "below {root}");
        // Most of the directories exist there.
        assert!(report["checked"].as_u64().unwrap() > 30, "{report:#}");
    }
}
