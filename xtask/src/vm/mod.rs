//! Virtual machines: one boot of one kernel with one guest that runs one scenario.
//!
//! Comes in: a `Vm`. Goes out: the results of its scenario, or how it failed to give them; and a log of everything it
//! printed in `target/vm-logs`. A guest that dies before its program ran is started once more, and that is
//! counted; one that dies later is a finding and never retried. Nothing that a guest writes outlives it.

pub(crate) mod console;
mod cpio;
pub(crate) mod images;
mod ostree;
mod selinux;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vm_tests::scenarios::{Guest, Scenario};

use crate::cache::Cache;
use crate::dist;
use crate::kernels::Kernel;
use crate::qemu::Qemu;
use crate::run::say;
use console::{Limits, Seen};

/// Longest time without a line before a guest counts as stuck.
const SILENCE: Duration = Duration::from_mins(2);
/// What the emulator can do, without a fifth level of page tables: a guest of a gigabyte has no use for it, and each
/// walk through the tables is the emulator's work.
const CPU: &str = "max,la57=off";
/// The order of security modules where a kernel's own does not end in `bpf`.
const LSM_5_10: &str = "lsm=lockdown,yama,apparmor,bpf";

/// Everything that guests are made of, ready for any number of boots at once.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    qemu: Qemu,
    busybox: PathBuf,
    disks: Vec<(&'static str, PathBuf)>,
    /// Root disks of the guests that have one.
    roots: Vec<(Guest, PathBuf)>,
    guest_program: PathBuf,
}

impl Parts {
    /// Finds, fetches and builds them; root disks only for the guests that are asked for. The cache is closed before
    /// the build, so that nobody waits for a compiler.
    pub(crate) fn ensure(cache: Cache, guests: &[Guest]) -> Result<Self> {
        Self::ensure_with(cache, guests, dist::Profile::Dev)
    }

    /// The same with a choice of how the guest's own program is built.
    pub(crate) fn ensure_with(cache: Cache, guests: &[Guest], guest: dist::Profile) -> Result<Self> {
        let qemu = Qemu::ensure(&cache)?;
        let busybox = images::busybox(&cache)?;
        let disks = images::file_systems(&cache)?;
        let mut roots = Vec::new();
        if guests.contains(&Guest::Systemd) {
            roots.push((Guest::Systemd, images::systemd_root(&cache)?));
        }
        if guests.contains(&Guest::Ostree) {
            roots.push((Guest::Ostree, ostree::root(&cache)?));
        }
        if guests.contains(&Guest::Selinux) {
            roots.push((Guest::Selinux, selinux::root(&cache)?));
        }
        drop(cache);
        Ok(Self {
            qemu,
            busybox,
            disks,
            roots,
            guest_program: dist::build_static("vm-tests", "holdfast-guest", guest, &[])?,
        })
    }
}

/// A file that the guest gets.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    /// Where it is here.
    pub(crate) source: PathBuf,
    /// Where it will be in the guest.
    pub(crate) place: String,
    /// Its permission bits there.
    pub(crate) mode: u32,
}

/// One boot.
#[derive(Debug, Clone)]
pub(crate) struct Vm {
    /// Which kernel.
    pub(crate) kernel: Kernel,
    /// What to run, in which guest, with which parameters and limit.
    pub(crate) scenario: &'static Scenario,
    /// More kernel parameters, after those of the scenario.
    pub(crate) parameters: Vec<String>,
    /// Files for the guest.
    pub(crate) files: Vec<Payload>,
    /// Count instructions: one CPU, and the guest's nanoseconds are executed instructions.
    pub(crate) icount: bool,
    /// Repeat every line on standard error.
    pub(crate) verbose: bool,
    /// Who is given the scenario's notes as they come.
    pub(crate) narrate: Option<fn(&str)>,
    /// Which of several boots of the same combination this is.
    pub(crate) round: Option<usize>,
}

/// What a boot gave.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What the guest said and how it ended.
    pub(crate) seen: Seen,
    /// Where everything it printed is.
    pub(crate) log: PathBuf,
    /// How often it had to be started again.
    pub(crate) retries: u32,
    /// How long it took, the last time.
    pub(crate) took: Duration,
}

impl Vm {
    /// A boot with nothing special.
    pub(crate) fn new(kernel: Kernel, scenario: &'static Scenario) -> Self {
        Self {
            kernel,
            scenario,
            parameters: Vec::new(),
            files: Vec::new(),
            icount: false,
            verbose: false,
            narrate: None,
            round: None,
        }
    }

    /// Name in messages and of the log.
    pub(crate) fn name(&self) -> String {
        let name = format!("{}-{}-{}", self.kernel.series, self.scenario.guest.name(), self.scenario.name);
        self.round.map(|round| format!("{name}.{round}")).unwrap_or(name)
    }

    /// Boots it, and once more if a boot came to nothing before its program ran.
    pub(crate) fn run(&self, parts: &Parts) -> Result<Outcome> {
        let initramfs = self.initramfs(parts)?;
        let folder = dist::root().join("target/vm-logs");
        fs::create_dir_all(&folder)?;
        let mut retries = 0;
        loop {
            let log = folder.join(format!("{}.log", self.name()));
            let start = Instant::now();
            let seen = self
                .boot(parts, &initramfs, &mut File::create(&log)?)
                .with_context(|| format!("virtual machine {}", self.name()))?;
            if seen.is_worth_another_try() && retries == 0 {
                retries += 1;
                fs::rename(&log, folder.join(format!("{}.first-try.log", self.name())))?;
                say(
                    "vm",
                    &format!("{}: {:?} in a boot, before its program ran; once more", self.name(), seen.end),
                );
                continue;
            }
            return Ok(Outcome { seen, log, retries, took: start.elapsed() });
        }
    }

    fn boot(&self, parts: &Parts, initramfs: &[u8], log: &mut File) -> Result<Seen> {
        let folder = tempfile::tempdir()?;
        let archive = folder.path().join("initramfs");
        fs::write(&archive, initramfs)?;
        let socket = folder.path().join("messages");
        let listener = UnixListener::bind(&socket)?;
        let mut command = parts.qemu.command();
        if self.icount {
            command.args(["-accel", "tcg", "-icount", "shift=0,sleep=off"]);
        } else {
            command.args(["-accel", "tcg,thread=multi"]);
        }
        command
            .args(["-cpu", CPU, "-smp", &self.cpus().to_string(), "-m", "1G"])
            .args(["-nodefaults", "-display", "none", "-serial", "stdio", "-chardev"])
            .arg(format!("socket,id=messages,path={}", socket.display()))
            .args(["-serial", "chardev:messages", "-kernel"])
            .arg(self.kernel.image())
            .arg("-initrd")
            .arg(&archive)
            .args(["-append", &self.command_line()]);
        // A guest that reboots where its scenario does not ask for it has failed.
        if !self.scenario.parameters.contains(&"hf.reboots=1") {
            command.arg("-no-reboot");
        }
        let root =
            parts.roots.iter().filter(|(guest, _)| *guest == self.scenario.guest).map(|(_, p)| ("root", p));
        for (name, image) in root.chain(parts.disks.iter().map(|(name, path)| (*name, path))) {
            command
                .arg("-drive")
                .arg(format!(
                    "id={name},if=none,format=raw,snapshot=on,cache=unsafe,file={}",
                    image.display()
                ))
                .args(["-device", &format!("virtio-blk-pci,drive={name},serial={name}")]);
        }
        let mut guest = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start QEMU")?;
        let (sender, lines) = console::lines();
        console::read_lines(guest.stdout.take().context("stdout was asked for")?, sender.clone());
        console::read_lines(guest.stderr.take().context("stderr was asked for")?, sender.clone());
        accept(&listener, sender);
        let limits = Limits { silence: SILENCE, total: Duration::from_secs(self.scenario.limit) };
        let name = self.name();
        let mirror = self.verbose.then_some(name.as_str());
        let seen = console::watch(&mut guest, &lines, limits, log, mirror, self.narrate);
        // Whatever went wrong, no emulator is left behind.
        let _ = guest.kill();
        let _ = guest.wait();
        // Wakes the thread that waits for QEMU, if QEMU never came.
        drop(std::os::unix::net::UnixStream::connect(&socket));
        seen
    }

    fn cpus(&self) -> u32 {
        if self.icount { 1 } else { 2 }
    }

    /// The kernel's parameters.
    fn command_line(&self) -> String {
        let mut words =
            vec!["console=ttyS0".to_owned(), "panic=-1".to_owned(), "systemd.getty_auto=no".to_owned()];
        if self.kernel.series == "5.10" {
            words.push(LSM_5_10.to_owned());
        }
        if self.icount {
            // Where a stack happens to lie makes a difference of thousands of instructions in an execution.
            words.extend(["tsc=reliable", "clocksource=tsc", "norandmaps"].map(str::to_owned));
        }
        words.push(format!("hf.kernel={}", self.kernel.series));
        words.push(format!("hf.guest={}", self.scenario.guest.name()));
        words.push(format!("hf.scenario={}", self.scenario.name));
        words.push(format!("hf.cpus={}", self.cpus()));
        if self.verbose {
            words.push("hf.verbose=1".to_owned());
        }
        words.extend(self.scenario.parameters.iter().map(|&p| p.to_owned()));
        words.extend(self.parameters.iter().cloned());
        words.join(" ")
    }

    /// The first root file system: the whole bare guest, or what brings up the root disk.
    fn initramfs(&self, parts: &Parts) -> Result<Vec<u8>> {
        let mut archive = cpio::Archive::default();
        let read = |path: &PathBuf| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        archive.console();
        archive.file("init", 0o755, read(&parts.guest_program)?);
        archive.file("bin/busybox", 0o755, read(&parts.busybox)?);
        archive.link("bin/sh", "busybox");
        archive.folder("newroot");
        for entry in fs::read_dir(self.kernel.modules())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            archive.file(&format!("opt/holdfast/modules/{name}"), 0o644, read(&path)?);
        }
        let below = match self.scenario.guest {
            Guest::Bare => "",
            Guest::Systemd | Guest::Ostree | Guest::Selinux => "payload/",
        };
        archive.folder("payload");
        for file in &self.files {
            archive.file(
                &format!("{below}{}", file.place.trim_start_matches('/')),
                file.mode,
                read(&file.source)?,
            );
        }
        Ok(archive.finish())
    }

    /// Gives the guest a file with the permission bits that it has here.
    pub(crate) fn add_file(&mut self, source: PathBuf, place: &str) -> Result<()> {
        let mode = fs::metadata(&source)
            .with_context(|| format!("cannot read {}", source.display()))?
            .permissions()
            .mode();
        if !place.starts_with('/') {
            bail!("{place} is no absolute path in the guest");
        }
        self.files.push(Payload { source, place: place.to_owned(), mode });
        Ok(())
    }
}

/// Waits in a thread of its own for QEMU to connect the message port, then reads it.
fn accept(listener: &UnixListener, lines: std::sync::mpsc::Sender<String>) {
    let Ok(listener) = listener.try_clone() else { return };
    std::thread::spawn(move || {
        if let Ok((stream, _)) = listener.accept() {
            console::read_lines(stream, lines);
        }
    });
}
