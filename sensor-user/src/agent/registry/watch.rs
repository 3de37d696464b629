//! One watched path.
//!
//! In: which things it matters to and how, and the inode that it leads to. Out: the same by question. Nearly all watches are
//! of one declared file in a directory, and hold no more than that; what others have besides is in one box. No I/O.

use super::inode::Inode;
use sensor_common::map::InodeKey;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

/// The `thing` of a watch without one.
const NONE: u32 = u32::MAX;

/// An [`Inode`] in as little room as it takes: many have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) struct Identity {
    /// The high half and the low half.
    ino: [u32; 2],
    dev: u32,
    volume: u32,
    generation: u32,
}

impl From<Inode> for Identity {
    fn from(Inode { key, generation }: Inode) -> Self {
        let ino = [key.ino >> 32, key.ino & u64::from(u32::MAX)];
        let ino = ino.map(|half| u32::try_from(half).unwrap_or(u32::MAX));
        Self { ino, dev: key.dev, volume: key.volume, generation }
    }
}

impl From<Identity> for Inode {
    fn from(Identity { ino: [high, low], dev, volume, generation }: Identity) -> Self {
        let ino = u64::from(high) << 32 | u64::from(low);
        Self { key: InodeKey { ino, dev, volume }, generation }
    }
}

/// What watches are sorted by, of those that lead to an inode.
pub(super) fn order(key: InodeKey) -> (u32, u32, u64) {
    (key.dev, key.volume, key.ino)
}

/// One watched path.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says something of its own, in one byte")]
pub struct Watch {
    /// The path, below the host root.
    pub path: Arc<Path>,
    inode: Option<Identity>,
    more: Option<Box<More>>,
    /// `ROLE_*`, without what missing children add.
    pub(super) roles: u32,
    /// The first thing that is the object at the path and depends on its name in its directory; [`NONE`] for none.
    thing: u32,
    /// It was told that the inode leaves this path: what it does from then on is another path's affair.
    pub(super) left: bool,
    /// Its names are units, or links that enable them: the name says which unit it concerns.
    pub(super) holds_units: bool,
    /// It lies on the way to what is declared, or to where links lead: its name in its directory matters.
    pub(super) on_the_way: bool,
    /// It leads to nothing that can be enrolled, and its directory counts it among those.
    pub(super) unresolved: bool,
}

/// What few watches have.
#[derive(Debug, Default)]
struct More {
    /// Other things that are the object at the path.
    objects: Vec<u32>,
    /// Other things that depend on its name in its directory.
    named: Vec<u32>,
    /// Things that depend on a name in it, by a way that leads through symbolic links.
    names: BTreeMap<OsString, Vec<u32>>,
    /// Things the ways to which lead through symbolic links, and end at a name in it that is not there.
    missing: BTreeMap<OsString, Vec<u32>>,
    /// Things that depend on every name in it.
    everything: Vec<u32>,
    /// Things that lead through it by a symbolic link elsewhere, sorted.
    through: Vec<u32>,
    /// How many watched names in it could not be enrolled, so that its names matter.
    unresolved: u32,
}

impl Watch {
    pub(super) fn new(path: Arc<Path>) -> Self {
        Self {
            path,
            inode: None,
            more: None,
            roles: 0,
            thing: NONE,
            left: false,
            holds_units: false,
            on_the_way: false,
            unresolved: false,
        }
    }

    /// The inode it leads to; `None` when there is none that can be opened.
    pub fn inode(&self) -> Option<Inode> {
        self.inode.map(Inode::from)
    }

    /// The inode that it leads to, by number and device.
    pub fn key(&self) -> Option<InodeKey> {
        self.inode().map(|inode| inode.key)
    }

    /// See [`order`].
    pub(super) fn order(&self) -> Option<(u32, u32, u64)> {
        self.inode.map(|inode| order(Inode::from(inode).key))
    }

    pub(super) fn leads_to(&mut self, inode: Option<Inode>) {
        self.inode = inode.map(Identity::from);
    }

    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    /// It matters to a thing: as the object that it is, by its name in its directory.
    pub(super) fn concerns(&mut self, thing: u32, is_object: bool, is_named: bool) {
        if is_object && is_named && self.thing == NONE {
            self.thing = thing;
            return;
        }
        if is_object {
            self.more().objects.push(thing);
        }
        if is_named {
            self.more().named.push(thing);
        }
    }

    /// Every name in it matters to a thing.
    pub(super) fn concerns_all_names(&mut self, thing: u32) {
        self.more().everything.push(thing);
    }

    /// A symbolic link leads through it to a thing of this name.
    pub(super) fn lead(&mut self, thing: u32, name: &OsStr) {
        let more = self.more();
        if let Err(at) = more.through.binary_search(&thing) {
            more.through.insert(at, thing);
            // The parent itself, by its real path: the name is created and removed there.
            more.names.entry(name.to_owned()).or_default().push(thing);
        }
    }

    /// A way that a symbolic link leads through it ends at this name, which is not there.
    pub(super) fn ends(&mut self, thing: u32, name: &OsStr) {
        let things = self.more().missing.entry(name.to_owned()).or_default();
        if !things.contains(&thing) {
            things.push(thing);
        }
    }

    /// A watched name in it leads to an inode now, or to none any more.
    pub(super) fn child_resolved(&mut self, resolved: bool) {
        let unresolved = &mut self.more().unresolved;
        *unresolved = if resolved { unresolved.saturating_sub(1) } else { *unresolved + 1 };
    }

    /// Whether a watched name in it could not be enrolled.
    pub(super) fn has_unresolved(&self) -> bool {
        self.more.as_ref().is_some_and(|more| more.unresolved > 0)
    }

    /// Things that are the object at the path.
    pub(super) fn objects(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.with_own(self.more.as_ref().map_or(&[], |more| &more.objects))
    }

    /// Things that depend on its name in its directory.
    pub(super) fn named(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.with_own(self.more.as_ref().map_or(&[], |more| &more.named))
    }

    fn with_own<'a>(&self, others: &'a [u32]) -> impl Iterator<Item = u32> + use<'a> {
        Some(self.thing).filter(|thing| *thing != NONE).into_iter().chain(others.iter().copied())
    }

    /// Things that depend on every name in it.
    pub(super) fn everything(&self) -> &[u32] {
        self.more.as_ref().map_or(&[], |more| &more.everything)
    }

    /// Things that lead through it by a symbolic link elsewhere, sorted.
    pub(super) fn through(&self) -> &[u32] {
        self.more.as_ref().map_or(&[], |more| &more.through)
    }

    /// Things that depend on a name in it, by a way through symbolic links.
    pub(super) fn names_behind(&self, name: &OsStr) -> &[u32] {
        self.more.as_ref().and_then(|more| more.names.get(name)).map_or(&[], |things| things)
    }

    /// Things the ways to which end or ended at a name in it, and go on when it comes.
    pub(super) fn ending_at(&self, name: &OsStr) -> &[u32] {
        self.more.as_ref().and_then(|more| more.missing.get(name)).map_or(&[], |things| things)
    }

    /// The same, whatever the name.
    pub(super) fn ending(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.more.iter().flat_map(|more| more.missing.values()).flatten().copied()
    }

    /// [`Watch::names_behind`], whatever the name.
    pub(super) fn all_names_behind(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.more.iter().flat_map(|more| more.names.values()).flatten().copied()
    }
}
