//! `holdfast detach`: removes what a daemon leaves on a host.

use super::agent::PINS;
use super::exit::IN_SYNC;
use super::output::{Screen, clean, count};
use crate::agent::detach::{Detached, detach};
use crate::host_namespaces;
use crate::no_network;
use crate::report::{forensic, status_file};
use nix::unistd::pause;
use std::io;
use std::path::PathBuf;

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
    /// Wait for a signal afterwards: a container of a `DaemonSet` must not end.
    #[arg(long)]
    wait: bool,
}

impl Detach {
    /// Detaches, and prints what was removed.
    ///
    /// # Errors
    /// A daemon runs, or something cannot be removed.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        if self.enter_host {
            // No thread exists yet.
            host_namespaces::enter()?;
            no_network::forbid()?;
        }
        text(&detach(&self.pins, &self.run)?, screen)?;
        if self.wait {
            // A signal without a handler ends the process.
            pause();
        }
        Ok(IN_SYNC)
    }
}

fn text(done: &Detached, screen: &mut Screen) -> io::Result<()> {
    let (programs, maps) = (count(done.programs, "kernel program"), count(done.maps, "map"));
    screen.line(&format!("detached {programs}, removed {maps}"))?;
    for path in &done.removed {
        screen.line(&format!("removed {}", clean(&path.to_string_lossy())))?;
    }
    for path in &done.kept {
        let path = clean(&path.to_string_lossy());
        screen.line(&format!("kept {path}: it has entries that no daemon made"))?;
    }
    screen
        .line(&format!("kept the forensic log in {} and the state in /var/lib/holdfast", forensic::DIRECTORY))
}
