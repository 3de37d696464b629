//! The disk with the fault: the file systems on it, what is declared there, and what an apply leaves.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;

use super::watched::{CONFIG, ExitAndOutput, FIRST, finish, held, holdfast};
use crate::guest::disks;
use crate::guest::shell;

/// The file system with the fault.
pub(super) const FAULTY: &str = "/srv/small";

pub(super) const CURRENT: &str = "/var/lib/holdfast/apply/current";

/// Files on the faulty file system, with their size in KiB.
pub(super) const FILES: &[(&str, usize)] =
    &[("a", 1), ("b", 64), ("c", 200), ("deep/d", 24), ("deep/er/e", 130)];

/// One config: the letter fills each file.
pub(super) fn config(letter: char) -> String {
    let mut text = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\n\
                    metadata: {name: 99-faulty, labels: {machineconfiguration.openshift.io/role: worker}}\n\
                    spec:\n  config:\n    ignition: {version: 3.4.0}\n    storage:\n      files:\n"
        .to_owned();
    let mut file = |path: &str, content: &str| {
        text.extend(["      - {path: ", path, ", mode: 420, contents: {source: 'data:,", content, "'}}\n"]);
    };
    file(&format!("{FIRST}/a"), &letter.to_string());
    for (name, size) in FILES {
        // If only the second config declares a file, the apply creates its parents, too.
        if letter == 'n' || !name.contains('/') {
            file(&format!("{FAULTY}/{name}"), &letter.to_string().repeat(size << 10));
        }
    }
    text
}

/// Everything on the faulty file system except ballast: letter and length of each file.
pub(super) fn found() -> Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![PathBuf::from(FAULTY), PathBuf::from(FIRST)];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.ends_with("lost+found") || path.ends_with("ballast") {
                continue;
            }
            let kind = fs::symlink_metadata(&path)?;
            if kind.is_dir() {
                waiting.push(path.clone());
            }
            // For anything except a file the name is enough.
            let text = if kind.is_file() { fs::read_to_string(&path)? } else { String::new() };
            let letters: std::collections::BTreeSet<char> = text.chars().collect();
            let what = format!("{}x{letters:?}", text.len());
            found.insert(path, what);
        }
    }
    Ok(found)
}

/// The two states of the disk that the configs declare.
pub(super) struct DeclaredStates {
    pub(super) old: BTreeMap<PathBuf, String>,
    new: BTreeMap<PathBuf, String>,
}

impl DeclaredStates {
    /// Everything is old or everything is new, as the current config says, and `check` agrees.
    pub(super) fn check(&self, what: &str) -> Result<&'static str> {
        let found = found()?;
        let end = if found == self.old { "old" } else { "new" };
        ensure!(found == self.old || found == self.new, "{what}: neither old nor new: {found:?}");
        let (code, text) = holdfast(&["check", "--config", CURRENT])?;
        ensure!(code == Some(0), "{what}: check: {code:?}: {text}");
        let left = Path::new("/var/lib/holdfast/apply/journal").exists();
        ensure!(!left, "{what}: a journal is left");
        Ok(end)
    }
}

/// Applies a config without a fault.
pub(super) fn apply(letter: char, force: bool) -> Result<()> {
    fs::write(CONFIG, config(letter))?;
    let mut arguments = vec!["apply", CONFIG, "--no-acts"];
    arguments.extend(force.then_some("--force"));
    let (code, text) = holdfast(&arguments)?;
    ensure!(code == Some(0), "{code:?}: {text}");
    Ok(())
}

/// Makes the new config the next one to apply.
pub(super) fn new_config() -> Result<()> {
    fs::write(CONFIG, config('n')).context("the new config")
}

/// Applies the new config, and makes a fault while the apply is held; returns the apply's output.
pub(super) fn faulty(fault: impl FnOnce() -> Result<()>) -> Result<ExitAndOutput> {
    new_config()?;
    let child = held()?;
    let made = fault();
    shell(&format!("fsfreeze --unfreeze {FIRST}"))?;
    let printed = finish(child)?;
    made.map(|()| printed)
}

pub(super) fn unmount() {
    unmount_from(FAULTY);
}

pub(super) fn unmount_from(place: &str) {
    // A file system that is not mounted is fine.
    let _ = shell(&format!("umount {place}; umount /srv/backing"));
}

/// A small file system, with the old config applied.
pub(super) fn mounted(kind: &str, bytes: u64) -> Result<()> {
    fs::create_dir_all(FAULTY)?;
    match kind {
        "ext4" => {
            backing(bytes + (60 << 20))?;
            shell(&format!("mount -o loop /srv/backing/disk {FAULTY}"))?;
        }
        _ => shell(&format!("mount -t tmpfs -o size={bytes} tmpfs {FAULTY}")).map(drop)?,
    }
    apply('o', true)
}

/// A copy of the host's empty ext4 disk, without its holes, in memory of a limited size.
pub(super) fn backing(bytes: u64) -> Result<()> {
    fs::create_dir_all("/srv/backing")?;
    shell(&format!("mount -t tmpfs -o size={bytes} tmpfs /srv/backing"))?;
    let mut disk = File::open(disks::find("ext4")?)?;
    let mut copy = File::create("/srv/backing/disk")?;
    let mut block = vec![0; 4096];
    let mut length = 0;
    while let Ok(()) = disk.read_exact(&mut block) {
        length += block.len() as u64;
        if block.iter().any(|byte| *byte != 0) {
            copy.write_all(&block)?;
        } else {
            copy.seek(SeekFrom::Current(4096))?;
        }
    }
    copy.set_len(length)?;
    copy.sync_all().context("the copy of the disk")
}

pub(super) fn ends() -> Result<DeclaredStates> {
    let old = found()?;
    apply('n', false)?;
    let new = found()?;
    apply('o', false)?;
    ensure!(found()? == old, "not even without a fault it goes back: {:?}", found()?);
    Ok(DeclaredStates { old, new })
}

/// Fills a file system except for so many KiB.
pub(super) fn ballast(place: &str, kib: u64) -> Result<()> {
    // Blocks freed a moment ago are available only after the change is durable.
    shell("sync")?;
    let file = File::create(format!("{place}/ballast"))?;
    let room = statvfs(place)?;
    let mut length = (room.blocks_free() * room.fragment_size()).saturating_sub(kib << 10);
    // The file also needs blocks for its own metadata, and the file system's reserve is not available.
    while let Err(error) = fallocate(&file, FallocateFlags::empty(), 0, i64::try_from(length)?) {
        ensure!(error == Errno::ENOSPC && length > 4096, "cannot fill the disk: {error}");
        length -= 4096;
    }
    file.sync_all().context("the ballast")
}

/// Lets the device accept so many KiB more, or a little more than that.
pub(super) fn limited(kib: u64) -> Result<()> {
    let used: u64 = shell("sync; df -k /srv/backing | tail -n 1")?
        .split_whitespace()
        .nth(2)
        .and_then(|word| word.parse().ok())
        .context("df says nothing")?;
    // Pages written a moment ago may still arrive. The limit cannot be below the pages in use.
    let sizes = (0..20).map(|more| used + kib + more * 16);
    let mut refused = sizes.map(|size| shell(&format!("mount -o remount,size={size}k /srv/backing")));
    let done = refused.any(|result| result.is_ok());
    ensure!(done, "the device cannot be limited");
    Ok(())
}
