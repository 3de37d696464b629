use crate::{
    extensions::extended,
    ostree::{FILES, booted_with},
    world::{CONFIG, World},
};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

#[test]
fn a_changed_file_is_explained_by_its_layer_and_the_line_that_made_it() {
    let (world, digest) = World::in_sync();
    let explain =
        |path: &str| world.run(&["explain", path, "--image", &digest, "HOST", "STATE", "LOG", "-o", "json"]);
    let in_sync = explain("/usr/bin/tool");
    assert_eq!(in_sync.code, 0, "{in_sync:?}");
    world.write_host("usr/bin/tool", "evil", 0o755);
    let result = explain("/usr/bin/tool");
    assert_eq!(result.code, 1, "{result:?}");
    let report = result.json("explain");
    assert_eq!((&report["managed"], &report["verdict"]), (&false.into(), &"drifted".into()));
    let entry = &report["image"]["entry"];
    assert_eq!((&entry["layer"]["number"], &entry["layer"]["count"]), (&2.into(), &2.into()));
    assert_eq!(entry["layer"]["history"], "RUN dnf install -y tool");
    assert_eq!(entry["strength"], "sha256 of a layer");
    assert_eq!(entry["differences"][0]["kind"], "content");
    let text = world.run(&["explain", "/usr/bin/tool", "--image", &digest[..19], "HOST", "STATE", "LOG"]);
    for part in ["layer 2 of 2, sha256:", "RUN dnf install -y tool", "content mismatch", "sha256 of a layer"]
    {
        assert!(text.out.contains(part), "{part}: {}", text.out);
    }
    assert!(
        !text.out.contains("evil") && !text.out.contains("new tool"),
        "no content is shown: {}",
        text.out
    );
}

#[test]
fn a_path_through_a_link_is_that_of_the_image() {
    let (world, digest) = World::in_sync();
    let result =
        world.run(&["explain", "/bin/tool", "--image", &digest, "HOST", "STATE", "LOG", "-o", "json"]);
    assert_eq!(
        (result.code, &result.json("explain")["image"]["entry"]["path"]),
        (0, &"/usr/bin/tool".into())
    );
}

#[test]
fn what_a_config_declares_wins_over_the_image() {
    let (world, digest) = World::in_sync();
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    let explain = || {
        world.run(&[
            "explain",
            "/etc/motd",
            "--image",
            &digest,
            "HOST",
            "STATE",
            "LOG",
            "CONFIG",
            "-o",
            "json",
        ])
    };
    // The host has what the image has, and the config declares something else.
    assert_eq!(explain().code, 1);
    world.write_host("etc/motd", "declared", 0o644);
    let result = explain();
    let report = result.json("explain");
    let is_owned_by_root = nix::unistd::geteuid().is_root();
    assert_eq!(result.code, i32::from(!is_owned_by_root), "{report:#}");
    assert_eq!(report["image"]["overruled_by"], "99-motd");
    assert_eq!(report["image"]["entry"]["verdict"], "drifted");
    let text = world.run(&["explain", "/etc/motd", "--image", &digest, "HOST", "STATE", "LOG", "CONFIG"]).out;
    assert!(text.contains("differs from the image") && text.contains("99-motd declares applies"), "{text}");
}

#[test]
fn a_declared_file_that_cannot_be_read_is_unknown_and_not_drifted() {
    let world = World::new();
    fs::write(world.at("config.yaml"), CONFIG).unwrap();
    world.write_host("real/motd", "declared", 0o644);
    // Others than root can replace this link, so it is not followed.
    fs::set_permissions(world.at("root"), fs::Permissions::from_mode(0o777)).unwrap();
    symlink("real", world.at("root/etc")).unwrap();
    let explain = |more: &[&str]| {
        world.run(&[&["explain", "/etc/motd", "HOST", "STATE", "LOG", "CONFIG"][..], more].concat())
    };
    let result = explain(&["-o", "json"]);
    let report = result.json("explain");
    assert_eq!((result.code, &report["verdict"]), (3, &"unknown".into()), "{report:#}");
    assert_eq!(report["things"][0]["verdict"], "unknown");
    assert_eq!(report["things"][0]["differences"][0]["kind"], "unreadable");
    let text = explain(&[]).out;
    assert!(text.contains("/etc/motd: unknown") && !text.contains("drifted"), "{text}");
    assert_eq!(world.run(&["check", "CONFIG", "HOST", "STATE"]).code, 3, "as `check` says");
}

#[test]
fn a_host_with_an_image_and_no_config_is_explained_and_one_with_neither_is_not() {
    let (world, digest) = World::in_sync();
    let result = world.run(&["explain", "/etc/none", "--image", &digest, "HOST", "STATE", "LOG"]);
    assert_eq!(result.code, 0, "{result:?}");
    assert!(result.out.contains("it has nothing at this path"), "{result:?}");
    let result = world.run(&["explain", "/etc/none", "HOST", "STATE", "LOG"]);
    assert_eq!(result.code, 2);
    assert!(result.err.contains("no configuration found"), "{result:?}");
}

#[test]
fn a_scan_names_each_difference_and_the_layer_to_blame() {
    let (world, digest) = World::in_sync();
    let verify = |more: &[&str]| {
        let arguments = ["image", "verify", "--image", &digest, "ROOT", "STATE", "-o", "json"];
        world.run(&[&arguments[..], more].concat())
    };
    let result = verify(&["--unexpected"]);
    assert_eq!(result.code, 0, "{result:?}");
    assert_eq!(result.json("image-verify")["compared"], 8);
    world.write_host("usr/bin/tool", "new tooL", 0o755);
    world.write_host("usr/bin/backdoor", "x", 0o755);
    fs::remove_file(world.at("root/etc/app.conf")).unwrap();
    let result = verify(&["--unexpected"]);
    let report = result.json("image-verify");
    let kinds: Vec<_> = report["differing"]
        .as_array()
        .unwrap()
        .iter()
        .map(|path| {
            (
                path["path"].as_str().unwrap(),
                path["differences"][0]["kind"].as_str().unwrap(),
                path["layer"]["number"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(kinds, [("/etc/app.conf", "missing", 1), ("/usr/bin/tool", "content", 2)]);
    assert_eq!((result.code, &report["unexpected"]), (1, &serde_json::json!(["/usr/bin/backdoor"])));
    // Only what is named is compared, also through a link.
    let report = verify(&["/bin"]).json("image-verify");
    assert_eq!((&report["compared"], report["differing"].as_array().unwrap().len()), (&1.into(), 0));
    let report = verify(&["/usr/bin"]).json("image-verify");
    assert_eq!((&report["compared"], report["differing"].as_array().unwrap().len()), (&2.into(), 1));
    assert_eq!(verify(&["/none"]).code, 2);
}

#[test]
fn an_extension_decides_and_the_layer_below_it_is_shown_with_its_difference() {
    let (world, digest) = extended();
    assert_eq!(world.run(&["image", "index", "--extensions", "ROOT", "STATE"]).code, 0);
    let explain = |path, more: &[&str]| {
        world.run(&[&["explain", path, "CONFIG", "POLICY", "HOST", "STATE", "LOG"], more].concat())
    };
    let result = explain("/usr/bin/tool", &["-o", "json"]);
    let report = result.json("explain");
    assert_eq!((result.code, &report["image"]["source"]), (0, &json!("extensions")), "{report:#}");
    assert_eq!(report["image"]["overruled_by"], Value::Null);
    let [below] = &report["below"].as_array().unwrap()[..] else { panic!("{report:#}") };
    assert_eq!((&below["source"], &below["digest"]), (&json!("layers"), &json!(digest)));
    assert_eq!(
        (&below["overruled_by"], &below["entry"]["verdict"]),
        (&json!("extensions"), &json!("drifted"))
    );
    assert_eq!(below["entry"]["layer"]["history"], "RUN dnf install -y tool");
    let text = explain("/usr/bin/tool", &[]).out;
    for part in ["layer 2 of 2, sha256:", "the state of extensions applies, not that of the image"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The image does not have this path.
    assert_eq!(explain("/usr/bin/other", &["-o", "json"]).json("explain")["below"], Value::Null);
}

#[test]
fn a_path_of_etc_is_explained_by_what_the_image_ships_there_too() {
    let (world, _) = booted_with(|repository| repository.commit("version 2", &FILES));
    assert_eq!(world.run(&["image", "index", "--ostree", "ROOT", "STATE"]).code, 0);
    let explain = |path| {
        world.run(&["explain", path, "HOST", "STATE", "LOG", "-o", "json"]).json("explain")["pristine"]
            .clone()
    };
    let shipped = explain("/etc/app.conf");
    assert_eq!((&shipped["path"], &shipped["differences"]), (&json!("/usr/etc/app.conf"), &json!([])));
    let digest = shipped["found"]["sha256"].clone();
    assert!(digest.is_string(), "{shipped}");

    world.write_host("etc/app.conf", "a=3\n", 0o600);
    let changed = explain("/etc/app.conf");
    assert_eq!(
        (&changed["differences"], &changed["found"]["sha256"]),
        (&json!(["content", "mode"]), &digest),
        "{changed}"
    );
    let text = world.run(&["explain", "/etc/app.conf", "HOST", "STATE", "LOG"]).out;
    let line = "pristine /usr/etc/app.conf: the present object differs (content, mode)";
    assert!(text.contains(line) && text.contains("image ships"), "{text}");

    fs::remove_file(world.at("root/etc/app.conf")).unwrap();
    assert_eq!(explain("/etc/app.conf")["differences"], json!(["missing"]));
    world.write_host("etc/local.conf", "x", 0o644);
    let local = explain("/etc/local.conf");
    assert_eq!((&local["differences"], &local["found"]), (&json!(["unexpected"]), &Value::Null));
    for path in ["/usr/bin/tool", "/etc/nothing"] {
        assert_eq!(explain(path), Value::Null, "{path}");
    }
}
