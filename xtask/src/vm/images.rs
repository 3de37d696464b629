//! The contents of the guests' disks.
//!
//! In: the cache. Out: an image of a Debian root with systemd, one empty image for each file system, and busybox. Each is made
//! once. Guests write to them through snapshots that end with the guest.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use vm_tests::scenarios::SEALED_USR_BYTES;

use super::verity;
use crate::apt::{self, GUEST_RELEASE, Mirrors, NEWER_RELEASE, is_root};
use crate::cache::{Cache, CacheStamp};
use crate::run::{find_program, output, say};
use crate::tools::PackageTree;

/// Packages whose programs make guests.
const TOOLS: &[&str] = &["busybox-static", "mmdebstrap", "e2fsprogs", "xfsprogs", "btrfs-progs"];
/// The packages of the Debian guest beside the essential ones.
const GUEST_PACKAGES: &[&str] = &[
    "systemd",
    "systemd-sysv",
    "dbus",
    "libpam-systemd",
    "sudo",
    "openssh-server",
    "openssh-client",
    "kmod",
    "iproute2",
    "procps",
    "e2fsprogs",
    "util-linux",
];
/// The packages of the guest whose systemd has soft reboots. No person logs in to it.
const NEWER_PACKAGES: &[&str] =
    &["systemd", "systemd-sysv", "dbus", "kmod", "e2fsprogs", "util-linux", "fdisk"];
/// Increase the number when the recipe of an image changes.
const ROOT_RECIPE: &str = "2";
/// Programs that systemd starts at each boot to make units of what these guests do not have: encrypted disks,
/// hibernation, init scripts. An emulated guest is slow to start programs.
const NO_GENERATORS: &[&str] = &[
    "cryptsetup",
    "debug",
    "getty",
    "gpt-auto",
    "hibernate-resume",
    "integritysetup",
    "rc-local",
    "run",
    "system-update",
    "sysv",
    "veritysetup",
];
/// Units that do nothing for a guest that lives for a minute.
const NO_UNITS: &[&str] = &[
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "e2scrub_reap.service",
    "getty@tty1.service",
    "modprobe@.service",
    "sys-fs-fuse-connections.mount",
    "systemd-random-seed.service",
    "systemd-sysusers.service",
    "systemd-tmpfiles-clean.timer",
    "systemd-update-utmp.service",
    "systemd-update-utmp-runlevel.service",
    // A session needs none of the user's own services.
    "user@.service",
];
/// Size of the root disk; the image is sparse.
const ROOT_SIZE: u64 = 1 << 30;
/// The version of the recipe of the empty file systems.
const FILE_SYSTEMS_RECIPE: &str = "2";
/// File systems with a disk of their own, and a size that the making of each accepts; the images are sparse.
const FILE_SYSTEMS: &[(&str, &str, u64)] =
    &[("ext4", "mkfs.ext4", 64 << 20), ("xfs", "mkfs.xfs", 320 << 20), ("btrfs", "mkfs.btrfs", 256 << 20)];

/// The version of the recipe of the sealed `/usr`, and its files beside the program.
const SEALED_USR_RECIPE: &str = "1";
const SEALED_FILES: u32 = 40;

/// Finds or fetches the programs that make guests.
pub(crate) fn tools(cache: &Cache) -> Result<PackageTree> {
    if let Some(tree) = PackageTree::cached(cache, "tools") {
        return Ok(tree);
    }
    let release = apt::codename()?;
    PackageTree::make(cache, "tools", &[&release], &release, TOOLS)
}

/// The static busybox.
pub(crate) fn busybox(cache: &Cache) -> Result<PathBuf> {
    tools(cache)?.program("busybox").context("the package busybox-static holds no busybox")
}

/// One image with an empty file system of each kind: its name, which is also its disk's serial, and its path.
pub(crate) fn file_systems(cache: &Cache) -> Result<Vec<(&'static str, PathBuf)>> {
    let folder = cache.path("file-systems");
    if cache.stamp("file-systems").is_none_or(|stamp| stamp.version != FILE_SYSTEMS_RECIPE) {
        say("images", "empty file systems");
        let tools = tools(cache)?;
        cache.make("file-systems", |folder| {
            for (name, maker, size) in FILE_SYSTEMS {
                let image = folder.join(name);
                File::create(&image)?.set_len(*size)?;
                let program = tools.program(maker).with_context(|| format!("no {maker} in the cache"))?;
                // Old kernels do not know the newest features, and have fs-verity only with blocks of the size of a page.
                let ext4 = ["-q", "-b", "4096", "-O", "^orphan_file,verity"];
                let features: &[&str] = if *name == "ext4" { &ext4 } else { &["-q"] };
                output(tools.command(&program).args(features).arg(&image))?;
            }
            Ok(CacheStamp::of_version(FILE_SYSTEMS_RECIPE))
        })?;
    }
    Ok(FILE_SYSTEMS.iter().map(|(name, _, _)| (*name, folder.join(name))).collect())
}

/// A disk with a `/usr` for dm-verity.
#[derive(Debug, Clone)]
pub(crate) struct SealedUsr {
    /// The file system, and its hashes behind it.
    pub(crate) image: PathBuf,
    /// The root hash, in hexadecimal digits.
    pub(crate) root_hash: String,
}

/// Finds or makes the disk with a sealed `/usr`: a program, other files, and the directory in which the guest has Holdfast.
pub(crate) fn sealed_usr(cache: &Cache) -> Result<SealedUsr> {
    let folder = cache.path("sealed-usr");
    if cache.stamp("sealed-usr").is_none_or(|stamp| stamp.version != SEALED_USR_RECIPE) {
        say("images", "a sealed /usr");
        let tools = tools(cache)?;
        cache.make("sealed-usr", |folder| {
            let tree = folder.join("tree");
            let programs = tree.join("libexec/os");
            for directory in [&programs, &tree.join("local"), &tree.join("bin"), &tree.join("sbin")] {
                fs::create_dir_all(directory)?;
            }
            let program = programs.join("agent");
            fs::write(&program, "#!/bin/sh\necho agent\n")?;
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
            for number in 0..SEALED_FILES {
                fs::write(programs.join(format!("file-{number}")), format!("{number}\n"))?;
            }
            let image = folder.join("usr");
            File::create(&image)?.set_len(SEALED_USR_BYTES)?;
            let maker = tools.program("mkfs.ext4").context("no mkfs.ext4 in the cache")?;
            let features = ["-q", "-b", "4096", "-O", "^orphan_file,^has_journal", "-d"];
            output(tools.command(&maker).args(features).arg(&tree).arg(&image))?;
            fs::remove_dir_all(&tree)?;
            let (hashes, root_hash) = verity::hashes(&fs::read(&image)?);
            fs::OpenOptions::new().append(true).open(&image)?.write_all(&hashes)?;
            fs::write(folder.join("root-hash"), hex::encode(root_hash))?;
            Ok(CacheStamp::of_version(SEALED_USR_RECIPE))
        })?;
    }
    let root_hash = fs::read_to_string(folder.join("root-hash"))?;
    Ok(SealedUsr { image: folder.join("usr"), root_hash })
}

/// The version of the recipe of every guest of a Debian release to which people log in.
pub(crate) fn recipe(release: &str) -> String {
    let lists = [GUEST_PACKAGES, NO_GENERATORS, NO_UNITS].concat();
    format!("{ROOT_RECIPE} {release} {}", lists.join(" "))
}

/// The root disk of the Debian guest.
pub(crate) fn systemd_root(cache: &Cache) -> Result<PathBuf> {
    root(cache, "guest-systemd", &recipe(GUEST_RELEASE), &|tools, root| {
        debootstrap(tools, root, GUEST_RELEASE, &[])
    })
}

/// The root disk of the guest whose systemd has soft reboots (254 or later).
pub(crate) fn trixie_root(cache: &Cache) -> Result<PathBuf> {
    let lists = [NEWER_PACKAGES, NO_GENERATORS, NO_UNITS].concat();
    let version = format!("{ROOT_RECIPE} {NEWER_RELEASE} {}", lists.join(" "));
    root(cache, "guest-trixie", &version, &|tools, root| {
        mmdebstrap(tools, root, NEWER_RELEASE, NEWER_PACKAGES)
    })
}

/// The root disk of a Debian guest that `debian` installs.
fn root(
    cache: &Cache,
    name: &str,
    version: &str,
    debian: &dyn Fn(&PackageTree, &Path) -> Result<()>,
) -> Result<PathBuf> {
    let image = cache.path(name).join("root.ext4");
    if cache.stamp(name).is_some_and(|stamp| stamp.version == version) {
        return Ok(image);
    }
    if !is_root()? {
        bail!("making the root disk of {name} needs root, once\n    run: sudo cargo xtask setup");
    }
    let tools = tools(cache)?;
    say("images", &format!("{name}: Debian root with systemd (about a minute)"));
    cache.make(name, |folder| {
        let root = folder.join("root");
        debian(&tools, &root)?;
        prepare(&root)?;
        ext4(&tools, &root, &folder.join("root.ext4"), ROOT_SIZE, None)?;
        fs::remove_dir_all(&root)?;
        Ok(CacheStamp::of_version(version))
    })?;
    Ok(image)
}

/// A sparse image with what is in a folder, on an ext4 that every kernel knows.
pub(crate) fn ext4(
    tools: &PackageTree,
    from: &Path,
    image: &Path,
    size: u64,
    label: Option<&str>,
) -> Result<()> {
    File::create(image)?.set_len(size)?;
    let program = tools.program("mke2fs").or_else(|| find_program("mke2fs")).context("no mke2fs")?;
    let mut command = tools.command(&program);
    command.args(["-q", "-t", "ext4", "-O", "^orphan_file"]);
    if let Some(label) = label {
        command.args(["-L", label]);
    }
    output(command.arg("-d").arg(from).arg(image)).map(drop)
}

/// A root of a Debian release with the guest's packages, and more of them.
pub(crate) fn debootstrap(tools: &PackageTree, root: &Path, release: &str, more: &[&str]) -> Result<()> {
    mmdebstrap(tools, root, release, &[GUEST_PACKAGES, more].concat())
}

/// A root of a Debian release with these packages.
fn mmdebstrap(tools: &PackageTree, root: &Path, release: &str, packages: &[&str]) -> Result<()> {
    let program = tools.program("mmdebstrap").context("the package mmdebstrap holds no mmdebstrap")?;
    let mirror = Mirrors::of_this_machine()?.one_line(release)?;
    let mut command = Command::new(program);
    command
        .args(["--variant=minbase", "--mode=root", "--skip=check/qemu"])
        .arg(format!("--include={}", packages.join(",")))
        .arg("--aptopt=Acquire::Languages \"none\"")
        .arg(release)
        .arg(root)
        .arg(mirror);
    output(&mut command).map(drop)
}

/// Adds to a Debian root what a guest needs: a user, and a service that runs the scenario.
pub(crate) fn prepare(root: &Path) -> Result<()> {
    let chroot =
        |line: &str| output(Command::new("chroot").arg(root).args(["/bin/sh", "-c", line])).map(drop);
    chroot("useradd --create-home --shell /bin/bash alice")?;
    let write = |path: &str, content: &str| -> Result<()> {
        let place = root.join(path);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&place, content).with_context(|| format!("cannot write {}", place.display()))
    };
    write("etc/sudoers.d/alice", "alice ALL=(ALL) NOPASSWD: ALL\n")?;
    write("etc/hostname", "guest\n")?;
    write("etc/hosts", "127.0.0.1 localhost guest\n")?;
    write("etc/fstab", "")?;
    // The default's post-quantum keys take an emulated processor a second for each login.
    write("etc/ssh/sshd_config.d/guest.conf", "KexAlgorithms curve25519-sha256\n")?;
    write(
        "etc/systemd/system/holdfast-scenario.service",
        "[Unit]\nDescription=Scenario that the kernel parameters name\nAfter=ssh.service\n\n[Service]\nType=exec\n\
         ExecStart=/usr/local/bin/holdfast-guest run\nStandardOutput=journal+console\nStandardError=journal+console\n\
         Environment=RUST_BACKTRACE=1\n\n\
         [Install]\nWantedBy=multi-user.target\n",
    )?;
    chroot(&format!("systemctl enable holdfast-scenario.service && systemctl mask {}", NO_UNITS.join(" ")))?;
    let generators = root.join("etc/systemd/system-generators");
    fs::create_dir_all(&generators)?;
    for name in NO_GENERATORS {
        symlink("/dev/null", generators.join(format!("systemd-{name}-generator")))?;
    }
    chroot(
        "rm -rf /usr/share/doc /usr/share/man /usr/share/locale /var/cache/apt/* /var/lib/apt/lists/* && : > /etc/machine-id",
    )
}

/// Runs what needs `/proc` in a root: some programs name files by their descriptors there.
pub(crate) fn with_proc<T>(root: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let proc = root.join("proc");
    output(Command::new("mount").args(["-t", "proc", "proc"]).arg(&proc))?;
    let done = work();
    let unmounted = output(Command::new("umount").arg(&proc));
    let done = done?;
    unmounted?;
    Ok(done)
}
