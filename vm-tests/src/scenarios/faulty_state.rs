//! The same faults under the state directory: the files that an apply keeps, and its journal.
//!
//! In: a bare guest whose managed files lie on working disks. Out: a check for each kind of fault. The apply is refused
//! or rolls back, or is reported as unfinished and the next start ends it. The output names file and reason.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use super::faulty_disk::{
    FAULTY, apply, backing, ballast, ends, faulty, found, limited, new_config, unmount_from,
};
use super::watched::{CONFIG, ExitAndOutput, holdfast};
use crate::guest::{Context, shell};

/// The state directory.
const STATE: &str = "/var/lib/holdfast";
const JOURNAL: &str = "/var/lib/holdfast/apply/journal";

/// All faults.
pub(super) fn bare(context: &mut Context) {
    for (name, check) in [
        ("state_full_before", full as fn(&mut Context) -> Result<String>),
        ("state_full_meanwhile", filled),
        ("state_read_only", read_only),
        ("state_failing_device", failing),
    ] {
        let checked = mounted().and_then(|()| check(context));
        context.check(name, checked);
        unmount_from(STATE);
        unmount_from(FAULTY);
    }
}

/// A separate disk for the state directory, and a working one for the files, with the old config applied.
fn mounted() -> Result<()> {
    shell(&format!("mount -t tmpfs -o size=64m tmpfs {FAULTY}"))?;
    fs::create_dir_all(STATE)?;
    backing(80 << 20)?;
    shell(&format!("mount -o loop /srv/backing/disk {STATE}"))?;
    apply('o', true)
}

/// The apply failed, and names the file of the state directory and the reason.
fn names_reasons((code, text): &ExitAndOutput, reasons: &[&str], what: &str) -> Result<()> {
    let reason = reasons.iter().any(|reason| text.contains(reason));
    ensure!(
        *code == Some(3) && text.contains(&format!("{STATE}/apply")) && reason,
        "{what}: {code:?}: {text}"
    );
    Ok(())
}

/// Finishes or undoes the apply after the disk works again.
fn resume() -> Result<()> {
    if Path::new(JOURNAL).exists() {
        holdfast(&["apply", "--resume", "--no-acts"])?;
    }
    Ok(())
}

/// The disk is full before the apply begins: nothing is written, whatever does not fit.
fn full(context: &mut Context) -> Result<String> {
    let ends = ends()?;
    let mut results = Vec::new();
    for kib in [0, 100, 420, 500, 860, 900, 8192] {
        // ext4 reserves a fiftieth.
        ballast(STATE, kib + 1311)?;
        new_config()?;
        let printed = holdfast(&["apply", CONFIG, "--no-acts"])?;
        let what = format!("{kib} KiB free: {printed:?}");
        let end = if printed.0 == Some(0) { "new" } else { "old" };
        if end == "old" {
            names_reasons(&printed, &["No space left"], &what)?;
            ensure!(found()? == ends.old, "{what}: something was written: {:?}", found()?);
        }
        fs::remove_file(format!("{STATE}/ballast"))?;
        resume()?;
        ensure!(ends.check(&what)? == end, "{what}: it is not {end}");
        context.note(format!("{kib} KiB free: {end}"));
        results.push(format!("{kib}:{end}"));
        if end == "new" {
            apply('o', false)?;
        }
    }
    ensure!(results[0].ends_with("old") && results[results.len() - 1].ends_with("new"), "{results:?}");
    Ok(results.join(" "))
}

/// The disk is full after the journal has begun: its records have room, and the apply reports what does not fit. The
/// next start ends the apply.
fn filled(_: &mut Context) -> Result<String> {
    let ends = ends()?;
    let printed = faulty(|| ballast(STATE, 0))?;
    if printed.0 != Some(0) {
        names_reasons(&printed, &["No space left"], "filled meanwhile")?;
    }
    fs::remove_file(format!("{STATE}/ballast"))?;
    resume()?;
    ends.check(&printed.1).map(str::to_owned)
}

/// The disk is read-only before the apply begins, and after the journal has begun: in the end nothing stays written.
fn read_only(_: &mut Context) -> Result<String> {
    let ends = ends()?;
    let remount = |how: &str| shell(&format!("mount -o remount,{how} {STATE}")).map(drop);
    remount("ro")?;
    new_config()?;
    let printed = holdfast(&["apply", CONFIG, "--no-acts"])?;
    names_reasons(&printed, &["Read-only file system"], "before it begins")?;
    remount("rw")?;
    ensure!(ends.check("before it begins")? == "old", "{printed:?}");
    // While a file is open for writing, a file system becomes read-only only by an error of its own.
    let printed = faulty(|| remount("abort"))?;
    names_reasons(&printed, &["Read-only file system", "I/O error"], "meanwhile")?;
    ensure!(printed.1.contains(JOURNAL), "it does not name the journal: {printed:?}");
    shell(&format!("umount {STATE} && mount -o loop /srv/backing/disk {STATE}"))?;
    resume()?;
    ensure!(ends.check("meanwhile")? == "old", "{printed:?}");
    Ok(printed.1.lines().find(|line| line.contains("because")).unwrap_or_default().trim().to_owned())
}

/// A device that stops accepting writes after the journal has begun.
fn failing(context: &mut Context) -> Result<String> {
    let mut results = Vec::new();
    for kib in [0, 64, 1024] {
        let ends = ends()?;
        shell("sync")?;
        let printed = faulty(|| limited(kib))?;
        let what = format!("{kib} KiB: {printed:?}");
        let done = printed.0 == Some(0);
        if !done {
            // The backing file of the loop device is full, and the device passes its error on (`lo_complete_rq`). So `fsync`
            // returns `ENOSPC` for a page of the file, and `EIO` or `EROFS` for the file system's own journal.
            let reasons = ["No space left", "I/O error", "Read-only file system", "needs cleaning"];
            names_reasons(&printed, &reasons, &what)?;
        }
        // The device works again.
        shell("mount -o remount,size=200m /srv/backing")?;
        shell(&format!("umount {STATE} && mount -o loop /srv/backing/disk {STATE}"))?;
        resume()?;
        let end = ends.check(&what)?;
        ensure!(!done || end == "new", "{what}: it was called done and is {end}");
        context.note(format!("{kib} KiB: {end}"));
        results.push(format!("{kib}:{end}{}", if done { "" } else { " with an error" }));
        if end == "new" {
            apply('o', false)?;
        }
    }
    ensure!(results.iter().any(|result| result.ends_with("error")), "{results:?}");
    Ok(results.join(", "))
}
