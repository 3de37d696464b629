//! The registry of watches: which paths are watched for which things, and which inode each path leads to.
//!
//! In: expectations, and identities of inodes from the kernel. Out: the things that a record may concern, and keys with roles for
//! the kernel's maps. It owns the watches, their inodes, and the protections of deny rules. No I/O.
//!
//! A `thing` is the number of an expectation. A `watch_id` is the number of a watch. The map entry and the ring records of an
//! inode have the number of one watch that leads to it.
//! A *route* is the list of directories that a path resolves through. Example: if `/home` is a link to `/var/home`, the file
//! `/home/a` depends on the watches `/home/a`, `/home` and `/`, and its route adds `/var/home` and `/var`.

use crate::observation::Route;
use sensor_common::map::InodeKey;
use sensor_common::op::{
    GUARD_SHIFT, ROLE_ANCESTOR, ROLE_DENY, ROLE_DIRECTORY, ROLE_EXECUTIONS, ROLE_EXECUTIONS_AFTER_CHANGE,
    ROLE_FILE, ROLE_GUARD, ROLE_NAMES, RULE_SHIFT,
};
use sensor_model::expectation::{Expectation, Thing};
use sensor_model::expectation_watch::{WatchRole, watches};
use sensor_model::host::unit_name::template_of;
use sensor_model::protocol::ThingId;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

mod concerns;
mod directories;
mod inode;
mod protection;
mod protection_state;
mod watch;

pub use concerns::may_enable;
pub use inode::{Concerned, FIRST_OWN, Inode, RecordTarget};
pub(super) use watch::PackedInode;
pub use watch::Watch;

/// Room that is kept for further watches, and for inodes that watches led to before.
const FEW: usize = 32;

/// All watches. Ten thousand things have as many watches, so rare fields are boxed.
#[derive(Debug, Default)]
pub struct WatchRegistry {
    watches: Vec<Watch>,
    /// All watches by their paths.
    by_path: Vec<u32>,
    /// The watches that lead to an inode, by its key. Watches of one inode are in the order in which they came to lead to it.
    by_key: Vec<u32>,
    /// The inodes that watches led to before, until a record reports that they left.
    previous: HashMap<u32, PackedInode>,
    things: Vec<Arc<Path>>,
    /// Things without a watch: they cannot change while the kernel runs.
    unwatched: Vec<ThingId>,
    /// The number of the deny rule that protects each thing.
    deny: HashMap<ThingId, u32>,
    /// The protections that follow for watches.
    protections: Box<protection_state::Protections>,
    /// Units by their names, and instances also by the names of their templates.
    units: BTreeMap<OsString, Vec<ThingId>>,
}

impl WatchRegistry {
    /// Creates the watches of a set of expectations. A thing's number is its index. `route` gives the route of a path: the
    /// directories that it resolves through, with links followed. `installed` gives the directories that a unit's file names.
    pub fn new(
        expectations: &[Expectation],
        route: impl FnMut(&Path) -> Route,
        installed: impl Fn(&str) -> Vec<String>,
    ) -> Self {
        let mut registry = Self::default();
        registry.extend(expectations, route, installed);
        registry
    }

    /// Adds things, with the next numbers. Gives the watches that are new or have other roles; the caller enrols them.
    pub fn extend(
        &mut self,
        expectations: &[Expectation],
        mut route: impl FnMut(&Path) -> Route,
        installed: impl Fn(&str) -> Vec<String>,
    ) -> Vec<u32> {
        let before: Vec<u32> = self.watches.iter().map(|watch| watch.roles).collect();
        let mut routes: HashMap<&Path, Route> = HashMap::new();
        let paths: Vec<Arc<Path>> = expectations.iter().map(|expected| expected.thing.path()).collect();
        let first = u32::try_from(self.things.len()).unwrap_or(FIRST_OWN);
        self.things.reserve_exact(expectations.len());
        self.watches.reserve_exact(expectations.len());
        for (thing, (expectation, path)) in (first..).map(ThingId).zip(expectations.iter().zip(&paths)) {
            self.things.push(Arc::clone(path));
            let installed = match &expectation.thing {
                Thing::Unit { name } => installed(name),
                _ => Vec::new(),
            };
            self.add(thing, expectation, path, &installed);
            if let Thing::Unit { name } = &expectation.thing {
                self.add_unit(thing, name);
            }
            let parent = path.parent().unwrap_or(Path::new("/"));
            let route = routes.entry(parent).or_insert_with(|| route(path));
            self.watch_route(thing, path, route);
        }
        self.watches.shrink_to_fit();
        self.by_path.shrink_to_fit();
        // Each watch may lead to an inode.
        self.by_key.reserve_exact(self.watches.len().saturating_sub(self.by_key.len()));
        self.changed_since(&before)
    }

    /// Sets the present route of a thing. Gives the watches that are new or have other roles; the caller enrols them. The
    /// watches of an earlier route stay, because the path may take it again.
    pub fn set_route(&mut self, thing: ThingId, path: &Path, route: &Route) -> Vec<u32> {
        let watch = |directory: &Path| self.find(directory).map(|watch_id| &self.watches[watch_id as usize]);
        let leads_through = |watch: &Watch| watch.through().binary_search(&thing).is_ok();
        let is_known = route
            .directories
            .iter()
            .all(|directory| path.starts_with(directory) || watch(directory).is_some_and(leads_through));
        let ends_as_known = route.missing.iter().all(|(directory, name)| {
            let is_missing_there = |watch: &Watch| watch.ending_at(name).contains(&thing);
            path.starts_with(directory) || watch(directory).is_some_and(is_missing_there)
        });
        if is_known && ends_as_known {
            return Vec::new();
        }
        let before: Vec<u32> = self.watches.iter().map(|watch| watch.roles).collect();
        self.watch_route(thing, path, route);
        self.changed_since(&before)
    }

    /// Sets whether the file of an image at a path differs: then the kernel programs report each execution and load of it, else those after a
    /// change. Gives the key of its inode if that is new; the caller enrols it.
    pub fn set_image_differs(&mut self, path: &Path, differs: bool) -> Option<InodeKey> {
        let watch_id = self.find(path)?;
        let watch = &mut self.watches[watch_id as usize];
        let before = watch.roles;
        watch.roles &= !(ROLE_EXECUTIONS | ROLE_EXECUTIONS_AFTER_CHANGE);
        watch.roles |= if differs { ROLE_EXECUTIONS } else { ROLE_EXECUTIONS_AFTER_CHANGE };
        watch.key().filter(|_| watch.roles != before)
    }

    /// Watches the directories of a route. The directories of the declared path itself always have watches of their own.
    fn watch_route(&mut self, thing: ThingId, path: &Path, route: &Route) {
        for directory in route.directories.iter().filter(|directory| !path.starts_with(directory)) {
            let watch = self.watch(directory, ROLE_ANCESTOR | ROLE_DIRECTORY);
            watch.add_route(thing, path.file_name().unwrap_or_default());
            watch.on_a_route = true;
        }
        if let Some((directory, name)) = &route.missing
            && !path.starts_with(directory)
        {
            self.watch(directory, ROLE_ANCESTOR | ROLE_DIRECTORY).add_missing_name(thing, name);
        }
    }

    fn add_unit(&mut self, thing: ThingId, name: &str) {
        for name in std::iter::once(name.to_owned()).chain(template_of(name)) {
            let things = self.units.entry(name.into()).or_default();
            if things.last() != Some(&thing) {
                things.push(thing);
            }
        }
    }

    fn changed_since(&self, before: &[u32]) -> Vec<u32> {
        let watch_ids = (0..).zip(&self.watches);
        let moved = watch_ids.filter(|(watch_id, watch)| {
            before.get(*watch_id as usize).is_none_or(|roles| *roles != watch.roles)
        });
        moved.map(|(watch_id, _)| watch_id).collect()
    }

    fn add(&mut self, thing: ThingId, expectation: &Expectation, own: &Arc<Path>, installed: &[String]) {
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
                    Thing::ClosedDirectory { .. } => *watched.path == **own,
                    // A directory without the unit's file and without a watched directory holds the links that enable the unit.
                    Thing::Unit { .. } => within.is_empty(),
                    _ => false,
                };
            let entry = if *watched.path == **own {
                // The expectation, the thing and the watch share one allocation.
                self.watch_at(own, role)
            } else {
                self.watch(&watched.path, role)
            };
            entry.holds_units |=
                is_unit && within.iter().any(|other| other.path.file_name() == own.file_name());
            entry.on_a_route |= above.is_some();
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
        let watch_id = match self.place(path) {
            Ok(at) => self.by_path[at] as usize,
            Err(at) => {
                let watch_id = self.watches.len();
                self.by_path.insert(at, u32::try_from(watch_id).unwrap_or(FIRST_OWN));
                if watch_id == self.watches.capacity() {
                    // A vector that grows by itself would double, for a few later directories.
                    self.watches.reserve_exact(watch_id / 8 + FEW);
                }
                self.watches.push(Watch::new(shared()));
                watch_id
            }
        };
        let watch = &mut self.watches[watch_id];
        watch.roles |= roles;
        watch
    }

    /// The position of a path's watch in `by_path`, or the position where it belongs.
    fn place(&self, path: &Path) -> Result<usize, usize> {
        self.by_path.binary_search_by(|watch_id| (*self.watches[*watch_id as usize].path).cmp(path))
    }

    /// The watch of a name in a watched directory.
    fn child(&self, directory: &Watch, name: &OsStr) -> Option<&Watch> {
        let child = &self.watches[self.find(&directory.path.join(name))? as usize];
        // Some names lead to another path: "", ".".
        let is_it = child.path.parent() == Some(&*directory.path) && child.path.file_name() == Some(name);
        is_it.then_some(child)
    }

    /// The watches that lead to an inode, in the order in which they came to lead to it.
    fn leading_to(&self, key: InodeKey) -> &[u32] {
        let of = |watch_id: &u32| self.watches[*watch_id as usize].order();
        let wanted = Some(watch::order(key));
        let from = self.by_key.partition_point(|watch_id| of(watch_id) < wanted);
        let count = self.by_key[from..].partition_point(|watch_id| of(watch_id) == wanted);
        &self.by_key[from..from + count]
    }

    /// Whether a watched path leads to an inode.
    pub fn is_enrolled(&self, key: InodeKey) -> bool {
        !self.leading_to(key).is_empty()
    }

    /// Whether a map entry with this key and number is a stale one of an earlier run: nothing leads to its inode now. The entries
    /// of the daemon's own watches are never stale.
    pub fn is_stale(&self, key: InodeKey, number: u32) -> bool {
        key.ino != 0 && number < FIRST_OWN && !self.is_enrolled(key)
    }

    /// The number of watches. They have the numbers from 0, in no order of paths.
    pub fn len(&self) -> u32 {
        u32::try_from(self.watches.len()).unwrap_or(FIRST_OWN)
    }

    /// Whether nothing is watched.
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// A watch by number.
    pub fn get(&self, watch_id: u32) -> Option<&Watch> {
        self.watches.get(watch_id as usize)
    }

    /// The path of a thing.
    pub fn path_of(&self, thing: ThingId) -> Option<Arc<Path>> {
        self.things.get(thing.index()).cloned()
    }

    /// A watch by path.
    pub fn find(&self, path: &Path) -> Option<u32> {
        self.place(path).ok().map(|at| self.by_path[at])
    }

    /// Sets the inode that the watch's path leads to now; `None` if none can be opened. Gives each key that changed, with its
    /// number and roles, or without them if its entry is to be removed.
    pub fn set_inode(&mut self, watch_id: u32, inode: Option<Inode>) -> Vec<(InodeKey, Option<(u32, u32)>)> {
        let Some(watch) = self.watches.get(watch_id as usize) else { return Vec::new() };
        let (last, path) = (watch.inode(), Arc::clone(&watch.path));
        if last != inode {
            self.set_previous(watch_id, last.filter(|_| !watch.has_left));
        }
        let (before, key) = (last.map(|inode| inode.key), inode.map(|inode| inode.key));
        let mut changes = Vec::new();
        if before != key {
            if let Some(before) = before {
                let of = watch::order(before);
                let from = self
                    .by_key
                    .partition_point(|watch_id| self.watches[*watch_id as usize].order() < Some(of));
                if let Some(at) = self.by_key[from..].iter().position(|other| *other == watch_id) {
                    self.by_key.remove(from + at);
                }
                changes.push(before);
            }
            if let Some(key) = key {
                let of = watch::order(key);
                let at = self
                    .by_key
                    .partition_point(|watch_id| self.watches[*watch_id as usize].order() <= Some(of));
                self.by_key.insert(at, watch_id);
            }
        }
        changes.extend(key);
        let parent = path.parent().and_then(|parent| self.find(parent));
        let watch = &mut self.watches[watch_id as usize];
        watch.has_left = false;
        watch.set_inode(inode);
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

    /// The number of an inode's map entry, and the roles of all watches that lead to it. `None` if none does.
    pub fn enrolment(&self, key: InodeKey) -> Option<(u32, u32)> {
        let watch_ids = self.leading_to(key);
        let mut roles = watch_ids.iter().fold(0, |roles, watch_id| {
            let watch = &self.watches[*watch_id as usize];
            let names = if watch.has_unresolved() { ROLE_DIRECTORY } else { 0 };
            roles | watch.roles | names
        });
        let protected = watch_ids.iter().find_map(|watch_id| {
            let watch = &self.watches[*watch_id as usize];
            // A unit's rule protects its declared paths, not the files that a package has elsewhere.
            let own = watch.objects().filter(|thing| self.is_own(watch, *thing));
            own.chain(watch.everything().iter().copied()).find_map(|thing| self.deny.get(&thing))
        });
        let deny = protected.map_or(0, |rule| ROLE_DENY | rule << RULE_SHIFT);
        let protection = self.protection_of(watch_ids);
        let guarded = protection.rules.filter(|rules| protected != Some(rules));
        let guarded = guarded.map_or(0, |rules| ROLE_GUARD | rules << GUARD_SHIFT);
        let names = if protection.has_names { ROLE_NAMES } else { 0 };
        let number = watch_ids.first().copied()?;
        // A hard link to a file of the image may be at a path that a config declares.
        let of_paths = watch_ids.iter().map(|watch_id| self.watches[*watch_id as usize].roles);
        let of_files = of_paths.filter(|roles| roles & ROLE_FILE != 0);
        if of_files.fold(u32::MAX, |all, roles| all & roles) & ROLE_EXECUTIONS_AFTER_CHANGE == 0 {
            roles &= !ROLE_EXECUTIONS_AFTER_CHANGE;
        }
        Some((number, roles | deny | guarded | names))
    }

    /// Whether a thing is declared at the watch's path.
    fn is_own(&self, watch: &Watch, thing: ThingId) -> bool {
        self.things.get(thing.index()) == Some(&watch.path)
    }

    /// The watches and tree entries of a record. They lead to its inode, or have the number that the inode's map entry had when
    /// the program wrote the record.
    pub fn watches_of_record(&self, number: u32, key: InodeKey) -> Vec<u32> {
        let mut watches = self.leading_to(key).to_vec();
        if !watches.contains(&number) && self.get(number).is_some() {
            watches.push(number);
        }
        watches
    }

    /// Whether a record is about the inode that the watch's path leads to, so that its actor made the change. It is not if the
    /// number of a removed inode was used again, or if the inode is at another path now.
    pub fn matches(&mut self, watch_id: u32, target: &RecordTarget) -> bool {
        let Some(watch) = self.watches.get_mut(watch_id as usize) else {
            return false;
        };
        let leaves = target.moves && !target.is_name;
        if watch.inode() == Some(target.inode) && !watch.has_left {
            watch.has_left = leaves;
            return true;
        }
        // A verification before this record found another inode at the path. The record reports the change that caused it.
        if self.previous.get(&watch_id) == Some(&target.inode.into()) && (leaves || target.is_name) {
            if leaves {
                self.set_previous(watch_id, None);
            }
            return true;
        }
        false
    }

    /// Remembers the inode that a watch led to before, until a record reports that it left. `None` forgets it.
    fn set_previous(&mut self, watch_id: u32, inode: Option<Inode>) {
        if let Some(inode) = inode {
            self.previous.insert(watch_id, inode.into());
        } else if self.previous.remove(&watch_id).is_some() && self.previous.is_empty() {
            // An apply replaces thousands of files, and the map keeps the room for them otherwise.
            self.previous.shrink_to(FEW);
        }
    }

    /// The inode that a path leads to, and the inode that it led to before.
    pub fn keys_at(&self, path: &Path) -> impl Iterator<Item = InodeKey> {
        let watch_id = self.find(path);
        let there = watch_id.and_then(|watch_id| self.get(watch_id)).and_then(Watch::key);
        let previous =
            watch_id.and_then(|watch_id| self.previous.get(&watch_id)).map(|inode| Inode::from(*inode).key);
        there.into_iter().chain(previous)
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
