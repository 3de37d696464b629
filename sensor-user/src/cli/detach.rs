//! `holdfast detach`: removes what a daemon leaves on a host, and on request all that Holdfast keeps there.

use super::agent::PINS;
use super::exit::IN_SYNC;
use super::output::{Screen, clean, count};
use crate::agent::detach::{Detached, FREED, LeftBehind};
use crate::desired::STATE;
use crate::host_namespaces;
use crate::no_network;
use crate::purge::{Purge, PurgeScope, Purged};
use crate::report::{forensic, status_file};
use nix::unistd::pause;
use std::io;
use std::path::PathBuf;

/// Most kept names that are printed.
const NAMED: usize = 20;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Detach {
    /// Enter the host's mount and control-group namespaces first: for a pod with `hostPID`.
    #[arg(long)]
    enter_host: bool,
    /// BPF file system directory in which the kernel programs are pinned.
    #[arg(long, default_value = PINS, value_name = "DIRECTORY")]
    pins: PathBuf,
    /// Directory of the status file.
    #[arg(long, default_value = status_file::DIRECTORY, value_name = "DIRECTORY")]
    run: PathBuf,
    #[command(flatten)]
    purge: PurgeOptions,
    /// Wait for a signal afterwards: a container of a `DaemonSet` must not end.
    #[arg(long)]
    wait: bool,
}

/// What is deleted beside.
#[derive(Debug, clap::Args)]
struct PurgeOptions {
    /// Also delete the state directory: applied configs, originals, indexes of images, the daemon's own files. Refused while an apply
    /// has not ended, and while the quarantine has objects.
    #[arg(long)]
    purge: bool,
    /// Also delete the forensic log. It is the only record of past changes on this host: copy it first.
    #[arg(long)]
    purge_log: bool,
    /// State directory. The drift policies that a cluster handed in are put aside in it, so that no command of the host uses them.
    #[arg(long, default_value = STATE, value_name = "DIRECTORY")]
    state: PathBuf,
    /// Directory of the forensic log, for --purge-log.
    #[arg(long, default_value = forensic::DIRECTORY, value_name = "DIRECTORY")]
    log: PathBuf,
}

impl Detach {
    /// Detaches, and prints what was removed.
    ///
    /// # Errors
    /// A daemon runs, something cannot be removed, or a purge is refused. A refused purge leaves the kernel programs attached, too.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        if self.enter_host {
            // No thread exists yet.
            host_namespaces::enter()?;
            no_network::forbid()?;
        }
        let scope = self.purge.scope();
        let left = LeftBehind::lock(&self.pins, &self.run, &self.purge.state)?;
        let purge = scope.map(Purge::prepare).transpose()?;
        text(&left.detach()?, screen)?;
        if let Some(purge) = purge {
            purged(&purge.run()?, screen)?;
        }
        self.purge.kept(screen)?;
        // Another daemon may take the directories while this process waits.
        drop(left);
        if self.wait {
            // A signal without a handler ends the process.
            pause();
        }
        Ok(IN_SYNC)
    }
}

impl PurgeOptions {
    /// What to purge; `None` without an option that deletes something.
    fn scope(&self) -> Option<PurgeScope<'_>> {
        let log = self.purge_log.then_some(&*self.log);
        let scope = PurgeScope { state: &self.state, purges_state: self.purge, log };
        (self.purge || self.purge_log).then_some(scope)
    }

    /// Names what stays because no option deletes it.
    fn kept(&self, screen: &mut Screen) -> io::Result<()> {
        let log = format!("the forensic log in {}", self.log.display());
        let state = format!("the state in {}", self.state.display());
        let kept: Vec<String> = [(!self.purge_log).then_some(log), (!self.purge).then_some(state)]
            .into_iter()
            .flatten()
            .collect();
        if kept.is_empty() { Ok(()) } else { screen.line(&format!("kept {}", clean(&kept.join(" and ")))) }
    }
}

fn purged(done: &Purged, screen: &mut Screen) -> io::Result<()> {
    for path in &done.removed {
        screen.line(&format!("deleted {}", clean(&path.to_string_lossy())))?;
    }
    for path in done.kept.iter().take(NAMED) {
        let path = clean(&path.to_string_lossy());
        screen.line(&format!(
            "kept {path}: Holdfast did not make it, or another file system is mounted there"
        ))?;
    }
    if done.kept.len() > NAMED {
        screen.line(&format!("kept {} more of these", done.kept.len() - NAMED))?;
    }
    if let Some(note) = &done.kept_note {
        let note = clean(&note.to_string_lossy());
        screen.line(&format!("kept {note}: it belongs to the forensic log, which --purge-log deletes"))?;
    }
    Ok(())
}

fn text(done: &Detached, screen: &mut Screen) -> io::Result<()> {
    let (programs, maps) = (count(done.programs, "kernel program"), count(done.maps, "map"));
    screen.line(&format!("detached {programs}, removed {maps}"))?;
    if done.running > 0 {
        let (running, seconds) = (count(done.running, "kernel program"), FREED.as_secs());
        screen.line(&format!(
            "{running} still ran after {seconds} seconds, with the deny rules: another process probably has the links open, and they end with \
             that process"
        ))?;
    }
    for path in &done.removed {
        screen.line(&format!("removed {}", clean(&path.to_string_lossy())))?;
    }
    for path in &done.kept {
        let path = clean(&path.to_string_lossy());
        screen.line(&format!("kept {path}: it has entries that no daemon made"))?;
    }
    if let Some(path) = &done.aside {
        let path = clean(&path.to_string_lossy());
        screen.line(&format!("put the drift policies of the cluster aside, as {path}"))?;
    }
    Ok(())
}
