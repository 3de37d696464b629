//! One watched path.
//!
//! In: the things that depend on it, and the inode that it leads to. Out: these, by kind of dependence. It owns them. Nearly all
//! watches belong to one declared file in a directory; the rare fields of the others are boxed. No I/O.

use super::inode::Inode;
use sensor_common::map::InodeKey;
use sensor_common::op::ROLE_EXECUTIONS;
use sensor_model::protocol::ThingId;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

/// The thing of a watch without one.
const NONE: ThingId = ThingId(u32::MAX);

/// An [`Inode`] without padding, because there are very many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) struct PackedInode {
    /// The high half and the low half.
    ino: [u32; 2],
    dev: u32,
    volume: u32,
    generation: u32,
}

impl From<Inode> for PackedInode {
    fn from(Inode { key, generation }: Inode) -> Self {
        let ino = [key.ino >> 32, key.ino & u64::from(u32::MAX)];
        let ino = ino.map(|half| u32::try_from(half).unwrap_or(u32::MAX));
        Self { ino, dev: key.dev, volume: key.volume, generation }
    }
}

impl From<PackedInode> for Inode {
    fn from(PackedInode { ino: [high, low], dev, volume, generation }: PackedInode) -> Self {
        let ino = u64::from(high) << 32 | u64::from(low);
        Self { key: InodeKey { ino, dev, volume }, generation }
    }
}

/// The order of the watches that lead to an inode.
pub(super) fn order(key: InodeKey) -> (u32, u32, u64) {
    (key.dev, key.volume, key.ino)
}

/// One watched path.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each takes one byte")]
pub struct Watch {
    /// The path, below the host root.
    pub path: Arc<Path>,
    inode: Option<PackedInode>,
    rare: Option<Box<RareFields>>,
    /// `ROLE_*`, without the roles that missing children add.
    pub(super) roles: u32,
    /// The first thing at this path that depends on the object and on its name in its directory; [`NONE`] for none.
    thing: ThingId,
    /// A record reported that the inode leaves this path. Later records of the inode are about another path.
    pub(super) has_left: bool,
    /// The directory holds units, or links that enable units. So a name in it concerns the unit of that name.
    pub(super) holds_units: bool,
    /// A glob of closed directories looks for names in the directory.
    pub(super) is_searched: bool,
    /// The directory is part of a declared path or of a route, so its own name in its parent directory matters.
    pub(super) on_a_route: bool,
    /// The path leads to no inode that can be enrolled. Its directory counts such watches.
    pub(super) unresolved: bool,
}

/// The fields that few watches have.
#[derive(Debug, Default)]
struct RareFields {
    /// Other things at this path that depend on the object.
    objects: Vec<ThingId>,
    /// Other things that depend on the path's name in its directory.
    named: Vec<ThingId>,
    /// Things whose route leads through symbolic links, by the name in this directory that they depend on.
    names: BTreeMap<OsString, Vec<ThingId>>,
    /// Things whose route ends in this directory, by the missing name.
    missing: BTreeMap<OsString, Vec<ThingId>>,
    /// Things that depend on every name in this directory.
    everything: Vec<ThingId>,
    /// Things whose route leads through this directory because of a symbolic link, sorted.
    through: Vec<ThingId>,
    /// How many watched names in this directory could not be enrolled. If any, its names matter.
    unresolved: u32,
}

impl Watch {
    pub(super) fn new(path: Arc<Path>) -> Self {
        Self {
            path,
            inode: None,
            rare: None,
            roles: 0,
            thing: NONE,
            has_left: false,
            holds_units: false,
            is_searched: false,
            on_a_route: false,
            unresolved: false,
        }
    }

    /// The inode that the path leads to; `None` if none can be opened.
    pub fn inode(&self) -> Option<Inode> {
        self.inode.map(Inode::from)
    }

    /// The key of the inode that the path leads to.
    pub fn key(&self) -> Option<InodeKey> {
        self.inode().map(|inode| inode.key)
    }

    /// The [`order`] of the inode that the path leads to.
    pub(super) fn order(&self) -> Option<(u32, u32, u64)> {
        self.inode.map(|inode| order(Inode::from(inode).key))
    }

    pub(super) fn set_inode(&mut self, inode: Option<Inode>) {
        self.inode = inode.map(PackedInode::from);
    }

    fn rare(&mut self) -> &mut RareFields {
        self.rare.get_or_insert_default()
    }

    /// Whether the kernel programs report executions of files in this directory that have no entry of their own.
    pub(in crate::agent) fn reports_executions(&self) -> bool {
        self.roles & ROLE_EXECUTIONS != 0
    }

    /// Adds a thing that depends on the object at this path, or on its name in its directory.
    pub(super) fn concerns(&mut self, thing: ThingId, is_object: bool, is_named: bool) {
        if is_object && is_named && self.thing == NONE {
            self.thing = thing;
            return;
        }
        if is_object {
            self.rare().objects.push(thing);
        }
        if is_named {
            self.rare().named.push(thing);
        }
    }

    /// Adds a thing that depends on every name in this directory.
    pub(super) fn concerns_all_names(&mut self, thing: ThingId) {
        self.rare().everything.push(thing);
    }

    /// Adds a thing of this name whose route leads through this directory because of a symbolic link.
    pub(super) fn add_route(&mut self, thing: ThingId, name: &OsStr) {
        let rare = self.rare();
        if let Err(at) = rare.through.binary_search(&thing) {
            rare.through.insert(at, thing);
            // The directory may be the thing's real parent, where its name appears and disappears.
            rare.names.entry(name.to_owned()).or_default().push(thing);
        }
    }

    /// Adds a thing whose route ends in this directory, because this name is missing.
    pub(super) fn add_missing_name(&mut self, thing: ThingId, name: &OsStr) {
        let things = self.rare().missing.entry(name.to_owned()).or_default();
        if !things.contains(&thing) {
            things.push(thing);
        }
    }

    /// Counts a watched name in this directory that leads to an inode now, or to none.
    pub(super) fn child_resolved(&mut self, resolved: bool) {
        let unresolved = &mut self.rare().unresolved;
        *unresolved = if resolved { unresolved.saturating_sub(1) } else { *unresolved + 1 };
    }

    /// Whether a watched name in this directory could not be enrolled.
    pub(super) fn has_unresolved(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.unresolved > 0)
    }

    /// Things that depend on the object at this path.
    pub(super) fn objects(&self) -> impl Iterator<Item = ThingId> + use<'_> {
        self.with_own(self.rare.as_ref().map_or(&[], |rare| &rare.objects))
    }

    /// Things that depend on the path's name in its directory.
    pub(super) fn named(&self) -> impl Iterator<Item = ThingId> + use<'_> {
        self.with_own(self.rare.as_ref().map_or(&[], |rare| &rare.named))
    }

    fn with_own<'a>(&self, others: &'a [ThingId]) -> impl Iterator<Item = ThingId> + use<'a> {
        Some(self.thing).filter(|thing| *thing != NONE).into_iter().chain(others.iter().copied())
    }

    /// Things that depend on every name in this directory.
    pub(super) fn everything(&self) -> &[ThingId] {
        self.rare.as_ref().map_or(&[], |rare| &rare.everything)
    }

    /// Things whose route leads through this directory because of a symbolic link, sorted.
    pub(super) fn through(&self) -> &[ThingId] {
        self.rare.as_ref().map_or(&[], |rare| &rare.through)
    }

    /// Things whose route leads through symbolic links and that depend on this name in this directory.
    pub(super) fn names_behind(&self, name: &OsStr) -> &[ThingId] {
        self.rare.as_ref().and_then(|rare| rare.names.get(name)).map_or(&[], |things| things)
    }

    /// Things whose route ended in this directory because this name was missing. When it appears, the route continues.
    pub(super) fn ending_at(&self, name: &OsStr) -> &[ThingId] {
        self.rare.as_ref().and_then(|rare| rare.missing.get(name)).map_or(&[], |things| things)
    }

    /// [`Watch::ending_at`], for every name.
    pub(super) fn ending(&self) -> impl Iterator<Item = ThingId> + use<'_> {
        self.rare.iter().flat_map(|rare| rare.missing.values()).flatten().copied()
    }

    /// [`Watch::names_behind`], for every name.
    pub(super) fn all_names_behind(&self) -> impl Iterator<Item = ThingId> + use<'_> {
        self.rare.iter().flat_map(|rare| rare.names.values()).flatten().copied()
    }
}
