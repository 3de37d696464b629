//! Which image a host booted: where bootc runs without ostree, and where a tag names the image.

use crate::{
    repository::Repository,
    world::{BOOT_LINK, RunResult, World},
};
use holdfast::{
    desired::{DaemonInputs, Desired, HostFacts as _, NamedSources, load},
    image::{Images, booted_image},
    observation::Observer,
};
use sensor_model::drift_policy::DriftPolicy;
use sensor_model::expectation::Expected;
use sensor_model::status::BootedImage;
use serde_json::json;
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
};

#[test]
fn the_image_that_bootc_booted_from_a_composefs_root_is_found_by_its_manifest_and_compared_with_the_config() {
    let (world, digest) = World::in_sync();
    world.write_host(
        "proc/1/mountinfo",
        "24 1 0:22 / / ro,relatime - overlay composefs:0a1b ro,lowerdir=/l::/data,redirect_dir=on,metacopy=on\n",
        0o444,
    );
    let origin = format!(
        "[origin]\ncontainer-image-reference=ostree-unverified-image:docker://os.example/os:1\n[image]\nmanifest_digest={digest}\n"
    );
    world.write_host("sysroot/state/deploy/0a1b/0a1b.origin", &origin, 0o644);
    // It is the image that is compared unless another one is named.
    let verify = || world.run(&["image", "verify", "/usr/bin", "ROOT", "STATE"]);
    assert_eq!(verify().code, 0, "{:?}", verify());
    world.write_host("usr/bin/tool", "changed!", 0o755);
    let changed = verify();
    assert!(changed.code == 1 && changed.out.contains("layer 2 of 2"), "{changed:?}");

    let same = check(&world, &digest);
    assert_eq!(same.code, 0, "{same:?}");
    let other = check(&world, &other_digest());
    assert!(other.code == 1 && other.out.contains("have \"os.example/os:1\""), "{other:?}");
}

/// Checks the host against a config that names the image by a digest.
fn check(world: &World, digest: &str) -> RunResult {
    let config = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": { "name": "a" },
        "spec": {
            "osImageURL": format!("os.example/os@{digest}"),
            "config": { "ignition": { "version": "3.4.0" } },
        },
    });
    fs::write(world.at("config.yaml"), config.to_string()).unwrap();
    world.run(&["check", "CONFIG", "HOST"])
}

fn other_digest() -> String {
    format!("sha256:{}", "ab".repeat(32))
}

#[test]
fn a_host_that_booted_a_tag_is_compared_by_the_digest_in_the_booted_commit() {
    let (world, _) = World::in_sync();
    let repository = Repository::new(&world.at("root"));
    let digest = format!("sha256:{}", "cd".repeat(32));
    let texts = [("ostree.manifest-digest", digest.as_str())];
    let commit = repository.commit_with("version 2", &texts, &[("usr/bin/tool", "new tool", 0o755)]);
    world.boot_commit_by_tag(&commit, "os.example/os:1");
    let same = check(&world, &digest);
    assert_eq!(same.code, 0, "{same:?}");
    let other = check(&world, &other_digest());
    assert!(other.code == 1 && other.out.contains("have \"os.example/os:1\""), "{other:?}");

    // A commit with other bytes than its checksum proves no digest.
    let object = repository.object("commit", hex::decode(&commit).unwrap().try_into().unwrap());
    let bytes = fs::read(&object).unwrap();
    fs::write(&object, [bytes, vec![0]].concat()).unwrap();
    let damaged = check(&world, &digest);
    assert!(damaged.code == 1 && damaged.out.contains("have \"os.example/os:1\""), "{damaged:?}");
}

#[test]
fn the_booted_image_has_the_name_and_the_digest_of_the_deployment() {
    let (world, digest) = World::in_sync();
    let images = Images::of(&world.at("state"));
    let booted = || booted_image(&Observer::new(&world.at("root")).unwrap(), &images);
    assert_eq!(booted(), None, "the host boots no images");
    world.boot(&digest);
    let name = Some(format!("os.example/os@{digest}"));
    assert_eq!(
        booted(),
        Some(BootedImage { name, digest: Some(digest), config: Some("rendered-0".to_owned()) })
    );
}

#[test]
fn the_booted_deployment_is_the_mounted_one_wherever_the_kernels_argument_leads() {
    let world = World::new();
    let other = world.deploy(&"b".repeat(64), "refspec=os/next");
    world.boot_commit(&"a".repeat(64));
    let booted = || booted_image(&Observer::new(&world.at("root")).unwrap(), &Images::of(&world.at("state")));
    let name = || booted().and_then(|booted| booted.name);
    let (before, next) = (Some("os/stable".to_owned()), Some("os/next".to_owned()));
    assert_eq!(name(), before);
    let table = |root: &str| {
        let etc = format!("31 30 253:4 {root} /etc rw - xfs /dev/vda4 rw\n");
        let table = format!("30 1 0:30 / / ro - overlay composefs ro,lowerdir+=/l,datadir+=/d\n{etc}");
        world.write_host("proc/1/mountinfo", &table, 0o444);
    };
    let link = world.at("root").join(BOOT_LINK);
    let target = fs::read_link(&link).unwrap();

    // A soft reboot into another deployment; and then, or without it, a rollback gives the links other names.
    table(&format!("/ostree/deploy/os/deploy/{}.0/etc", "b".repeat(64)));
    assert_eq!(name(), next);
    fs::remove_file(&link).unwrap();
    assert_eq!(name(), next);
    table("/ostree/deploy/os/deploy/none.0/etc");
    assert_eq!(booted(), None, "the mounted deployment and the link do not exist");

    // A transient `/etc` names no deployment. So ostree's note decides.
    table("/");
    let note = |inode: u64| {
        let device = fs::metadata(&other).unwrap().dev();
        let key = b"backing-root-device-inode\0".iter().copied().chain([0; 6]);
        let value = [device.to_ne_bytes(), inode.to_ne_bytes()].concat();
        let note: Vec<u8> = key.chain(value).chain(*b"\0(tt)\x1a\x36").collect();
        fs::write(world.at("root/run/ostree-booted"), note).unwrap();
    };
    note(fs::metadata(&other).unwrap().ino());
    assert_eq!(name(), next);
    symlink(target, &link).unwrap();
    assert_eq!(name(), next);
    note(0);
    assert_eq!(name(), before, "no deployment has this inode number");
}

#[test]
fn a_deployment_of_a_branch_has_no_digest() {
    let (world, _) = World::in_sync();
    world.boot_commit(&"0".repeat(64));
    let images = Images::of(&world.at("state"));
    let booted = booted_image(&Observer::new(&world.at("root")).unwrap(), &images);
    assert_eq!(booted, Some(BootedImage { name: Some("os/stable".to_owned()), digest: None, config: None }));
}

#[test]
fn an_image_that_lacks_files_of_the_config_that_it_was_built_from_is_a_difference_of_the_os_image() {
    let (world, digest) = World::in_sync();
    world.boot(&digest);
    let check = |name: &str, content: &str, path: &str, mode: u32| {
        let file = |path: &str, content: &str, mode: u32| json!({ "path": path, "mode": mode, "contents": { "source": format!("data:,{content}") } });
        let config = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": { "name": name },
            "spec": {
                "osImageURL": format!("os.example/os@{digest}"),
                "config": {
                    "ignition": { "version": "3.4.0" },
                    // The index has nothing of `/var`, and `/bin` is a link.
                    "storage": { "files": [
                        file("/etc/motd", content, mode), file(path, "a=1%0A", 0o644), file("/var/lib/x", "x", 0o644), file("/bin/x", "x", 0o644),
                    ] },
                },
            },
        });
        fs::write(world.at("config.yaml"), config.to_string()).unwrap();
        let report = world.run(&["check", "CONFIG", "HOST", "STATE", "-o", "json"]).json("check");
        let drifted = report["drifted"].as_array().unwrap().iter();
        let differences = drifted.flat_map(|thing| thing["differences"].as_array().unwrap());
        let of_image = differences.filter(|difference| difference["kind"] == "os-image");
        of_image.map(|difference| difference["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (same, app) = ("hello%0A", "/etc/app.conf");
    assert_eq!(check("rendered-0", same, app, 0o644), [""; 0]);
    for (content, path, mode, lacking) in [
        ("other", app, 0o644, "/etc/motd"),
        (same, app, 0o600, "/etc/motd"),
        (same, "/etc/new/app.conf", 0o644, "/etc/new/app.conf"),
        ("other", "/etc/new.conf", 0o644, "/etc/motd, /etc/new.conf"),
    ] {
        let [text] = &check("rendered-0", content, path, mode)[..] else { panic!("{lacking}") };
        assert!(text.contains("built from rendered-0") && text.ends_with(&format!(": {lacking}")), "{text}");
    }
    assert_eq!(check("rendered-1", "other", app, 0o644), [""; 0], "it was built from another config");
    fs::remove_dir_all(world.at("state")).unwrap();
    assert_eq!(check("rendered-0", "other", app, 0o644), [""; 0], "nothing is known of the image");
}

/// Without a rule about the image, and also if the index comes after the daemon.
#[test]
fn a_new_index_has_the_image_compared_with_its_config_again() {
    let (world, digest) = World::in_sync();
    world.boot(&digest);
    let config = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": { "name": "rendered-0" },
        "spec": {
            "osImageURL": format!("os.example/os@{digest}"),
            "config": {
                "ignition": { "version": "3.4.0" },
                "storage": { "files": [{ "path": "/etc/motd", "contents": { "source": "data:,other" } }] },
            },
        },
    });
    fs::write(world.at("config.yaml"), config.to_string()).unwrap();
    let state = world.at("state");
    let (indexes, away) = (state.join("images"), world.at("away"));
    fs::rename(&indexes, &away).unwrap();
    let observer = Observer::new(&world.at("root")).unwrap();
    let named = NamedSources {
        root: world.at("root"),
        state: Some(state.clone()),
        configs: vec![world.at("config.yaml")],
        policies: Vec::new(),
        allow_unknown: false,
    };
    let inputs = named.daemon_inputs(DaemonInputs::default(), |_| Vec::new());
    let lacking = |desired: &Desired| {
        desired.expectations.iter().find_map(|one| match &one.expected {
            Expected::OsImage(image) => image.not_carried.as_ref().map(|found| found.paths.clone()),
            _ => None,
        })
    };
    let version = || observer.directories_version(&DriftPolicy::default(), &state);
    let before = load(&inputs, &observer).unwrap();
    assert_eq!((lacking(&before), &before.built_from, version()), (None, &None, before.directories.clone()));
    fs::rename(&away, &indexes).unwrap();
    assert_ne!(
        version(),
        before.directories,
        "the daemon sees the index at its next beat, and reads the config again"
    );
    let after = load(&inputs, &observer).unwrap();
    assert_eq!(
        (lacking(&after), after.built_from.as_deref()),
        (Some(vec!["/etc/motd".to_owned()]), Some("rendered-0"))
    );
    assert_eq!(version(), after.directories);
}
