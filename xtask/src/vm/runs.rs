//! One run of a scenario, from a boot or from a saved guest.
//!
//! In: a `Vm`. Out: the results of its scenario, or the failure; and a log of the guest's output. A guest that never comes up
//! starts once more, and the result counts it. A guest that dies later has failed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use vm_tests::protocol;

use super::console::{self, ConsoleWatch, Limits, Seen};
use super::guest::{Disk, GuestParts, SILENCE, Vm, logs};
use super::machine::Emulator;
use super::saved::Saved;
use crate::run::say;

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What the guest reported, and how it ended.
    pub(crate) seen: Seen,
    /// The log of everything that it printed.
    pub(crate) log: PathBuf,
    /// The number of times that it was started again.
    pub(crate) retries: u32,
    /// How long it took, the last time.
    pub(crate) took: Duration,
}

impl Vm {
    /// Runs the scenario, from a saved state if there is one, and once more from a boot if the guest did not come up.
    pub(crate) fn run(&self, parts: &GuestParts, saved: Option<&Saved>) -> Result<Outcome> {
        let path = logs()?.join(format!("{}.log", self.name()));
        let start = Instant::now();
        let first = self.once(parts, saved, &path);
        let why = match (&first, saved) {
            (Ok(seen), _) if seen.is_worth_another_try() => format!("{:?}", seen.end),
            // A state that cannot be loaded; the scenario has not begun.
            (Err(error), Some(_)) => format!("{error:#}"),
            _ => return first.map(|seen| Outcome { seen, log: path, retries: 0, took: start.elapsed() }),
        };
        say("vm", &format!("{} did not come up, or its emulator stalled ({why}): once more", self.name()));
        fs::rename(&path, path.with_extension("first-try.log"))?;
        let start = Instant::now();
        let seen = self.once(parts, None, &path)?;
        Ok(Outcome { seen, log: path, retries: 1, took: start.elapsed() })
    }

    /// One start of the scenario.
    fn once(&self, parts: &GuestParts, saved: Option<&Saved>, log: &Path) -> Result<Seen> {
        let mut log = File::create(log)?;
        let folder = tempfile::tempdir()?;
        let cluster = parts.cluster(self)?;
        let mut machine = if let Some(saved) = saved {
            saved.load(self, parts, folder.path(), &mut log)?
        } else {
            let archive = folder.path().join("initramfs");
            let more = cluster.as_ref().map_or(&[][..], |cluster| &cluster.payload);
            fs::write(&archive, self.initramfs(parts, more)?)?;
            let mut command = self.command(parts, &archive, Disk::Scratch(None));
            if let Some(cluster) = &cluster {
                command.args(cluster.network());
            }
            Emulator::start(&mut command, folder.path())?
        };
        let order = protocol::start(self.scenario.name);
        if saved.is_some() {
            machine.send(&order)?;
        }
        let name = self.name();
        let watch = ConsoleWatch {
            limits: Limits { silence: SILENCE, total: self.scenario.longest() },
            log: &mut log,
            mirror: self.verbose.then_some(name.as_str()),
            narrate: self.narrate,
        };
        let release = saved.map(|saved| saved.release.clone());
        console::watch(&mut machine, watch, release, &mut |machine| machine.send(&order).map(|()| true))
            .with_context(|| format!("virtual machine {name}"))
    }
}
