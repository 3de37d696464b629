//! Enrolling inodes, and looking at a thing with the kernel as a witness.
//!
//! In: a thing's number. Out: what it is, how that differs from what it should be, and the kernel's
//! evidence about the look. Opening an object marks it to the kernel programs, which answer with the
//! identity under which they know it; when a path turns out to lead to an inode that is not enrolled,
//! it is enrolled and looked at again.

mod enrol;
mod foreign;
mod served;

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
use sensor_model::protocol::{Evidence, Finding, Outcome, is_transient};
use sensor_model::record::{Actor, FileIdentity};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Looks at one thing until its inode is enrolled, so many times at most.
const ATTEMPTS: usize = 4;

/// Why nobody vouches for what lies on one of those.
pub const FOREIGN: &str = "foreign-file-system";

/// Why nothing is known of what lies on a file system that does not answer.
pub const HANGS: &str = "file-system-hangs";

/// Why nobody vouches for what fanotify cannot be told of.
pub const UNWATCHED: &str = "fanotify-unwatched";

/// The kernel side of looking: absent on the fanotify backend.
#[derive(Debug)]
pub struct Witness {
    maps: Maps,
    sequence: u64,
}

impl Witness {
    /// Wraps the maps of a loaded sensor.
    pub fn new(maps: Maps) -> Self {
        // Maps of an earlier run hold its last answer, which is none to this daemon.
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
            tracing::warn!(%error, "A link cannot be looked at.");
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
pub struct Sight {
    /// What was seen.
    pub observation: Observation,
    /// Every difference.
    pub differences: Vec<Difference>,
    /// For the protocol.
    pub outcome: Outcome,
    /// An earlier look decided how the thing stands.
    pub known: bool,
    /// Why nobody tells of changes to it; `None` when they are told.
    pub unvouched: Option<&'static str>,
    /// Which inode it was, and when that last changed.
    seen: Known,
}

/// What became of a look.
#[derive(Debug)]
pub enum Looked {
    /// It was made.
    Seen(Box<Sight>),
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

/// Protected names as the programs know them, by their directories, with the numbers of their rules.
#[derive(Debug, Default)]
struct Told(HashMap<InodeKey, BTreeMap<OsString, u32>>);

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
    /// Things that may be reached by other directories than before.
    astray: HashSet<u32>,
    /// Watches that came since [`Looker::fresh`] was asked.
    fresh: Vec<u32>,
    /// Watches that the fanotify backend cannot be told of.
    unwatched: HashSet<u32>,
    /// Things that those concern; `None` since another watch, thing or way came.
    untold: Option<HashSet<u32>>,
    /// The names that the programs were told of.
    names: Box<Told>,
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
            astray: HashSet::new(),
            fresh: Vec::new(),
            unwatched: HashSet::new(),
            untold: None,
            names: Box::default(),
        }
    }

    /// Adds things that are looked at from now on. Gives the watches that are to be enrolled.
    pub fn extend(&mut self, expectations: &[Expectation]) -> Vec<u32> {
        self.untold = None;
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

    /// Something happened on the way to these things: they may be reached by other directories now, which the next
    /// look finds out.
    pub fn stray(&mut self, things: impl IntoIterator<Item = u32>) {
        self.astray.extend(things);
    }

    /// Watches that came since the last call, for a backend that is told of each by its path.
    pub fn fresh(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.fresh)
    }

    /// Whether changes at a watch are told of. Of those that are not, [`Sight::unvouched`] says so.
    pub fn is_watched(&mut self, watch: u32, told: bool) {
        let is_news = if told { self.unwatched.remove(&watch) } else { self.unwatched.insert(watch) };
        if is_news {
            self.untold = None;
        }
    }

    /// Whether changes of a thing may not be told of.
    fn is_untold(&mut self, thing: u32) -> bool {
        let (registry, unwatched) = (&self.registry, &self.unwatched);
        let untold = self.untold.get_or_insert_with(|| {
            let concerned = unwatched.iter().map(|watch| registry.all_concerned(&[*watch]));
            concerned.flat_map(|(direct, beyond)| direct.into_iter().chain(beyond)).collect()
        });
        untold.contains(&thing)
    }

    /// Looks at a thing.
    pub async fn look(&mut self, thing: u32, desired: &Desired) -> Result<Looked, MapsError> {
        let expectation = &desired.expectations[thing as usize];
        let path = expectation.thing.path();
        let own = self.registry.find(&path);
        let mut strange = None;
        let (mut observation, mut keys) = (Observation::Missing, Keys::default());
        for _ in 0..ATTEMPTS {
            keys = Keys::default();
            strange = None;
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
                strange = strange.or_else(|| foreign(magic, observer, &opened.path));
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
            let is_way_known = self.settle_way(thing, &path, keys, &directories)?;
            if self.settle_keys(&path, own, &observation, keys)? && is_way_known {
                break;
            }
        }
        // Where not even its directory is there, the programs saw nothing that could tell.
        if self.witness.is_none() || (keys.parent, keys.object) == (None, None) {
            let magic = self.observer.file_system(&path);
            strange = magic.and_then(|magic| foreign(magic, &self.observer, &path));
        }
        tracing::debug!(path = %path.display(), strange, "Looked.");
        let evidence = match expectation.thing {
            // What systemd says of a unit is not one inode's affair.
            Thing::Unit { .. } => None,
            // The counters know only of what this kernel did.
            _ if strange.is_some() => None,
            _ => self.evidence(keys, &observation)?,
        };
        let unvouched = strange.map(|_| FOREIGN);
        Ok(Looked::Seen(Box::new(
            self.sight(thing, desired, observation, keys.object, evidence, unvouched).await,
        )))
    }

    /// What follows from what was seen.
    async fn sight(
        &mut self,
        thing: u32,
        desired: &Desired,
        mut observation: Observation,
        object: Option<Inode>,
        evidence: Option<Evidence>,
        unvouched: Option<&'static str>,
    ) -> Sight {
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
        // Looks that decided nothing do not count: a change that one of them met half done is still a change.
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
        let untold = self.is_untold(thing).then_some(UNWATCHED);
        Sight {
            observation,
            differences,
            outcome: Outcome { finding, evidence },
            known: before.is_some(),
            unvouched: unvouched.or(untold),
            seen,
        }
    }

    /// Remembers what a look saw that decided how its thing stands.
    pub fn decided(&mut self, thing: u32, sight: &Sight) {
        if let Some(known) = self.known.get_mut(thing as usize) {
            *known = Some(sight.seen);
        }
    }

    /// Nothing is to be looked at of a thing any more: what its last look knew of the way to it counts. A look that only
    /// confirmed a difference is none that came after the change was done: a change is told before its effect is there.
    pub fn rests(&mut self, thing: u32) {
        self.astray.remove(&thing);
    }

    /// Watches the directories by which a look reached its thing, where they are others than before. `true` when
    /// they were all watched already, and so the look counts.
    fn settle_way(
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
        // A parent that nobody knows was reached by a way that nobody watches. (A unit has many.)
        let parent = keys.parent.filter(|_| units.is_empty());
        let is_unknown = parent.is_some_and(|parent| self.registry.enrolment(parent.key).is_none());
        if is_unknown || self.astray.contains(&thing) {
            let way = self.observer.way(path);
            added.extend(self.registry.reached(thing, path, &way));
            self.registry.ends_at(thing, way.missing);
            self.guard_anew()?;
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
            self.untold = None;
        }
        self.fresh.extend(added);
        Ok(is_known)
    }

    /// Enrols what the look met for the first time. `true` when everything was enrolled already, and so
    /// the look counts.
    fn settle_keys(
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

    /// The kernel's word: on the object's own inode (which covers its directory's lock too), or, where
    /// there is none that can be opened, on the directory in which the name was looked up.
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

/// What the kernel told of the two opens of a look.
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
#[path = "look_tests.rs"]
mod tests;
