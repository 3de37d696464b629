//! Applies on disks that are full, fail, or become read-only in the middle, and on paths that change their kind.
//!
//! In: a bare guest. Out: a check for each kind of fault. After the fault and the next start everything is old or
//! everything is new. The output names path and reason, nothing half-written is left, and `check` agrees. A frozen file
//! system holds each apply between its preflight and its first write; then the scenario makes the fault.

use std::collections::BTreeMap;
use std::fs::{self};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::faulty_disk::{CURRENT, FAULTY, apply, ballast, ends, faulty, found, limited, mounted, unmount};
use super::watched::{FIRST, holdfast};
use super::{faulty_state, power};
use crate::guest::disks::FileSystem;
use crate::guest::files::load_module;
use crate::guest::{Context, shell};

/// The scenario.
pub(super) fn bare(context: &mut Context) -> Result<()> {
    FileSystem::Xfs.mount(Path::new(FIRST))?;
    load_module("loop")?;
    for name in ["ext4", "tmpfs"] {
        let full = mounted(name, 8 << 20).and_then(|()| full(context, name));
        context.check(&format!("full_{name}"), full);
        unmount();
    }
    let other = mounted("ext4", 4 << 20).and_then(|()| others(context));
    context.check("read_only_and_in_the_way", other);
    unmount();
    let failing = failing(context);
    context.check("failing_device", failing);
    faulty_state::bare(context);
    power::bare(context);
    Ok(())
}

/// Free bytes from none to more than the apply needs.
fn full(context: &mut Context, kind: &str) -> Result<String> {
    let ends = ends()?;
    let mut outcomes = Vec::new();
    // ext4 reserves a fiftieth. The other sizes are between nothing and more than enough.
    let reserve = if kind == "ext4" { 1311 } else { 0 };
    for kib in [0, reserve + 40, reserve + 160, reserve + 340, reserve + 4000] {
        let (code, text) = faulty(|| ballast(FAULTY, kib))?;
        let what = format!("{kib} KiB free: {text}");
        if code != Some(0) {
            ensure!(code == Some(3) && text.contains("No space left on device"), "{code:?}: {what}");
            ensure!(text.contains(FAULTY), "it does not name the path: {what}");
        }
        fs::remove_file(format!("{FAULTY}/ballast"))?;
        if Path::new("/var/lib/holdfast/apply/journal").exists() {
            holdfast(&["apply", "--resume", "--no-acts"])?;
        }
        let end = ends.check(&what)?;
        ensure!((end == "new") == (code == Some(0)), "{what}: it is {end}");
        ensure!(kib < reserve + 4000 || end == "new", "there was space: {what}");
        context.note(format!("{kind}: {kib} KiB free: {end}"));
        outcomes.push(format!("{kib}:{end}"));
        if end == "new" {
            apply('o', false)?;
        }
    }
    ensure!(outcomes.first().is_some_and(|outcome| outcome.ends_with("old")), "{outcomes:?}");
    ensure!(outcomes.last().is_some_and(|outcome| outcome.ends_with("new")), "{outcomes:?}");
    Ok(format!("{kind}: {}", outcomes.join(" ")))
}

/// A path that turns read-only, and paths that turn into something else.
fn others(context: &mut Context) -> Result<String> {
    let ends = ends()?;
    let (code, text) = faulty(|| shell(&format!("mount -o remount,ro {FAULTY}")).map(drop))?;
    ensure!(
        code == Some(3) && text.contains("Read-only file system") && text.contains(FAULTY),
        "{code:?}: {text}"
    );
    shell(&format!("mount -o remount,rw {FAULTY}"))?;
    if Path::new("/var/lib/holdfast/apply/journal").exists() {
        holdfast(&["apply", "--resume", "--no-acts"])?;
    }
    ensure!(ends.check(&text)? == "old", "{text}");
    let cases = [
        ("a directory", "rm b && mkdir b && echo theirs > b/x"),
        ("a link", "rm b && ln -s /etc/passwd b"),
        ("a FIFO", "rm b && mkfifo b"),
        ("nothing", "rm b"),
    ];
    for (what, line) in cases {
        context.note(what);
        let passwd = fs::read("/etc/passwd")?;
        let (code, text) = faulty(|| shell(&format!("cd {FAULTY} && {line}")).map(drop))?;
        ensure!(code == Some(3) && text.contains(&format!("{FAULTY}/b")), "{what}: {code:?}: {text}");
        ensure!(fs::read("/etc/passwd")? == passwd, "{what}: it was followed");
        ensure!(!Path::new("/var/lib/holdfast/apply/journal").exists(), "{what}: a journal is left: {text}");
        let now = found()?;
        let rest = |end: &BTreeMap<PathBuf, String>| {
            let mut end = end.clone();
            end.retain(|path, _| !path.starts_with(format!("{FAULTY}/b")));
            end
        };
        ensure!(rest(&now) == rest(&ends.old), "{what}: the rest is not old: {now:?}");
        ensure!(what != "a directory" || Path::new("/srv/small/b/x").exists(), "what was theirs is lost");
        // And the old file again, as its owner would restore it.
        shell(&format!("cd {FAULTY} && rm -rf b"))?;
        fs::write(format!("{FAULTY}/b"), "o".repeat(64 << 10))?;
        shell(&format!("chmod 644 {FAULTY}/b"))?;
        ensure!(ends.check(what)? == "old", "{what}");
    }
    Ok(String::new())
}

/// A device that stops accepting pages after so many: real I/O errors in data, in directories and in its journal.
fn failing(context: &mut Context) -> Result<String> {
    let mut outcomes = Vec::new();
    for kib in [0, 100, 300, 4096] {
        mounted("ext4", 60 << 20)?;
        let ends = if outcomes.is_empty() { Some(ends()?) } else { None };
        let old = found()?;
        shell("sync")?;
        let (code, text) = faulty(|| limited(kib))?;
        let what = format!("{kib} KiB: {code:?}: {text}");
        if code != Some(0) {
            ensure!(code == Some(3) && text.contains("/srv/"), "{what}");
        }
        // The device works again.
        shell("mount -o remount,size=200m /srv/backing")?;
        shell(&format!("umount {FAULTY} && mount -o loop /srv/backing/disk {FAULTY}"))?;
        if Path::new("/var/lib/holdfast/apply/journal").exists() {
            let (code, text) = holdfast(&["apply", "--resume", "--no-acts"])?;
            ensure!(code.is_some(), "{what}: {text}");
        }
        let now = found()?;
        let end = if now == old { "old" } else { "new" };
        if let Some(ends) = &ends {
            ends.check(&what)?;
        }
        ensure!((end == "new") == (code == Some(0)), "{what}: it is {end}: {now:?}");
        let (code, printed) = holdfast(&["check", "--config", CURRENT])?;
        ensure!(code == Some(0), "{what}: check: {printed}");
        let error = ["I/O error", "Read-only file system", "No space left", "needs cleaning"]
            .into_iter()
            .find(|error| text.contains(error))
            .unwrap_or_default();
        context.note(format!("{kib} KiB: {end} {error}"));
        outcomes.push(format!("{kib}:{end} {error}"));
        if end == "new" {
            apply('o', false)?;
        }
        unmount();
    }
    ensure!(outcomes.iter().any(|outcome| !outcome.ends_with(' ')), "{outcomes:?}");
    ensure!(outcomes.last().is_some_and(|outcome| outcome.contains("new")), "{outcomes:?}");
    Ok(outcomes.join(", "))
}
