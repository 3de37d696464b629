//! From the kernel's start of `/init` to a system in which a scenario can run.
//!
//! In: a kernel with an initramfs. Out: in the bare guest, mounted pseudo file systems, and a child of this init process that
//! runs the scenario. In the systemd guest, the root disk with our files, and systemd as its init. Errors end in a panic of the
//! kernel, which the host sees.

use std::fs;
use std::os::unix::fs::{chroot, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::files::{MODULES, copy_tree, load_module, mount_pseudo};
use super::{disks, parameter};

/// The tree that the host wants in the systemd guest.
const PAYLOAD: &str = "/payload";
const NEW_ROOT: &str = "/newroot";

/// Pseudo file systems of the bare guest: source and type, where, optional.
const MOUNTS: &[(&str, &str)] = &[
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("devpts", "/dev/pts"),
    ("tmpfs", "/dev/shm"),
    ("tmpfs", "/tmp"),
    ("tmpfs", "/run"),
    ("bpf", "/sys/fs/bpf"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("securityfs", "/sys/kernel/security"),
    ("tracefs", "/sys/kernel/tracing"),
    ("debugfs", "/sys/kernel/debug"),
];

/// The body of `/init`. It returns only an error.
pub fn init() -> Result<()> {
    match early_parameter("hf.guest")?.as_deref() {
        Some("systemd" | "trixie" | "selinux" | "kube" | "kube-trixie") => become_systemd(),
        Some("ostree") => super::ostree::boot(Path::new(PAYLOAD)),
        _ => run_bare(),
    }
}

/// Mounts /proc, then reads a kernel parameter.
fn early_parameter(name: &str) -> Result<Option<String>> {
    mount_pseudo("proc", "/proc")?;
    Ok(parameter(name))
}

fn run_bare() -> Result<()> {
    for (kind, place) in &MOUNTS[1..] {
        mount_pseudo(kind, place)?;
    }
    for folder in ["/etc", "/root", "/var/log", "/var/lib", "/usr/bin", "/usr/sbin", "/sbin", "/mnt"] {
        fs::create_dir_all(folder)?;
    }
    super::run("/bin/busybox", &["--install", "-s", "/bin"])?;
    for (link, target) in [("/dev/fd", "/proc/self/fd"), ("/etc/mtab", "/proc/self/mounts")] {
        if !Path::new(link).exists() {
            symlink(target, link)?;
        }
    }
    if !Path::new("/etc/passwd").exists() {
        fs::write("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000:alice:/root:/bin/sh\n")?;
        fs::write("/etc/group", "root:x:0:\nalice:x:1000:\n")?;
    }
    super::run("/bin/busybox", &["ip", "link", "set", "lo", "up"])?;

    // The scenario runs in a child, so that this process can report its death.
    let child = Command::new("/proc/self/exe")
        .arg("run")
        .env("PATH", "/bin:/usr/bin:/sbin:/usr/sbin")
        .env("HOME", "/root")
        .env("RUST_BACKTRACE", "1")
        // A stack is printed for a panic, and not for an error, whose text says enough.
        .env("RUST_LIB_BACKTRACE", "0")
        .current_dir("/")
        .spawn()
        .context("cannot start the scenario")?;
    let scenario = Pid::from_raw(i32::try_from(child.id())?);
    loop {
        // This process is init, so it also reaps orphans.
        match waitpid(None, None)? {
            WaitStatus::Exited(pid, code) if pid == scenario => {
                bail!("the scenario ended with status {code}")
            }
            WaitStatus::Signaled(pid, signal, _) if pid == scenario => {
                bail!("the scenario was killed by {signal}")
            }
            _ => {}
        }
    }
}

/// Mounts the root disk, copies our files into it and becomes its init.
fn become_systemd() -> Result<()> {
    mount_pseudo("sysfs", "/sys")?;
    mount_pseudo("devtmpfs", "/dev")?;
    let disk = disks::find("root")?;
    load_module("ext4")?;
    fs::create_dir_all(NEW_ROOT)?;
    mount(Some(&disk), NEW_ROOT, Some("ext4"), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("cannot mount {}", disk.display()))?;
    copy_tree(Path::new(PAYLOAD), Path::new(NEW_ROOT))?;
    copy_tree(Path::new(MODULES), &Path::new(NEW_ROOT).join(MODULES.trim_start_matches('/')))?;
    let program = Path::new(NEW_ROOT).join("usr/local/bin/holdfast-guest");
    fs::copy("/proc/self/exe", &program)?;
    // The initramfs stays in memory until it is emptied.
    fs::remove_dir_all(PAYLOAD)?;
    fs::remove_dir_all(MODULES)?;
    for place in ["/proc", "/sys", "/dev"] {
        let target = Path::new(NEW_ROOT).join(place.trim_start_matches('/'));
        mount(Some(place), &target, None::<&str>, MsFlags::MS_MOVE, None::<&str>)
            .with_context(|| format!("cannot move {place}"))?;
    }
    std::env::set_current_dir(NEW_ROOT)?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>).context("cannot move the root")?;
    chroot(".")?;
    std::env::set_current_dir("/")?;
    Err(Command::new("/sbin/init").env_clear().exec()).context("cannot start systemd")
}

/// Ends the guest.
pub fn power_off() -> Result<()> {
    match reboot(RebootMode::RB_POWER_OFF) {
        Ok(never) => match never {},
        Err(error) => Err(error).context("cannot power off"),
    }
}
