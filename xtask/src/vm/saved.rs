//! A guest that is booted once and saved when its program waits for a scenario.
//!
//! In: a run whose boot others share. Out: a folder with the guest's memory, its initramfs and its root disk, if it has one;
//! and guests that start from the folder. Each has copies of its own, so no guest changes the files of another.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use super::console::{self, ConsoleWatch, GuestEnd, Limits};
use super::guest::{Disk, GuestParts, SILENCE, Vm, logs};
use super::machine::Emulator;
use crate::dist;
use crate::run::{output, say};

/// Longest time until a guest's program runs.
const BOOT: Duration = Duration::from_mins(5);

/// A saved guest.
#[derive(Debug)]
pub(crate) struct Saved {
    folder: TempDir,
    /// Whether the guest has a root disk, which was saved with it.
    has_disk: bool,
    /// The release of its kernel.
    pub(super) release: String,
    /// The log of everything that the boot printed.
    log: PathBuf,
    /// The number of times that the guest was started again.
    pub(crate) retries: u32,
    /// The duration of boot and saving.
    pub(crate) took: Duration,
    /// Processor time of the emulator.
    pub(crate) cpu: Duration,
}

impl Saved {
    /// Boots the guest of a run and saves it; boots it once more if it does not come up.
    pub(crate) fn make(vm: &Vm, parts: &GuestParts) -> Result<Self> {
        match Self::once(vm, parts) {
            Ok(saved) => Ok(saved),
            Err(error) => {
                say("vm", &format!("{} did not come up ({error:#}): once more", vm.boot_name()));
                Ok(Self { retries: 1, ..Self::once(vm, parts)? })
            }
        }
    }

    fn once(vm: &Vm, parts: &GuestParts) -> Result<Self> {
        let start = Instant::now();
        let path = logs()?.join(format!("{}.log", vm.boot_name()));
        let mut log = File::create(&path)?;
        let folder = tempfile::Builder::new().prefix("vm-").tempdir_in(dist::root().join("target"))?;
        std::fs::write(archive(folder.path()), vm.initramfs(parts, &[])?)?;
        let image = parts.root(vm.scenario.guest);
        let disk = disk(folder.path());
        if let Some(image) = image {
            // It keeps holes: most of the image is empty.
            output(Command::new("cp").arg("--sparse=always").arg(image).arg(&disk))?;
        }
        let sockets = tempfile::tempdir()?;
        let mut command = vm.command(parts, &archive(folder.path()), Disk::Kept(&disk));
        let mut machine = Emulator::start(&mut command, sockets.path())?;
        let name = vm.boot_name();
        let watch = ConsoleWatch {
            limits: Limits { silence: SILENCE, total: BOOT },
            log: &mut log,
            mirror: vm.verbose.then_some(name.as_str()),
            narrate: None,
        };
        let seen = console::watch(&mut machine, watch, None, &mut |_| Ok(false))?;
        let (GuestEnd::Ready, Some(release)) = (&seen.end, seen.release) else {
            bail!("{:?} before its program ran, log: {}", seen.end, path.display());
        };
        machine.monitor()?.save(&memory(folder.path())).with_context(|| format!("cannot save {name}"))?;
        let cpu = console::cpu_time(machine.child.id());
        machine.monitor()?.quit()?;
        machine.child.wait()?;
        let (has_disk, took) = (image.is_some(), start.elapsed());
        Ok(Self { folder, has_disk, release, log: path, retries: 0, took, cpu })
    }

    /// Starts a guest from the saved one, with its sockets in `sockets`.
    pub(super) fn load(
        &self,
        vm: &Vm,
        parts: &GuestParts,
        sockets: &Path,
        log: &mut File,
    ) -> Result<Emulator> {
        let folder = self.folder.path();
        writeln!(
            log,
            "   0.000 started from the state that is saved behind the last line of {}",
            self.log.display()
        )?;
        let disk = self.has_disk.then(|| disk(folder));
        let mut command = vm.command(parts, &archive(folder), Disk::Scratch(disk.as_deref()));
        let mut machine = Emulator::start(command.args(["-incoming", "defer"]), sockets)?;
        machine
            .monitor()?
            .load(&memory(folder))
            .with_context(|| format!("cannot load {}", vm.boot_name()))?;
        Ok(machine)
    }
}

fn archive(folder: &Path) -> PathBuf {
    folder.join("initramfs")
}

fn disk(folder: &Path) -> PathBuf {
    folder.join("root")
}

fn memory(folder: &Path) -> PathBuf {
    folder.join("memory")
}
