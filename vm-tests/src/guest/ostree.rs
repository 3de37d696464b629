//! The boot loader of the ostree guest, and the parts of its disk.
//!
//! In: a disk whose `/boot` ostree wrote. Out: the kernel and initramfs of the first boot loader entry,
//! started by kexec with that entry's options. GRUB does the same on a host where ostree writes only entries. Before that it copies the
//! guest's program and files into the host's `/var`. Errors end in a panic of the kernel.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::reboot::{RebootMode, reboot};

use super::disks;
use super::files::{copy_tree, load_module, mount_pseudo};

/// One version of the tree.
#[derive(Debug)]
pub struct Version {
    /// Its commit's subject, which its files also have as content.
    pub name: &'static str,
    /// The branch in the disk's repository.
    pub branch: &'static str,
    /// The series of its kernel.
    pub kernel: &'static str,
}

/// The versions; the first one is deployed.
pub static VERSIONS: [Version; 2] = [
    Version { name: "v1", branch: "os/v1", kernel: "6.1" },
    Version { name: "v2", branch: "os/v2", kernel: "7.x" },
];
/// The layers of the image from which the first version's commit is made, each with the digest of its blob, that of its uncompressed bytes
/// and its line of the history. The second one has [`COPIED`].
pub static LAYERS: [[&str; 3]; 2] = [
    [
        "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "sha256:1111111111111111111111111111111111111111111111111111111111111111",
        "ADD debian.tar /",
    ],
    [
        "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
        "sha256:2222222222222222222222222222222222222222222222222222222222222222",
        "COPY os-version /usr/lib/",
    ],
];
/// What the second layer of the image has.
pub const COPIED: &str = "usr/lib/os-version";
/// Digest of the image's manifest.
pub const IMAGE: &str = "sha256:eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee";
/// Name of the disk's file system.
pub const LABEL: &str = "holdfast-ostree";
/// The name of the host's OS for ostree.
pub const STATEROOT: &str = "debian";
/// A kernel argument with this name never reaches the kernel: this boot loader loses it.
pub const LOST: &str = "hf.lost";

const DISK: &str = "/newroot";

/// Boots the disk's first entry.
pub(super) fn boot(payload: &Path) -> Result<()> {
    mount_pseudo("sysfs", "/sys")?;
    mount_pseudo("devtmpfs", "/dev")?;
    let disk = disks::find("root")?;
    load_module("ext4")?;
    fs::create_dir_all(DISK)?;
    mount(Some(&disk), DISK, Some("ext4"), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("cannot mount {}", disk.display()))?;
    let disk = Path::new(DISK);
    let local = disk.join("ostree/deploy").join(STATEROOT).join("var/usrlocal");
    copy_tree(&payload.join("usr/local"), &local)?;
    fs::copy("/proc/self/exe", local.join("bin/holdfast-guest")).context("the guest's program")?;
    let entry = first_entry(&disk.join("boot/loader/entries"))?;
    load(disk, &entry)?;
    umount(DISK).context("cannot unmount the disk")?;
    match reboot(RebootMode::RB_KEXEC) {
        Ok(never) => match never {},
        Err(error) => Err(error).context("cannot start the loaded kernel"),
    }
}

/// One boot loader entry (a "type #1" one).
#[derive(Debug, Default, PartialEq, Eq)]
struct Entry {
    version: u64,
    linux: String,
    initrd: String,
    options: String,
}

impl Entry {
    fn parse(text: &str) -> Self {
        let mut entry = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once(char::is_whitespace)) {
            let value = value.trim();
            match key {
                "version" => entry.version = value.parse().unwrap_or_default(),
                "linux" => value.clone_into(&mut entry.linux),
                "initrd" => value.clone_into(&mut entry.initrd),
                "options" => value.clone_into(&mut entry.options),
                _ => {}
            }
        }
        entry
    }

    /// The kernel's command line: the entry's options without those that the loader loses, and the host's parameters.
    fn command_line(&self, host: &str) -> String {
        let kept = self.options.split(' ').filter(|word| !word.starts_with(LOST));
        let ours =
            host.split_whitespace().filter(|word| word.starts_with("hf.") || word.starts_with("systemd."));
        kept.chain(ours).collect::<Vec<_>>().join(" ")
    }
}

/// The entry with the highest version, which ostree gives to the deployment that it wants booted.
fn first_entry(folder: &Path) -> Result<Entry> {
    let mut entries = Vec::new();
    for file in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        entries.push(Entry::parse(&fs::read_to_string(file?.path())?));
    }
    entries.sort_by_key(|entry| Reverse(entry.version));
    entries.into_iter().next().context("no boot loader entry")
}

/// Gives kernel, initramfs and options to the running kernel, by the kexec of the deployment itself.
fn load(disk: &Path, entry: &Entry) -> Result<()> {
    let Some(link) = entry.options.split(' ').find_map(|word| word.strip_prefix("ostree=")) else {
        bail!("the entry names no deployment: {}", entry.options);
    };
    let deployment: PathBuf = fs::canonicalize(disk.join(link.trim_start_matches('/')))
        .with_context(|| format!("no deployment at {link}"))?;
    let (boot, proc, sys) = (deployment.join("boot"), deployment.join("proc"), deployment.join("sys"));
    for (from, to) in
        [(disk.join("boot").as_path(), &boot), (Path::new("/proc"), &proc), (Path::new("/sys"), &sys)]
    {
        mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .with_context(|| format!("cannot bind {}", to.display()))?;
    }
    let arguments = entry.command_line(&fs::read_to_string("/proc/cmdline")?);
    let root = deployment.display().to_string();
    super::run(
        "/bin/busybox",
        &[
            "chroot",
            &root,
            "/sbin/kexec",
            "--kexec-file-syscall",
            "--load",
            &format!("/boot{}", entry.linux),
            &format!("--initrd=/boot{}", entry.initrd),
            &format!("--command-line={arguments}"),
        ],
    )?;
    for place in [boot, proc, sys] {
        umount(&place).with_context(|| format!("cannot unmount {}", place.display()))?;
    }
    nix::unistd::sync();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entrys_options_come_first_and_the_lost_argument_does_not_come() {
        let entry = Entry::parse(
            "title Debian\nversion 2\noptions root=LABEL=x hf.lost=1 ostree=/o\nlinux /k\ninitrd /i\n",
        );
        assert_eq!((entry.version, entry.linux.as_str(), entry.initrd.as_str()), (2, "/k", "/i"));
        assert_eq!(
            entry.command_line("console=ttyS0 hf.kernel=6.1\n"),
            "root=LABEL=x ostree=/o hf.kernel=6.1"
        );
    }
}
