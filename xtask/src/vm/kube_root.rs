//! The disk of a Kubernetes node: the Debian guest with containerd, runc, the plugins of the pod network and kubelet.
//!
//! In: the cache, and the programs of Kubernetes. Out: an image whose services are not installed; the scenario configures
//! and starts them. It is made once, as root; guests write to it through snapshots that end with the guest.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use vm_tests::scenarios::Guest;

use super::images;
use crate::apt::{GUEST_RELEASE, NEWER_RELEASE, is_root};
use crate::cache::{Cache, CacheStamp};
use crate::kube::{KubeAssets, NEWEST};
use crate::run::{output, say};

/// What the guest has beside what the systemd guest has: the program that loads profiles of `AppArmor`.
const PACKAGES: &[&str] = &["apparmor", "libseccomp2"];
/// Counted up when the recipe changes.
const RECIPE: &str = "1";
/// The image is sparse.
const SIZE: u64 = 4 << 30;

/// The disk's image of a guest, with the programs of a release of Kubernetes.
pub(crate) fn root(cache: &Cache, assets: &KubeAssets, release: &str, guest: Guest) -> Result<PathBuf> {
    let suffix = if release == NEWEST { String::new() } else { format!("-{release}") };
    let name = format!("guest-{}{suffix}", guest.name());
    let debian = if guest == Guest::KubeTrixie { NEWER_RELEASE } else { GUEST_RELEASE };
    let image = cache.path(&name).join("root.ext4");
    let version = format!("{RECIPE} {} {} {release}", images::recipe(debian), PACKAGES.join(" "));
    if cache.stamp(&name).is_some_and(|stamp| stamp.version == version) {
        return Ok(image);
    }
    if !is_root()? {
        bail!("making the disk of the Kubernetes guest needs root, once\n    run: sudo cargo xtask setup");
    }
    let tools = images::tools(cache)?;
    say("images", "Debian with containerd and kubelet (about two minutes)");
    cache.make(&name, |folder| {
        let root = folder.join("root");
        images::debootstrap(&tools, &root, debian, PACKAGES)?;
        images::prepare(&root)?;
        // The packages keep their paths.
        output(Command::new("cp").arg("-a").arg(assets.node.join("usr/.")).arg(root.join("usr")))?;
        for program in [&assets.kubelet, &assets.kubectl, &assets.containerd, &assets.ctr, &assets.shim] {
            let name = program.file_name().context("a program of the node has no name")?;
            fs::copy(program, root.join("usr/local/bin").join(name))
                .with_context(|| format!("cannot copy {}", program.display()))?;
        }
        // Debian's package makes these names when it is installed.
        for name in ["iptables", "ip6tables", "iptables-save", "iptables-restore"] {
            symlink("xtables-nft-multi", root.join("usr/sbin").join(name))?;
        }
        // containerd looks for plugins here; Debian's package puts them elsewhere.
        fs::create_dir_all(root.join("opt/cni"))?;
        symlink("/usr/lib/cni", root.join("opt/cni/bin"))?;
        images::ext4(&tools, &root, &folder.join("root.ext4"), SIZE, None)?;
        fs::remove_dir_all(&root)?;
        Ok(CacheStamp::of_version(&version))
    })?;
    Ok(image)
}
