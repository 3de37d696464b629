//! What `plan` says about a config with another OS image.

use crate::{
    archive::Archive,
    layout::{Layer, LayoutMaker, Stored},
    world::World,
};
use holdfast::image::{ImageUpdate, Images, UnitPrograms, image_update, unit_programs};
use serde_json::json;
use std::{fs, os::unix::fs::symlink};

const BASE: &str = "ADD base";
const UPDATE: &str = "RUN dnf update";

/// Two indexed images with one layer in common; gives their digests.
fn two_images(world: &World) -> [String; 2] {
    let base = Archive::new()
        .symlink("bin", "usr/bin")
        .file("usr/bin/kubelet", "1")
        .file("usr/bin/tool", "1")
        .file("usr/lib/modules/6.1/vmlinuz", "1")
        .file("usr/lib64/libz.so.1", "1")
        .file("usr/lib/systemd/system/other.service", "1")
        .file("usr/share/gone", "1");
    let update = Archive::new()
        .file("usr/bin/kubelet", "2")
        .file("usr/bin/tool", "2")
        .file("usr/lib/modules/6.1/vmlinuz", "2")
        .file("usr/lib64/libz.so.1", "2")
        .file("usr/lib/systemd/system/other.service", "2")
        .file("usr/share/new", "2")
        .file("usr/share/.wh.gone", "");
    let layers = [(base, BASE), (update, UPDATE)]
        .map(|(archive, history)| Layer::new(&archive.end(), Stored::Gzip, history));
    let mut maker = LayoutMaker::new(&world.at("layout"));
    [&layers[..1], &layers[..]].map(|layers| {
        let manifest = maker.manifest(layers, "amd64");
        let digest = manifest["digest"].as_str().unwrap().to_owned();
        maker.name(manifest, &digest[7..20]);
        let result = world.run(&["image", "index", "LAYOUT", "STATE", "--digest", &digest]);
        assert_eq!(result.code, 0, "{result:?}");
        digest
    })
}

pub(crate) fn config(world: &World, name: &str, image: &str) -> String {
    let object = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": { "name": name },
        "spec": { "osImageURL": image, "config": { "ignition": { "version": "3.4.0" } } },
    });
    let path = world.at(&format!("{name}.json"));
    fs::write(&path, object.to_string()).unwrap();
    path.display().to_string()
}

#[test]
fn a_plan_counts_what_the_new_image_changes_by_effect_and_layer_and_names_units() {
    let world = World::new();
    let [old, new] = two_images(&world).map(|digest| format!("os.example/os@{digest}"));
    let (old, new) = (config(&world, "old", &old), config(&world, "new", &new));
    let result = world.run(&["plan", &old, &new, "STATE", "-o", "json"]);
    let image = &result.json("plan")["image"]["known"];
    let count = |name: &str| image[name].as_u64().unwrap();
    assert_eq!([count("added"), count("removed"), count("changed")], [1, 1, 5], "{image:#}");
    let effects = ["need_reboot", "libraries", "of_units", "files"].map(count);
    assert_eq!(effects, [1, 1, 1, 4], "{image:#}");
    let unit = json!({ "unit": "other.service", "paths": ["/usr/lib/systemd/system/other.service"] });
    assert_eq!(image["units"], json!([unit]));
    let layers: Vec<_> = image["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|layer| (&layer["history"], &layer["paths"]))
        .collect();
    assert_eq!(layers, [(&json!(UPDATE), &json!(6)), (&json!(BASE), &json!(1))]);

    let result = world.run(&["plan", &old, &new, "STATE"]);
    for line in
        ["1 added, 1 removed, 5 changed", "  1 need a reboot:", "  unit other.service: ", "RUN dnf update"]
    {
        assert!(result.out.contains(line), "{}", result.out);
    }
    let same = world.run(&["plan", &old, &old, "STATE", "-o", "json"]);
    assert!(same.json("plan").get("image").is_none(), "{same:?}");
}

#[test]
fn a_program_that_a_unit_starts_through_a_link_is_named_with_its_unit() {
    let world = World::new();
    let [old, new] = two_images(&world).map(|digest| format!("os.example/os@{digest}"));
    for (path, text) in [
        ("usr/lib/systemd/system/kubelet.service", "[Service]\nExecStart=-/bin/kubelet --x\n"),
        ("usr/lib/systemd/system/hidden.service", "[Service]\nExecStart=/usr/bin/tool\n"),
        ("usr/lib/systemd/system/no.txt", "ExecStart=/usr/bin/tool\n"),
        ("etc/systemd/system/extra.service.d/a.conf", "[Service]\nExecStartPost=/usr/bin/tool\n"),
    ] {
        world.write_host(path, text, 0o644);
    }
    fs::create_dir_all(world.at("root/etc/systemd/system")).unwrap();
    symlink("/dev/null", world.at("root/etc/systemd/system/hidden.service")).unwrap();
    let units = unit_programs(&world.at("root"));
    let images = Images::of(&world.at("state"));
    let ImageUpdate::Known(changes) = image_update(&images, Some(&old), &new, &units) else {
        panic!("both have an index")
    };
    let named: Vec<_> = changes.units.iter().map(|unit| (&*unit.unit, &*unit.paths[0])).collect();
    let other = ("other.service", "/usr/lib/systemd/system/other.service");
    let expected = [("extra.service", "/usr/bin/tool"), ("kubelet.service", "/usr/bin/kubelet"), other];
    assert_eq!(named, expected);
    assert_eq!((changes.of_units, changes.files), (3, 2));
}

#[test]
fn an_image_without_an_index_or_a_digest_gives_the_reason_and_the_plan_goes_on() {
    let world = World::new();
    let [old, _] = two_images(&world).map(|digest| format!("os.example/os@{digest}"));
    let missing = format!("os.example/os@sha256:{}", "ab".repeat(32));
    let images = Images::of(&world.at("state"));
    for (old, new, wanted) in [
        (Some(&*old), &*missing, "has no index"),
        (Some(&*old), "os.example/os:latest", "without a digest"),
        (None, &*old, "has no osImageURL"),
    ] {
        let ImageUpdate::Unknown(reason) = image_update(&images, old, new, &UnitPrograms::new()) else {
            panic!("{new} is known")
        };
        assert!(reason.contains(wanted), "{reason}");
    }
    let (old, new) = (config(&world, "old", &old), config(&world, "new", &missing));
    let result = world.run(&["plan", &old, &new, "STATE"]);
    assert!(
        result.out.contains("what the new OS image changes is not known") && result.out.contains("steps:"),
        "{result:?}"
    );
}
