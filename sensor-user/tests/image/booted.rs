//! Which image a host booted, where bootc runs without ostree.

use crate::world::World;
use holdfast::{
    image::{Images, booted_image},
    observation::Observer,
};
use sensor_model::status::BootedImage;
use serde_json::json;
use std::fs;

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

    let check = |image: String| {
        let config = json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": { "name": "a" },
            "spec": { "osImageURL": image, "config": { "ignition": { "version": "3.4.0" } } },
        });
        fs::write(world.at("config.yaml"), config.to_string()).unwrap();
        world.run(&["check", "CONFIG", "HOST"])
    };
    let same = check(format!("os.example/os@{digest}"));
    assert_eq!(same.code, 0, "{same:?}");
    let other = check(format!("os.example/os@sha256:{}", "ab".repeat(32)));
    assert!(other.code == 1 && other.out.contains("have \"os.example/os:1\""), "{other:?}");
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
fn a_deployment_of_a_branch_has_no_digest() {
    let (world, _) = World::in_sync();
    world.boot_commit(&"0".repeat(64));
    let images = Images::of(&world.at("state"));
    let booted = booted_image(&Observer::new(&world.at("root")).unwrap(), &images);
    assert_eq!(booted, Some(BootedImage { name: Some("os/stable".to_owned()), digest: None, config: None }));
}
