//! Which paths are watched for which things, and which inode each path leads to.
//!
//! In: expectations, and identities that the kernel gave. Out: for a record, the things it may concern;
//! for the maps, keys with roles. No I/O.

use sensor_common::map::InodeKey;
use sensor_common::op::{ROLE_ANCESTOR, ROLE_DENY, ROLE_DIRECTORY, ROLE_FILE, RULE_SHIFT};
use sensor_model::expectation::{Expectation, Thing};
use sensor_model::expectation_watch::{WatchRole, watches};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Numbers from here on are the sensor's own watches (canary, mount table, tunables).
pub const FIRST_OWN: u32 = 1 << 30;

/// An inode, told from earlier ones of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inode {
    /// Number and device.
    pub key: InodeKey,
    /// `i_generation`; always zero on some file systems.
    pub generation: u32,
}

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// The inode.
    pub inode: Inode,
    /// A name in it, not the object itself.
    pub is_name: bool,
    /// The object's own name goes, comes or changes.
    pub moves: bool,
}

/// One watched path.
#[derive(Debug, Default)]
pub struct Watch {
    /// The path, below the host root.
    pub path: PathBuf,
    /// `ROLE_*`, without what missing children add.
    roles: u32,
    /// The inode it leads to; `None` when there is none that can be opened.
    pub inode: Option<Inode>,
    /// The one that it led to before, until its leaving was told.
    previous: Option<Inode>,
    /// It was told that the inode leaves this path: what it does from then on is another path's affair.
    left: bool,
    /// Things that are the object at the path.
    objects: Vec<u32>,
    /// Things that depend on a name in it.
    names: BTreeMap<OsString, Vec<u32>>,
    /// Things that depend on every name in it.
    everything: Vec<u32>,
    /// Things that lead through it by a symbolic link elsewhere.
    through: Vec<u32>,
    /// Names in it that lie on the way to watched paths.
    children: BTreeSet<OsString>,
    /// Children that could not be enrolled, so that their names matter.
    unresolved: BTreeSet<OsString>,
}

impl Watch {
    /// The inode that it leads to, by number and device.
    pub fn key(&self) -> Option<InodeKey> {
        self.inode.map(|inode| inode.key)
    }
}

/// What a record concerns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Concerned {
    /// Things whose own inode or directory it is about.
    pub direct: Vec<u32>,
    /// Things below a directory that moved, vanished or appeared: their evidence does not cover it.
    pub beyond: Vec<u32>,
    /// Watches to be enrolled anew.
    pub stale: Vec<u32>,
}

/// All watches.
#[derive(Debug, Default)]
pub struct Registry {
    watches: Vec<Watch>,
    by_path: BTreeMap<PathBuf, u32>,
    by_key: HashMap<InodeKey, Vec<u32>>,
    things: Vec<PathBuf>,
    /// Things that a deny rule protects, and its number.
    deny: HashMap<u32, u32>,
}

impl Registry {
    /// Watches for a set of expectations; a thing's number is its index. `way` gives, for a directory,
    /// the directories that lead to it when links are followed; `installed`, for a unit, the directories that
    /// its own file on the host names.
    pub fn new(
        expectations: &[Expectation],
        way: impl FnMut(&Path) -> Vec<PathBuf>,
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
        mut way: impl FnMut(&Path) -> Vec<PathBuf>,
        installed: impl Fn(&str) -> Vec<String>,
    ) -> Vec<u32> {
        let before: Vec<u32> = self.watches.iter().map(|watch| watch.roles).collect();
        let mut ways: HashMap<PathBuf, Vec<PathBuf>> = HashMap::new();
        let first = u32::try_from(self.things.len()).unwrap_or(FIRST_OWN);
        for (thing, expectation) in (first..).zip(expectations) {
            self.things.push(expectation.thing.path());
            let installed = match &expectation.thing {
                Thing::Unit { name } => installed(name),
                _ => Vec::new(),
            };
            self.add(thing, expectation, &installed);
            let path = expectation.thing.path();
            let parent = path.parent().unwrap_or(Path::new("/")).to_owned();
            let directories = ways.entry(parent.clone()).or_insert_with(|| way(&path)).clone();
            for directory in directories {
                if !path.starts_with(&directory) {
                    let watch = self.watch(&directory, ROLE_ANCESTOR | ROLE_DIRECTORY);
                    // The parent itself, by its real path: the name is created and removed there.
                    watch
                        .names
                        .entry(path.file_name().unwrap_or_default().to_owned())
                        .or_default()
                        .push(thing);
                    watch.through.push(thing);
                }
            }
        }
        let ids = (0..).zip(&self.watches);
        let moved =
            ids.filter(|(id, watch)| before.get(*id as usize).is_none_or(|roles| *roles != watch.roles));
        moved.map(|(id, _)| id).collect()
    }

    /// Protects a thing's inode, and a closed directory's names, by a deny rule. Before enrolment.
    pub fn protect(&mut self, thing: u32, rule: u32) {
        self.deny.insert(thing, rule);
    }

    fn add(&mut self, thing: u32, expectation: &Expectation, installed: &[String]) {
        let found = watches(expectation, installed);
        let own = expectation.thing.path();
        for watched in &found {
            let parent_of: Vec<OsString> = found
                .iter()
                .filter(|other| other.path.parent() == Some(&watched.path))
                .filter_map(|other| Some(other.path.file_name()?.to_owned()))
                .collect();
            let role = match watched.role {
                WatchRole::Object => ROLE_FILE,
                WatchRole::Directory => ROLE_DIRECTORY | ROLE_ANCESTOR,
                WatchRole::Ancestor => ROLE_ANCESTOR,
            };
            let all_names = watched.role == WatchRole::Directory
                && match expectation.thing {
                    Thing::ClosedDirectory { .. } => watched.path == own,
                    Thing::Unit { .. } => Some(watched.path.as_path()) != own.parent(),
                    _ => false,
                };
            let entry = self.watch(&watched.path, role);
            if watched.role == WatchRole::Object {
                entry.objects.push(thing);
            }
            if all_names {
                entry.everything.push(thing);
            }
            for name in parent_of {
                if watched.role == WatchRole::Directory {
                    entry.names.entry(name.clone()).or_default().push(thing);
                }
                entry.children.insert(name);
            }
        }
    }

    fn watch(&mut self, path: &Path, roles: u32) -> &mut Watch {
        let id = if let Some(id) = self.by_path.get(path) {
            *id as usize
        } else {
            let id = self.watches.len();
            self.by_path.insert(path.to_owned(), u32::try_from(id).unwrap_or(FIRST_OWN));
            self.watches.push(Watch { path: path.to_owned(), ..Watch::default() });
            id
        };
        let watch = &mut self.watches[id];
        watch.roles |= roles;
        watch
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

    /// A watch by path.
    pub fn find(&self, path: &Path) -> Option<u32> {
        self.by_path.get(path).copied()
    }

    /// The watch's path leads to this inode now (or to none that can be opened). Gives the keys to be
    /// enrolled with their number and roles, and those to be removed.
    pub fn resolved(&mut self, id: u32, inode: Option<Inode>) -> Vec<(InodeKey, Option<(u32, u32)>)> {
        let Some(watch) = self.watches.get_mut(id as usize) else { return Vec::new() };
        let last = std::mem::replace(&mut watch.inode, inode);
        if last != inode {
            watch.previous = last.filter(|_| !watch.left);
        }
        watch.left = false;
        let (before, key) = (last.map(|inode| inode.key), inode.map(|inode| inode.key));
        let path = watch.path.clone();
        let mut changes = Vec::new();
        if before != key {
            if let Some(before) = before {
                let others = self.by_key.entry(before).or_default();
                others.retain(|other| *other != id);
                if others.is_empty() {
                    self.by_key.remove(&before);
                }
                changes.push(before);
            }
            if let Some(key) = key {
                self.by_key.entry(key).or_default().push(id);
            }
        }
        changes.extend(key);
        if let (Some(parent), Some(name)) = (path.parent(), path.file_name())
            && let Some(parent) = self.find(parent)
        {
            let parent = &mut self.watches[parent as usize];
            let moved = match key {
                None => parent.unresolved.insert(name.to_owned()),
                Some(_) => parent.unresolved.remove(name),
            };
            if moved {
                changes.extend(parent.key());
            }
        }
        changes.sort_unstable_by_key(|key| (key.dev, key.ino));
        changes.dedup();
        changes.into_iter().map(|key| (key, self.enrolment(key))).collect()
    }

    /// Number and roles under which an inode is to be enrolled: those of all paths that lead to it.
    pub fn enrolment(&self, key: InodeKey) -> Option<(u32, u32)> {
        let ids = self.by_key.get(&key)?;
        let roles = ids.iter().fold(0, |roles, id| {
            let watch = &self.watches[*id as usize];
            let names = if watch.unresolved.is_empty() { 0 } else { ROLE_DIRECTORY };
            roles | watch.roles | names
        });
        let protected = ids.iter().find_map(|id| {
            let watch = &self.watches[*id as usize];
            watch.objects.iter().chain(&watch.everything).find_map(|thing| self.deny.get(thing))
        });
        let deny = protected.map_or(0, |rule| ROLE_DENY | rule << RULE_SHIFT);
        Some((*ids.first()?, roles | deny))
    }

    /// The watches that a record concerns: those that lead to its inode, and the one under whose number the
    /// kernel knew the inode when it was written.
    pub fn about(&self, id: u32, key: InodeKey) -> Vec<u32> {
        let mut watches = self.by_key.get(&key).cloned().unwrap_or_default();
        if !watches.contains(&id) && self.get(id).is_some() {
            watches.push(id);
        }
        watches
    }

    /// Whether a record tells who changed what the watch's path leads to. It does not when the number of an
    /// inode that was removed went to another one, nor when the inode is at another path by now.
    pub fn speaks(&mut self, id: u32, about: &About) -> bool {
        let Some(watch) = self.watches.get_mut(id as usize) else { return false };
        let leaves = about.moves && !about.is_name;
        if watch.inode == Some(about.inode) && !watch.left {
            watch.left = leaves;
            return true;
        }
        // A look came before this record and found the path leading elsewhere: the record tells how that came.
        if watch.previous == Some(about.inode) && (leaves || about.is_name) {
            watch.previous = watch.previous.filter(|_| !leaves);
            return true;
        }
        false
    }

    /// The inodes that a path leads to and led to before.
    pub fn keys_at(&self, path: &Path) -> impl Iterator<Item = InodeKey> {
        let watch = self.find(path).and_then(|id| self.get(id));
        watch
            .into_iter()
            .flat_map(|watch| watch.inode.into_iter().chain(watch.previous))
            .map(|inode| inode.key)
    }

    /// What a record concerns that is about these watches. `name`: the entry, for a record about a name in
    /// the directory; `None` for one about the object. `cut`: the name was cut.
    pub fn concerned(&self, watches: &[u32], name: Option<&OsStr>, cut: bool, moved: bool) -> Concerned {
        let mut concerned = Concerned::default();
        for id in watches {
            let watch = &self.watches[*id as usize];
            match name {
                Some(_) if cut => {
                    concerned.direct.extend(watch.names.values().flatten());
                    concerned.direct.extend(&watch.everything);
                }
                Some(name) => {
                    concerned.direct.extend(watch.names.get(name).into_iter().flatten());
                    concerned.direct.extend(&watch.everything);
                    if watch.children.contains(name) {
                        self.below(&watch.path.join(name), &mut concerned);
                    }
                }
                None => {
                    concerned.direct.extend(&watch.objects);
                    if moved {
                        concerned.direct.extend(&watch.everything);
                        if watch.roles & ROLE_ANCESTOR != 0 {
                            self.below(&watch.path, &mut concerned);
                            concerned.beyond.extend(&watch.through);
                        }
                    }
                }
            }
        }
        for list in [&mut concerned.direct, &mut concerned.beyond, &mut concerned.stale] {
            list.sort_unstable();
            list.dedup();
        }
        concerned
    }

    /// Everything that the inode of these watches may concern, whatever happened to it: what its own evidence
    /// covers, and what lies beyond that.
    pub fn all_concerned(&self, watches: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let names = self.concerned(watches, Some(OsStr::new("")), true, true);
        let object = self.concerned(watches, None, false, true);
        let mut direct = names.direct;
        direct.extend(object.direct);
        direct.sort_unstable();
        direct.dedup();
        (direct, object.beyond)
    }

    /// Watches and things at and below a path.
    fn below(&self, path: &Path, concerned: &mut Concerned) {
        let within = self.by_path.range(path.to_owned()..).take_while(|(other, _)| other.starts_with(path));
        concerned.stale.extend(within.map(|(_, id)| *id));
        let things = (0..).zip(&self.things).filter(|(_, thing)| thing.starts_with(path) && *thing != path);
        concerned.beyond.extend(things.map(|(thing, _)| thing));
    }

    /// Every thing on whose way a mount point lies, or which lies on the way to it.
    pub fn under_mount(&self, point: &Path) -> Vec<u32> {
        let related = |thing: &&PathBuf| thing.starts_with(point) || point.starts_with(thing);
        (0..).zip(&self.things).filter(|(_, thing)| related(thing)).map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
