//! Verifies one thing: observes it with the kernel's evidence, and compares it with its expectation.
//!
//! In: a thing's number. Out: the observation, the differences, and the evidence. It owns the registry of watches, the access to
//! the kernel programs' maps, and the object of each thing's last verification. When the daemon opens an object for observation,
//! the kernel programs answer with the identity of its inode. If that inode is not enrolled, the verifier enrols it and verifies
//! the thing again.

mod enrol;
mod marks;
mod served;

use super::executions;
use super::foreign::foreign;
use super::kernel_programs::KernelPrograms;
use super::registry::{self, Inode, PackedInode, WatchRegistry};
use crate::desired::Desired;
use crate::image::held_back;
use crate::kernel::maps::MapsError;
use crate::observation::{Observer, OpenedKind, OpenedObject, Served};
use crate::systemd::UnitStates;
use marks::FanotifyMarks;
use sensor_common::map::{InodeKey, Managed, OBSERVED_LOCKED, OBSERVED_WRITERS};
use sensor_model::compare::compare;
use sensor_model::difference::{Difference, is_transient};
use sensor_model::expectation::{Expectation, Expected, Thing};
use sensor_model::observation::{FileType, Observation};
use sensor_model::protocol::{Evidence, Finding, GapReason, ThingId, Verification};
use sensor_model::record::{Actor, FileIdentity};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Attempts to verify a thing until all its inodes are enrolled.
const ATTEMPTS: usize = 4;

/// A verification of one thing.
#[derive(Debug)]
pub struct VerifiedThing {
    /// The thing as it is.
    pub observation: Observation,
    /// Every difference.
    pub differences: Vec<Difference>,
    /// The input of the detection protocol.
    pub verification: Verification,
    /// An earlier verification decided the thing's verdict.
    pub was_decided: bool,
    /// Why changes of the thing may not arrive; `None` if they do.
    pub unseen_because: Option<GapReason>,
    object: ObjectVersion,
}

impl VerifiedThing {
    /// Leaves differences out.
    pub fn retain(&mut self, is_kept: impl Fn(&Difference) -> bool) {
        let before = self.differences.len();
        self.differences.retain(is_kept);
        if self.differences.is_empty() {
            self.verification.finding = Finding::Compliant { untouched: false };
        } else if self.differences.len() < before
            && let Finding::Differs { fingerprint, .. } = &mut self.verification.finding
        {
            *fingerprint = fingerprint_of(&self.differences);
        }
    }
}

fn fingerprint_of(differences: &[Difference]) -> u64 {
    let mut hasher = DefaultHasher::new();
    differences.hash(&mut hasher);
    hasher.finish()
}

/// The result of an attempt to verify a thing.
#[derive(Debug)]
pub enum VerifyOutcome {
    /// This process verified the thing.
    Verified(Box<VerifiedThing>),
    /// A worker process must observe the thing: it lies on a file system whose server may never answer.
    NeedsWorker(Served),
}

/// The inode of an object, and the time of its last change. A verification that finds both unchanged proves that nothing was
/// written since the verification before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ObjectVersion {
    inode: Option<PackedInode>,
    /// 0: unknown. A time that does not fit comes from a wrong clock.
    changed_ns: i64,
}

/// Protected names in the map, by their directories, with the numbers of their rules.
#[derive(Debug, Default)]
struct EnrolledNames(HashMap<InodeKey, BTreeMap<OsString, u32>>);

/// Verifies things.
#[derive(Debug)]
pub struct Verifier {
    /// The host's files.
    pub observer: Arc<Observer>,
    /// The kernel programs; absent on the fanotify backend.
    pub kernel: Option<KernelPrograms>,
    /// The watched paths, and their inodes.
    pub registry: WatchRegistry,
    units: UnitStates,
    /// By the things' numbers: the object of the last verification that decided the verdict.
    decided: Vec<Option<ObjectVersion>>,
    /// The watch at which [`Verifier::check_entries`] continues.
    next_check: u32,
    /// Paths of declared symbolic links.
    links: HashSet<Arc<Path>>,
    /// Things whose route may have changed.
    rerouted: HashSet<ThingId>,
    /// The fanotify marks of the watches.
    marks: FanotifyMarks,
    /// The protected names in the map.
    names: Box<EnrolledNames>,
}

impl Verifier {
    /// A verifier that has enrolled nothing yet; see [`Verifier::enrol_all`].
    pub fn new(
        observer: Arc<Observer>,
        root: &Path,
        kernel: Option<KernelPrograms>,
        desired: &Desired,
    ) -> Self {
        let mut registry = WatchRegistry::new(
            &desired.expectations,
            |path| observer.route(path),
            |unit| observer.install_directories(unit),
        );
        executions::set_reported(&mut registry, desired);
        registry.watch_searched(&desired.directories.searched);
        let units = UnitStates::new(root);
        let links = links(&desired.expectations).collect();
        Self {
            observer,
            kernel,
            registry,
            units,
            decided: vec![None; desired.expectations.len()],
            next_check: 0,
            links,
            rerouted: HashSet::new(),
            marks: FanotifyMarks::default(),
            names: Box::default(),
        }
    }

    /// The kernel programs, and the host's files. `None` on the fanotify backend.
    pub fn kernel_and_observer(&mut self) -> Option<(&mut KernelPrograms, &Observer)> {
        let observer = &*self.observer;
        self.kernel.as_mut().map(|kernel| (kernel, observer))
    }

    /// The inodes that are or were at a mount point.
    pub fn keys_at(&self, point: &Path) -> Vec<InodeKey> {
        self.registry.keys_at(point).collect()
    }

    /// The things at, above or below a mount point whose mounts changed. Their routes may have changed.
    pub fn mount_changed(&mut self, point: &Path) -> Vec<ThingId> {
        let things = self.registry.under_mount(point);
        self.mark_rerouted(things.iter().copied());
        things
    }

    /// See [`WatchRegistry::protected_thing`].
    pub fn protected_thing(&self, watches: &[u32], name: Option<&OsStr>) -> Option<(ThingId, PathBuf)> {
        self.registry.protected_thing(watches, name)
    }

    /// Adds things. Gives the watches that are new or have other roles; the caller enrols them.
    pub fn extend(&mut self, expectations: &[Expectation]) -> Vec<u32> {
        self.marks.things_changed();
        self.links.extend(links(expectations));
        self.decided.reserve_exact(expectations.len());
        self.decided.resize(self.decided.len() + expectations.len(), None);
        let observer = &self.observer;
        self.registry.extend(
            expectations,
            |path| observer.route(path),
            |unit| observer.install_directories(unit),
        )
    }

    /// Watches and enrols the directories in which globs look for names.
    pub fn watch_searched(&mut self, directories: &[PathBuf]) -> Result<(), MapsError> {
        let added = self.registry.watch_searched(directories);
        for directory in directories {
            if let Some(watch_id) = self.registry.find(directory) {
                self.enrol(watch_id)?;
            }
        }
        self.marks.add(added);
        Ok(())
    }

    /// Whether the path of an actor's executable leads to the executed file. The path alone proves nothing: a user can mount any
    /// program there in a mount namespace.
    pub fn is_host_file(&mut self, actor: &Actor) -> bool {
        let (Some(path), Some(executed)) = (&actor.exe, &actor.exe_file) else { return false };
        // The path of a process that has ended is the argument of execve(2). With `..` it may match a glob and lead elsewhere.
        if path.split('/').any(|name| matches!(name, "." | "..")) {
            return false;
        }
        let path = Path::new(path);
        if executed.generation.is_none() {
            let opened = self.observer.open(path);
            return opened.is_ok_and(|at| (at.device, at.inode) == (executed.device, executed.inode));
        }
        let found = self.kernel.as_mut().and_then(|kernel| kernel.executable(&self.observer, path));
        found.is_some_and(|Inode { key: InodeKey { ino, dev, volume }, generation }| {
            let found =
                FileIdentity { device: u64::from(dev), inode: ino, volume, generation: Some(generation) };
            *executed == found
        })
    }

    /// Whether the config declares a symbolic link.
    pub fn has_links(&self) -> bool {
        !self.links.is_empty()
    }

    /// Marks things whose route may have changed. The next verification resolves it again.
    pub fn mark_rerouted(&mut self, things: impl IntoIterator<Item = ThingId>) {
        self.rerouted.extend(things);
    }

    /// Watches that are new since the last call, for a backend that marks each path.
    pub fn take_new_watches(&mut self) -> Vec<u32> {
        self.marks.take_new()
    }

    /// Notes whether a watch has its fanotify mark. Without it, [`VerifiedThing::unseen_because`] has a reason.
    pub fn set_marked(&mut self, watch: u32, is_marked: bool) {
        self.marks.set(watch, is_marked);
    }

    /// Verifies a thing.
    pub async fn verify(&mut self, thing: ThingId, desired: &Desired) -> Result<VerifyOutcome, MapsError> {
        let expectation = &desired.expectations[thing.index()];
        if expectation.expected == Expected::Unindexed {
            // There is nothing to compare with. The directory's own watches, if it has any, are those of other things.
            let unseen = Some(GapReason::ImageNotIndexed);
            let nothing = self.compare(thing, desired, Observation::Missing, None, None, unseen).await;
            return Ok(VerifyOutcome::Verified(Box::new(nothing)));
        }
        if matches!(expectation.thing, Thing::Hierarchy { .. } | Thing::Tree { .. }) {
            // No inode shows what is mounted over it, or in it.
            let observation = self.observer.observe(expectation).observation;
            let verified = self.compare(thing, desired, observation, None, None, None).await;
            return Ok(VerifyOutcome::Verified(Box::new(verified)));
        }
        let path = expectation.thing.path();
        let own = self.registry.find(&path);
        let mut foreign_name = None;
        let (mut observation, mut keys) = (Observation::Missing, Keys::default());
        for _ in 0..ATTEMPTS {
            keys = Keys::default();
            foreign_name = None;
            let mut opened_as = None;
            let mut directories = Vec::new();
            let (kernel, observer) = (&mut self.kernel, &self.observer);
            let is_link = self.links.contains(&path);
            if let Some(kernel) = kernel.as_mut().filter(|_| is_link) {
                kernel.expect_link();
            }
            observation = observer.observe_with(expectation, &mut |opened: &OpenedObject| {
                let identified = kernel.as_mut().and_then(|kernel| match opened.file_type {
                    FileType::Symlink if is_link => kernel.identify_link(),
                    FileType::Symlink => None,
                    _ => kernel.identify(),
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
            if let Some(served) = self.observer.take_left_to_worker() {
                return Ok(VerifyOutcome::NeedsWorker(served));
            }
            if opened_as.is_some_and(|inode| !self.observer.leads_to(&path, inode)) {
                // Another process replaced the object between lookup and open.
                continue;
            }
            let is_route_known = self.enrol_route(thing, &path, keys, &directories)?;
            if self.enrol_keys(&path, own, &observation, keys)? && is_route_known {
                break;
            }
        }
        // If the directory does not exist either, the programs saw no open.
        if self.kernel.is_none() || (keys.parent, keys.object) == (None, None) {
            let magic = self.observer.file_system(&path);
            foreign_name = magic.and_then(|magic| foreign(magic, &self.observer, &path));
        }
        tracing::debug!(path = %path.display(), foreign_name, "Observed a thing.");
        let evidence = match expectation.thing {
            // A unit's state depends on several inodes.
            Thing::Unit { .. } => None,
            // The counters count only the changes by this kernel.
            _ if foreign_name.is_some() => None,
            _ => self.evidence(keys, &observation)?,
        };
        let unseen_because = foreign_name.map(|_| GapReason::ForeignFileSystem);
        Ok(VerifyOutcome::Verified(Box::new(
            self.compare(thing, desired, observation, keys.object, evidence, unseen_because).await,
        )))
    }

    /// Compares an observation with the thing's expectation.
    async fn compare(
        &mut self,
        thing: ThingId,
        desired: &Desired,
        mut observation: Observation,
        object: Option<Inode>,
        evidence: Option<Evidence>,
        unseen_because: Option<GapReason>,
    ) -> VerifiedThing {
        let expectation = &desired.expectations[thing.index()];
        if let (Thing::Unit { name }, Observation::Unit(unit)) = (&expectation.thing, &mut observation)
            && let Some(state) = self.units.state(name).await
        {
            unit.file_state = state;
        }
        let mut differences = compare(expectation, &observation, &desired.ids);
        differences.extend(held_back(&self.observer, expectation, &differences));
        let changed_ns = match &observation {
            Observation::Object(object) => i64::try_from(object.changed_ns).unwrap_or(0),
            _ => 0,
        };
        let seen = ObjectVersion { inode: object.map(PackedInode::from), changed_ns };
        // Only verifications that decided the verdict count: another one may have observed half of a change.
        let before = self.decided.get(thing.index()).copied().flatten();
        let finding = if differences.is_empty() {
            Finding::Compliant { untouched: changed_ns != 0 && before == Some(seen) }
        } else {
            let new_inode = before.is_some_and(|before| before.inode != seen.inode);
            Finding::Differs {
                fingerprint: fingerprint_of(&differences),
                transient: is_transient(&differences, new_inode),
            }
        };
        let unmarked = self.marks.are_missing(thing, &self.registry).then_some(GapReason::FanotifyUnwatched);
        VerifiedThing {
            observation,
            differences,
            verification: Verification { finding, evidence },
            was_decided: before.is_some(),
            unseen_because: unseen_because.or(unmarked),
            object: seen,
        }
    }

    /// Remembers the object of a verification that decided the thing's verdict.
    pub fn remember_decided(&mut self, thing: ThingId, seen: &VerifiedThing) {
        if let Some(decided) = self.decided.get_mut(thing.index()) {
            *decided = Some(seen.object);
        }
    }

    /// Clears the mark of [`Verifier::mark_rerouted`]. The caller knows that no verification of the thing is pending, so the route
    /// that the last one resolved is current. An unchanged difference does not prove that: the hook runs before the change takes
    /// effect.
    pub fn clear_rerouted(&mut self, thing: ThingId) {
        self.rerouted.remove(&thing);
    }

    /// Enrols the directories of a thing's route that are new. `true` if all of them were enrolled before, so that the
    /// verification is valid.
    fn enrol_route(
        &mut self,
        thing: ThingId,
        path: &Path,
        keys: Keys,
        units: &[(PathBuf, Option<Inode>)],
    ) -> Result<bool, MapsError> {
        let mut added: Vec<u32> = Vec::new();
        for (directory, met) in units.iter().filter(|(directory, _)| registry::may_enable(directory)) {
            added.extend(self.registry.watch_units_in(directory, *met));
        }
        // An unenrolled parent means that the path resolved through a directory without a watch. Units resolve through several.
        let parent = keys.parent.filter(|_| units.is_empty());
        let is_unknown = parent.is_some_and(|parent| self.registry.enrolment(parent.key).is_none());
        if is_unknown || self.rerouted.contains(&thing) {
            let route = self.observer.route(path);
            added.extend(self.registry.set_route(thing, path, &route));
            self.registry.set_missing_name(thing, route.missing);
            self.write_protections()?;
            // Each path may lead to another directory now.
            let known = route.directories.iter().filter_map(|directory| self.registry.find(directory));
            let known: Vec<u32> = known.filter(|watch_id| !added.contains(watch_id)).collect();
            for watch_id in known {
                let before = self.registry.get(watch_id).and_then(registry::Watch::key);
                self.enrol(watch_id)?;
                if self.registry.get(watch_id).and_then(registry::Watch::key) != before {
                    added.push(watch_id);
                }
            }
        }
        for watch_id in &added {
            self.enrol(*watch_id)?;
        }
        let is_known = added.is_empty();
        self.marks.add(added);
        Ok(is_known)
    }

    /// Enrols the inodes that the verification opened for the first time. `true` if all were enrolled before, so that the
    /// verification is valid.
    fn enrol_keys(
        &mut self,
        path: &Path,
        own: Option<u32>,
        observation: &Observation,
        keys: Keys,
    ) -> Result<bool, MapsError> {
        if self.kernel.is_none() {
            return Ok(true);
        }
        let mut was_enrolled = true;
        if let Some(own) = own {
            let known = self.registry.get(own).and_then(registry::Watch::inode);
            let is_present = !matches!(observation, Observation::Missing);
            if known != keys.object && (keys.object.is_some() || is_present || known.is_some()) {
                self.set_inode(own, keys.object)?;
                was_enrolled = keys.object.is_none();
            }
        }
        if let (Some(parent), Some(inode)) =
            (path.parent().and_then(|path| self.registry.find(path)), keys.parent)
            && self.registry.get(parent).is_some_and(|watch| watch.inode() != Some(inode))
        {
            self.enrol(parent)?;
            was_enrolled &= self.registry.get(parent).is_none_or(|watch| watch.inode() != Some(inode));
        }
        Ok(was_enrolled)
    }

    /// The evidence from the map entry of the object's own inode, which covers its directory's lock too. Without an object that can
    /// be opened: from the entry of the directory in which the kernel looked up the name.
    fn evidence(&self, keys: Keys, observation: &Observation) -> Result<Option<Evidence>, MapsError> {
        let Some(kernel) = &self.kernel else { return Ok(None) };
        let key = match (keys.object, observation) {
            (Some(object), _) => Some(object),
            (None, Observation::Missing | Observation::Object(_)) => keys.parent,
            (None, _) => None,
        };
        let Some(inode) = key else { return Ok(None) };
        Ok(kernel.maps.entry(inode.key)?.map(|entry| evidence_of(&entry)))
    }
}

/// The identities that the kernel gave for the two opens of an observation.
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

/// Paths of declared symbolic links.
fn links(expectations: &[Expectation]) -> impl Iterator<Item = Arc<Path>> {
    let links = expectations.iter().filter(|expectation| matches!(expectation.expected, Expected::Link(_)));
    links.map(|expectation| expectation.thing.path())
}

#[cfg(test)]
#[path = "verifier_tests.rs"]
mod tests;
