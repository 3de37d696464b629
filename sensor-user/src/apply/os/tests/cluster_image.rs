//! The image that a cluster built for the node, as the files of the Machine Config Operator's daemon and of ostree name it.

use super::*;
use std::path::PathBuf;

/// A host that booted the old image, and the file in which the operator's daemon names the image that the cluster built.
fn world() -> (World, PathBuf) {
    let world = World::new(OsTool::Ostree, OLD, "rw");
    let built = world.folder.path().join("etc/machine-config-daemon/currentimage");
    fs::create_dir_all(built.parent().unwrap()).unwrap();
    (world, built)
}

#[test]
fn a_file_names_the_image_that_the_cluster_built() {
    let (world, built) = world();
    let observer = Observer::new(world.folder.path()).unwrap();
    for (text, image) in
        [("registry.local/built@sha256:2\n", Some("registry.local/built@sha256:2")), ("\n", None)]
    {
        fs::write(&built, text).unwrap();
        assert_eq!(booted(&observer).unwrap().cluster_image.as_deref(), image);
    }
}

#[test]
fn that_image_is_staged_if_a_staged_deployment_is_of_it() {
    let (world, built) = world();
    let observer = Observer::new(world.folder.path()).unwrap();
    fs::write(&built, "os/v2").unwrap();
    let is_staged = || booted(&observer).unwrap().cluster_image_is_staged;
    let staged = world.folder.path().join("run/ostree/staged-deployment");
    fs::create_dir_all(staged.parent().unwrap()).unwrap();
    fs::write(&staged, format!("merge-deployment\0{OLD}.0\0target\0{OLD}.7\0")).unwrap();
    assert!(!is_staged(), "no such deployment is there");
    let next = world.folder.path().join(format!("ostree/deploy/debian/deploy/{OLD}.7"));
    fs::create_dir(&next).unwrap();
    let origin = |branch: &str| {
        fs::write(next.with_extension("7.origin"), format!("[origin]\nrefspec={branch}\n")).unwrap();
    };
    origin("os/v3");
    assert!(!is_staged(), "another image is staged");
    origin("os/v2");
    assert!(is_staged());
    fs::remove_file(&staged).unwrap();
    assert!(!is_staged(), "it is there for another reason");
}

#[test]
fn on_a_composefs_root_that_image_is_staged_if_bootc_names_a_deployment_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("proc/1/mountinfo", "24 1 0:22 / / ro - overlay composefs:0a1b ro,lowerdir=/l::/data\n");
    write("etc/machine-config-daemon/currentimage", "os.example/os:2");
    for (deployment, image) in [("0a1b", "os.example/os:1"), ("2c3d", "os.example/os:2")] {
        let origin =
            format!("[origin]\ncontainer-image-reference=ostree-unverified-image:docker://{image}\n");
        write(&format!("sysroot/state/deploy/{deployment}/{deployment}.origin"), &origin);
    }
    let observer = Observer::new(folder.path()).unwrap();
    let is_staged = || booted(&observer).unwrap().cluster_image_is_staged;
    assert!(!is_staged(), "nothing is staged");
    // The present form, and that of older versions.
    for (text, expected) in [
        (r#"{"depl_id":"2c3d","finalization_locked":false}"#, true),
        ("2c3d", true),
        ("4e5f", false),
        ("0a1b", false),
    ] {
        write("run/composefs/staged-deployment", text);
        assert_eq!(is_staged(), expected, "{text}");
    }
}
