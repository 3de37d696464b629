//! The disk of a host with SELinux: the Debian guest with Debian's policy, every file labelled by it.
//!
//! In: the cache. Out: an image whose files have their labels, so that a guest boots without a pass over all of them. It is
//! made once, as root. Guests write to it through snapshots that end with the guest.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use super::images;
use crate::apt::{GUEST_RELEASE, is_root};
use crate::cache::{Cache, CacheStamp};
use crate::run::{output, say};

/// The packages that the guest has beside those of the systemd guest: a policy and the programs that label.
const PACKAGES: &[&str] = &["selinux-policy-default", "policycoreutils", "selinux-utils"];
/// Increase the number when the recipe changes.
const RECIPE: &str = "1";
const SIZE: u64 = 1 << 30;
/// Labels everything below the root by the policy's own table. `-F` also replaces labels that the building machine set.
const LABEL: &str = "setfiles -F /etc/selinux/default/contexts/files/file_contexts /";

/// The disk's image.
pub(crate) fn root(cache: &Cache) -> Result<PathBuf> {
    const FOLDER: &str = "guest-selinux";
    let image = cache.path(FOLDER).join("root.ext4");
    let version = format!("{RECIPE} {} {}", images::recipe(GUEST_RELEASE), PACKAGES.join(" "));
    if cache.stamp(FOLDER).is_some_and(|stamp| stamp.version == version) {
        return Ok(image);
    }
    if !is_root()? {
        bail!("making the disk of the SELinux guest needs root, once\n    run: sudo cargo xtask setup");
    }
    let tools = images::tools(cache)?;
    say("images", "Debian with SELinux, labelled by its policy (about two minutes)");
    cache.make(FOLDER, |folder| {
        let root = folder.join("root");
        images::debootstrap(&tools, &root, GUEST_RELEASE, PACKAGES)?;
        images::prepare(&root)?;
        images::with_proc(&root, || {
            output(Command::new("chroot").arg(&root).args(["/bin/sh", "-ec", LABEL]))
        })?;
        images::ext4(&tools, &root, &folder.join("root.ext4"), SIZE, None)?;
        fs::remove_dir_all(&root)?;
        Ok(CacheStamp::of_version(&version))
    })?;
    Ok(image)
}
