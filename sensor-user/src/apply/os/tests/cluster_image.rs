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
