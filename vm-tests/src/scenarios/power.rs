//! A power cut in the middle of an apply and right after its end, on each file system of real hosts.
//!
//! In: a bare guest. Out: a check for each file system. After the cut and the next start everything is old or
//! everything is new, and what was reported as done stays. The disk is a file in memory. The kernel writes nothing back
//! by itself, so a copy of the file holds exactly what was synced: it is the disk after the cut. The scenario
//! `power-cut` cuts after each of the first lines of an apply.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Whence, lseek};

use super::watched::{CONFIG, holdfast};
use crate::guest::agent::HOLDFAST;
use crate::guest::command::CONSENT;
use crate::guest::disks::{self, FileSystem};
use crate::guest::files::load_module;
use crate::guest::{Context, parameter, shell};

/// Targets and state are on this disk, which loses its power.
const DISK: &str = "/srv/power";
const STATE: &str = "/srv/power/state";
const CURRENT: &str = "/srv/power/state/apply/current";
const FILE: &str = "/srv/power-backing/disk";
const COPY: &str = "/srv/power-backing/copy";
/// Lines after which the scenario cuts without a parameter: while links are written, and during the rollback.
const LINES: &[usize] = &[8, 12];

/// The content of the disk, by path.
type Found = BTreeMap<String, String>;

/// The moment of the power cut.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// After a line that the apply prints.
    Line(usize),
    /// After the apply has reported that it is done.
    End,
    /// The apply is killed after that line. The cut comes when the next start has restored everything.
    GivenBack(usize),
}

/// Files, links of both kinds and directories that are added, removed, changed and turned into each other.
fn config(letter: char) -> String {
    let (files, links): (&[&str], &[(&str, &str)]) = match letter {
        'o' => (&["a", "goes", "deep/a"], &[("link", "a"), ("gone", "a"), ("turns", "a")]),
        _ => (&["a", "turned/a", "new/er/a"], &[("link", "new"), ("other", "a"), ("turns", "turned")]),
    };
    let mut text = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\n\
                    metadata: {name: 99-power, labels: {machineconfiguration.openshift.io/role: worker}}\n\
                    spec:\n  config:\n    ignition: {version: 3.4.0}\n    storage:\n      files:\n"
        .to_owned();
    for name in files {
        text.extend(["      - {path: ", DISK, "/etc/", name, ", mode: 420, contents: {source: 'data:,"]);
        text.extend([letter.to_string().as_str(), "'}}\n"]);
    }
    text.push_str("      links:\n");
    for (name, target) in links {
        text.extend(["      - {path: ", DISK, "/etc/", name, ", target: ", target, "}\n"]);
    }
    text.extend(["      - {path: ", DISK, "/etc/hard, target: ", DISK, "/etc/a, hard: true}\n"]);
    text
}

/// The checks.
pub(super) fn bare(context: &mut Context) {
    for kind in [FileSystem::Btrfs, FileSystem::Ext4, FileSystem::Xfs] {
        let result = cuts(context, kind);
        context.check(&format!("power_cut_{}", kind.name()), result);
        // A file system that is not mounted is fine.
        let _ = shell(&format!("umount {DISK}; umount /srv/power-backing"));
    }
}

/// The same after many lines, in a guest of its own.
pub(super) fn many(context: &mut Context) -> Result<()> {
    load_module("loop")?;
    bare(context);
    Ok(())
}

fn cuts(context: &mut Context, kind: FileSystem) -> Result<String> {
    // Data without a sync stays in memory, so each cut loses as much as possible.
    fs::write("/proc/sys/vm/dirty_writeback_centisecs", "0")?;
    load_module(kind.name())?;
    load_module("loop")?;
    fs::create_dir_all("/srv/power-backing")?;
    fs::create_dir_all(DISK)?;
    shell("mount -t tmpfs -o size=600m tmpfs /srv/power-backing")?;
    empty(kind)?;
    mount(kind)?;
    apply('o')?;
    let old = found()?;
    apply('n')?;
    let new = found()?;
    apply('o')?;
    ensure!(found()? == old, "not even without a cut it goes back: {:?}", found()?);
    // The gate cuts at the two most important lines; `hf.cuts=N` cuts after each of the first N lines.
    let lines: Vec<usize> = match parameter("hf.cuts").map(|text| text.parse()).transpose()? {
        Some(count) => (1..=count).collect(),
        None => LINES.to_vec(),
    };
    let back: Vec<Cut> = lines.iter().map(|line| Cut::GivenBack(*line)).collect();
    let forth = lines.iter().map(|line| Cut::Line(*line));
    let mut ends = BTreeMap::<&str, usize>::new();
    for cut in [Cut::End].into_iter().chain(back).chain(forth) {
        let must = lose_power(kind, cut).with_context(|| format!("{cut:?}"))?;
        let left = holdfast(&["apply", "--resume", "--no-acts", "--state", STATE])?;
        let now = found()?;
        ensure!(now == old || now == new, "{cut:?}: neither old nor new: {now:?}; {left:?}");
        let end = if now == old { "old" } else { "new" };
        ensure!(must.is_none_or(|must| must == now), "{cut:?}: it was over, and now it is {end}; {left:?}");
        let (code, text) = holdfast(&["check", "--config", CURRENT, "--state", STATE])?;
        ensure!(code == Some(0), "{cut:?}: {end}, and check says: {text}");
        context.note(format!("{}: {cut:?}: {end}", kind.name()));
        *ends.entry(end).or_default() += 1;
        if end == "new" {
            apply('o')?;
        }
        // The next cut starts with everything on the disk.
        shell("sync")?;
    }
    ensure!(ends.len() == 2, "all cuts ended alike: {ends:?}");
    Ok(format!("{ends:?}"))
}

/// Applies the new config up to a cut. Returns the disk's content if the apply was over by then.
fn lose_power(kind: FileSystem, cut: Cut) -> Result<Option<Found>> {
    fs::write(CONFIG, config('n'))?;
    let (mut apply, ended) = match cut {
        Cut::Line(line) | Cut::GivenBack(line) => stopped_behind(line)?,
        Cut::End => stopped_behind(usize::MAX)?,
    };
    let mut over = ended;
    if let (Cut::GivenBack(_), false) = (cut, ended) {
        apply.kill()?;
        apply.wait()?;
        let printed = holdfast(&["apply", "--resume", "--no-acts", "--state", STATE])?;
        ensure!(printed.0.is_some(), "{printed:?}");
        over = true;
    }
    let must = over.then(found).transpose()?;
    copy(FILE, COPY)?;
    // A process that has ended is fine.
    let _ = apply.kill();
    apply.wait()?;
    shell(&format!("umount {DISK}"))?;
    fs::rename(COPY, FILE)?;
    mount(kind)?;
    Ok(must)
}

/// Starts an apply that is held after so many lines. Also returns whether it ended before.
fn stopped_behind(line: usize) -> Result<(Child, bool)> {
    let mut apply = Command::new(HOLDFAST)
        .args(["apply", CONFIG, "--no-acts", "--state", STATE])
        .envs(CONSENT)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start holdfast")?;
    let lines = BufReader::new(apply.stderr.take().context("no pipe")?).lines();
    let read = lines.take(line).count();
    if read < line {
        ensure!(apply.wait()?.success(), "the apply failed");
        return Ok((apply, true));
    }
    kill(Pid::from_raw(i32::try_from(apply.id())?), Signal::SIGSTOP)?;
    Ok((apply, false))
}

fn apply(letter: char) -> Result<()> {
    fs::write(CONFIG, config(letter))?;
    let (code, text) = holdfast(&["apply", CONFIG, "--no-acts", "--state", STATE])?;
    ensure!(code == Some(0), "{code:?}: {text}");
    Ok(())
}

/// Every name with its content or target, and whether the hard link is one.
fn found() -> Result<Found> {
    let mut found = Found::new();
    let mut waiting = vec![Path::new(DISK).join("etc")];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let kind = fs::symlink_metadata(&path)?;
            let what = if kind.is_symlink() {
                format!("-> {}", fs::read_link(&path)?.display())
            } else if kind.is_dir() {
                waiting.push(path.clone());
                "directory".to_owned()
            } else {
                fs::read_to_string(&path)?
            };
            found.insert(path.display().to_string(), what);
        }
    }
    let inodes: BTreeSet<u64> = ["a", "hard"]
        .into_iter()
        .map(|name| fs::metadata(Path::new(DISK).join("etc").join(name)).map_or(0, |found| found.ino()))
        .collect();
    found.insert("inodes of the hard link".to_owned(), inodes.len().to_string());
    Ok(found)
}

fn mount(kind: FileSystem) -> Result<()> {
    let name = kind.name();
    let options = match kind {
        // The disk that this is a copy of may be mounted.
        FileSystem::Xfs => "loop,nouuid",
        // So that neither commits before it must.
        _ => "loop,commit=300",
    };
    shell(&format!("mount -t {name} -o {options} {FILE} {DISK}")).map(drop)
}

/// The host's empty disk of that kind, without its holes.
fn empty(kind: FileSystem) -> Result<()> {
    let mut disk = File::open(disks::find(kind.name())?)?;
    let mut copy = File::create(FILE)?;
    let mut block = vec![0; 1 << 20];
    let mut length = 0;
    loop {
        let read = disk.read(&mut block)?;
        if read == 0 {
            break;
        }
        for part in block[..read].chunks(4096) {
            if part.iter().any(|byte| *byte != 0) {
                copy.seek(SeekFrom::Start(length))?;
                copy.write_all(part)?;
            }
            length += part.len() as u64;
        }
    }
    copy.set_len(length).context("the copy of the disk")
}

/// Copies a file with its holes.
fn copy(from: &str, to: &str) -> Result<()> {
    let (mut source, mut copy) = (File::open(from)?, File::create(to)?);
    copy.set_len(source.metadata()?.len())?;
    let mut at = 0;
    loop {
        at = match lseek(&source, at, Whence::SeekData) {
            Ok(at) => at,
            Err(Errno::ENXIO) => return Ok(()),
            Err(errno) => return Err(errno).context("the data of the disk"),
        };
        let end = lseek(&source, at, Whence::SeekHole)?;
        let (start, length) = (u64::try_from(at)?, u64::try_from(end - at)?);
        source.seek(SeekFrom::Start(start))?;
        copy.seek(SeekFrom::Start(start))?;
        std::io::copy(&mut (&source).take(length), &mut copy)?;
        at = end;
    }
}
