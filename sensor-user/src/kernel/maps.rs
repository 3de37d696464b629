//! Typed access to the programs' maps.
//!
//! In: keys and values of `sensor-common`. Out: system calls on map descriptors. The daemon only adds and removes entries of the map
//! of managed inodes, because a write races with the programs' counters. The exception is a new number or role of an inode, which
//! counts as a change.

use super::size::{self, Outgrown};
use crate::clock::{Clock as _, SystemClock};
use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray, RingBuf};
use sensor_common::bitmap::Bitmap;
use sensor_common::limits::NAME_KEY_BYTES;
use sensor_common::map::{
    Allowed, BtrfsOffsets, Control, Counter, Denials, Execution, Group, IDENTITY_LINK, IDENTITY_OPENED,
    Identity, InodeKey, Managed, NameKey, Process, execution_slot,
};
use sensor_common::op::{
    GUARD_SHIFT, ROLE_DENY, ROLE_EXECUTIONS_AFTER_CHANGE, ROLE_GUARD, RULE_MASK, RULE_SHIFT,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

const KEY: usize = size_of::<InodeKey>();
const MANAGED: usize = size_of::<Managed>();
const CONTROL: usize = size_of::<Control>();
const VOLUMES: usize = size_of::<BtrfsOffsets>();
const IDENTITY: usize = size_of::<Identity>();
const ALLOWED: usize = size_of::<Allowed>();
const NAME: usize = size_of::<NameKey>();
const PROCESS: usize = size_of::<Process>();
const EXECUTION: usize = size_of::<Execution>();
const GROUP: usize = size_of::<Group>();
const DENIALS: usize = size_of::<Denials>();

/// A map operation that failed.
#[derive(Debug, Error)]
pub enum MapsError {
    /// The object has no such map.
    #[error("the eBPF object has no map `{0}`")]
    Absent(&'static str),
    /// The kernel refused.
    #[error("map `{map}`: {operation}: {source}")]
    Refused {
        /// The map.
        map: &'static str,
        /// The operation.
        operation: &'static str,
        /// The kernel's answer.
        source: MapError,
    },
}

fn refused(map: &'static str, operation: &'static str) -> impl FnOnce(MapError) -> MapsError {
    move |source| MapsError::Refused { map, operation, source }
}

/// The maps of a loaded object.
pub struct Maps {
    managed: HashMap<MapData, [u8; KEY], [u8; MANAGED]>,
    bitmap: Array<MapData, u64>,
    size: Bitmap,
    control: Array<MapData, [u8; CONTROL]>,
    volumes: Array<MapData, [u8; VOLUMES]>,
    identity: Array<MapData, [u8; IDENTITY]>,
    allowed: HashMap<MapData, [u8; ALLOWED], u64>,
    names: HashMap<MapData, [u8; NAME], u32>,
    counts: PerCpuArray<MapData, u64>,
    denials: HashMap<MapData, u32, [u8; DENIALS]>,
}

/// The maps of processes, executions and control groups. They are apart from the other maps, because attribution holds them.
pub struct ProcessMaps {
    processes: HashMap<MapData, u32, [u8; PROCESS]>,
    executions: Array<MapData, [u8; EXECUTION]>,
    groups: HashMap<MapData, u64, [u8; GROUP]>,
    cpus: u32,
}

/// The two rings. The ring of alarms has the records of the canary and of opens that could blind the sensor. The other ring has the
/// records of changes.
pub struct Rings {
    alarms: RingBuf<MapData>,
    changes: RingBuf<MapData>,
    /// Logs the lines that the programs of a debug build print; `None` for the programs of a release, which print none.
    #[cfg(debug_assertions)]
    print: Option<Box<dyn FnMut() + Send>>,
}

/// Implements `Debug` without contents: aya's maps have no `Debug`, and their contents do not belong in a log.
macro_rules! opaque {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}
opaque!(Maps, ProcessMaps, Rings);

fn take<T: TryFrom<aya::maps::Map, Error = MapError>>(
    ebpf: &mut aya::Ebpf,
    name: &'static str,
) -> Result<T, MapsError> {
    let map = ebpf.take_map(name).ok_or(MapsError::Absent(name))?;
    T::try_from(map).map_err(refused(name, "open"))
}

/// A function that logs the lines of the programs, if the object has the map for them.
#[cfg(debug_assertions)]
fn printer(ebpf: &mut aya::Ebpf) -> Option<Box<dyn FnMut() + Send>> {
    let mut lines = aya_log::EbpfLogger::init(ebpf).ok()?;
    Some(Box::new(move || lines.flush()))
}

impl Maps {
    /// Takes the maps out of a loaded object. `cpus` and `size` must be the values that the programs have in `POSSIBLE_CPUS` and
    /// `BITMAP_SHIFT`.
    pub fn take(
        ebpf: &mut aya::Ebpf,
        cpus: u32,
        size: Bitmap,
    ) -> Result<(Self, ProcessMaps, Rings), MapsError> {
        let maps = Self {
            managed: take(ebpf, "MANAGED")?,
            bitmap: take(ebpf, "BITMAP")?,
            size,
            control: take(ebpf, "CONTROL")?,
            volumes: take(ebpf, "VOLUMES")?,
            identity: take(ebpf, "IDENTITY")?,
            allowed: take(ebpf, "ALLOWED")?,
            names: take(ebpf, "NAMES")?,
            counts: take(ebpf, "COUNTS")?,
            denials: take(ebpf, "DENIALS")?,
        };
        let processes = ProcessMaps {
            processes: take(ebpf, "PROCESSES")?,
            executions: take(ebpf, "EXECUTIONS")?,
            groups: take(ebpf, "GROUPS")?,
            cpus,
        };
        let ring = Rings {
            alarms: take(ebpf, "ALARMS")?,
            changes: take(ebpf, "CHANGES")?,
            #[cfg(debug_assertions)]
            print: printer(ebpf),
        };
        Ok((maps, processes, ring))
    }

    /// Writes the daemon's settings for the programs.
    pub fn set_control(&mut self, control: Control) -> Result<(), MapsError> {
        let mut value = [0; CONTROL];
        value.copy_from_slice(control.as_bytes());
        self.control.set(0, value, 0).map_err(refused("CONTROL", "set"))
    }

    /// Writes the offsets for the numbers of Btrfs subvolumes, for the programs.
    pub fn set_btrfs_offsets(&mut self, offsets: BtrfsOffsets) -> Result<(), MapsError> {
        let mut value = [0; VOLUMES];
        value.copy_from_slice(offsets.as_bytes());
        self.volumes.set(0, value, 0).map_err(refused("VOLUMES", "set"))
    }

    /// Whether the programs have these offsets.
    pub fn has_btrfs_offsets(&self) -> Result<bool, MapsError> {
        let value = self.volumes.get(&0, 0).map_err(refused("VOLUMES", "get"))?;
        Ok(BtrfsOffsets::read_from_bytes(&value).is_ok_and(|offsets| offsets.known != 0))
    }

    /// Removes the daemon's process from the settings, since no daemon runs any more. The other settings stay.
    pub fn forget_agent(&mut self) -> Result<(), MapsError> {
        let value = self.control.get(&0, 0).map_err(refused("CONTROL", "get"))?;
        let Control { abi_version, mount_namespace, set, .. } =
            Control::read_from_bytes(&value).unwrap_or_default();
        self.set_control(Control { abi_version, mount_namespace, set, ..Control::default() })
    }

    /// The identity of the object that the daemon opened last.
    pub fn identity(&self) -> Result<Identity, MapsError> {
        self.identity_at(IDENTITY_OPENED)
    }

    /// The identity of the first link that the daemon read since [`Maps::forget_link`]. Its sequence is 0 if the programs have seen no
    /// such read.
    pub fn link_identity(&self) -> Result<Identity, MapsError> {
        self.identity_at(IDENTITY_LINK)
    }

    fn identity_at(&self, slot: u32) -> Result<Identity, MapsError> {
        let value = self.identity.get(&slot, 0).map_err(refused("IDENTITY", "get"))?;
        Ok(Identity::read_from_bytes(&value).unwrap_or_default())
    }

    /// Clears that identity. The next link that the daemon reads sets it.
    pub fn forget_link(&mut self) -> Result<(), MapsError> {
        self.identity.set(IDENTITY_LINK, [0; IDENTITY], 0).map_err(refused("IDENTITY", "set"))
    }

    /// The entry of a managed inode.
    pub fn entry(&self, key: InodeKey) -> Result<Option<Managed>, MapsError> {
        match self.managed.get(&key_bytes(key), 0) {
            Ok(value) => Ok(Managed::read_from_bytes(&value).ok()),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(refused("MANAGED", "get")(error)),
        }
    }

    /// Adds an inode, or gives a managed one another number or roles. The latter counts as a change, because it may overwrite a
    /// counter that a program has just raised.
    pub fn enrol(&mut self, key: InodeKey, id: u32, roles: u32) -> Result<(), MapsError> {
        // Also for a managed inode: when a program added the entry, another program's write may have removed a bit.
        if key.ino != 0 {
            self.set_bits(key)?;
        }
        let entry = match self.entry(key)? {
            Some(entry) if entry.id == id && entry.roles == roles => return Ok(()),
            Some(entry) => Managed { id, roles, counter: entry.counter + 1, dirty: 1, ..entry },
            // What the path of a file of an image leads to now may be another file, so it counts as just changed until it is verified.
            None if roles & ROLE_EXECUTIONS_AFTER_CHANGE != 0 => {
                Managed { id, roles, dirty: 1, changed_ns: SystemClock.boot_ns(), ..Managed::default() }
            }
            None => Managed { id, roles, ..Managed::default() },
        };
        let mut value = [0; MANAGED];
        value.copy_from_slice(entry.as_bytes());
        self.managed.insert(key_bytes(key), value, 0).map_err(refused("MANAGED", "insert"))
    }

    /// Whether the programs find this inode with this number and these roles.
    pub fn is_enrolled(&self, key: InodeKey, id: u32, roles: u32) -> Result<bool, MapsError> {
        let is_found = self.entry(key)?.is_some_and(|entry| entry.id == id && entry.roles == roles);
        let (word, bits) = self.place(key);
        Ok(is_found && self.bitmap.get(&word, 0).map_err(refused("BITMAP", "get"))? & bits == bits)
    }

    fn set_bits(&mut self, key: InodeKey) -> Result<(), MapsError> {
        let (word, own) = self.place(key);
        let bits = self.bitmap.get(&word, 0).map_err(refused("BITMAP", "get"))?;
        if bits & own != own {
            self.bitmap.set(word, bits | own, 0).map_err(refused("BITMAP", "set"))?;
        }
        Ok(())
    }

    /// Where an inode is in the bitmap: its word, and the mask of its bits.
    fn place(&self, key: InodeKey) -> (u32, u64) {
        let (word, of_number) = self.size.place(key.ino);
        (word, of_number | Bitmap::own_bit(key))
    }

    /// Checks that the maps are large enough for this number of declared things.
    ///
    /// # Errors
    /// They are too small. The daemon's next start creates new maps and links.
    pub fn hold(&self, things: usize) -> Result<(), Outgrown> {
        size::hold(self.size, things)
    }

    /// Removes an inode. Its bits stay, because others may share them. A stale bit costs time and nothing else.
    pub fn remove(&mut self, key: InodeKey) -> Result<(), MapsError> {
        match self.managed.remove(&key_bytes(key)) {
            Err(error) if !is_absent(&error) => Err(refused("MANAGED", "remove")(error)),
            _ => Ok(()),
        }
    }

    /// Every entry, for a sweep or an adoption.
    pub fn entries(&self) -> impl Iterator<Item = (InodeKey, Managed)> + '_ {
        self.managed.iter().filter_map(|entry| {
            let (key, value) = entry.ok()?;
            Some((InodeKey::read_from_bytes(&key).ok()?, Managed::read_from_bytes(&value).ok()?))
        })
    }

    /// Protects a name in a directory by the rules with this number, also while nothing has the name. The directory's entry needs
    /// `ROLE_NAMES`.
    pub fn protect_name(&mut self, directory: InodeKey, name: &OsStr, rules: u32) -> Result<(), MapsError> {
        // No name on Linux is longer than the key's field.
        let Some(key) = name_bytes(directory, name) else { return Ok(()) };
        self.names.insert(key, rules, 0).map_err(refused("NAMES", "insert"))
    }

    /// Ends the protection of a name.
    pub fn forget_name(&mut self, directory: InodeKey, name: &OsStr) -> Result<(), MapsError> {
        let Some(key) = name_bytes(directory, name) else { return Ok(()) };
        match self.names.remove(&key) {
            Err(error) if !is_absent(&error) => Err(refused("NAMES", "remove")(error)),
            _ => Ok(()),
        }
    }

    /// The number of the rules that protect a name.
    pub fn rules_of_name(&self, directory: InodeKey, name: &OsStr) -> Result<Option<u32>, MapsError> {
        let Some(key) = name_bytes(directory, name) else { return Ok(None) };
        match self.names.get(&key, 0) {
            Ok(rules) => Ok(Some(rules)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(refused("NAMES", "get")(error)),
        }
    }

    /// Every protected name with its directory.
    pub fn names(&self) -> impl Iterator<Item = (InodeKey, OsString)> + '_ {
        self.names.keys().filter_map(|key| {
            let key = NameKey::read_from_bytes(&key.ok()?).ok()?;
            let length = key.name.iter().position(|byte| *byte == 0)?;
            Some((key.directory, OsStr::from_bytes(&key.name[..length]).to_owned()))
        })
    }

    /// The numbers of the deny rules, and of the sets of rules, that inodes and names have.
    pub fn rule_numbers(&self) -> Result<BTreeSet<u32>, MapsError> {
        let mut numbers = BTreeSet::new();
        for entry in &self.managed {
            let (_, value) = entry.map_err(refused("MANAGED", "read"))?;
            let roles = Managed::read_from_bytes(&value).map_or(0, |entry| entry.roles);
            numbers.extend(numbers_in(roles));
        }
        for name in &self.names {
            numbers.insert(name.map_err(refused("NAMES", "read"))?.1);
        }
        Ok(numbers)
    }

    /// Every allowed actor with its bits.
    pub fn allowed(&self) -> Result<BTreeMap<Allowed, u64>, MapsError> {
        let actors = self.allowed.iter().map(|entry| {
            let (key, bits) = entry.map_err(refused("ALLOWED", "read"))?;
            Ok((Allowed::read_from_bytes(&key).unwrap_or_default(), bits))
        });
        actors.collect()
    }

    /// Adds an actor with these bits; see [`Allowed`].
    pub fn allow(&mut self, actor: Allowed, bits: u64) -> Result<(), MapsError> {
        self.allowed.insert(allowed_bytes(actor), bits, 0).map_err(refused("ALLOWED", "insert"))
    }

    /// Removes an actor.
    pub fn disallow(&mut self, actor: Allowed) -> Result<(), MapsError> {
        match self.allowed.remove(&allowed_bytes(actor)) {
            Err(error) if !is_absent(&error) => Err(refused("ALLOWED", "remove")(error)),
            _ => Ok(()),
        }
    }

    /// Removes all actors, also those of an earlier run.
    pub fn disallow_all(&mut self) -> Result<(), MapsError> {
        let keys: Vec<_> = self.allowed.keys().flatten().collect();
        for key in keys {
            match self.allowed.remove(&key) {
                Err(error) if !is_absent(&error) => return Err(refused("ALLOWED", "remove")(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// The number of refusals without a record, by user. The map evicts users whose last refusal is long ago.
    pub fn unrecorded_denials(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.denials.iter().filter_map(|entry| {
            let (uid, value) = entry.ok()?;
            Some((uid, Denials::read_from_bytes(&value).ok()?.unrecorded))
                .filter(|(_, unrecorded)| *unrecorded > 0)
        })
    }

    /// Sum of a counter over all CPUs.
    pub fn count(&self, counter: Counter) -> Result<u64, MapsError> {
        let values = self.counts.get(&(counter as u32), 0).map_err(refused("COUNTS", "get"))?;
        Ok(values.iter().sum())
    }
}

impl ProcessMaps {
    /// The stored process of a thread group id.
    pub fn process(&self, tgid: u32) -> Option<Process> {
        Process::read_from_bytes(&self.processes.get(&tgid, 0).ok()?).ok()
    }

    /// The stored execution with this number; `None` if a later one has its slot.
    pub fn execution(&self, id: u64) -> Option<Execution> {
        let value = self.executions.get(&execution_slot(id, self.cpus), 0).ok()?;
        Execution::read_from_bytes(&value).ok().filter(|execution| id != 0 && execution.id == id)
    }

    /// Path of a control group that was created while the sensor ran.
    pub fn group(&self, id: u64) -> Option<String> {
        let group = Group::read_from_bytes(&self.groups.get(&id, 0).ok()?).ok()?;
        let end = group.path.iter().position(|byte| *byte == 0)?;
        // A cut path is useless, because its end names unit and container.
        (end + 1 < group.path.len()).then(|| String::from_utf8_lossy(&group.path[..end]).into_owned())
    }
}

impl Rings {
    /// Calls `each` with the bytes of each record, for at most `limit` records of each ring, alarms first. It gives `true` if both
    /// rings are empty afterwards. In a debug build it also logs the lines that the programs have printed.
    pub fn drain(&mut self, limit: usize, mut each: impl FnMut(&[u8])) -> bool {
        #[cfg(debug_assertions)]
        if let Some(print) = &mut self.print {
            print();
        }
        let mut drain = |ring: &mut RingBuf<MapData>| {
            for _ in 0..limit {
                match ring.next() {
                    Some(record) => each(&record),
                    None => return true,
                }
            }
            false
        };
        let alarms = drain(&mut self.alarms);
        drain(&mut self.changes) && alarms
    }

    /// A descriptor that becomes readable when an alarm arrives. The descriptor of `self` becomes readable for all other records.
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub fn alarms(&self) -> std::io::Result<OwnedFd> {
        self.alarms.as_fd().try_clone_to_owned()
    }
}

impl AsFd for Rings {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

impl AsRawFd for Rings {
    fn as_raw_fd(&self) -> RawFd {
        self.changes.as_raw_fd()
    }
}

/// Whether a removal failed because the map has no such entry. aya does not convert the kernel's ENOENT.
fn is_absent(error: &MapError) -> bool {
    match error {
        MapError::KeyNotFound => true,
        MapError::SyscallError(error) => error.io_error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}

/// The numbers of the rules in an entry's roles.
fn numbers_in(roles: u32) -> impl Iterator<Item = u32> {
    [(ROLE_DENY, RULE_SHIFT), (ROLE_GUARD, GUARD_SHIFT)]
        .into_iter()
        .filter(move |(role, _)| roles & role != 0)
        .map(move |(_, shift)| roles >> shift & RULE_MASK)
}

fn allowed_bytes(actor: Allowed) -> [u8; ALLOWED] {
    let mut bytes = [0; ALLOWED];
    bytes.copy_from_slice(actor.as_bytes());
    bytes
}

/// The key with which the programs look up a name; `None` if the name is too long.
fn name_bytes(directory: InodeKey, name: &OsStr) -> Option<[u8; NAME]> {
    let mut key = NameKey { directory, name: [0; NAME_KEY_BYTES] };
    let name = name.as_bytes();
    // The last byte is a zero.
    key.name[..NAME_KEY_BYTES - 1].get_mut(..name.len())?.copy_from_slice(name);
    let mut bytes = [0; NAME];
    bytes.copy_from_slice(key.as_bytes());
    Some(bytes)
}

fn key_bytes(key: InodeKey) -> [u8; KEY] {
    let mut bytes = [0; KEY];
    bytes.copy_from_slice(key.as_bytes());
    bytes
}
