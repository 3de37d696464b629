//! What is mounted over a hierarchy of the OS, and the index of merged extensions.

use crate::{
    archive::Archive,
    layout::{Layer, LayoutMaker, Stored},
    world::{CONFIG, World},
};
use holdfast::image::Images;
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

const DISK: &str = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
const UNLOCKED: &str = "31 20 0:50 / /usr rw,relatime - overlay overlay rw,lowerdir=usr,upperdir=/proc/self/fd/7/upper,workdir=w\n";
const MERGED: &str = "31 20 0:50 / /usr ro,nodev - overlay sysext ro,lowerdir=/run/a/usr:/usr\n";

/// Sets the mount table of the host's first process.
fn mounted(world: &World, mounts: &str) {
    world.write_host("proc/1/mountinfo", &format!("{DISK}{mounts}"), 0o444);
}

/// Merges these extensions over `/usr`, as systemd shows it.
fn merge(world: &World, names: &str) {
    mounted(world, MERGED);
    world.write_host("usr/.systemd-sysext/extensions", names, 0o644);
}

/// A host that booted an image of two layers, with rules about it.
fn booted() -> (World, String) {
    let (world, digest) = World::in_sync();
    world.boot(&digest);
    world.write_host("etc/motd", "declared", 0o644);
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    fs::write(
        world.at("policy.yaml"),
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {name: test}\nspec:\n  rules:\n  \
         - {path: /usr/bin/, image: true, action: degrade}\n",
    )
    .unwrap();
    mounted(&world, "");
    (world, digest)
}

/// The same with an extension `a`, which has a tool of its own and another one, and is merged.
pub(crate) fn extended() -> (World, String) {
    let (world, digest) = booted();
    for (path, content) in [("tool", "tool of a"), ("other", "other of a")] {
        world.write_host(&format!("var/lib/extensions/a/usr/bin/{path}"), content, 0o755);
        world.write_host(&format!("usr/bin/{path}"), content, 0o755);
    }
    for directory in ["root/var/lib/extensions/a/usr", "root/var/lib/extensions/a/usr/bin"] {
        fs::set_permissions(world.at(directory), fs::Permissions::from_mode(0o755)).unwrap();
    }
    merge(&world, "a\n");
    (world, digest)
}

/// The exit code, and path, source and texts of the differences of each thing that drifted, and the paths of which nothing is known.
fn check(world: &World) -> (i32, Vec<(String, String, String)>, Vec<String>) {
    let result = world.run(&["check", "CONFIG", "POLICY", "HOST", "STATE", "-o", "json"]);
    let report = result.json("check");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let drifted = report["drifted"].as_array().unwrap().iter().map(|thing| {
        let texts = thing["differences"].as_array().unwrap().iter().map(|one| text(&one["text"]));
        (text(&thing["path"]), text(&thing["source"]), texts.collect::<Vec<_>>().join("; "))
    });
    let unreadable = report["unreadable"].as_array().unwrap().iter().map(|thing| text(&thing["path"]));
    (result.code, drifted.collect(), unreadable.collect())
}

#[test]
fn an_overlay_over_usr_is_one_difference_of_the_hierarchy() {
    let (world, digest) = booted();
    assert_eq!(check(&world).0, 0, "{:?}", check(&world));
    mounted(&world, UNLOCKED);
    let text = "/usr is writable until the next boot: an overlay by `ostree admin unlock` is mounted over it (development)";
    let over_usr = ("/usr".to_owned(), "hierarchy of the OS".to_owned(), text.to_owned());
    assert_eq!(check(&world), (1, vec![over_usr], Vec::new()));
    let verify = ["image", "verify", "ROOT", "STATE", "--image", &digest];
    let below_usr = [&verify[..], &["/usr"]].concat();
    let verified = world.run(&below_usr);
    assert_eq!(verified.code, 1, "{verified:?}");
    assert!(verified.out.starts_with(&format!("over /usr: {text}\n1 differ, 0 unknown: ")), "{verified:?}");
    let below_another = world.run(&[&verify[..], &["/etc"]].concat());
    assert_eq!(below_another.code, 1, "the root and its config differ: {below_another:?}");
    assert!(!below_another.out.contains("over /usr"), "{below_another:?}");
    let report = world.run(&[&below_usr[..], &["-o", "json"]].concat()).json("image-verify");
    assert_eq!((&report["over"][0]["path"], &report["differing"]), (&"/usr".into(), &serde_json::json!([])));
    let explained = world.run(&["explain", "/usr/bin/tool", "CONFIG", "POLICY", "HOST", "STATE", "LOG"]);
    assert!(explained.out.contains("as declared"), "{explained:?}");
    assert!(explained.out.contains(&format!("over it: {text}")), "{explained:?}");
    let elsewhere = world.run(&["explain", "/etc/motd", "CONFIG", "POLICY", "HOST", "STATE", "LOG"]);
    assert!(!elsewhere.out.contains("over it"), "{elsewhere:?}");
    let repaired = world.run(&["repair", "--yes", "/usr", "CONFIG", "POLICY", "HOST", "STATE"]);
    assert!(repaired.code == 1 && repaired.out.contains("unmount it first"), "{repaired:?}");
}

#[test]
fn thousands_of_paths_below_an_overlay_are_a_few_lines_and_a_number() {
    let world = World::new();
    let mut archive = Archive::new().entry(b'5', "./", 0o755, "", b"").directory("usr").directory("usr/lib");
    for number in 0..30 {
        archive = archive.file(&format!("usr/lib/{number:02}"), "of the image");
    }
    let digest =
        LayoutMaker::one(&world.at("layout"), &[Layer::new(&archive.end(), Stored::Gzip, "ADD os /")]);
    assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE"]).code, 0);
    for number in 0..30 {
        world.write_host(&format!("usr/lib/{number:02}"), "live-applied", 0o644);
    }
    for directory in ["root", "root/usr", "root/usr/lib"] {
        fs::set_permissions(world.at(directory), fs::Permissions::from_mode(0o755)).unwrap();
    }
    mounted(&world, UNLOCKED);
    world.write_host("run/ostree/deployment-state/abc.0/rpmostree-is-live.stamp", "", 0o644);
    let verified = world.run(&["image", "verify", "ROOT", "STATE", "--image", &digest]);
    let lines = |word: &str| verified.out.lines().filter(|line| line.starts_with(word)).count();
    assert_eq!((lines("over /usr: "), lines("differs ")), (2, 10), "{verified:?}");
    assert!(verified.out.contains("(`rpm-ostree apply-live`), until the next boot"), "{verified:?}");
    assert!(verified.out.contains("and 20 paths more below /usr"), "{verified:?}");
}

#[test]
fn a_stamp_of_apply_live_is_about_the_booted_deployment_alone() {
    let (world, digest) = booted();
    let is_live = || {
        let verified = world.run(&["image", "verify", "ROOT", "STATE", "--image", &digest]);
        verified.out.contains("`rpm-ostree apply-live`")
    };
    // A deployment from before a soft reboot.
    world.write_host("run/ostree/deployment-state/def.0/rpmostree-is-live.stamp", "", 0o644);
    assert!(!is_live());
    world.write_host("run/ostree/deployment-state/abc.0/rpmostree-is-live.stamp", "", 0o644);
    assert!(is_live());
}

#[test]
fn a_merged_extension_is_a_difference_until_it_has_an_index_which_then_names_it() {
    let (world, digest) = extended();
    let (code, drifted, _) = check(&world);
    let paths: Vec<&str> = drifted.iter().map(|(path, ..)| path.as_str()).collect();
    assert_eq!((code, &paths[..]), (1, &["/usr/bin/tool", "/usr"][..]), "{drifted:?}");
    assert_eq!(drifted[1].2, "system extensions are merged over /usr: \"a\"");

    let indexed = world.run(&["image", "index", "--extensions", "ROOT", "STATE"]);
    assert_eq!(indexed.code, 0, "{indexed:?}");
    assert!(indexed.out.starts_with("indexed 1 merged extension: 3 paths\n  extension a (sysext)\n"));
    assert_eq!(check(&world), (0, Vec::new(), Vec::new()));
    let verified = world.run(&["image", "verify", "ROOT", "STATE", "--image", &digest, "/usr"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    assert!(verified.out.contains("not compared: 2 paths of merged extensions"), "{verified:?}");
    assert_eq!(world.run(&["image", "verify", "ROOT", "STATE", "--image", "extensions"]).code, 0);
    let of_extension = world.run(&["image", "verify", "ROOT", "STATE", "--image", &digest, "/usr/bin/tool"]);
    assert!(
        of_extension.code == 2 && of_extension.err.contains("--image extensions"),
        "it was not compared: {of_extension:?}"
    );

    world.write_host("usr/bin/other", "evil", 0o755);
    let (code, drifted, _) = check(&world);
    let [(path, source, _)] = &drifted[..] else { panic!("{drifted:?}") };
    assert_eq!((code, path.as_str(), source.as_str()), (1, "/usr/bin/other", "extension a (sysext)"));
    let explained = world.run(&["explain", "/usr/bin/tool", "CONFIG", "POLICY", "HOST", "STATE", "LOG"]);
    for part in ["extensions: as in the extension", "put there by", "sha256 of an extension"] {
        assert!(explained.out.contains(part), "{part}: {explained:?}");
    }
    let verified = world.run(&["image", "verify", "ROOT", "STATE", "--image", "extensions"]);
    assert_eq!(verified.code, 1);
    assert!(verified.out.starts_with("differs /usr/bin/other (extension a (sysext))\n"), "{verified:?}");
}

#[test]
fn an_unexpected_name_is_found_in_a_directory_that_an_extension_also_has_and_the_directory_of_the_merge_is_none()
 {
    let (world, digest) = extended();
    assert_eq!(world.run(&["image", "index", "--extensions", "ROOT", "STATE"]).code, 0);
    let verify = |image: &str| {
        world.run(&["image", "verify", "ROOT", "STATE", "--image", image, "--unexpected", "/usr/bin", "/usr"])
    };
    let unexpected = |image: &str| -> Vec<String> {
        let found = verify(image).out;
        found.lines().filter_map(|line| line.strip_prefix("unexpected ")).map(str::to_owned).collect()
    };
    let of_extensions = || {
        let found = world.run(&["image", "verify", "ROOT", "STATE", "--image", "extensions", "--unexpected"]);
        (found.code, found)
    };
    assert_eq!(verify(&digest).code, 0, "a clean host: {:?}", verify(&digest));
    assert_eq!(of_extensions().0, 0, "a clean host: {:?}", of_extensions());

    // Only while extensions are merged, and only at the place of their class.
    world.write_host("usr/.systemd-confext/x", "hidden", 0o644);
    world.write_host("usr/bin/.systemd-sysext", "hidden", 0o755);
    world.write_host("usr/bin/miner", "miner", 0o755);
    let in_bin = ["/usr/bin/.systemd-sysext", "/usr/bin/miner"];
    assert_eq!(unexpected(&digest), [&["/usr/.systemd-confext"][..], &in_bin].concat());
    let (code, found) = of_extensions();
    let expected = in_bin.map(|path| format!("unexpected {path}\n")).concat();
    assert!(code == 1 && found.out.starts_with(&expected), "{found:?}");
    mounted(&world, &MERGED.replace(" ro", " rw").replace("lowerdir", "upperdir=/u,workdir=/w,lowerdir"));
    assert!(unexpected(&digest).contains(&"/usr/.systemd-sysext".to_owned()), "others can write there");
    mounted(&world, "");
    assert!(unexpected(&digest).contains(&"/usr/.systemd-sysext".to_owned()), "{:?}", verify(&digest));

    // Without an index of the image nothing says which names are the image's.
    merge(&world, "a\n");
    fs::remove_file(world.at("state/images").join(format!("{}.index", &digest[7..]))).unwrap();
    let (code, refused) = of_extensions();
    assert!(code == 2 && refused.err.contains("leave out --unexpected"), "{refused:?}");
}

#[test]
fn an_index_of_other_extensions_is_old_and_the_merge_is_a_difference() {
    let (world, _) = extended();
    assert_eq!(world.run(&["image", "index", "--extensions", "ROOT", "STATE"]).code, 0);
    merge(&world, "a\nmallory\n");
    let (code, drifted, unknown) = check(&world);
    let over_usr = drifted.iter().find(|(path, ..)| path == "/usr").map(|(.., text)| text.as_str());
    assert_eq!(over_usr, Some("system extensions are merged over /usr: \"a\", \"mallory\""));
    assert_eq!((code, &unknown[..]), (3, &["/usr/bin".to_owned()][..]), "what the other one has is unknown");
    let refused = world.run(&["image", "verify", "ROOT", "STATE", "--image", "extensions"]);
    assert!(refused.code == 2 && refused.err.contains("other extensions are merged"), "{refused:?}");
    mounted(&world, "");
    let (_, drifted, _) = check(&world);
    let over_usr = drifted.iter().find(|(path, ..)| path == "/usr").map(|(.., text)| text.as_str());
    assert_eq!(over_usr, Some("extensions are not merged over /usr: \"a\""));
    // An index of no extension expects none.
    assert_eq!(world.run(&["image", "index", "--extensions", "ROOT", "STATE"]).code, 0);
    let (_, drifted, unknown) = check(&world);
    assert!(
        drifted.iter().all(|(path, ..)| path != "/usr") && unknown.is_empty(),
        "{drifted:?}, {unknown:?}"
    );
}

#[test]
fn a_disk_image_is_left_out_and_a_link_and_a_later_extension_are_not() {
    let (world, _) = extended();
    world.write_host("srv/b/usr/bin/tool", "tool of b", 0o755);
    fs::create_dir_all(world.at("root/etc/extensions")).unwrap();
    symlink("/srv/b", world.at("root/etc/extensions/b")).unwrap();
    world.write_host("var/lib/extensions/c.raw", "a disk", 0o644);
    world.write_host("var/lib/extensions/a/usr/share/x/y", "hidden", 0o644);
    world.write_host("srv/b/usr/share/x", "a file for the directory", 0o644);
    merge(&world, "a\nb\nc\nd\n");
    let indexed = world.run(&["image", "index", "--extensions", "ROOT", "STATE"]);
    assert_eq!(indexed.code, 0, "{indexed:?}");
    for part in [
        "left out extension c (sysext): the disk image /var/lib/extensions/c.raw can be read only on the running host",
        "left out extension d (sysext): it is not in /etc/extensions, /run/extensions",
    ] {
        assert!(indexed.out.contains(part), "{part}: {indexed:?}");
    }
    let verified = world.run(&["image", "verify", "ROOT", "STATE", "--image", "extensions", "/usr/bin/tool"]);
    assert!(verified.out.starts_with("differs /usr/bin/tool (extension b (sysext))\n"), "{verified:?}");
    let index = Images::of(&world.at("state")).open("extensions").unwrap();
    let has = |path: &str| index.find(path.as_bytes()).unwrap().is_some();
    assert!(has("/usr/share/x") && !has("/usr/share/x/y"), "the file hides the directory");
    let listed = world.run(&["image", "list", "STATE"]);
    assert!(listed.out.contains("extensions") && listed.out.contains("2 extensions"), "{listed:?}");
    let report = world.run(&["image", "index", "--extensions", "ROOT", "STATE", "-o", "json"]);
    let report = report.json("image-index");
    assert_eq!(
        (report["left_out"].as_array().unwrap().len(), &report["image"]["source"]),
        (2, &"extensions".into())
    );
}

#[test]
fn the_only_version_of_an_extension_is_read_and_several_are_left_out() {
    let (world, _) = booted();
    for extension in ["one.v/one_1", "two.v/two_1", "two.v/two_2"] {
        world.write_host(&format!("var/lib/extensions/{extension}/usr/bin/tool"), extension, 0o755);
    }
    world.write_host("var/lib/extensions/disk.raw.v/disk_1.raw", "a disk", 0o644);
    merge(&world, "one\ntwo\ndisk\n");
    let indexed = world.run(&["image", "index", "--extensions", "ROOT", "STATE"]);
    for part in [
        "indexed 1 merged extension: 2 paths\n  extension one (sysext)\n",
        "left out extension two (sysext): /var/lib/extensions/two.v has several versions",
        "left out extension disk (sysext): the disk image /var/lib/extensions/disk.raw.v/disk_1.raw can",
    ] {
        assert!(indexed.out.contains(part), "{part}: {indexed:?}");
    }
}

#[test]
fn configuration_extensions_are_indexed_below_etc_and_an_unpacked_root_has_none() {
    let (world, _) = booted();
    world.write_host("run/confexts/c/etc/app.conf", "a=3\n", 0o644);
    world.write_host("etc/.systemd-confext/confexts", "c\n", 0o644);
    mounted(&world, "32 20 0:51 / /etc ro - overlay confext ro,lowerdir=/run/c/etc:/etc\n");
    let indexed = world.run(&["image", "index", "--extensions", "ROOT", "STATE"]);
    assert!(
        indexed.out.starts_with("indexed 1 merged extension: 1 path\n  extension c (confext)\n"),
        "{indexed:?}"
    );
    fs::remove_file(world.at("root/proc/1/mountinfo")).unwrap();
    let refused = world.run(&["image", "index", "--extensions", "ROOT", "STATE"]);
    assert!(refused.code == 2 && refused.err.contains("index them on the running host"), "{refused:?}");
}
