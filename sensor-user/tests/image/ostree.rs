//! The commit that an ostree host booted.

use crate::{
    archive::Archive,
    layout::{Layer, LayoutMaker, Stored},
    repository::Repository,
    watched::{check, policy},
    world::{CONFIG, World, two_layers},
};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

pub(crate) const FILES: [(&str, &str, u32); 5] = [
    ("usr/bin/tool", "tool", 0o755),
    ("usr/bin/other", "other", 0o4755),
    ("usr/etc/app.conf", "a=2\n", 0o644),
    ("usr/etc/subuid-", "", 0o644),
    ("usr/etc/machine-id", "uninitialized\n", 0o444),
];

/// A host that booted a commit with [`FILES`], and is as the commit has it.
fn booted() -> (World, Repository) {
    booted_with(|repository| repository.commit("version 2", &FILES))
}

/// The same with another commit of [`FILES`].
pub(crate) fn booted_with(commit: impl FnOnce(&Repository) -> String) -> (World, Repository) {
    let world = World::new();
    let repository = Repository::new(&world.at("root"));
    world.boot_commit(&commit(&repository));
    symlink("usr/bin", world.at("root/bin")).unwrap();
    for (path, content, mode) in FILES {
        world.write_host(path, content, mode);
        if let Some(name) = path.strip_prefix("usr/etc/") {
            world.write_host(&format!("etc/{name}"), content, mode);
        }
    }
    for directory in ["root/usr", "root/usr/bin", "root/usr/etc", "root/etc"] {
        fs::set_permissions(world.at(directory), fs::Permissions::from_mode(0o755)).unwrap();
    }
    (world, repository)
}

/// The same with its index.
pub(crate) fn indexed() -> (World, Repository) {
    let (world, repository) = booted();
    let result = world.run(&["image", "index", "--ostree", "ROOT", "STATE"]);
    assert_eq!(result.code, 0, "{result:?}");
    assert!(result.out.contains("(version 2)") && result.out.contains("13 paths"), "{}", result.out);
    (world, repository)
}

/// The exit code and the report of a verification.
pub(crate) fn verify(world: &World) -> (i32, Value) {
    let result = world.run(&["image", "verify", "--image", "ostree", "ROOT", "STATE", "-o", "json"]);
    (result.code, result.json("image-verify"))
}

fn differing(report: &Value) -> Vec<(&str, &str)> {
    let all = report["differing"].as_array().unwrap().iter();
    all.map(|one| (one["path"].as_str().unwrap(), one["differences"][0]["kind"].as_str().unwrap())).collect()
}

#[test]
fn a_change_of_usr_or_of_the_first_state_of_etc_differs_from_the_commit() {
    let (world, _) = indexed();
    let (code, report) = verify(&world);
    assert_eq!((code, &report["compared"]), (0, &13.into()), "{report}");
    // Each host has a machine-id and accounts of its own.
    world.write_host("etc/machine-id", "0123\n", 0o444);
    world.write_host("etc/subuid-", "alice:100000:65536\n", 0o644);
    world.write_host("usr/bin/tool", "evil", 0o755);
    world.write_host("usr/bin/other", "other", 0o755);
    world.write_host("etc/app.conf", "a=3\n", 0o644);
    let (code, report) = verify(&world);
    assert_eq!(code, 1);
    let expected = [("/etc/app.conf", "content"), ("/usr/bin/other", "mode"), ("/usr/bin/tool", "content")];
    assert_eq!(differing(&report), expected);
    let tool = &report["differing"][2];
    assert!(tool["layer"]["history"].as_str().unwrap().ends_with("(version 2)"), "{tool}");
    assert_eq!(
        (&tool["strength"], &report["differing"][0]["config"]),
        (&"sha256 of an ostree object".into(), &true.into())
    );
    let text = world.run(&["explain", "/usr/bin/tool", "HOST", "STATE", "LOG"]).out;
    assert!(text.contains("ostree commit: drifted") && text.contains("(version 2)"), "{text}");
    fs::remove_file(world.at("root/etc/machine-id")).unwrap();
    assert!(differing(&verify(&world).1).contains(&("/etc/machine-id", "missing")));
}

#[test]
fn repair_puts_back_what_the_deployment_ships_and_nothing_else() {
    let (world, _) = indexed();
    world.write_host("etc/motd", "declared", 0o644);
    world.write_host("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644);
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    world.write_host("etc/app.conf", "a=local\n", 0o600);
    let repair = |path: &str| world.run(&["repair", "--yes", path, "CONFIG", "HOST", "STATE"]);
    let result = repair("/etc/app.conf");
    assert_eq!(result.code, 0, "{result:?}");
    assert_eq!(fs::read_to_string(world.at("root/etc/app.conf")).unwrap(), "a=2\n");
    assert_eq!(fs::metadata(world.at("root/etc/app.conf")).unwrap().permissions().mode() & 0o7777, 0o644);
    // The shipped file was changed, too.
    world.write_host("etc/app.conf", "a=local\n", 0o644);
    world.write_host("usr/etc/app.conf", "a=evil\n", 0o644);
    let result = repair("/etc/app.conf");
    assert!(result.code == 1 && result.out.contains("does not ship"), "{result:?}");
    assert_eq!(fs::read_to_string(world.at("root/etc/app.conf")).unwrap(), "a=local\n");
    let result = repair("/etc/unknown");
    assert!(result.code == 2 && result.err.contains("/etc/unknown"), "{result:?}");
}

#[test]
fn repair_of_the_images_etc_puts_each_path_back_that_no_config_declares() {
    let (world, _) = indexed();
    world.write_host("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644);
    let with_declared = |path: &str| CONFIG.replace("/etc/motd", path);
    let repair = |config: &str| {
        fs::write(world.at("config.yaml"), config).unwrap();
        world.write_host("etc/app.conf", "a=local\n", 0o644);
        world.write_host("etc/machine-id", "0123\n", 0o444);
        world.write_host("etc/local.conf", "of the host\n", 0o644);
        let result = world.run(&["repair", "--yes", "--image-etc", "CONFIG", "HOST", "STATE"]);
        (result.code, fs::read_to_string(world.at("root/etc/app.conf")).unwrap(), result)
    };
    let (code, content, result) = repair(&with_declared("/etc/app.conf"));
    assert_eq!((code, content.as_str()), (0, "a=local\n"), "a config declares it: {result:?}");
    policy(&world, "  - {path: /etc/app.conf, action: ignore}\n");
    let ignored = world.run(&["repair", "--yes", "--image-etc", "CONFIG", "POLICY", "HOST", "STATE"]);
    let content = fs::read_to_string(world.at("root/etc/app.conf")).unwrap();
    assert_eq!(content, "a=local\n", "a config declares it, and a rule ignores its drift: {ignored:?}");
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    policy(&world, "  - {path: /etc/app.conf, image: true, action: ignore}\n");
    let ignored = world.run(&["repair", "--yes", "--image-etc", "CONFIG", "POLICY", "HOST", "STATE"]);
    let content = fs::read_to_string(world.at("root/etc/app.conf")).unwrap();
    assert_eq!(content, "a=local\n", "a rule takes what the image has there out: {ignored:?}");
    let (code, content, result) = repair(CONFIG);
    assert_eq!((code, content.as_str()), (0, "a=2\n"), "{result:?}");
    for (path, kept) in [("etc/machine-id", "0123\n"), ("etc/local.conf", "of the host\n")] {
        assert_eq!(fs::read_to_string(world.at("root").join(path)).unwrap(), kept);
    }
    fs::remove_file(world.at("state/images/ostree.index")).unwrap();
    let result = world.run(&["repair", "--yes", "--image-etc", "CONFIG", "HOST", "STATE"]);
    assert!(result.code == 2 && result.err.contains("the booted image has no index"), "{result:?}");
    fs::remove_dir_all(world.at("root/usr/etc")).unwrap();
    let result = world.run(&["repair", "--yes", "--image-etc", "CONFIG", "HOST", "STATE"]);
    assert!(result.code == 2 && result.err.contains("does not keep the /etc"), "{result:?}");
}

#[test]
fn repair_gives_a_file_whose_attributes_the_index_does_not_know_those_of_the_shipped_one() {
    let world = World::new();
    let archive = Archive::new()
        .entry(b'5', "./", 0o755, "", b"")
        .directory("sysroot")
        .directory("sysroot/ostree")
        .directory("sysroot/ostree/repo")
        .directory("sysroot/ostree/repo/objects")
        .directory("etc")
        .file("etc/app.conf", "a=2\n");
    let layer = Layer::new(&archive.end(), Stored::Gzip, "base");
    world.boot(&LayoutMaker::one(&world.at("layout"), &[layer]));
    assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE"]).code, 0);
    world.write_host("etc/motd", "declared", 0o644);
    world.write_host("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644);
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    world.write_host("usr/etc/app.conf", "a=2\n", 0o644);
    world.write_host("etc/app.conf", "a=local\n", 0o600);
    let (shipped, local) = (world.at("root/usr/etc/app.conf"), world.at("root/etc/app.conf"));
    let set = |path: &Path, name| setxattr(path, name, b"x", XattrFlags::empty()).unwrap();
    let has = |name| getxattr(&local, name, &mut [0; 8]).is_ok();
    set(&shipped, "user.shipped");
    set(&local, "user.local");
    let repair = || world.run(&["repair", "--yes", "/etc/app.conf", "CONFIG", "HOST", "STATE"]);
    let result = repair();
    assert_eq!(result.code, 0, "{result:?}");
    let mode = || fs::metadata(&local).unwrap().permissions().mode() & 0o7777;
    assert_eq!((fs::read_to_string(&local).unwrap().as_str(), mode()), ("a=2\n", 0o644));
    assert_eq!((has("user.shipped"), has("user.local")), (true, false));
    // A repair of the mode alone leaves the attributes alone.
    set(&local, "user.local");
    world.write_host("etc/app.conf", "a=2\n", 0o600);
    let result = repair();
    assert_eq!((result.code, mode()), (0, 0o644), "{result:?}");
    assert_eq!((has("user.shipped"), has("user.local")), (true, true));
    // The shipped file was changed, too.
    world.write_host("etc/app.conf", "a=local\n", 0o644);
    world.write_host("usr/etc/app.conf", "a=evil\n", 0o644);
    let result = repair();
    assert!(result.code == 1 && result.out.contains("does not ship"), "{result:?}");
    assert_eq!(fs::read_to_string(&local).unwrap(), "a=local\n");
}

#[test]
fn a_path_through_a_link_of_the_root_directory_is_that_of_the_commit() {
    let (world, _) = indexed();
    world.write_host("usr/bin/tool", "evil", 0o755);
    let verify = |path: &str| world.run(&["image", "verify", path, "--image", "ostree", "ROOT", "STATE"]);
    let result = verify("/bin/tool");
    assert!(result.code == 1 && result.out.contains("/usr/bin/tool"), "{result:?}");
    let nothing = verify("/bin/none");
    assert!(nothing.code == 2 && nothing.err.contains("nothing at /bin/none"), "{nothing:?}");
}

/// Writes into the object of `/usr/bin/tool`, and so into the file, which is the same inode on a host; and removes that of `app.conf`.
fn tamper(world: &World, repository: &Repository) {
    fs::write(repository.object("file", repository.file("tool", 0o755)), "evil").unwrap();
    world.write_host("usr/bin/tool", "evil", 0o755);
    fs::remove_file(repository.object("file", repository.file("a=2\n", 0o644))).unwrap();
}

#[test]
fn a_damaged_object_costs_no_other_path_and_its_own_path_is_compared_by_its_checksum() {
    let (world, repository) = booted();
    tamper(&world, &repository);
    let result = world.run(&["image", "index", "--ostree", "ROOT", "STATE"]);
    assert!(
        result.code == 1 && result.out.contains("13 paths") && !result.out.contains("evil"),
        "{result:?}"
    );
    for part in [
        "damaged /usr/bin/tool: ",
        "it does not have its checksum",
        "damaged /usr/etc/app.conf: ",
        "it is missing",
    ] {
        assert!(result.out.contains(part), "{part}: {}", result.out);
    }
    let list = world.run(&["image", "list", "STATE"]);
    assert!(list.code == 0 && list.out.contains("damaged /usr/bin/tool of ostree: "), "{list:?}");
    let list = world.run(&["image", "list", "STATE", "-o", "json"]).json("image-list");
    let damaged = &list["images"][0]["damaged"];
    let object = format!("ostree:{}", hex::encode(repository.file("tool", 0o755)));
    assert_eq!(
        (&damaged["count"], &damaged["first"][0]["object"]),
        (&2.into(), &object.as_str().into()),
        "{list}"
    );

    // `app.conf` is as in the commit at both of its paths, although the repository does not have it any more.
    let (code, report) = verify(&world);
    assert_eq!((code, &report["compared"]), (1, &13.into()), "{report}");
    assert_eq!(differing(&report), [("/usr/bin/tool", "content")]);
    let tool = &report["differing"][0];
    assert_eq!(
        (&tool["strength"], &tool["differences"][0]["expected"]),
        (&"checksum of an ostree object".into(), &object.as_str().into()),
    );
    let text = world.run(&["explain", "/usr/bin/tool", "HOST", "STATE", "LOG"]).out;
    assert!(text.contains("ostree commit: drifted") && text.contains(&object), "{text}");

    // The content of the commit is right again with the same index, and each part of the checksum counts.
    fs::remove_file(world.at("root/usr/bin/tool")).unwrap();
    world.write_host("usr/bin/tool", "tool", 0o755);
    assert_eq!(verify(&world).0, 0);
    fs::set_permissions(world.at("root/usr/bin/tool"), fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(differing(&verify(&world).1), [("/usr/bin/tool", "content")]);
    fs::set_permissions(world.at("root/usr/bin/tool"), fs::Permissions::from_mode(0o755)).unwrap();
    setxattr(world.at("root/usr/bin/tool"), "user.x", b"y", XattrFlags::empty()).unwrap();
    assert_eq!(differing(&verify(&world).1), [("/usr/bin/tool", "content")]);
    fs::remove_file(world.at("root/usr/bin/tool")).unwrap();
    assert_eq!(differing(&verify(&world).1), [("/usr/bin/tool", "missing")]);
    symlink("other", world.at("root/usr/bin/tool")).unwrap();
    assert_eq!(differing(&verify(&world).1), [("/usr/bin/tool", "content")]);
}

#[test]
fn a_policy_for_attestation_says_that_it_lacks_the_files_of_damaged_objects() {
    let (world, repository) = booted();
    tamper(&world, &repository);
    assert_eq!(world.run(&["image", "index", "--ostree", "ROOT", "STATE"]).code, 1);
    let image = LayoutMaker::one(&world.at("layout"), &two_layers());
    assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE"]).code, 0);
    let policy = |more: &[&str]| {
        let result = world.run(
            &[&["image", "policy", "--format", "ima", "--image", &image, "ROOT", "STATE"], more].concat(),
        );
        assert_eq!(result.code, 0, "{result:?}");
        result.err
    };
    assert!(!policy(&[]).contains("does not have some files"));
    let error = policy(&["--and", "ostree"]);
    assert!(error.contains("does not have some files") && error.contains("files=3"), "{error}");
}

#[test]
fn the_daemon_reports_the_path_of_a_damaged_object_until_the_content_of_the_commit_is_back() {
    let (world, repository) = booted();
    tamper(&world, &repository);
    assert_eq!(world.run(&["make-index", "HOST", "STATE"]).code, 0);
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    world.write_host("etc/motd", "declared", 0o644);
    world.write_host("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644);
    policy(
        &world,
        "  - {path: /usr/bin/, image: true, action: degrade}\n  - {path: /etc/app.conf, image: true, action: observe}\n",
    );
    let (code, drifted) = check(&world);
    let paths: Vec<_> = drifted.iter().map(|(path, _, kind)| (path.as_str(), kind.as_str())).collect();
    assert_eq!((code, paths), (1, vec![("/usr/bin/tool", "content")]));
    world.write_host("usr/bin/tool", "tool", 0o755);
    assert_eq!(check(&world).0, 0);
    world.write_host("etc/app.conf", "a=3\n", 0o644);
    assert_eq!(check(&world).1[0].0, "/etc/app.conf");
    // The deployment does not prove what the commit has there, so nothing is put back.
    let repaired = world.run(&["repair", "--yes", "/etc/app.conf", "CONFIG", "HOST", "STATE"]);
    assert!(repaired.code == 1 && repaired.out.contains("is damaged"), "{repaired:?}");
}

#[test]
fn a_damaged_directory_of_the_commit_is_refused_because_all_paths_below_are_unknown() {
    let (world, _) = booted();
    for object in walk(&world.at("root/ostree/repo/objects")) {
        if object.extension().is_some_and(|kind| kind == "dirtree") {
            fs::write(object, "changed").unwrap();
        }
    }
    let result = world.run(&["image", "index", "--ostree", "ROOT", "STATE"]);
    assert!(result.code == 3 && result.err.contains("does not have its checksum"), "{result:?}");
    assert!(!world.at("state/images/ostree.index").exists());
}

/// The files two levels below a directory.
fn walk(directory: &Path) -> Vec<PathBuf> {
    let names = |path: &Path| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    names(directory).flat_map(|below| names(&below)).collect()
}

#[test]
fn a_host_without_a_deployment_and_a_repository_of_another_mode_are_refused() {
    let (world, _) = booted();
    fs::write(world.at("root/ostree/repo/config"), "[core]\nmode=archive-z2\n").unwrap();
    let result = world.run(&["image", "index", "--ostree", "ROOT", "STATE"]);
    assert!(result.code == 2 && result.err.contains("archive-z2"), "{result:?}");
    fs::remove_dir_all(world.at("root/ostree/deploy")).unwrap();
    let result = world.run(&["image", "index", "--ostree", "ROOT", "STATE"]);
    assert!(result.code == 2 && result.err.contains("did not boot"), "{result:?}");
}

#[test]
fn the_index_of_another_commit_says_nothing() {
    let (world, repository) = indexed();
    let next = repository.commit("version 3", &FILES[..2]);
    world.boot_commit(&next);
    let result = world.run(&["image", "verify", "--image", "ostree", "ROOT", "STATE"]);
    assert!(result.code == 2 && result.err.contains("another ostree commit"), "{result:?}");
    world.write_host("usr/bin/tool", "evil", 0o755);
    let text = world.run(&["explain", "/usr/bin/tool", "HOST", "STATE", "LOG"]);
    // No index is left, and no config.
    assert!(text.code == 2 && text.err.contains("is not used"), "{text:?}");
}

#[test]
fn the_daemon_makes_the_index_of_the_booted_commit_unless_there_is_one() {
    let (world, repository) = booted_with(|repository| repository.commit("version 1", &FILES));
    let index = world.at("state/images/ostree.index");
    let inode = || fs::metadata(&index).ok().map(|file| file.ino());
    let renew = || {
        let made = world.run(&["make-index", "HOST", "STATE"]);
        assert_eq!(made.code, 0, "{made:?}");
        inode().expect("no index")
    };
    let first = renew();
    assert_eq!(renew(), first, "it is of the booted commit");
    fs::write(&index, "damaged").unwrap();
    renew();
    assert_eq!(verify(&world).0, 0, "the damaged one was made anew");
    world.boot_commit(&repository.commit("version 2", &FILES));
    renew();
    assert_eq!(verify(&world).0, 0, "it is of the commit that was booted then");
    let second = inode();
    world.boot(&LayoutMaker::one(&world.at("layout"), &two_layers()));
    assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE"]).code, 0);
    assert_eq!((world.run(&["make-index", "HOST", "STATE"]).code, inode()), (0, second), "its image has one");

    // The old one is left out.
    world.write_host("usr/bin/tool", "new tool", 0o755);
    world.write_host("etc/motd", "declared", 0o644);
    world.write_host("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644);
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    policy(&world, "  - {path: /usr/bin/, image: true, action: degrade}\n");
    assert_eq!(check(&world), (0, Vec::new()));
    fs::remove_dir_all(world.at("layout")).unwrap();
    world.boot(&LayoutMaker::one(&world.at("layout"), &two_layers()[..1]));
    assert_eq!(check(&world).0, 3, "neither of the two indexes is that of the booted image");
}

#[test]
fn the_index_of_an_image_is_not_that_of_a_commit_of_the_image_and_of_packages() {
    let world = World::new();
    let digest = LayoutMaker::one(&world.at("layout"), &two_layers());
    assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE"]).code, 0);
    let files = [
        ("usr/bin/tool", "replaced", 0o755),
        ("usr/bin/added", "of a package", 0o755),
        ("usr/etc/app.conf", "a=1\n", 0o644),
    ];
    for (path, content, mode) in files {
        world.write_host(path, content, mode);
    }
    world.write_host("etc/app.conf", "a=1\n", 0o644);
    world.write_host("etc/motd", "declared", 0o644);
    world.write_host("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644);
    symlink("usr/bin", world.at("root/bin")).unwrap();
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    policy(&world, "  - {path: /usr/bin/, image: true, action: degrade}\n");
    let repository = Repository::new(&world.at("root"));
    let boot = |texts: &[(&str, &str)]| {
        let commit = repository.commit_with("layered", texts, &files);
        world.boot_commit_by_tag(&commit, &format!("os.example/os@{digest}"));
    };
    let verify = || world.run(&["image", "verify", "/usr/bin", "ROOT", "STATE"]);
    let renew = || assert_eq!(world.run(&["make-index", "HOST", "STATE"]).code, 0);

    // The origin keeps the digest of the base.
    boot(&[]);
    assert_eq!(check(&world).0, 3);
    let refused = verify();
    assert!(refused.code == 2 && refused.err.contains("is that of the base image"), "{refused:?}");
    renew();
    assert_eq!(check(&world), (0, Vec::new()));
    assert_eq!(verify().code, 0, "{:?}", verify());

    // The image itself.
    fs::remove_file(world.at("state/images/ostree.index")).unwrap();
    boot(&[("ostree.manifest-digest", digest.as_str())]);
    renew();
    assert!(!world.at("state/images/ostree.index").exists());
    assert_eq!(check(&world).1[0].0, "/usr/bin/tool");
    assert_eq!(verify().code, 1);
}

#[test]
fn explain_calls_a_closed_directory_unknown_while_no_index_shows_whose_its_names_are() {
    let (world, _) = booted();
    policy(&world, "  - {path: /usr/lib/extra/, closed: true, action: degrade}\n");
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    world.write_host("usr/lib/extra/file", "", 0o644);
    let explain = || {
        let result = world.run(&[
            "explain",
            "/usr/lib/extra",
            "CONFIG",
            "POLICY",
            "HOST",
            "STATE",
            "LOG",
            "-o",
            "json",
        ]);
        (result.code, result.json("explain")["verdict"].clone())
    };
    assert_eq!(explain(), (3, "unknown".into()));
    assert_eq!(world.run(&["image", "index", "--ostree", "ROOT", "STATE"]).code, 0);
    assert_eq!(explain(), (1, "drifted".into()), "the image does not have it");
}
