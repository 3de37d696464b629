//! An encapsulated ostree commit: its files are hard links to objects, and their extended attributes are objects too.

use crate::{
    archive::Archive,
    layout::{Layer, LayoutMaker, Stored},
    ostree::booted_with,
    repository::attributes_object,
    watched::{check, policy},
    world::{CONFIG, World},
};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt as _};

/// `cap_net_raw+ep`.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const LABEL: &[u8] = b"system_u:object_r:bin_t:s0\0";
const OBJECTS: &str = "sysroot/ostree/repo/objects";

/// The path of an object with this digit.
fn object(digit: char, kind: &str) -> String {
    format!("{OBJECTS}/{}/{}.{kind}", digit.to_string().repeat(2), digit.to_string().repeat(62))
}

/// Adds an object, its attributes, and its path as a hard link, as ostree-ext writes a chunk.
fn encapsulated(
    archive: Archive,
    digit: char,
    path: &str,
    (content, mode): (&str, u32),
    xattrs: Option<&[(&str, &[u8])]>,
) -> Archive {
    let mut archive = archive;
    if let Some(xattrs) = xattrs {
        let attributes = format!("{OBJECTS}/0{digit}/{}.file-xattrs", digit.to_string().repeat(62));
        let link = object(digit, "file-xattrs-link");
        // The names of both are longer than the field of a header.
        archive = archive
            .pax("path", attributes.as_bytes())
            .entry(b'0', "object", 0o644, "", &attributes_object(xattrs))
            .pax("path", link.as_bytes())
            .pax("linkpath", attributes.as_bytes())
            .hard_link("link", "object");
    }
    let file = object(digit, "file");
    archive.entry(b'0', &file, mode, "", content.as_bytes()).entry(b'1', path, mode, &file, b"")
}

/// The base: two chunks with their packages; and a layer above it, which a line of a recipe made.
fn layers() -> [Layer; 3] {
    let label: (&str, &[u8]) = ("security.selinux", LABEL);
    let tools = Archive::new().directory("usr").directory("usr/bin").directory("etc");
    let tools = encapsulated(
        tools,
        'a',
        "usr/bin/ping",
        ("ping", 0o755),
        Some(&[("security.capability", &CAPABILITY), label]),
    );
    let tools = encapsulated(tools, 'b', "usr/bin/plain", ("plain", 0o755), Some(&[label]));
    let config = encapsulated(Archive::new(), 'c', "etc/app.conf", ("a=2\n", 0o644), None);
    let config = encapsulated(config, 'd', "etc/machine-id", ("uninitialized\n", 0o444), None);
    let above = Archive::new()
        .file("usr/bin/tool", "tool")
        .file("etc/tool.conf", "t=1\n")
        .file("usr/bin/.wh.plain", "");
    [
        Layer::new(&tools.end(), Stored::Gzip, "ostree export of commit 00")
            .with_components("iputils, filesystem"),
        Layer::new(&config.end(), Stored::Plain, "chunk").with_components("app,b,c,d,e"),
        Layer::new(&above.end(), Stored::Gzip, "RUN dnf install -y tool"),
    ]
}

/// A host that booted an ostree deployment of the image, and has the image's index.
fn booted() -> World {
    let (world, _) =
        booted_with(|repository| repository.commit("of the image", &[("usr/bin/tool", "tool", 0o644)]));
    fs::remove_dir_all(world.at("root/etc")).unwrap();
    fs::remove_dir_all(world.at("root/usr")).unwrap();
    fs::remove_file(world.at("root/bin")).unwrap();
    let image = LayoutMaker::one(&world.at("layout"), &layers());
    for (path, content, mode) in [
        ("usr/bin/ping", "ping", 0o755),
        ("usr/bin/tool", "tool", 0o644),
        ("usr/etc/app.conf", "a=2\n", 0o644),
        ("usr/etc/machine-id", "uninitialized\n", 0o444),
        ("usr/etc/tool.conf", "t=1\n", 0o644),
        ("etc/app.conf", "a=2\n", 0o644),
        ("etc/machine-id", "0123\n", 0o444),
        ("etc/tool.conf", "t=1\n", 0o644),
    ] {
        world.write_host(path, content, mode);
    }
    for directory in ["root/usr", "root/usr/bin", "root/usr/etc", "root/etc"] {
        fs::set_permissions(world.at(directory), fs::Permissions::from_mode(0o755)).unwrap();
    }
    world.set_capability("usr/bin/ping", &CAPABILITY);
    world.boot(&image);
    let result = world.run(&["image", "index", "LAYOUT", "STATE"]);
    assert_eq!(result.code, 0, "{result:?}");
    world
}

/// Verifies the host's files, without the repository and what each host has: the code, and each path with its differences.
fn verify(world: &World) -> (i32, Vec<(String, String)>, Value) {
    let result =
        world.run(&["image", "verify", "/usr", "/etc", "--unexpected", "ROOT", "STATE", "-o", "json"]);
    let report = result.json("image-verify");
    let differing = report["differing"].as_array().unwrap().iter().map(|one| {
        let kinds: Vec<&str> = one["differences"]
            .as_array()
            .unwrap()
            .iter()
            .map(|each| each["kind"].as_str().unwrap())
            .collect();
        (one["path"].as_str().unwrap().to_owned(), kinds.join(" "))
    });
    (result.code, differing.collect(), report)
}

#[test]
fn a_host_of_an_encapsulated_commit_is_as_its_image_with_usr_etc_and_attributes() {
    let world = booted();
    let (code, differing, report) = verify(&world);
    // Another root than the running one compares the files that each host writes, too.
    assert_eq!(
        (code, differing),
        (1, vec![("/etc/machine-id".to_owned(), "content".to_owned())]),
        "{report}"
    );
    assert_eq!(report["unexpected"], json!([]), "{report}");
    world.write_host("etc/machine-id", "uninitialized\n", 0o444);
    assert_eq!(verify(&world).0, 0);
}

#[test]
fn attributes_of_objects_are_compared() {
    let world = booted();
    world.write_host("etc/machine-id", "uninitialized\n", 0o444);
    world.remove_capability("usr/bin/ping");
    world.set_capability("usr/bin/tool", &CAPABILITY);
    let (code, differing, _) = verify(&world);
    let paths: Vec<(&str, &str)> =
        differing.iter().map(|(path, kinds)| (path.as_str(), kinds.as_str())).collect();
    assert_eq!((code, paths), (1, vec![("/usr/bin/ping", "xattr"), ("/usr/bin/tool", "xattr")]));
}

#[test]
fn below_the_commit_the_packages_of_the_chunk_are_blamed_and_above_it_the_line_of_the_recipe() {
    let world = booted();
    for path in ["usr/bin/ping", "usr/bin/tool", "etc/app.conf", "usr/etc/app.conf", "usr/etc/tool.conf"] {
        world.write_host(path, "evil", 0o644);
    }
    let (_, _, report) = verify(&world);
    let blamed = |path: &str| {
        let all = report["differing"].as_array().unwrap();
        let one = all.iter().find(|one| one["path"] == path).unwrap_or_else(|| panic!("{path}: {report}"));
        (one["layer"]["number"].clone(), one["layer"]["components"].clone(), one["layer"]["history"].clone())
    };
    let of_tools = json!(["iputils", "filesystem"]);
    let of_config = json!(["app", "b", "c", "d", "e"]);
    assert_eq!(blamed("/usr/bin/ping"), (1.into(), of_tools, "ostree export of commit 00".into()));
    assert_eq!(blamed("/etc/app.conf"), (2.into(), of_config, "chunk".into()));
    assert_eq!(blamed("/usr/etc/app.conf"), blamed("/etc/app.conf"));
    let of_line = (3.into(), Value::Null, "RUN dnf install -y tool".into());
    assert_eq!((blamed("/usr/bin/tool"), blamed("/usr/etc/tool.conf")), (of_line.clone(), of_line));
    let text = world.run(&["image", "verify", "/usr", "/etc", "ROOT", "STATE"]).out;
    for part in
        ["packages iputils, filesystem)", "packages app, b, c and 2 more)", ", RUN dnf install -y tool)"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = world.run(&["explain", "/usr/bin/ping", "HOST", "STATE", "LOG"]).out;
    assert!(
        text.contains("layer 1 of 3, sha256:") && text.contains("packages iputils, filesystem"),
        "{text}"
    );
}

#[test]
fn the_daemon_names_the_packages_of_the_chunk() {
    let world = booted();
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    world.write_host("etc/motd", "declared", 0o644);
    world.write_host("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644);
    policy(&world, "  - {path: /usr/, image: true, action: degrade}\n");
    assert_eq!(check(&world).0, 0);
    world.remove_capability("usr/bin/ping");
    world.write_host("usr/etc/app.conf", "a=evil\n", 0o644);
    let (_, drifted) = check(&world);
    let found: Vec<(&str, bool, &str)> = drifted
        .iter()
        .map(|(path, source, kind)| (path.as_str(), source.contains(", packages "), kind.as_str()))
        .collect();
    assert_eq!(found, [("/usr/bin/ping", true, "xattr"), ("/usr/etc/app.conf", true, "content")]);
}

#[test]
fn a_root_without_ostree_has_no_usr_etc_of_the_image() {
    let world = booted();
    world.write_host("etc/machine-id", "uninitialized\n", 0o444);
    fs::remove_dir_all(world.at("root/ostree")).unwrap();
    fs::remove_dir_all(world.at("root/usr/etc")).unwrap();
    let list = world.run(&["image", "list", "STATE", "-o", "json"]).json("image-list");
    let digest = list["images"][0]["digest"].as_str().unwrap().to_owned();
    let result = world.run(&["image", "verify", "/usr", "/etc", "--image", &digest, "ROOT", "STATE"]);
    assert_eq!(result.code, 0, "{result:?}");
}
