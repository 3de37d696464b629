//! Enrolling inodes, and looking at a thing with the kernel as a witness.
//!
//! In: a thing's number. Out: what it is, how that differs from what it should be, and the kernel's
//! evidence about the look. Opening an object marks it to the kernel programs, which answer with the
//! identity under which they know it; when a path turns out to lead to an inode that is not enrolled,
//! it is enrolled and looked at again.

mod enrol;
mod foreign;
mod served;

use super::reasons::{FOREIGN, UNWATCHED};
use super::registry::{self, Identity, Inode, Registry};
use crate::desired::Desired;
use crate::kernel::maps::{Maps, MapsError};
use crate::observation::{Observer, OpenedKind, OpenedObject, Served};
use crate::systemd::UnitStates;
use foreign::{foreign, shares_numbers};
use sensor_common::map::{InodeKey, Managed, OBSERVED_LOCKED, OBSERVED_WRITERS};
use sensor_model::compare::compare;
use sensor_model::difference::Difference;
use sensor_model::expectation::{Expectation, Expected, Thing};
use sensor_model::observation::{FileType, Observation};
use sensor_model::protocol::{Evidence, Finding, Verification, is_transient};
use sensor_model::record::{Actor, FileIdentity};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Looks at one thing until its inode is enrolled, so many times at most.
const ATTEMPTS: usize = 4;

/// The kernel side of looking: absent on the fanotify backend.
#[derive(Debug)]
pub struct Witness {
    maps: Maps,
    sequence: u64,
}

impl Witness {
    /// Wraps the maps of a loaded sensor.
    pub fn new(maps: Maps) -> Self {
        // Maps of an earlier run hold the answer to its last look.
        let sequence = maps.identity().map_or(0, |identity| identity.sequence);
        Self { maps, sequence }
    }

    /// The maps.
    pub fn maps(&mut self) -> &mut Maps {
        &mut self.maps
    }

    /// The key of the object opened just now.
    pub fn identity(&mut self) -> Option<InodeKey> {
        self.identify().map(|(inode, _)| inode.key)
    }

    /// The next link that is read is one that is looked at.
    fn expect_link(&mut self) {
        if let Err(error) = self.maps.forget_link() {
            tracing::warn!(%error, "Cannot reset the map of links: a link cannot be identified.");
        }
    }

    /// What the kernel calls the link read just now.
    fn identify_link(&self) -> Option<(Inode, u64)> {
        let identity = self.maps.link_identity().ok().filter(|identity| identity.sequence != 0)?;
        Some((Inode { key: identity.key, generation: identity.generation }, identity.magic))
    }

    /// The file that a path of an executable leads to. `None` also where its number would prove nothing.
    pub(super) fn executable(&mut self, observer: &Observer, path: &Path) -> Option<Inode> {
        observer.open(path).ok()?;
        let (file, magic) = self.identify()?;
        (!shares_numbers(magic, observer, path)).then_some(file)
    }

    /// What the kernel calls the object opened just now; `None` when the programs did not see the open.
    fn identify(&mut self) -> Option<(Inode, u64)> {
        let identity = self.maps.identity().ok()?;
        if identity.sequence == self.sequence {
            return None;
        }
        self.sequence = identity.sequence;
        Some((Inode { key: identity.key, generation: identity.generation }, identity.magic))
    }
}

/// What one look gave.
#[derive(Debug)]
pub struct LookResult {
    /// What was seen.
    pub observation: Observation,
    /// Every difference.
    pub differences: Vec<Difference>,
    /// For the protocol.
    pub outcome: Verification,
    /// An earlier look reached a verdict.
    pub known: bool,
    /// Why its changes may go unseen; `None` if they are seen.
    pub unseen_because: Option<&'static str>,
    /// Which inode it was, and when that last changed.
    object: Known,
}

/// What became of a look.
#[derive(Debug)]
pub enum Looked {
    /// It was made.
    Seen(Box<LookResult>),
    /// Not by this process: a server answers for the file system that the thing is on, and may never answer.
    Served(Served),
}

/// What is remembered of the last decided look, to tell an open without a write from a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    inode: Option<Identity>,
    /// 0: it is not known. No file has last changed in a time that has no room here, unless its clock was wrong.
    changed_ns: i64,
}

/// Protected names in the map, by their directories, with the numbers of their rules.
#[derive(Debug, Default)]
struct EnrolledNames(HashMap<InodeKey, BTreeMap<OsString, u32>>);

/// Looks at things.
#[derive(Debug)]
pub struct Looker {
    /// The host's files.
    pub observer: Arc<Observer>,
    /// Where the kernel side is.
    pub witness: Option<Witness>,
    /// Which paths are watched.
    pub registry: Registry,
    units: UnitStates,
    /// By the things' numbers.
    known: Vec<Option<Known>>,
    /// Where [`Looker::check_entries`] goes on.
    next_check: u32,
    /// Paths that are declared as symbolic links.
    links: HashSet<Arc<Path>>,
    /// Things to which other directories than before may lead.
    rerouted: HashSet<u32>,
    /// Watches that came since [`Looker::take_new_watches`] was asked.
    new_watches: Vec<u32>,
    /// Watches without a fanotify mark.
    unmarked: HashSet<u32>,
    /// Things that those concern; `None` until it is worked out again.
    with_unmarked_paths: Option<HashSet<u32>>,
    /// The protected names in the map.
    names: Box<EnrolledNames>,
}

impl Looker {
    /// Enrols nothing yet; see [`Looker::enrol_all`].
    pub fn new(observer: Arc<Observer>, root: &Path, witness: Option<Witness>, desired: &Desired) -> Self {
        let registry = Registry::new(
            &desired.expectations,
            |path| observer.way(path),
            |unit| observer.install_directories(unit),
        );
        let units = UnitStates::new(root);
        let links = links(&desired.expectations).collect();
        Self {
            observer,
            witness,
            registry,
            units,
            known: vec![None; desired.expectations.len()],
            next_check: 0,
            links,
            rerouted: HashSet::new(),
            new_watches: Vec::new(),
            unmarked: HashSet::new(),
            with_unmarked_paths: None,
            names: Box::default(),
        }
    }

    /// Adds things that are looked at from now on. Gives the watches that are to be enrolled.
    pub fn extend(&mut self, expectations: &[Expectation]) -> Vec<u32> {
        self.with_unmarked_paths = None;
        self.links.extend(links(expectations));
        self.known.reserve_exact(expectations.len());
        self.known.resize(self.known.len() + expectations.len(), None);
        let observer = &self.observer;
        self.registry.extend(
            expectations,
            |path| observer.way(path),
            |unit| observer.install_directories(unit),
        )
    }

    /// Whether the path of an actor's executable leads to the file that was executed. The path alone proves nothing: in a
    /// mount namespace of their own anybody mounts any program there.
    pub fn is_host_file(&mut self, actor: &Actor) -> bool {
        let (Some(path), Some(executed)) = (&actor.exe, &actor.exe_file) else { return false };
        // Of a process that is gone it is what was given to execve(2): with `..` in it, it may fit a glob and lead elsewhere.
        if path.split('/').any(|name| matches!(name, "." | "..")) {
            return false;
        }
        let path = Path::new(path);
        if executed.generation.is_none() {
            let opened = self.observer.open(path);
            return opened.is_ok_and(|at| (at.device, at.inode) == (executed.device, executed.inode));
        }
        let found = self.witness.as_mut().and_then(|witness| witness.executable(&self.observer, path));
        found.is_some_and(|Inode { key: InodeKey { ino, dev, volume }, generation }| {
            let found =
                FileIdentity { device: u64::from(dev), inode: ino, volume, generation: Some(generation) };
            *executed == found
        })
    }

    /// Whether anything is declared as a symbolic link.
    pub fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    /// Something changed on the way to these things: other directories may lead to them now, which the next look finds out.
    pub fn reroute(&mut self, things: impl IntoIterator<Item = u32>) {
        self.rerouted.extend(things);
    }

    /// Watches that came since the last call, for a backend that marks each path.
    pub fn take_new_watches(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.new_watches)
    }

    /// Whether the fanotify mark of a watch is set. [`LookResult::unseen_because`] names those that are not.
    pub fn set_marked(&mut self, watch: u32, is_marked: bool) {
        let is_news = if is_marked { self.unmarked.remove(&watch) } else { self.unmarked.insert(watch) };
        if is_news {
            self.with_unmarked_paths = None;
        }
    }

    /// Whether a path on the way to a thing has no fanotify mark.
    fn has_unmarked_path(&mut self, thing: u32) -> bool {
        let (registry, unmarked) = (&self.registry, &self.unmarked);
        let with_unmarked_paths = self.with_unmarked_paths.get_or_insert_with(|| {
            let concerned = unmarked.iter().map(|watch| registry.all_concerned(&[*watch]));
            concerned.flat_map(|(direct, beyond)| direct.into_iter().chain(beyond)).collect()
        });
        with_unmarked_paths.contains(&thing)
    }

    /// Looks at a thing.
    pub async fn look(&mut self, thing: u32, desired: &Desired) -> Result<Looked, MapsError> {
        let expectation = &desired.expectations[thing as usize];
        let path = expectation.thing.path();
        let own = self.registry.find(&path);
        let mut foreign_name = None;
        let (mut observation, mut keys) = (Observation::Missing, Keys::default());
        for _ in 0..ATTEMPTS {
            keys = Keys::default();
            foreign_name = None;
            let mut opened_as = None;
            let mut directories = Vec::new();
            let (witness, observer) = (&mut self.witness, &self.observer);
            let is_link = self.links.contains(&path);
            if let Some(witness) = witness.as_mut().filter(|_| is_link) {
                witness.expect_link();
            }
            observation = observer.observe_with(expectation, &mut |opened: &OpenedObject| {
                let identified = witness.as_mut().and_then(|witness| match opened.file_type {
                    FileType::Symlink if is_link => witness.identify_link(),
                    FileType::Symlink => None,
                    _ => witness.identify(),
                });
                if opened.kind == OpenedKind::Parent && matches!(expectation.thing, Thing::Unit { .. }) {
                    directories.push((opened.path.clone(), identified.map(|(inode, _)| inode)));
                }
                let Some((inode, magic)) = identified else { return };
                foreign_name = foreign_name.or_else(|| foreign(magic, observer, &opened.path));
                match opened.kind {
                    OpenedKind::Parent if keys.parent.is_none() => keys.parent = Some(inode),
                    OpenedKind::Parent => {}
                    OpenedKind::Object => {
                        keys.object = Some(inode);
                        opened_as = Some((opened.device, opened.inode));
                    }
                }
            });
            if let Some(served) = self.observer.refused() {
                return Ok(Looked::Served(served));
            }
            if opened_as.is_some_and(|inode| !self.observer.leads_to(&path, inode)) {
                // Replaced between look-up and open: what was read is not what is there.
                continue;
            }
            let is_way_known = self.enrol_route(thing, &path, keys, &directories)?;
            if self.enrol_keys(&path, own, &observation, keys)? && is_way_known {
                break;
            }
        }
        // If not even its directory exists, the programs saw no open.
        if self.witness.is_none() || (keys.parent, keys.object) == (None, None) {
            let magic = self.observer.file_system(&path);
            foreign_name = magic.and_then(|magic| foreign(magic, &self.observer, &path));
        }
        tracing::debug!(path = %path.display(), foreign_name, "Looked.");
        let evidence = match expectation.thing {
            // A unit's state depends on more than one inode.
            Thing::Unit { .. } => None,
            // The counters show only what this kernel did.
            _ if foreign_name.is_some() => None,
            _ => self.evidence(keys, &observation)?,
        };
        let unseen_because = foreign_name.map(|_| FOREIGN);
        Ok(Looked::Seen(Box::new(
            self.result(thing, desired, observation, keys.object, evidence, unseen_because).await,
        )))
    }

    /// What follows from what was seen.
    async fn result(
        &mut self,
        thing: u32,
        desired: &Desired,
        mut observation: Observation,
        object: Option<Inode>,
        evidence: Option<Evidence>,
        unseen_because: Option<&'static str>,
    ) -> LookResult {
        let expectation = &desired.expectations[thing as usize];
        if let (Thing::Unit { name }, Observation::Unit(unit)) = (&expectation.thing, &mut observation)
            && let Some(state) = self.units.state(name).await
        {
            unit.file_state = state;
        }
        let differences = compare(expectation, &observation, &desired.ids);
        let changed_ns = match &observation {
            Observation::Object(object) => i64::try_from(object.changed_ns).unwrap_or(0),
            _ => 0,
        };
        let seen = Known { inode: object.map(Identity::from), changed_ns };
        // Only looks that reached a verdict count: another one may have met a change half done.
        let before = self.known.get(thing as usize).copied().flatten();
        let finding = if differences.is_empty() {
            Finding::Compliant { untouched: changed_ns != 0 && before == Some(seen) }
        } else {
            let mut hasher = DefaultHasher::new();
            differences.hash(&mut hasher);
            let new_inode = before.is_some_and(|before| before.inode != seen.inode);
            Finding::Differs {
                fingerprint: hasher.finish(),
                transient: is_transient(&differences, new_inode),
            }
        };
        let unmarked = self.has_unmarked_path(thing).then_some(UNWATCHED);
        LookResult {
            observation,
            differences,
            outcome: Verification { finding, evidence },
            known: before.is_some(),
            unseen_because: unseen_because.or(unmarked),
            object: seen,
        }
    }

    /// Remembers what a look saw that decided how its thing stands.
    pub fn decided(&mut self, thing: u32, seen: &LookResult) {
        if let Some(known) = self.known.get_mut(thing as usize) {
            *known = Some(seen.object);
        }
    }

    /// The thing has no pending verification, so the directories that its last look met are current. An unchanged difference does
    /// not prove that: the hook runs before the change takes effect.
    pub fn settled(&mut self, thing: u32) {
        self.rerouted.remove(&thing);
    }

    /// Watches the directories through which a look reached its thing, if they are new. `true` if all of them were watched
    /// already, so that the look counts.
    fn enrol_route(
        &mut self,
        thing: u32,
        path: &Path,
        keys: Keys,
        units: &[(PathBuf, Option<Inode>)],
    ) -> Result<bool, MapsError> {
        let mut added: Vec<u32> = Vec::new();
        for (directory, met) in units.iter().filter(|(directory, _)| registry::may_enable(directory)) {
            added.extend(self.registry.units_in(directory, *met));
        }
        // An unenrolled parent means that the path resolved through a directory without a watch. Units resolve through several.
        let parent = keys.parent.filter(|_| units.is_empty());
        let is_unknown = parent.is_some_and(|parent| self.registry.enrolment(parent.key).is_none());
        if is_unknown || self.rerouted.contains(&thing) {
            let way = self.observer.way(path);
            added.extend(self.registry.reached(thing, path, &way));
            self.registry.ends_at(thing, way.missing);
            self.write_guards()?;
            // One of them may be another directory by now.
            let known = way.directories.iter().filter_map(|directory| self.registry.find(directory));
            let known: Vec<u32> = known.filter(|id| !added.contains(id)).collect();
            for id in known {
                let before = self.registry.get(id).and_then(registry::Watch::key);
                self.enrol(id)?;
                if self.registry.get(id).and_then(registry::Watch::key) != before {
                    added.push(id);
                }
            }
        }
        for id in &added {
            self.enrol(*id)?;
        }
        let is_known = added.is_empty();
        if !is_known {
            self.with_unmarked_paths = None;
        }
        self.new_watches.extend(added);
        Ok(is_known)
    }

    /// Enrols what the look met for the first time. `true` when everything was enrolled already, and so
    /// the look counts.
    fn enrol_keys(
        &mut self,
        path: &Path,
        own: Option<u32>,
        observation: &Observation,
        keys: Keys,
    ) -> Result<bool, MapsError> {
        if self.witness.is_none() {
            return Ok(true);
        }
        let mut settled = true;
        if let Some(own) = own {
            let known = self.registry.get(own).and_then(registry::Watch::inode);
            let there = !matches!(observation, Observation::Missing);
            if known != keys.object && (keys.object.is_some() || there || known.is_some()) {
                self.apply(own, keys.object)?;
                settled = keys.object.is_none();
            }
        }
        if let (Some(parent), Some(inode)) =
            (path.parent().and_then(|path| self.registry.find(path)), keys.parent)
            && self.registry.get(parent).is_some_and(|watch| watch.inode() != Some(inode))
        {
            self.enrol(parent)?;
            settled = self.registry.get(parent).is_none_or(|watch| watch.inode() != Some(inode)) && settled;
        }
        Ok(settled)
    }

    /// The map entry of the object's own inode, which covers its directory's lock too. Without an object that can be opened, the
    /// entry of the directory in which the name was looked up.
    fn evidence(&self, keys: Keys, observation: &Observation) -> Result<Option<Evidence>, MapsError> {
        let Some(witness) = &self.witness else { return Ok(None) };
        let key = match (keys.object, observation) {
            (Some(object), _) => Some(object),
            (None, Observation::Missing | Observation::Object(_)) => keys.parent,
            (None, _) => None,
        };
        let Some(inode) = key else { return Ok(None) };
        Ok(witness.maps.entry(inode.key)?.map(|entry| evidence_of(&entry)))
    }
}

/// The identities that the kernel gave for the two opens of a look.
#[derive(Debug, Clone, Copy, Default)]
struct Keys {
    parent: Option<Inode>,
    object: Option<Inode>,
}

fn evidence_of(entry: &Managed) -> Evidence {
    Evidence {
        observed_counter: entry.observed_counter,
        counter: entry.counter,
        writers: entry.observed & OBSERVED_WRITERS != 0,
        locked: entry.observed & OBSERVED_LOCKED != 0,
    }
}

/// Paths that are declared as links.
fn links(expectations: &[Expectation]) -> impl Iterator<Item = Arc<Path>> {
    let links = expectations.iter().filter(|expectation| matches!(expectation.expected, Expected::Link(_)));
    links.map(|expectation| expectation.thing.path())
}

#[cfg(test)]
#[path = "verifier_tests.rs"]
mod tests;
