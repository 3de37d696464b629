//! Loading, attaching and pinning the programs, and taking over those of an earlier daemon.
//!
//! In: the embedded object, the kernel's BTF, a set of programs. Out: [`Loaded`]: programs, maps and rings. The canary shows whether the programs
//! run, and the agent decides which set to try next.

use super::btrfs;
use super::groups;
use super::hooks::{FUNCTIONS, Function, HOOKS, Hook, ProgramSet, TRACEPOINTS, When, WhyOff};
use super::layout::{Layout, VMLINUX_BTF};
use super::maps::{Maps, MapsError, ProcessMaps, Rings};
use super::object::OBJECT;
use super::own_process;
use super::pins::{Pins, PinsError, set_number};
use super::size;
use aya::pin::PinError;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::{BtfTracePoint, FEntry, Lsm, Program, ProgramError};
use aya::{Ebpf, EbpfLoader, Endianness};
use sensor_common::ABI_VERSION;
use sensor_common::map::Control;
use sensor_model::host::btf::{Btf, BtfError};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The maps that outlive the daemon: all of them, because adopted programs continue to use their own maps.
const PINNED_MAPS: [&str; 19] = [
    "MANAGED",
    "BITMAP",
    "ALLOWED",
    "NAMES",
    "CONTROL",
    "VOLUMES",
    "IDENTITY",
    "CHANGES",
    "ALARMS",
    "DENIALS",
    "LOADS",
    "PROCESSES",
    "EXECUTIONS",
    "EXECUTION_SEQUENCE",
    "EXECUTING",
    "EVER_NOTED",
    "GROUPS",
    "GROUP_SCRATCH",
    "COUNTS",
];

/// The map through which the programs of a debug build print lines.
#[cfg(debug_assertions)]
const LINES: &str = "AYA_LOGS";

/// Why the sensor could not be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The kernel's types cannot be read.
    #[error("read `{VMLINUX_BTF}`: {0}")]
    Read(#[source] std::io::Error),
    /// The kernel's types cannot be parsed.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// aya cannot parse the kernel's types.
    #[error("parse `{VMLINUX_BTF}`: {0}")]
    AyaBtf(#[from] aya::BtfError),
    /// Procfs does not show the daemon's own process.
    #[error("read the daemon's own start from procfs: {0}")]
    Process(#[source] std::io::Error),
    /// The kernel, or aya, refused the object.
    #[error("load the eBPF object: {0}")]
    Object(#[from] aya::EbpfError),
    /// A map is not usable.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// No hook could be attached.
    #[error("no hook could be attached as {set:?}; the first failure: {hook}: {off}")]
    NothingAttached {
        /// The set.
        set: ProgramSet,
        /// The first hook that failed.
        hook: &'static str,
        /// Why it failed.
        off: WhyOff,
    },
    /// The kernel's types contain none of the hooks.
    #[error("no hook could be attached as {0:?}; the first failure: this kernel has none of them")]
    NoHooks(ProgramSet),
    /// The pin directory is unusable.
    #[error(transparent)]
    Pins(#[from] PinsError),
}

/// The state of one hook.
#[derive(Debug, Clone)]
pub enum HookState {
    /// Attached by this daemon.
    Attached,
    /// Attached by an earlier daemon, and taken over by this one.
    Adopted,
    /// Loaded, and attached only while the daemon needs it.
    Waiting,
    /// Not attached, for this reason.
    Off(WhyOff),
}

/// The loaded programs and their links.
#[derive(Debug)]
pub struct AttachedPrograms {
    programs: Attachable,
    pins: Option<Pins>,
    /// The set of the change hooks.
    pub set: ProgramSet,
    /// The state of each hook, by hook or tracepoint name.
    pub hooks: BTreeMap<&'static str, HookState>,
    links: BTreeMap<&'static str, PinnedOrHeld>,
    /// Links of hooks that are attached only at times; see [`When`].
    temporary: BTreeMap<&'static str, FdLink>,
}

/// The programs that the daemon can still attach.
#[derive(Debug)]
enum Attachable {
    /// The whole object: instructions, functions and lines. It takes more than a MiB, because it contains a shared function once for
    /// each program that calls it.
    Object(Ebpf),
    /// The programs that are attached only at times, by their names in the object. Only the kernel holds their instructions.
    Waiting(BTreeMap<String, Program>),
}

#[derive(Debug)]
enum PinnedOrHeld {
    Pinned(PinnedLink),
    Held(FdLink),
}

/// What [`load`] gives: the programs and their maps.
#[derive(Debug)]
pub struct Loaded {
    /// Programs and links.
    pub sensor: AttachedPrograms,
    /// All maps but those of processes.
    pub maps: Maps,
    /// The maps of processes.
    pub processes: ProcessMaps,
    /// Both rings.
    pub ring: Rings,
    /// Every hook of the last run was still attached, so the programs have missed no change.
    pub adopted: bool,
}

/// The set whose links a daemon with this object left in the pin directory.
pub(crate) fn pinned_set(pins: &Path) -> Option<ProgramSet> {
    let groups = groups::hierarchy();
    [ProgramSet::Lsm, ProgramSet::Fentry].into_iter().find(|set| Pins::has_links(pins, *set, groups))
}

/// Loads the object, and attaches the program of each hook that this kernel has. It takes over links of an earlier daemon.
///
/// `pins` is a directory in a BPF file system; with `None` programs and maps end with the process. `things` is the number of
/// declared things; `None` if it is not known yet.
pub fn load(set: ProgramSet, pins: Option<&Path>, things: Option<usize>) -> Result<Loaded, LoadError> {
    let bytes = fs::read(VMLINUX_BTF).map_err(LoadError::Read)?;
    let btf = Btf::parse(&bytes)?;
    let groups = groups::hierarchy();
    let layout = Layout::resolve(&btf, groups);
    let cpus = possible_cpus();

    let mut hooks = BTreeMap::new();
    let mut globals: Vec<(String, u32)> =
        layout.values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    globals.push(("POSSIBLE_CPUS".to_owned(), cpus));
    let number = set_number(set);
    globals.push(("PROGRAM_SET".to_owned(), number));
    let mut wanted = Vec::new();
    for hook in HOOKS {
        match hook.arguments(&btf, set) {
            Ok(values) => {
                globals.extend(values);
                wanted.push(hook);
            }
            Err(error) => {
                hooks.insert(hook.name, HookState::Off(error.into()));
            }
        }
    }

    let mut functions = Vec::new();
    for function in FUNCTIONS {
        match function.argument(&btf) {
            Ok(value) => {
                globals.push(value);
                functions.push(function);
            }
            Err(error) => {
                hooks.insert(function.name, HookState::Off(error.into()));
            }
        }
    }

    let own = own_process::of(&layout).map_err(LoadError::Process)?;
    let offsets = btrfs::resolve(&btf, &bytes);

    // aya only looks up the numbers of functions and tracepoints. The whole of the kernel's types would take 13 MiB of memory in it, and
    // each look-up would read every function's name.
    let names = btf.with_names_only(&attach_points(&wanted, &functions, set))?;
    drop(btf);
    drop(bytes);
    let kernel = aya::Btf::parse(&names, Endianness::default())?;
    drop(names);

    let outgrown = |maps: &Path| size::is_outgrown(maps, things);
    let pins = pins.map(|root| Pins::prepare(root, set, groups, &PINNED_MAPS, outgrown)).transpose()?;
    let bitmap = size::choose(pins.as_ref().map(|pins| pins.maps.as_path()), things);
    globals.push(("BITMAP_SHIFT".to_owned(), bitmap.shift()));
    let map_pins: Vec<PathBuf> =
        pins.iter().flat_map(|pins| PINNED_MAPS.map(|name| pins.maps.join(name))).collect();
    let mut loader = EbpfLoader::new();
    loader.btf(Some(&kernel));
    loader.map_max_entries("BITMAP", bitmap.words());
    for (name, value) in &globals {
        loader.override_global(name, value, true);
    }
    for (name, path) in PINNED_MAPS.iter().zip(&map_pins) {
        loader.map_pin_path(name, path.as_path());
    }
    // The pin is beside the links of this object, so that this daemon also logs the lines of programs that an earlier one attached.
    #[cfg(debug_assertions)]
    let printed = pins.as_ref().map(|pins| pins.links.join(LINES));
    #[cfg(debug_assertions)]
    if let Some(path) = &printed {
        loader.map_pin_path(LINES, path.as_path());
    }
    let mut ebpf = loader.load(OBJECT)?;
    drop(loader);
    let (mut maps, processes, ring) = Maps::take(&mut ebpf, cpus, bitmap)?;
    // Before the daemon enrols the first inode, because the offsets change keys.
    if let Some(offsets) = offsets {
        maps.set_btrfs_offsets(offsets)?;
    }
    let mount_namespace = host_mount_namespace();
    maps.set_control(Control { abi_version: ABI_VERSION, mount_namespace, set: number, ..own })?;

    let programs = Attachable::Object(ebpf);
    let (links, temporary) = (BTreeMap::new(), BTreeMap::new());
    let mut sensor = AttachedPrograms { programs, pins, set, hooks, links, temporary };
    let adopted = sensor.attach_all(&wanted, &functions, &kernel)?;
    if let Err(error) = sensor.drop_object() {
        tracing::debug!(%error, "The object stays in memory.");
    }
    Ok(Loaded { sensor, maps, processes, ring, adopted })
}

/// The names in the kernel's types of all that the programs are attached to. A tracepoint is the typedef of its arguments.
fn attach_points(hooks: &[&Hook], functions: &[&Function], set: ProgramSet) -> BTreeSet<String> {
    let hooks = hooks.iter().map(|hook| hook.function(set));
    let functions = functions.iter().map(|function| function.name.to_owned());
    let tracepoints = TRACEPOINTS.iter().map(|hook| format!("btf_trace_{}", hook.tracepoint));
    hooks.chain(functions).chain(tracepoints).collect()
}

/// The number of process 1's mount namespace, or else of the daemon's; 0 if neither can be read.
fn host_mount_namespace() -> u32 {
    let number = |process: &str| fs::metadata(format!("/proc/{process}/ns/mnt")).map(|file| file.ino());
    let found = number("1").or_else(|_| number("self"));
    found.ok().and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

/// The number of processors that may ever be present, as the per-CPU maps count them.
fn possible_cpus() -> u32 {
    aya::util::nr_cpus().ok().and_then(|cpus| u32::try_from(cpus).ok()).unwrap_or(1)
}

impl AttachedPrograms {
    fn attach_all(
        &mut self,
        wanted: &[&'static Hook],
        functions: &[&'static Function],
        kernel: &aya::Btf,
    ) -> Result<bool, LoadError> {
        let mut adopted = true;
        let mut first_failure = None;
        let system = rustix::system::uname();
        let release = system.release().to_string_lossy();
        for hook in TRACEPOINTS.iter().filter(|hook| hook.is_needed(&release)) {
            let link = self.adopt_or(hook.name, |sensor| {
                let program: &mut BtfTracePoint = sensor.program(hook.program)?;
                program.load(hook.tracepoint, kernel)?;
                let link = program.attach()?;
                Ok(program.take_link(link)?.into())
            });
            adopted &= self.keep(hook.name, link, &mut first_failure);
        }
        for function in functions {
            let link = self.adopt_or(function.name, |sensor| {
                let program: &mut FEntry = sensor.program(function.program)?;
                program.load(function.name, kernel)?;
                let link = program.attach()?;
                Ok(program.take_link(link)?.into())
            });
            adopted &= self.keep(function.name, link, &mut first_failure);
        }
        for hook in wanted {
            let name = hook.program(self.set);
            if hook.when != When::Always {
                let state = match self.load_program(hook, &name, kernel) {
                    Ok(()) => HookState::Waiting,
                    Err(error) => HookState::Off(error.into()),
                };
                self.hooks.insert(hook.name, state);
                continue;
            }
            let link = self.adopt_or(hook.name, |sensor| {
                sensor.load_program(hook, &name, kernel)?;
                sensor.attach_program(&name)
            });
            adopted &= self.keep(hook.name, link, &mut first_failure);
        }
        let attached = HOOKS.iter().any(|hook| self.links.contains_key(hook.name));
        if attached {
            return Ok(adopted);
        }
        Err(match first_failure {
            Some((hook, off)) => LoadError::NothingAttached { set: self.set, hook, off },
            None => LoadError::NoHooks(self.set),
        })
    }

    /// The pinned link of an earlier run, or else a new link, which is pinned if there is a directory for pins.
    fn adopt_or(
        &mut self,
        name: &'static str,
        attach: impl FnOnce(&mut Self) -> Result<FdLink, ProgramError>,
    ) -> Result<(PinnedOrHeld, bool), ProgramError> {
        let Some(pins) = &self.pins else { return Ok((PinnedOrHeld::Held(attach(self)?), false)) };
        let path = pins.links.join(name);
        if let Ok(link) = PinnedLink::from_pin(&path) {
            return Ok((PinnedOrHeld::Pinned(link), true));
        }
        let link = attach(self)?;
        match link.pin(&path) {
            Ok(link) => Ok((PinnedOrHeld::Pinned(link), false)),
            Err(error) => Err(ProgramError::IOError(std::io::Error::other(error.to_string()))),
        }
    }

    fn keep(
        &mut self,
        name: &'static str,
        link: Result<(PinnedOrHeld, bool), ProgramError>,
        first_failure: &mut Option<(&'static str, WhyOff)>,
    ) -> bool {
        match link {
            Ok((link, adopted)) => {
                let state = if adopted { HookState::Adopted } else { HookState::Attached };
                self.links.insert(name, link);
                self.hooks.insert(name, state);
                adopted
            }
            Err(error) => {
                let off = WhyOff::from(error);
                first_failure.get_or_insert_with(|| (name, off.clone()));
                self.hooks.insert(name, HookState::Off(off));
                // The hook was off in the last run too, so it opens no new gap.
                true
            }
        }
    }

    fn program<'a, P>(&'a mut self, name: &str) -> Result<&'a mut P, ProgramError>
    where
        &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
    {
        let program = match &mut self.programs {
            Attachable::Object(ebpf) => ebpf.program_mut(name),
            Attachable::Waiting(programs) => programs.get_mut(name),
        };
        program.ok_or(ProgramError::UnexpectedProgramType)?.try_into()
    }

    /// Frees the object, which attached programs do not need. It keeps the waiting programs: it pins each of them for a moment and
    /// opens that pin, so that only the kernel holds the instructions. Without a directory for pins the object stays in memory.
    fn drop_object(&mut self) -> Result<(), ProgramError> {
        let Some(pins) = self.pins.clone() else { return Ok(()) };
        let waits = |hook: &&Hook| matches!(self.hooks.get(hook.name), Some(HookState::Waiting));
        let names: Vec<String> = HOOKS.iter().filter(waits).map(|hook| hook.program(self.set)).collect();
        let mut waiting = BTreeMap::new();
        for name in names {
            let path = pins.moment()?;
            let refused = |error: PinError| ProgramError::IOError(io::Error::other(error));
            let program = match self.set {
                ProgramSet::Lsm => {
                    self.program::<Lsm>(&name)?.pin(&path).map_err(refused)?;
                    Program::Lsm(Lsm::from_pin(&path)?)
                }
                ProgramSet::Fentry => {
                    self.program::<FEntry>(&name)?.pin(&path).map_err(refused)?;
                    Program::FEntry(FEntry::from_pin(&path)?)
                }
            };
            waiting.insert(name, program);
        }
        pins.moment()?;
        self.programs = Attachable::Waiting(waiting);
        Ok(())
    }

    fn load_program(&mut self, hook: &Hook, name: &str, kernel: &aya::Btf) -> Result<(), ProgramError> {
        match self.set {
            ProgramSet::Lsm => self.program::<Lsm>(name)?.load(hook.name, kernel),
            ProgramSet::Fentry => {
                self.program::<FEntry>(name)?.load(&hook.function(ProgramSet::Fentry), kernel)
            }
        }
    }

    fn attach_program(&mut self, name: &str) -> Result<FdLink, ProgramError> {
        match self.set {
            ProgramSet::Lsm => {
                let program = self.program::<Lsm>(name)?;
                let link = program.attach()?;
                Ok(program.take_link(link)?.into())
            }
            ProgramSet::Fentry => {
                let program = self.program::<FEntry>(name)?;
                let link = program.attach()?;
                Ok(program.take_link(link)?.into())
            }
        }
    }

    /// Attaches the hooks of this kind if they are needed, and otherwise detaches them. It gives the names of those that changed.
    pub fn attach_while(&mut self, when: When, needed: bool) -> Result<Vec<&'static str>, ProgramError> {
        let mut changed = Vec::new();
        for hook in HOOKS.iter().filter(|hook| hook.when == when) {
            if !needed {
                changed.extend(self.temporary.remove(hook.name).map(|_| hook.name));
            } else if !self.temporary.contains_key(hook.name)
                && matches!(self.hooks.get(hook.name), Some(HookState::Waiting))
            {
                let link = self.attach_program(&hook.program(self.set))?;
                self.temporary.insert(hook.name, link);
                changed.push(hook.name);
            }
        }
        Ok(changed)
    }

    /// Whether an earlier daemon attached any of the programs.
    pub fn has_adopted(&self) -> bool {
        self.hooks.values().any(|state| matches!(state, HookState::Adopted))
    }

    /// Removes the pins of all other sets, which detaches their programs. Call it only after this set has answered its canary and
    /// everything is enrolled in its maps: until then the earlier programs may be the only ones that run, and enforce the deny rules.
    pub fn retire_others(&self) {
        for path in self.pins.iter().flat_map(Pins::others) {
            if let Err(error) = fs::remove_dir_all(&path) {
                tracing::warn!(path = %path.display(), %error, "Cannot remove the pins of an older object.");
            }
        }
    }

    /// Detaches all programs and removes the pins, for a set whose programs do not run.
    pub fn detach(self) {
        for (name, link) in self.links {
            match link {
                PinnedOrHeld::Pinned(link) => {
                    if let Err(error) = link.unpin() {
                        tracing::warn!(hook = name, %error, "Cannot unpin a link.");
                    }
                }
                PinnedOrHeld::Held(link) => drop(link),
            }
        }
        if let Some(pins) = self.pins {
            pins.remove_links();
        }
    }
}
