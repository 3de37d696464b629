//! The parts of a guest: its kernel, its files, its disks and the emulator's command line.
//!
//! In: a kernel, a scenario and files. Out: the first root file system, and the command that starts QEMU. It starts nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use vm_tests::scenarios::{Guest, Scenario};

use super::cluster::Cluster;
use super::images::SealedUsr;
use super::payload::Payload;
use super::{cpio, images, kube_root, ostree, selinux};
use crate::alerts;
use crate::cache::Cache;
use crate::dist;
use crate::kernels::CachedKernel;
use crate::kube::{self, KubeAssets};
use crate::qemu::Qemu;
use crate::run::output;
use crate::tools::PackageTree;

/// Longest time without a line before a guest counts as stuck. An update of a layered image prints nothing for up to a minute on a
/// host that has nothing else to do.
pub(super) const SILENCE: Duration = Duration::from_mins(4);
/// All features of the emulator but a fifth level of page tables. A guest of a gigabyte does not need it, and each walk through
/// the tables costs the emulator time.
const CPU: &str = "max,la57=off";
/// Features that a guest lacks besides, unless it counts instructions. With them a kernel copies and clears memory by single instructions,
/// which the emulator runs byte by byte. Without them it uses words, which saves an eighth of the emulator's time. The figures of a guest
/// that counts instructions stay comparable with earlier ones.
const SLOW_HERE: &str = "erms=off,fsrm=off";
/// The order of security modules where a kernel's own does not end in `bpf`.
const LSM_5_10: &str = "lsm=lockdown,yama,apparmor,bpf";

/// Where programs of a package look for their libraries in a guest.
const LIBRARIES: &str = "/lib/x86_64-linux-gnu";

/// All parts of guests, ready for any number of boots at once.
#[derive(Debug, Clone)]
pub(crate) struct GuestParts {
    qemu: Qemu,
    busybox: PathBuf,
    disks: Vec<(&'static str, PathBuf)>,
    sealed_usr: SealedUsr,
    /// Root disks of the guests that have one.
    roots: Vec<(Guest, PathBuf)>,
    guest_program: PathBuf,
    /// The programs of Kubernetes, for a guest with a kubelet, and Prometheus.
    kube: Option<(KubeAssets, PackageTree)>,
}

impl GuestParts {
    /// Finds, fetches and builds them; root disks only for the requested guests. It closes the cache before the build, so that
    /// no other command waits for a compiler.
    pub(crate) fn ensure(cache: Cache, guests: &[Guest]) -> Result<Self> {
        Self::ensure_with(cache, guests, dist::Profile::Dev)
    }

    /// The same with a choice of how the guest's own program is built.
    pub(crate) fn ensure_with(cache: Cache, guests: &[Guest], guest: dist::Profile) -> Result<Self> {
        let qemu = Qemu::ensure(&cache)?;
        let busybox = images::busybox(&cache)?;
        let disks = images::file_systems(&cache)?;
        let sealed_usr = images::sealed_usr(&cache)?;
        let mut roots = Vec::new();
        if guests.contains(&Guest::Systemd) {
            roots.push((Guest::Systemd, images::systemd_root(&cache)?));
        }
        if guests.contains(&Guest::Trixie) {
            roots.push((Guest::Trixie, images::trixie_root(&cache)?));
        }
        if guests.contains(&Guest::Ostree) {
            roots.push((Guest::Ostree, ostree::root(&cache)?));
        }
        if guests.contains(&Guest::Selinux) {
            roots.push((Guest::Selinux, selinux::root(&cache)?));
        }
        let mut kube = None;
        if guests.iter().any(|guest| guest.is_kubernetes_node()) {
            let release = kube::tested();
            let assets = KubeAssets::ensure(&cache, &release)?;
            for guest in [Guest::Kube, Guest::KubeTrixie].into_iter().filter(|guest| guests.contains(guest)) {
                roots.push((guest, kube_root::root(&cache, &assets, &release, guest)?));
            }
            kube = Some((assets, alerts::tree(&cache)?));
        }
        drop(cache);
        Ok(Self { qemu, busybox, disks, sealed_usr, roots, guest_program: dist::build_guest(guest)?, kube })
    }

    /// Starts the cluster that the guest of a run joins, if it joins one.
    pub(super) fn cluster(&self, vm: &Vm) -> Result<Option<Cluster>> {
        let Some((assets, prometheus)) =
            self.kube.as_ref().filter(|_| vm.scenario.guest.is_kubernetes_node())
        else {
            return Ok(None);
        };
        Cluster::start(&vm.name(), assets, vm.scenario.needs_prometheus.then_some(prometheus)).map(Some)
    }

    /// The shell of the bare guest, a static program.
    pub(crate) fn busybox(&self) -> &Path {
        &self.busybox
    }

    /// The root disk of a guest that has one.
    pub(super) fn root(&self, guest: Guest) -> Option<&Path> {
        self.roots.iter().find(|(known, _)| *known == guest).map(|(_, image)| image.as_path())
    }
}

/// One run of a scenario.
#[derive(Debug, Clone)]
pub(crate) struct Vm {
    /// Which kernel.
    pub(crate) kernel: CachedKernel,
    /// What to run, in which guest, with which parameters and limit.
    pub(crate) scenario: &'static Scenario,
    /// More kernel parameters, after those of the scenario.
    pub(crate) parameters: Vec<String>,
    /// Files for the guest.
    pub(crate) files: Vec<Payload>,
    /// Count instructions: one CPU, and the guest's nanoseconds are executed instructions.
    pub(crate) icount: bool,
    /// Give the guest the emulator's own network, in which it reaches the loopback of this machine. A guest that counts instructions
    /// then has the time of this machine while it waits, because those on whom it waits live in that time.
    pub(crate) network: bool,
    /// Repeat every line on standard error.
    pub(crate) verbose: bool,
    /// Gets the scenario's notes as they come.
    pub(crate) narrate: Option<fn(&str)>,
    /// Which of several boots of the same combination this is.
    pub(crate) round: Option<usize>,
}

impl Vm {
    /// A run with nothing special.
    pub(crate) fn new(kernel: CachedKernel, scenario: &'static Scenario) -> Self {
        Self {
            kernel,
            scenario,
            parameters: Vec::new(),
            files: Vec::new(),
            icount: false,
            network: false,
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

    /// Names of the boots from whose saved state this run can start are equal. A node with a kubelet boots for itself, with the
    /// addresses of its own control plane.
    pub(crate) fn boot_name(&self) -> String {
        if self.scenario.guest.is_kubernetes_node() {
            return self.name();
        }
        let parameters = [self.scenario.parameters.join("-"), self.parameters.join("-")].concat();
        let parameters = parameters.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let icount = if self.icount { "-icount" } else { "" };
        let usr = if self.scenario.needs_sealed_usr { "sealed-usr" } else { "" };
        let parts = [&self.kernel.series, self.scenario.guest.name(), &parameters, usr].map(str::to_owned);
        let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        format!("{}{icount}-boot", parts.join("-"))
    }

    /// The command that starts QEMU, without its ports.
    pub(super) fn command(&self, parts: &GuestParts, archive: &Path, disk: Disk<'_>) -> Command {
        let mut command = parts.qemu.command();
        if self.icount {
            let sleep = if self.network { "on" } else { "off" };
            command.args(["-accel", "tcg", "-icount", &format!("shift=0,sleep={sleep}")]);
        } else {
            command.args(["-accel", "tcg,thread=multi"]);
        }
        let cpu = if self.icount { CPU.to_owned() } else { format!("{CPU},{SLOW_HERE}") };
        command
            .args(["-cpu", &cpu, "-smp", &self.cpus().to_string(), "-m", self.memory(), "-kernel"])
            .arg(self.kernel.image())
            .arg("-initrd")
            .arg(archive)
            .args(["-append", &self.command_line(parts)]);
        if self.network {
            command.args(["-netdev", "user,id=network,ipv6=off", "-device", "virtio-net-pci,netdev=network"]);
        }
        // A guest that reboots although its scenario does not ask for it has failed.
        if !self.scenario.reboots {
            command.arg("-no-reboot");
        }
        let (own, snapshot) = match disk {
            Disk::Scratch(own) => (own, "on"),
            Disk::Kept(own) => (Some(own), "off"),
        };
        let root = parts.root(self.scenario.guest).map(|image| ("root", own.unwrap_or(image), snapshot));
        let others = parts.disks.iter().map(|(name, image)| (*name, image.as_path(), "on"));
        let usr = self.scenario.needs_sealed_usr.then_some(("usr", parts.sealed_usr.image.as_path(), "on"));
        for (name, image, snapshot) in root.into_iter().chain(others).chain(usr) {
            command
                .arg("-drive")
                .arg(format!(
                    "id={name},if=none,format=raw,snapshot={snapshot},cache=unsafe,file={}",
                    image.display()
                ))
                .args(["-device", &format!("virtio-blk-pci,drive={name},serial={name}")]);
        }
        command
    }

    /// Memory of the guest. kubelet, containerd and their pods need more than a gigabyte.
    fn memory(&self) -> &'static str {
        if self.scenario.guest.is_kubernetes_node() { "2G" } else { "1G" }
    }

    fn cpus(&self) -> u32 {
        if self.icount { 1 } else { 2 }
    }

    /// The kernel's parameters.
    fn command_line(&self, parts: &GuestParts) -> String {
        let mut words =
            vec!["console=ttyS0".to_owned(), "panic=-1".to_owned(), "systemd.getty_auto=no".to_owned()];
        if self.kernel.series == "5.10" {
            words.push(LSM_5_10.to_owned());
        }
        if self.icount {
            // The random place of a stack changes an execution by thousands of instructions.
            words.extend(["tsc=reliable", "clocksource=tsc", "norandmaps"].map(str::to_owned));
        }
        words.push(format!("hf.kernel={}", self.kernel.series));
        words.push(format!("hf.guest={}", self.scenario.guest.name()));
        words.push(format!("hf.cpus={}", self.cpus()));
        if self.verbose {
            words.push("hf.verbose=1".to_owned());
        }
        if self.scenario.needs_sealed_usr {
            words.push(format!("usrhash={}", parts.sealed_usr.root_hash));
        }
        words.extend(self.scenario.parameters.iter().map(|&p| p.to_owned()));
        words.extend(self.parameters.iter().cloned());
        words.join(" ")
    }

    /// The first root file system: the whole bare guest, or the program that mounts the root disk. `more` are files of this
    /// start alone.
    pub(super) fn initramfs(&self, parts: &GuestParts, more: &[Payload]) -> Result<Vec<u8>> {
        let mut archive = cpio::Archive::default();
        let read = |path: &PathBuf| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        archive.console();
        archive.file("init", 0o755, read(&parts.guest_program)?);
        archive.file("bin/busybox", 0o755, read(&parts.busybox)?);
        archive.link("bin/sh", "busybox");
        archive.folder("newroot");
        let kube = self.scenario.guest.is_kubernetes_node();
        let modules = if kube { self.kernel.cluster_modules() } else { self.kernel.modules() };
        for entry in fs::read_dir(modules)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            archive.file(&format!("opt/holdfast/modules/{name}"), 0o644, read(&path)?);
        }
        let below = match self.scenario.guest {
            Guest::Bare => "",
            Guest::Systemd
            | Guest::Trixie
            | Guest::Ostree
            | Guest::Selinux
            | Guest::Kube
            | Guest::KubeTrixie => "payload/",
        };
        archive.folder("payload");
        for file in self.files.iter().chain(more) {
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

    /// Gives the guest a program of a package, and its libraries at the paths where the program expects them.
    pub(crate) fn add_program(&mut self, tree: &PackageTree, name: &str, place: &str) -> Result<()> {
        let program = tree.program(name).with_context(|| format!("the package holds no {name}"))?;
        for line in output(tree.command("ldd".as_ref()).arg(&program))?.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [library, "=>", path, _] => self.add_file(path.into(), &format!("{LIBRARIES}/{library}"))?,
                // The loader, by its path.
                [path, _] if path.starts_with('/') => self.add_file(PathBuf::from(path), path)?,
                _ => {}
            }
        }
        self.add_file(program, place)
    }
}

/// The root disk of a guest that has one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Disk<'a> {
    /// What is written to it ends with the guest; with another image than that of the parts.
    Scratch(Option<&'a Path>),
    /// This image keeps what is written to it.
    Kept(&'a Path),
}

/// The folder of the logs.
pub(super) fn logs() -> Result<PathBuf> {
    let folder = dist::root().join("target/vm-logs");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}
