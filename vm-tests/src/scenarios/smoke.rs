//! Whether the guests have what every other scenario needs.
//!
//! In: a booted guest. Out: one check for each requirement. No check needs a daemon, so a failure here is one of the
//! test machinery and not of Holdfast.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::guest::disks::{FileSystem, unmount};
use crate::guest::{Context, parameter, run, shell, wait};

/// The bare guest.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    kernel(context)?;
    context.check("mounts", mounts());
    for kind in FileSystem::ALL {
        context.check(kind.name(), file_system(kind));
    }
    Ok(())
}

/// The systemd guest.
pub(super) fn systemd(context: &mut Context) -> Result<()> {
    kernel(context)?;
    context.check("systemd", units());
    context.check("ssh_login", login());
    Ok(())
}

/// Requirements of both guests for the kernel.
fn kernel(context: &mut Context) -> Result<()> {
    let series = context.kernel.clone();
    ensure!(!series.is_empty(), "the host did not say which kernel series this is");
    context.check("release", release(&series));
    context.check("lsm", lsm());
    context.check("btf", btf());
    context.check("cpus", cpus());
    Ok(())
}

fn release(series: &str) -> Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
    let prefix = series.trim_end_matches('x').trim_end_matches('.');
    ensure!(release.starts_with(&format!("{prefix}.")), "{release} is not of the series {series}");
    Ok(release)
}

fn lsm() -> Result<String> {
    let list = fs::read_to_string("/sys/kernel/security/lsm")?;
    ensure!(list.trim().split(',').any(|name| name == "bpf"), "bpf is not active: {list}");
    Ok(list)
}

fn btf() -> Result<String> {
    let blob = fs::read("/sys/kernel/btf/vmlinux").context("the kernel shows no BTF")?;
    ensure!(blob.starts_with(&0xeb9f_u16.to_le_bytes()), "the BTF does not begin with its magic number");
    Ok(format!("{} bytes", blob.len()))
}

fn cpus() -> Result<String> {
    let expected = parameter("hf.cpus").context("the host did not say how many CPUs there are")?;
    let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let last: usize = expected.parse::<usize>()?.saturating_sub(1);
    let wanted = if last == 0 { "0".to_owned() } else { format!("0-{last}") };
    ensure!(online.trim() == wanted, "online CPUs are {online}, expected {wanted}");
    Ok(expected)
}

fn mounts() -> Result<String> {
    let table = fs::read_to_string("/proc/self/mounts")?;
    let mounted = |kind: &str, place: &str| {
        table.lines().any(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            fields.get(1) == Some(&place) && fields.get(2) == Some(&kind)
        })
    };
    for (kind, place) in [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("bpf", "/sys/fs/bpf"),
        ("cgroup2", "/sys/fs/cgroup"),
        ("securityfs", "/sys/kernel/security"),
        ("tracefs", "/sys/kernel/tracing"),
    ] {
        ensure!(mounted(kind, place), "{place} is not a mounted {kind}");
    }
    Ok(String::new())
}

/// Mounts one, writes to it, reads it back, unmounts it.
fn file_system(kind: FileSystem) -> Result<String> {
    let place = Path::new("/mnt").join(kind.name());
    kind.mount(&place)?;
    let file = place.join("file");
    fs::write(&file, "content")?;
    nix::unistd::sync();
    let read = fs::read_to_string(&file)?;
    unmount(&place)?;
    ensure!(read == "content", "read {read:?} back");
    ensure!(!file.exists(), "{} is still there after unmounting", file.display());
    Ok(String::new())
}

/// Waits until systemd is up. All its units must run.
fn units() -> Result<String> {
    wait::until("systemd to finish starting", Duration::from_secs(90), || {
        let jobs = run("systemctl", &["list-jobs", "--no-legend"])?;
        Ok(jobs.trim().is_empty().then_some(()))
    })?;
    let failed = run("systemctl", &["list-units", "--failed", "--no-legend", "--plain"])?;
    if !failed.trim().is_empty() {
        bail!("failed units: {}", failed.trim());
    }
    for unit in ["ssh.service", "dbus.service"] {
        run("systemctl", &["is-active", unit])?;
    }
    Ok(run("systemctl", &["--version"])?.lines().next().unwrap_or_default().to_owned())
}

/// Logs in as alice with a key, and becomes root with sudo. The login uid must be hers.
fn login() -> Result<String> {
    shell(
        "install -d -m 700 -o alice -g alice /home/alice/.ssh && \
         ssh-keygen -q -t ed25519 -N '' -f /root/.ssh-test && \
         install -m 600 -o alice -g alice /root/.ssh-test.pub /home/alice/.ssh/authorized_keys",
    )?;
    let ssh = "ssh -i /root/.ssh-test -o StrictHostKeyChecking=no -o BatchMode=yes alice@127.0.0.1";
    let seen = shell(&format!("{ssh} sudo sh -c \"'id -u; cat /proc/self/loginuid'\""))?;
    let alice = run("id", &["-u", "alice"])?;
    ensure!(seen.split_whitespace().eq(["0", alice.trim()]), "uid and loginuid behind sudo are {seen:?}");
    Ok(seen.replace('\n', " "))
}
