//! Which paths are watched for which things, and which inode each path leads to.
//!
//! In: expectations, and identities that the kernel gave. Out: for a record, the things it may concern;
//! for the maps, keys with roles. No I/O.

use crate::observation::Way;
use sensor_common::map::InodeKey;
use sensor_common::op::{
    GUARD_SHIFT, ROLE_ANCESTOR, ROLE_DENY, ROLE_DIRECTORY, ROLE_FILE, ROLE_GUARD, ROLE_NAMES, RULE_SHIFT,
};
use sensor_model::expectation::{Expectation, Expected, Thing};
use sensor_model::expectation_watch::{WatchRole, watches};
use sensor_model::host::unit_name::template_of;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

mod concerns;
mod inode;
mod protection;
mod protection_state;
pub mod trees;
mod watch;

pub use concerns::may_enable;
pub use inode::{About, Concerned, FIRST_OWN, Inode};
pub(super) use watch::Identity;
pub use watch::Watch;

/// So many watches, and inodes that watches led to before, have room without being asked for.
const FEW: usize = 32;

/// All watches. Ten thousand things have as many: what most watches don't have is kept beside them.
#[derive(Debug, Default)]
pub struct Registry {
    watches: Vec<Watch>,
    /// All watches by their paths.
    by_path: Vec<u32>,
    /// Those that lead to an inode, by its key; of several that lead to one, whoever came first.
    by_key: Vec<u32>,
    /// The inodes that watches led to before, until their leaving was told.
    previous: HashMap<u32, Identity>,
    things: Vec<Arc<Path>>,
    /// Things that no watch is for: they cannot change while the kernel runs.
    unwatched: Vec<u32>,
    /// Things that a deny rule protects, and its number.
    deny: HashMap<u32, u32>,
    /// What that means for the ways to them.
    guards: Box<protection_state::Guards>,
    /// Units by their names, and by the names of the templates that they are instances of.
    units: BTreeMap<OsString, Vec<u32>>,
    /// Sealed trees, whose entries have no watches.
    trees: trees::Trees,
}

impl Registry {
    /// Watches for a set of expectations; a thing's number is its index. `way` gives how a path is reached when links
    /// are followed; `installed`, for a unit, the directories that its own file on the host names.
    pub fn new(
        expectations: &[Expectation],
        way: impl FnMut(&Path) -> Way,
        installed: impl Fn(&str) -> Vec<String>,
    ) -> Self {
        let mut registry = Self::default();
        registry.extend(expectations, way, installed);
        registry
    }

    /// Adds things, numbered on from the last one. Gives the watches that are new or have another role now, which
    /// are to be enrolled.
    pub fn extend(
        &mut self,
        expectations: &[Expectation],
        mut way: impl FnMut(&Path) -> Way,
        installed: impl Fn(&str) -> Vec<String>,
    ) -> Vec<u32> {
        let before: Vec<u32> = self.watches.iter().map(|watch| watch.roles).collect();
        let mut ways: HashMap<&Path, Way> = HashMap::new();
        let paths: Vec<Arc<Path>> = expectations.iter().map(|expected| expected.thing.path()).collect();
        let first = u32::try_from(self.things.len()).unwrap_or(FIRST_OWN);
        self.things.reserve_exact(expectations.len());
        self.watches.reserve_exact(expectations.len());
        for (thing, (expectation, path)) in (first..).zip(expectations.iter().zip(&paths)) {
            self.things.push(Arc::clone(path));
            let installed = match &expectation.thing {
                Thing::Unit { name } => installed(name),
                _ => Vec::new(),
            };
            self.add(thing, expectation, path, &installed);
            if let Thing::Unit { name } = &expectation.thing {
                self.add_unit(thing, name);
            }
            if let Expected::Tree(tree) = &expectation.expected {
                self.trees.add(thing, tree.entries, tree.live);
            }
            let parent = path.parent().unwrap_or(Path::new("/"));
            let way = ways.entry(parent).or_insert_with(|| way(path));
            self.lead(thing, path, way);
        }
        self.watches.shrink_to_fit();
        self.by_path.shrink_to_fit();
        // All of them may lead to an inode.
        self.by_key.reserve_exact(self.watches.len().saturating_sub(self.by_key.len()));
        self.changed_since(&before)
    }

    /// A thing is reached in this way now. Gives the watches that are new or have another role, which are to be enrolled.
    /// Those of an earlier way stay: it may be the way again.
    pub fn reached(&mut self, thing: u32, path: &Path, way: &Way) -> Vec<u32> {
        let watch = |directory: &Path| self.find(directory).map(|id| &self.watches[id as usize]);
        let is_led_through = |watch: &Watch| watch.through().binary_search(&thing).is_ok();
        let is_known = way
            .directories
            .iter()
            .all(|directory| path.starts_with(directory) || watch(directory).is_some_and(is_led_through));
        let ends_as_known = way.missing.iter().all(|(directory, name)| {
            let is_told = |watch: &Watch| watch.ending_at(name).contains(&thing);
            path.starts_with(directory) || watch(directory).is_some_and(is_told)
        });
        if is_known && ends_as_known {
            return Vec::new();
        }
        let before: Vec<u32> = self.watches.iter().map(|watch| watch.roles).collect();
        self.lead(thing, path, way);
        self.changed_since(&before)
    }

    /// A directory in which links enable units, or units are, and the inode that was met there, where that is known. Gives
    /// its watch when that is to be enrolled: it is new, or leads to another one.
    pub fn units_in(&mut self, directory: &Path, met: Option<Inode>) -> Option<u32> {
        let known = self.find(directory);
        let watch = known.map(|id| &self.watches[id as usize]).filter(|watch| watch.holds_units);
        if watch.is_some_and(|watch| met.is_none() || watch.inode() == met) {
            return None;
        }
        let watch = self.watch(directory, ROLE_DIRECTORY | ROLE_ANCESTOR);
        watch.holds_units = true;
        // Its name in its own directory tells that it went or came.
        watch.on_the_way = true;
        self.find(directory)
    }

    /// Names on the declared path itself have watches of their own, whether anything is there or not.
    fn lead(&mut self, thing: u32, path: &Path, way: &Way) {
        for directory in way.directories.iter().filter(|directory| !path.starts_with(directory)) {
            let watch = self.watch(directory, ROLE_ANCESTOR | ROLE_DIRECTORY);
            watch.lead(thing, path.file_name().unwrap_or_default());
            watch.on_the_way = true;
        }
        if let Some((directory, name)) = &way.missing
            && !path.starts_with(directory)
        {
            self.watch(directory, ROLE_ANCESTOR | ROLE_DIRECTORY).ends(thing, name);
        }
    }

    fn add_unit(&mut self, thing: u32, name: &str) {
        for name in std::iter::once(name.to_owned()).chain(template_of(name)) {
            let things = self.units.entry(name.into()).or_default();
            if things.last() != Some(&thing) {
                things.push(thing);
            }
        }
    }

    fn changed_since(&self, before: &[u32]) -> Vec<u32> {
        let ids = (0..).zip(&self.watches);
        let moved =
            ids.filter(|(id, watch)| before.get(*id as usize).is_none_or(|roles| *roles != watch.roles));
        moved.map(|(id, _)| id).collect()
    }

    fn add(&mut self, thing: u32, expectation: &Expectation, own: &Arc<Path>, installed: &[String]) {
        let found = watches(expectation, installed);
        if found.is_empty() {
            self.unwatched.push(thing);
        }
        let is_unit = matches!(expectation.thing, Thing::Unit { .. });
        for watched in &found {
            let parent = watched.path.parent();
            let above = found.iter().find(|other| Some(other.path.as_path()) == parent);
            let within: Vec<_> =
                found.iter().filter(|other| other.path.parent() == Some(&watched.path)).collect();
            let role = match watched.role {
                WatchRole::Object => ROLE_FILE,
                WatchRole::Directory => ROLE_DIRECTORY | ROLE_ANCESTOR,
                WatchRole::Ancestor => ROLE_ANCESTOR,
            };
            let all_names = watched.role == WatchRole::Directory
                && match expectation.thing {
                    Thing::ClosedDirectory { .. } | Thing::Tree { .. } => *watched.path == **own,
                    // Where neither the unit's file nor another watched directory is: what is there enables it.
                    Thing::Unit { .. } => within.is_empty(),
                    _ => false,
                };
            let entry = if *watched.path == **own {
                // One allocation for the expectation, the thing and the watch.
                self.watch_at(own, role)
            } else {
                self.watch(&watched.path, role)
            };
            entry.holds_units |=
                is_unit && within.iter().any(|other| other.path.file_name() == own.file_name());
            entry.on_the_way |= above.is_some();
            let is_object = watched.role == WatchRole::Object;
            entry.concerns(thing, is_object, above.is_some_and(|above| above.role == WatchRole::Directory));
            if all_names {
                entry.concerns_all_names(thing);
            }
        }
    }

    fn watch(&mut self, path: &Path, roles: u32) -> &mut Watch {
        self.watch_as(path, || path.into(), roles)
    }

    fn watch_at(&mut self, path: &Arc<Path>, roles: u32) -> &mut Watch {
        self.watch_as(path, || Arc::clone(path), roles)
    }

    fn watch_as(&mut self, path: &Path, shared: impl FnOnce() -> Arc<Path>, roles: u32) -> &mut Watch {
        let id = match self.place(path) {
            Ok(at) => self.by_path[at] as usize,
            Err(at) => {
                let id = self.watches.len();
                self.by_path.insert(at, u32::try_from(id).unwrap_or(FIRST_OWN));
                if id == self.watches.capacity() {
                    // Twice as much room would be a lot for a few directories that come later.
                    self.watches.reserve_exact(id / 8 + FEW);
                }
                self.watches.push(Watch::new(shared()));
                id
            }
        };
        let watch = &mut self.watches[id];
        watch.roles |= roles;
        watch
    }

    /// Where a path's watch is among those by path, or would be.
    fn place(&self, path: &Path) -> Result<usize, usize> {
        self.by_path.binary_search_by(|id| (*self.watches[*id as usize].path).cmp(path))
    }

    /// The watch of a name in a watched directory.
    fn child(&self, directory: &Watch, name: &OsStr) -> Option<&Watch> {
        let child = &self.watches[self.find(&directory.path.join(name))? as usize];
        // A name may be none, and then leads elsewhere: "", ".".
        let is_it = child.path.parent() == Some(&*directory.path) && child.path.file_name() == Some(name);
        is_it.then_some(child)
    }

    /// The watches that lead to an inode, in the order in which they came to.
    fn leading_to(&self, key: InodeKey) -> &[u32] {
        let of = |id: &u32| self.watches[*id as usize].order();
        let wanted = Some(watch::order(key));
        let from = self.by_key.partition_point(|id| of(id) < wanted);
        let count = self.by_key[from..].partition_point(|id| of(id) == wanted);
        &self.by_key[from..from + count]
    }

    /// Whether a watched path leads to an inode.
    pub fn is_led_to(&self, key: InodeKey) -> bool {
        !self.leading_to(key).is_empty()
    }

    /// Number of watches; they are numbered from 0, parents not necessarily first.
    pub fn len(&self) -> u32 {
        u32::try_from(self.watches.len()).unwrap_or(FIRST_OWN)
    }

    /// Whether nothing is watched.
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// A watch by number.
    pub fn get(&self, id: u32) -> Option<&Watch> {
        self.watches.get(id as usize)
    }

    /// The path of a thing.
    pub fn path_of(&self, thing: u32) -> Option<Arc<Path>> {
        self.things.get(thing as usize).cloned()
    }

    /// A watch by path.
    pub fn find(&self, path: &Path) -> Option<u32> {
        self.place(path).ok().map(|at| self.by_path[at])
    }

    /// The watch's path leads to this inode now (or to none that can be opened). Gives the keys to be
    /// enrolled with their number and roles, and those to be removed.
    pub fn resolved(&mut self, id: u32, inode: Option<Inode>) -> Vec<(InodeKey, Option<(u32, u32)>)> {
        let Some(watch) = self.watches.get(id as usize) else { return Vec::new() };
        let (last, path) = (watch.inode(), Arc::clone(&watch.path));
        if last != inode {
            self.led_before(id, last.filter(|_| !watch.left));
        }
        let (before, key) = (last.map(|inode| inode.key), inode.map(|inode| inode.key));
        let mut changes = Vec::new();
        if before != key {
            if let Some(before) = before {
                let of = watch::order(before);
                let from = self.by_key.partition_point(|id| self.watches[*id as usize].order() < Some(of));
                if let Some(at) = self.by_key[from..].iter().position(|other| *other == id) {
                    self.by_key.remove(from + at);
                }
                changes.push(before);
            }
            if let Some(key) = key {
                let of = watch::order(key);
                let at = self.by_key.partition_point(|id| self.watches[*id as usize].order() <= Some(of));
                self.by_key.insert(at, id);
            }
        }
        changes.extend(key);
        let parent = path.parent().and_then(|parent| self.find(parent));
        let watch = &mut self.watches[id as usize];
        watch.left = false;
        watch.leads_to(inode);
        if let Some(parent) = parent
            && watch.unresolved != inode.is_none()
        {
            watch.unresolved = inode.is_none();
            let parent = &mut self.watches[parent as usize];
            parent.child_resolved(inode.is_some());
            changes.extend(parent.key());
        }
        changes.sort_unstable_by_key(|key| watch::order(*key));
        changes.dedup();
        changes.into_iter().map(|key| (key, self.enrolment(key))).collect()
    }

    /// Number and roles under which an inode is to be enrolled: those of all paths that lead to it. `None` where none does.
    pub fn enrolment(&self, key: InodeKey) -> Option<(u32, u32)> {
        let ids = self.leading_to(key);
        let roles = ids.iter().fold(0, |roles, id| {
            let watch = &self.watches[*id as usize];
            let names = if watch.has_unresolved() { ROLE_DIRECTORY } else { 0 };
            roles | watch.roles | names
        });
        let protected = ids.iter().find_map(|id| {
            let watch = &self.watches[*id as usize];
            // A unit's rule protects what is declared of it, not what a package keeps of it elsewhere.
            let own = watch.objects().filter(|thing| self.is_own(watch, *thing));
            own.chain(watch.everything().iter().copied()).find_map(|thing| self.deny.get(&thing))
        });
        let deny = protected.map_or(0, |rule| ROLE_DENY | rule << RULE_SHIFT);
        let guard = self.guard_of(ids);
        let guarded = guard.rules.filter(|rules| protected != Some(rules));
        let guarded = guarded.map_or(0, |rules| ROLE_GUARD | rules << GUARD_SHIFT);
        let names = if guard.has_names { ROLE_NAMES } else { 0 };
        let in_trees = self.trees.enrolment(key);
        let id = ids.first().copied().or(in_trees.map(|(id, _)| id))?;
        let of_trees = in_trees.map_or(0, |(_, roles)| roles);
        Some((id, roles | of_trees | deny | guarded | names))
    }

    /// The entries of a thing's tree lead to these inodes now, and all others to none: each with its number and whether it
    /// is a directory. Gives the keys to be enrolled with their numbers and roles.
    pub fn tree_resolved(
        &mut self,
        thing: u32,
        found: impl Iterator<Item = (u32, Inode, bool)>,
    ) -> Vec<(InodeKey, (u32, u32))> {
        let mut keys = self.trees.resolve_all(thing, found);
        // What is declared beside the tree keeps its number and its roles.
        for (key, enrolment) in &mut keys {
            *enrolment = self.enrolment(*key).unwrap_or(*enrolment);
        }
        keys
    }

    /// The thing and the entry of a number from [`Registry::about`] that is that of an entry of a tree.
    pub fn tree_entry(&self, id: u32) -> Option<(u32, u32)> {
        self.trees.entry(id)
    }

    /// Whether a thing is declared at the watch's path.
    fn is_own(&self, watch: &Watch, thing: u32) -> bool {
        self.things.get(thing as usize) == Some(&watch.path)
    }

    /// The watches and the entries of trees that a record concerns: those that lead to its inode, and the one under whose
    /// number the kernel knew the inode when it was written.
    pub fn about(&self, id: u32, key: InodeKey) -> Vec<u32> {
        let mut watches = self.leading_to(key).to_vec();
        if !watches.contains(&id) && self.get(id).is_some() {
            watches.push(id);
        }
        self.trees.about(id, key, &mut watches);
        watches
    }

    /// Whether a record tells who changed what the watch's path leads to. It does not when the number of an
    /// inode that was removed went to another one, nor when the inode is at another path by now.
    pub fn matches(&mut self, id: u32, about: &About) -> bool {
        let Some(watch) = self.watches.get_mut(id as usize) else {
            return self.trees.inode(id) == Some(about.inode);
        };
        let leaves = about.moves && !about.is_name;
        if watch.inode() == Some(about.inode) && !watch.left {
            watch.left = leaves;
            return true;
        }
        // A look came before this record and found the path leading elsewhere: the record tells how that came.
        if self.previous.get(&id) == Some(&about.inode.into()) && (leaves || about.is_name) {
            if leaves {
                self.led_before(id, None);
            }
            return true;
        }
        false
    }

    /// Keeps the inode that a watch led to before, until its leaving was told.
    fn led_before(&mut self, id: u32, inode: Option<Inode>) {
        if let Some(inode) = inode {
            self.previous.insert(id, inode.into());
        } else if self.previous.remove(&id).is_some() && self.previous.is_empty() {
            // An apply replaces thousands.
            self.previous.shrink_to(FEW);
        }
    }

    /// The inodes that a path leads to and led to before.
    pub fn keys_at(&self, path: &Path) -> impl Iterator<Item = InodeKey> {
        let id = self.find(path);
        let there = id.and_then(|id| self.get(id)).and_then(Watch::key);
        let previous = id.and_then(|id| self.previous.get(&id)).map(|inode| Inode::from(*inode).key);
        there.into_iter().chain(previous)
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
