//! The image that a cluster built for the node takes the place of the config's.

use std::fs;

use anyhow::{Result, ensure};

use super::node::check;
use crate::guest::ostree::VERSIONS;
use crate::guest::run;

/// The directory of the Machine Config Operator's daemon.
const MCD: &str = "/etc/machine-config-daemon";

/// The node booted another one, which is a difference, and then that one.
pub(super) fn image() -> Result<String> {
    let file = named(VERSIONS[1].branch)?;
    let found =
        check(1, "have \"os/v1\": the cluster built the expected image for this node, and the node booted");
    fs::write(&file, VERSIONS[0].branch)?;
    check(0, "")?;
    fs::remove_file(file)?;
    found
}

/// Another one is no difference while it waits for the reboot, and is one again after an administrator dropped it.
pub(super) fn staged_image() -> Result<String> {
    let file = named(VERSIONS[1].branch)?;
    run("ostree", &["admin", "deploy", "--stage", VERSIONS[1].branch])?;
    check(0, "")?;
    let status = run("ostree", &["admin", "status"])?;
    ensure!(status.contains("(staged)"), "{status}");
    run("ostree", &["admin", "undeploy", "0"])?;
    check(1, "the cluster built the expected image for this node")?;
    fs::remove_file(file)?;
    Ok(status)
}

/// The file in which the Machine Config Operator's daemon names the image, with this one.
fn named(image: &str) -> Result<String> {
    fs::create_dir_all(MCD)?;
    let file = format!("{MCD}/currentimage");
    fs::write(&file, image)?;
    Ok(file)
}
