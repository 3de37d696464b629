//! The rules of a drift policy about what the image has.

use crate::{
    archive::Archive,
    layout::{Layer, LayoutMaker, Stored},
    world::{CONFIG, RunResult, World},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

/// Writes a drift policy with these rules.
pub(crate) fn policy(world: &World, rules: &str) {
    let text = format!(
        "apiVersion: holdfast.dev/v1alpha1\nkind: DriftPolicy\nmetadata: {{name: test}}\nspec:\n  rules:\n{rules}"
    );
    fs::write(world.at("policy.yaml"), text).unwrap();
}

/// A host that booted the image of two layers, with a config that declares one of its paths, and rules about the image.
fn booted() -> World {
    let (world, digest) = World::in_sync();
    world.boot(&digest);
    world.write_host("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644);
    world.write_host("etc/motd", "declared", 0o644);
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    policy(
        &world,
        "  - {path: /usr/bin/, image: true, action: degrade}\n  - {path: /etc/, image: true, action: observe}\n  \
         - {path: /etc/app.conf, image: true, action: ignore}\n",
    );
    world
}

/// The exit code, and path, source and kinds of differences of each thing that drifted.
pub(crate) fn check(world: &World) -> (i32, Vec<(String, String, String)>) {
    let result = world.run(&["check", "CONFIG", "POLICY", "HOST", "STATE", "-o", "json"]);
    let report = result.json("check");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let drifted = report["drifted"].as_array().unwrap().iter().map(|thing| {
        let kinds = thing["differences"].as_array().unwrap().iter().map(|one| text(&one["kind"]));
        (text(&thing["path"]), text(&thing["source"]), kinds.collect::<Vec<_>>().join(" "))
    });
    (result.code, drifted.collect())
}

/// Checks the host. Nothing is known of these paths.
fn unknown(world: &World, paths: &[&str]) -> RunResult {
    let result = world.run(&["check", "CONFIG", "POLICY", "HOST", "STATE", "-o", "json"]);
    let report = result.json("check");
    let unreadable = report["unreadable"].as_array().unwrap().iter();
    let found: Vec<&str> = unreadable.map(|thing| thing["path"].as_str().unwrap()).collect();
    assert_eq!((result.code, &found[..]), (3, paths), "{report}");
    result
}

/// Indexes a baseline of a directory of the host.
pub(crate) fn index_baseline(world: &World, directory: &str) {
    let file = world.at("baseline.json");
    fs::write(&file, world.run(&["baseline", directory, "ROOT"]).out).unwrap();
    let indexed = world.run(&["image", "index", "--baseline", file.to_str().unwrap(), "STATE"]);
    assert_eq!(indexed.code, 0, "{indexed:?}");
}

#[test]
fn what_the_image_has_at_the_paths_of_rules_is_expected_and_its_layer_is_the_source() {
    let world = booted();
    assert_eq!(check(&world), (0, Vec::new()));
    world.write_host("usr/bin/tool", "evil", 0o755);
    // Not in a rule, ignored by a more precise one, and not of the image.
    world.write_host("etc/app.conf", "a=2\n", 0o644);
    world.write_host("usr/bin/other", "x", 0o755);
    let (code, drifted) = check(&world);
    let [(path, source, kinds)] = &drifted[..] else { panic!("{drifted:?}") };
    assert_eq!((code, path.as_str(), kinds.as_str()), (1, "/usr/bin/tool", "content"));
    assert!(
        source.starts_with("layer 2 of 2, sha256:") && source.ends_with("`RUN dnf install -y tool`"),
        "{source}"
    );
    let text = world.run(&["explain", "/usr/bin/tool", "CONFIG", "POLICY", "HOST", "STATE", "LOG"]).out;
    for part in ["declared by", "layer 2 of 2", "drift policy: degrade, by rule /usr/bin/"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let repaired = world.run(&["repair", "--yes", "/usr/bin/tool", "CONFIG", "POLICY", "HOST", "STATE"]);
    assert!(repaired.code == 1 && repaired.out.contains("no contents"), "{repaired:?}");
    assert_eq!(fs::read_to_string(world.at("root/usr/bin/tool")).unwrap(), "evil");
}

#[test]
fn a_config_takes_precedence_over_the_image_at_its_path() {
    let world = booted();
    // As the image has it, which is drift from the config.
    world.write_host("etc/motd", "hello\n", 0o644);
    let (code, drifted) = check(&world);
    assert_eq!((code, drifted[0].0.as_str(), drifted[0].1.as_str()), (1, "/etc/motd", "99-motd"));
}

#[test]
fn modes_owners_links_and_missing_files_are_compared_too() {
    let world = booted();
    fs::set_permissions(world.at("root/usr/bin/tool"), fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(check(&world).1[0].2, "mode");
    fs::remove_file(world.at("root/usr/bin/tool")).unwrap();
    assert_eq!(check(&world).1[0].2, "missing");
    symlink("/tmp/tool", world.at("root/usr/bin/tool")).unwrap();
    assert_eq!(check(&world).1[0].2, "type");
}

#[test]
fn capabilities_of_the_image_are_expected_and_others_are_drift() {
    let world = World::new();
    // cap_net_raw+ep, in the form of the kernel.
    let capability = b"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let archive = Archive::new()
        .entry(b'5', "./", 0o755, "", b"")
        .directory("usr")
        .directory("usr/bin")
        .pax("SCHILY.xattr.security.capability", capability)
        .entry(b'0', "usr/bin/ping", 0o755, "", b"ping");
    let layer = Layer::new(&archive.end(), Stored::Gzip, "RUN apt install ping");
    let digest = LayoutMaker::one(&world.at("layout"), &[layer]);
    assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE"]).code, 0);
    world.write_host("usr/bin/ping", "ping", 0o755);
    for directory in ["root", "root/usr", "root/usr/bin"] {
        fs::set_permissions(world.at(directory), fs::Permissions::from_mode(0o755)).unwrap();
    }
    world.boot(&digest);
    world.write_host("etc/motd", "declared", 0o644);
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    policy(&world, "  - {path: /usr/bin/ping, image: true, action: observe}\n");
    let (code, drifted) = check(&world);
    assert_eq!((code, drifted[0].2.as_str()), (1, "xattr"), "without the capability");
    let ping = world.at("root/usr/bin/ping");
    let set = |value: &[u8]| {
        rustix::fs::setxattr(&ping, "security.capability", value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    set(capability);
    assert_eq!(check(&world), (0, Vec::new()));
    let mut more = *capability;
    more[6] = 0x20;
    set(&more);
    assert_eq!(check(&world).1[0].2, "xattr", "with another capability");
}

#[test]
fn without_an_index_of_the_booted_image_the_paths_of_its_rules_are_unknown() {
    let world = booted();
    fs::remove_dir_all(world.at("state/images")).unwrap();
    let result = unknown(&world, &["/etc", "/usr/bin"]);
    assert!(result.err.contains("holdfast image index"), "{}", result.err);
}

#[test]
fn a_host_without_an_image_is_compared_with_its_baseline() {
    let world = World::new();
    world.write_host("opt/agent", "program", 0o755);
    world.write_host("etc/motd", "declared", 0o644);
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    index_baseline(&world, "/opt");
    policy(&world, "  - {path: '/opt/**', image: true, action: observe}\n");
    assert_eq!(check(&world), (0, Vec::new()));
    world.write_host("opt/agent", "other", 0o755);
    let (code, drifted) = check(&world);
    assert_eq!((code, drifted[0].0.as_str()), (1, "/opt/agent"));
    assert!(drifted[0].1.starts_with("baseline of 20"), "{drifted:?}");
}

#[test]
fn what_the_image_puts_in_var_is_the_hosts_but_what_a_baseline_has_there_is_expected() {
    let world = World::new();
    let archive = Archive::new()
        .entry(b'5', "./", 0o755, "", b"")
        .directory("usr")
        .entry(b'0', "usr/tool", 0o755, "", b"tool")
        .directory("var")
        .entry(b'0', "var/state", 0o644, "", b"as in the image");
    let layer = Layer::new(&archive.end(), Stored::Gzip, "COPY state /var/state");
    let digest = LayoutMaker::one(&world.at("layout"), &[layer]);
    assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE"]).code, 0);
    world.write_host("usr/tool", "tool", 0o755);
    world.write_host("var/state", "of the host", 0o644);
    world.write_host("etc/motd", "declared", 0o644);
    world.boot(&digest);
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    policy(
        &world,
        "  - {path: /usr/tool, image: true, action: observe}\n  - {path: /var/state, image: true, action: observe}\n",
    );
    assert_eq!(check(&world), (0, Vec::new()));
    index_baseline(&world, "/var/state");
    assert_eq!(check(&world), (0, Vec::new()));
    world.write_host("var/state", "another", 0o644);
    let (code, drifted) = check(&world);
    assert_eq!((code, drifted[0].0.as_str()), (1, "/var/state"), "{drifted:?}");
    assert!(drifted[0].1.starts_with("baseline of 20"), "{drifted:?}");
}

#[test]
fn a_file_of_the_booted_image_is_no_undeclared_name_in_a_closed_directory() {
    let world = booted();
    policy(&world, "  - {path: /etc/, closed: true, action: observe, except: [passwd]}\n");
    assert_eq!(check(&world), (0, Vec::new()));
    world.write_host("etc/new", "", 0o644);
    let (code, drifted) = check(&world);
    assert_eq!((code, drifted[0].2.as_str()), (1, "unexpected"), "{drifted:?}");
}

#[test]
fn without_the_index_of_the_booted_image_no_name_in_a_closed_directory_is_surely_undeclared() {
    let world = booted();
    policy(&world, "  - {path: /etc/, closed: true, action: observe, except: [passwd]}\n");
    let is_sure = || {
        let arguments = ["explain", "/etc", "CONFIG", "POLICY", "HOST", "STATE", "LOG", "-o", "json"];
        let things = world.run(&arguments).json("explain")["things"].clone();
        let closed =
            things.as_array().unwrap().iter().find(|thing| thing["thing"]["type"] == "closed-directory");
        closed.unwrap_or_else(|| panic!("{things:#}"))["source"].get("image_unindexed").is_none()
    };
    assert!(is_sure());
    fs::remove_dir_all(world.at("state/images")).unwrap();
    assert!(!is_sure(), "a file of the image looks undeclared");
    for of_image in ["run/ostree-booted", "proc/cmdline"] {
        fs::remove_file(world.at("root").join(of_image)).unwrap();
    }
    assert!(is_sure(), "a host of packages has none");
}

#[test]
fn an_index_that_is_missing_is_unknown_also_for_globs_and_for_directories_that_a_config_declares() {
    let world = booted();
    fs::remove_dir_all(world.at("state/images")).unwrap();
    let config = CONFIG.replace(
        "    storage:\n",
        "    storage:\n      directories:\n      - {path: /usr/bin, mode: 0755}\n",
    );
    fs::write(world.at("config.yaml"), config).unwrap();
    // Rules about declared things, and a more precise one that ignores a path, do not change that.
    policy(
        &world,
        "  - {path: /usr/bin/, image: true, action: degrade}\n  - {path: '/opt/**', image: true, action: degrade}\n  \
         - {path: /opt/, action: ignore}\n  - {path: /opt, image: true, action: ignore}\n",
    );
    unknown(&world, &["/opt", "/usr/bin"]);
}

#[test]
fn an_old_index_of_packages_does_not_keep_that_of_the_booted_image_from_use() {
    let world = booted();
    let status = "Package: a\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n";
    world.write_host("var/lib/dpkg/status", status, 0o644);
    world.write_host("var/lib/dpkg/info/a.list", "/.\n/opt\n", 0o644);
    let indexed = world.run(&["image", "index", "--packages", "ROOT", "STATE"]);
    assert_eq!(indexed.code, 0, "{indexed:?}");
    assert_eq!(check(&world), (0, Vec::new()));
    world.write_host("var/lib/dpkg/status", &status.replace("Version: 1", "Version: 2"), 0o644);
    assert_eq!(check(&world), (0, Vec::new()));
    for of_image in ["run/ostree-booted", "proc/cmdline"] {
        fs::remove_file(world.at("root").join(of_image)).unwrap();
    }
    unknown(&world, &["/etc", "/usr/bin"]);
}

#[test]
fn a_weaker_index_does_not_take_the_place_of_that_of_the_booted_image() {
    let world = booted();
    fs::remove_dir_all(world.at("state/images")).unwrap();
    index_baseline(&world, "/usr");
    let result = world.run(&["check", "CONFIG", "POLICY", "HOST", "STATE"]);
    assert_eq!(result.code, 3, "{result:?}");
    // Nor if the host does not say which image it booted.
    fs::remove_dir_all(world.at("root/ostree")).unwrap();
    assert_eq!(world.run(&["check", "CONFIG", "POLICY", "HOST", "STATE"]).code, 3);
}

#[test]
fn of_two_sources_the_image_takes_precedence_over_the_baseline() {
    let world = booted();
    world.write_host("usr/bin/tool", "changed before the baseline", 0o755);
    world.write_host("usr/bin/own", "own", 0o755);
    index_baseline(&world, "/usr/bin");
    world.write_host("usr/bin/own", "changed", 0o755);
    let drifted = check(&world).1;
    let sources: Vec<(&str, bool)> =
        drifted.iter().map(|(path, source, _)| (path.as_str(), source.starts_with("baseline"))).collect();
    assert_eq!(sources, [("/usr/bin/own", true), ("/usr/bin/tool", false)]);
}

#[test]
fn a_directory_that_no_layer_names_is_compared_with_a_weaker_source_that_knows_its_mode() {
    let world = World::new();
    let archive = Archive::new().entry(b'5', "./", 0o755, "", b"").directory("usr").entry(
        b'0',
        "usr/bin/tool",
        0o755,
        "",
        b"tool",
    );
    let digest = LayoutMaker::one(&world.at("layout"), &[Layer::new(&archive.end(), Stored::Gzip, "ADD /")]);
    assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE"]).code, 0);
    world.boot(&digest);
    world.write_host("usr/bin/tool", "tool", 0o755);
    world.write_host("etc/motd", "declared", 0o644);
    for directory in ["usr", "usr/bin"] {
        fs::set_permissions(world.at("root").join(directory), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    index_baseline(&world, "/usr/bin");
    policy(&world, "  - {path: /usr/, image: true, action: observe}\n");
    assert_eq!(check(&world), (0, Vec::new()));
    fs::set_permissions(world.at("root/usr/bin"), fs::Permissions::from_mode(0o777)).unwrap();
    let (code, drifted) = check(&world);
    assert_eq!((code, drifted[0].0.as_str(), drifted[0].2.as_str()), (1, "/usr/bin", "mode"));
    assert!(drifted[0].1.starts_with("baseline of 20"), "{drifted:?}");
}

#[test]
fn a_unit_that_a_config_disables_follows_the_config_and_not_the_link_of_the_image() {
    let world = World::new();
    let archive = Archive::new()
        .entry(b'5', "./", 0o755, "", b"")
        .directory("etc")
        .directory("etc/systemd")
        .directory("etc/systemd/system")
        .directory("etc/systemd/system/multi-user.target.wants")
        .symlink(
            "etc/systemd/system/multi-user.target.wants/tool.service",
            "/usr/lib/systemd/system/tool.service",
        )
        .symlink(
            "etc/systemd/system/multi-user.target.wants/other.service",
            "/usr/lib/systemd/system/other.service",
        )
        .file("etc/passwd", "root:x:0:0:of the image\n");
    let digest = LayoutMaker::one(&world.at("layout"), &[Layer::new(&archive.end(), Stored::Gzip, "ADD /")]);
    assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE"]).code, 0);
    world.boot(&digest);
    world.write_host("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644);
    fs::create_dir_all(world.at("root/etc/systemd/system/multi-user.target.wants")).unwrap();
    for directory in
        ["etc", "etc/systemd", "etc/systemd/system", "etc/systemd/system/multi-user.target.wants"]
    {
        fs::set_permissions(world.at("root").join(directory), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let config = CONFIG.split("    storage:").next().unwrap().to_owned()
        + "    systemd:\n      units:\n      - {name: tool.service, enabled: false}\n";
    fs::write(world.at("config.yaml"), config).unwrap();
    policy(&world, "  - {path: /etc/, image: true, action: observe}\n");
    let (code, drifted) = check(&world);
    let paths: Vec<&str> = drifted.iter().map(|(path, ..)| path.as_str()).collect();
    assert_eq!((code, &paths[..]), (1, &["/etc/systemd/system/multi-user.target.wants/other.service"][..]));
}

#[test]
fn a_config_with_a_certificate_overrules_the_trust_store_that_a_tool_of_the_host_makes_of_it() {
    let world = World::new();
    let store = "etc/pki/ca-trust/extracted";
    let directories = ["etc", "etc/pki", "etc/pki/ca-trust", store];
    let root = Archive::new().entry(b'5', "./", 0o755, "", b"");
    let archive = directories.iter().fold(root, |archive, directory| archive.directory(directory));
    let archive = archive.file(&format!("{store}/ca.pem"), "of the image\n");
    let digest = LayoutMaker::one(&world.at("layout"), &[Layer::new(&archive.end(), Stored::Gzip, "ADD /")]);
    assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE"]).code, 0);
    world.boot(&digest);
    let certificate = "etc/pki/ca-trust/source/anchors/own.crt";
    for path in ["etc/motd", certificate] {
        world.write_host(path, "declared", 0o644);
    }
    world.write_host(&format!("{store}/ca.pem"), "of the image and the config\n", 0o644);
    let set = |directory: &str, mode| {
        fs::set_permissions(world.at("root").join(directory), fs::Permissions::from_mode(mode)).unwrap();
    };
    for directory in directories {
        set(directory, 0o755);
    }
    policy(&world, "  - {path: /etc/, image: true, action: observe}\n");
    let drifted = |config: &str| {
        fs::write(world.at("config.yaml"), config).unwrap();
        check(&world).1.into_iter().map(|(path, ..)| path).collect::<Vec<_>>()
    };
    assert_eq!(drifted(CONFIG), [format!("/{store}/ca.pem")], "no config has a certificate");
    let config = CONFIG.replace("/etc/motd", &format!("/{certificate}"));
    assert_eq!(drifted(&config), [""; 0]);
    set(store, 0o777);
    assert_eq!(drifted(&config), [format!("/{store}")], "the tool leaves the directory itself alone");
}

/// A host that booted an image with these links and their directories in `/etc/systemd/system`, and none of them is there any more. Its config
/// disables `tool.service`.
fn without_links(links: &[(&str, &str)]) -> World {
    let world = World::new();
    let mut archive = Archive::new().entry(b'5', "./", 0o755, "", b"");
    for directory in ["etc", "etc/systemd", "etc/systemd/system"] {
        archive = archive.directory(directory);
    }
    let directories: BTreeSet<&str> =
        links.iter().filter_map(|(link, _)| Some(link.split_once('/')?.0)).collect();
    for directory in directories {
        archive = archive.directory(&format!("etc/systemd/system/{directory}"));
    }
    for (link, target) in links {
        archive = archive
            .symlink(&format!("etc/systemd/system/{link}"), &format!("/usr/lib/systemd/system/{target}"));
    }
    let digest = LayoutMaker::one(&world.at("layout"), &[Layer::new(&archive.end(), Stored::Gzip, "ADD /")]);
    assert_eq!(world.run(&["image", "index", "LAYOUT", "STATE"]).code, 0);
    world.boot(&digest);
    fs::create_dir_all(world.at("root/etc/systemd/system")).unwrap();
    for directory in ["etc", "etc/systemd", "etc/systemd/system"] {
        fs::set_permissions(world.at("root").join(directory), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let config = CONFIG.split("    storage:").next().unwrap().to_owned()
        + "    systemd:\n      units:\n      - {name: tool.service, enabled: false}\n      - {name: on.service, enabled: true}\n";
    fs::write(world.at("config.yaml"), config).unwrap();
    policy(&world, "  - {path: /etc/, image: true, action: observe}\n");
    world
}

#[test]
fn every_link_to_a_unit_that_a_config_disables_and_a_directory_of_such_links_alone_follow_the_config() {
    let world = without_links(&[
        ("dbus-org.example.Tool.service", "tool.service"),
        ("a.target.wants/tool.service", "tool.service"),
        ("b.target.requires/alias.service", "tool.service"),
        ("c.target.upholds/tool.service", "tool.service"),
        ("d.target.wants/tool.service", "tool.service"),
        ("d.target.wants/other.service", "other.service"),
        ("x.target.d/tool.service", "tool.service"),
        ("alias-of-on.service", "on.service"),
    ]);
    let (code, drifted) = check(&world);
    let paths: Vec<&str> =
        drifted.iter().map(|(path, ..)| path.strip_prefix("/etc/systemd/system/").unwrap()).collect();
    let missing = [
        "alias-of-on.service",
        "d.target.wants",
        "d.target.wants/other.service",
        "on.service",
        "x.target.d",
        "x.target.d/tool.service",
    ];
    assert_eq!((code, paths.into_iter().collect::<BTreeSet<_>>()), (1, missing.into()), "{drifted:?}");
}

#[test]
fn repair_of_everything_leaves_what_only_the_image_has() {
    let world = booted();
    world.write_host("usr/bin/tool", "local", 0o755);
    let result = world.run(&["repair", "--all", "--yes", "CONFIG", "POLICY", "HOST", "STATE"]);
    assert_eq!(result.code, 0, "{result:?}");
    assert_eq!(fs::read_to_string(world.at("root/usr/bin/tool")).unwrap(), "local");
}

#[test]
fn check_calls_an_undeclared_name_unknown_while_the_booted_image_has_no_index() {
    let world = booted();
    policy(&world, "  - {path: /etc/, closed: true, action: observe, except: [passwd]}\n");
    fs::remove_dir_all(world.at("state/images")).unwrap();
    let result = world.run(&["check", "CONFIG", "POLICY", "HOST", "STATE"]);
    assert_eq!(result.code, 3, "{result:?}");
    assert!(
        result.out.contains("unknown /etc ") && result.out.contains("`holdfast image index`"),
        "{result:?}"
    );
}
