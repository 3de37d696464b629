//! The same measurements with other watchers.
//!
//! In: the guest without Holdfast. Out: the same measurements with an inotify watcher, and with auditd and the rule that
//! `auditctl -w` makes. Neither compares contents with a declaration. They show what their kind of watching costs.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::files;
use super::operations::ALL;
use super::stage::{FILES, changes, operations};
use crate::guest::{Context, run as run_program, wait};

/// Measures all other watchers.
pub(super) fn run(context: &mut Context) -> Result<()> {
    inotify(context)?;
    auditd(context)
}

/// A process that watches every managed directory and reads its events.
fn inotify(context: &mut Context) -> Result<()> {
    let inotify = Inotify::init(InitFlags::empty())?;
    for first in (0..FILES).step_by(100) {
        let flags = AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE;
        let place = files::path(first);
        inotify.add_watch(place.parent().unwrap_or(&place), flags)?;
    }
    let reader = thread::spawn(move || {
        loop {
            match inotify.read_events() {
                // The last event: a file of that name is created at the end of the measurement.
                Ok(events) if events.iter().any(|event| event.name.as_deref() == Some("over".as_ref())) => {
                    return Ok(());
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    });
    operations(context, "inotify", &ALL)?;
    changes(context, "inotify")?;
    fs::write(files::path(0).with_file_name("over"), "")?;
    reader.join().map_err(|_| anyhow::anyhow!("the inotify watcher panicked"))??;
    Ok(())
}

/// Debian's own settings, except for the disk, which is small and in memory here.
const AUDITD_CONF: &str = "local_events = yes
write_logs = yes
log_file = /var/log/audit/audit.log
log_format = ENRICHED
flush = INCREMENTAL_ASYNC
freq = 50
max_log_file = 8
num_logs = 5
max_log_file_action = ROTATE
priority_boost = 4
name_format = NONE
space_left = 20
space_left_action = IGNORE
admin_space_left = 10
admin_space_left_action = IGNORE
disk_full_action = IGNORE
disk_error_action = IGNORE
";

/// auditd with the rule of `auditctl -w` on the managed files.
fn auditd(context: &mut Context) -> Result<()> {
    for folder in ["/var/log/audit", "/etc/audit"] {
        fs::create_dir_all(folder)?;
    }
    if !fs::exists("/var/run")? {
        symlink("/run", "/var/run")?;
    }
    fs::write("/etc/audit/auditd.conf", AUDITD_CONF)?;
    let mut auditd = Command::new("/usr/sbin/auditd")
        .args(["-n", "-s", "enable"])
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start auditd")?;
    wait::until("auditd to listen", Duration::from_mins(1), || {
        let text = fs::read_to_string("/var/log/audit/audit.log").unwrap_or_default();
        Ok(text.contains("DAEMON_START").then_some(()))
    })?;
    run_program("/usr/sbin/auditctl", &["-b", "8192"])?;
    run_program("/usr/sbin/auditctl", &["-w", "/etc/bench", "-p", "wa", "-k", "bench"])?;
    operations(context, "auditd", &ALL)?;
    changes(context, "auditd")?;
    auditd.kill()?;
    auditd.wait()?;
    Ok(())
}
