//! The daemon and `holdfast apply`: which config counts, and what an apply under way may do.
//!
//! In: the store of applies. Out: the configs to start with, whether another one is current by now, and whether a
//! difference is a step of an apply under way: both images that its journal names for a path are then as declared,
//! a third is drift as ever. Detection is never paused. It writes nothing, but works off an apply that died.

use super::{Options, service};
use crate::{
    apply::{self, Engine, Recovered, ResumeLimit, Store, Systemd},
    observation::Observer,
};
use sensor_model::{
    expectation::{Expectation, Expected, Thing},
    journal::{Begin, Image, Metadata, Record, TEMPORARY},
    node_state::Standing,
    observation::{FileType, ObjectObservation, Observation},
};
use std::{
    collections::HashMap,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Which journal was read: its inode, and since when it is that one.
type Version = (u64, i64, i64);

/// Follows applies on one host.
#[derive(Debug, Default)]
pub(super) struct Follow {
    store: Option<Store>,
    state: PathBuf,
    /// The generation that the daemon runs with.
    generation: Option<u64>,
    open: Option<(Version, Transition)>,
    /// An apply was seen whose end was not.
    under_way: bool,
    /// The apply whose things are watched, and why not all of them are.
    widened: Option<(u64, String)>,
    /// The journal as it was left when it was worked off last: what could not be ended then is for a person or the next start.
    left: Option<Version>,
}

/// What is new of applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    /// Nothing.
    Not,
    /// One has begun, with this number.
    Began(u64),
    /// The one under way is over.
    Over,
}

/// What an apply under way changes.
#[derive(Debug, Default)]
struct Transition {
    id: u64,
    images: HashMap<PathBuf, (Image, Image)>,
    units: Vec<String>,
    /// What is booted.
    os: bool,
}

/// What was applied; a start says why that cannot be read, and what is asked for each change does not.
fn existing(state: &Path) -> Option<Store> {
    Store::look(state).ok().flatten()
}

/// Whether an apply has to be worked off before anything else.
pub(super) fn is_interrupted(options: &Options) -> bool {
    let store = existing(&options.inputs.state);
    store.is_some_and(|store| matches!(store.open_journal(), Ok(Some(_)) | Err(_)))
}

/// Works off an apply that died, without a reboot, and chooses the configs: those that were applied last, else those
/// that the daemon was given.
pub(super) async fn start(options: &mut Options, observer: &Arc<Observer>) -> Follow {
    let state = options.inputs.state.clone();
    let mut follow = Follow { store: existing(&state), state, ..Follow::default() };
    if is_interrupted(options) && recover(options, observer).await {
        follow.left = follow.version();
    }
    let current = Store::current_in(&follow.state).unwrap_or_else(|error| {
        tracing::error!(%error, "It cannot be read which config was applied last; the one of --config counts.");
        None
    });
    let Some((id, path)) = current else { return follow };
    if options.inputs.follow((id, path.clone()).into()) {
        tracing::warn!(apply = id, config = %path.display(), "The config that was applied last counts, not --config.");
    }
    follow.generation = Some(id);
    follow
}

/// Whether it is this daemon's to work off.
async fn recover(options: &Options, observer: &Arc<Observer>) -> bool {
    let to = apply::Options {
        root: options.inputs.root.clone(),
        state: options.inputs.state.clone(),
        beside_mco: false,
        asks_daemon: false,
    };
    let mut say = |line: &str| tracing::info!(line, "An interrupted apply.");
    // What it was to write may lie on a file system that a server answers for: it goes on as it began.
    let everywhere = Observer::new(&options.inputs.root).map_or_else(|_| Arc::clone(observer), Arc::new);
    let recovered = match Engine::new(to, &everywhere) {
        Ok(engine) => {
            let engine = engine.with_policies(&options.inputs.policies);
            let mut actor = Systemd::new(&options.inputs.root);
            actor.inhibit("an apply that was interrupted is worked off").await;
            // Acts may take longer than systemd waits for a start, or for a sign of life.
            let recovery = engine.recover(&mut actor, ResumeLimit::NoOsChange, &mut say);
            let recovered =
                service::patiently(recovery, service::SIGN_OF_LIFE, &service::still_at_work).await;
            service::work_is_over();
            recovered
        }
        Err(error) => Err(error),
    };
    let is_ours = !matches!(recovered, Ok(Recovered::AtWork));
    match recovered {
        Ok(Recovered::Over(over)) => {
            tracing::warn!(apply = over.id, rest = ?over.rest, reason = over.reason, "An apply was interrupted.");
        }
        Ok(Recovered::Nothing | Recovered::AtWork) => {}
        Err(error) => tracing::error!(%error, "An interrupted apply could not be worked off."),
    }
    is_ours
}

impl Follow {
    /// The config that was applied last, which the daemon runs with whatever it was given.
    pub(super) fn counts(&self) -> Option<(u64, PathBuf)> {
        self.generation.map(|id| (id, self.config(id)))
    }

    /// Whether another config is current than the one that the daemon runs with.
    pub(super) fn has_moved(&mut self) -> bool {
        if self.store.is_none() {
            self.store = existing(&self.state);
        }
        let current = self.store.as_ref().and_then(|store| store.current().ok()?).map(|(id, _)| id);
        current.is_some() && current != self.generation
    }

    /// What is new of applies since the last call.
    pub(super) fn moved(&mut self) -> Moved {
        self.refresh();
        match &self.open {
            Some((_, transition)) if self.widened.as_ref().is_none_or(|(id, _)| *id != transition.id) => {
                Moved::Began(transition.id)
            }
            None if std::mem::take(&mut self.under_way) => Moved::Over,
            _ => Moved::Not,
        }
    }

    /// Whether any apply is under way.
    pub(super) fn is_at_work(&mut self) -> bool {
        self.refresh();
        self.open.is_some()
    }

    /// Whether the process of the apply under way is gone and left it unfinished. One that waits for the reboot of this boot
    /// is none, and one that could not be ended before is not tried again.
    pub(super) fn is_abandoned(&mut self) -> bool {
        self.refresh();
        let (Some((version, _)), Some(store)) = (&self.open, &self.store) else { return false };
        if self.left.as_ref() == Some(version) || !matches!(store.lock(), Ok(Some(_))) {
            return false;
        }
        let last = store.open_journal().ok().flatten().and_then(|mut journal| journal.records.pop());
        let is_over = last.is_none();
        let waits = matches!(last, Some(Record::RebootRequested { .. } | Record::ReturnRequested { .. }));
        if waits {
            self.left = Some(*version);
        }
        !waits && !is_over
    }

    fn version(&self) -> Option<Version> {
        let journal = std::fs::metadata(self.store.as_ref()?.path().join("journal")).ok()?;
        Some((journal.ino(), journal.ctime(), journal.ctime_nsec()))
    }

    /// Its things are watched, but for a reason.
    pub(super) fn widened(&mut self, id: u64, unwatched: String) {
        self.widened = Some((id, unwatched));
    }

    /// Why not everything of an apply is watched; empty when it is.
    pub(super) fn unwatched(&self, id: u64) -> String {
        match &self.widened {
            Some((widened, reason)) if *widened == id => reason.clone(),
            _ => "its journal cannot be read".to_owned(),
        }
    }

    /// Whether this apply is under way.
    pub(super) fn is_under_way(&mut self, id: u64) -> bool {
        self.refresh();
        self.open.as_ref().is_some_and(|(_, transition)| transition.id == id)
    }

    /// Where the config of an apply is.
    pub(super) fn config(&self, id: u64) -> PathBuf {
        self.store.as_ref().map(|store| store.config(id)).unwrap_or_default()
    }

    /// Paths that the apply under way writes, with what they shall be.
    pub(super) fn targets(&self) -> impl Iterator<Item = (&PathBuf, &Image)> {
        let images = self.open.iter().flat_map(|(_, transition)| &transition.images);
        images.map(|(path, (_, after))| (path, after))
    }

    /// Whether the apply under way writes a thing.
    pub(super) fn concerns(&self, thing: &Thing) -> bool {
        self.open.as_ref().is_some_and(|(_, transition)| match thing {
            Thing::Unit { name } => transition.units.contains(name),
            Thing::ClosedDirectory { path } => {
                transition.images.keys().any(|target| target.parent() == Some(path))
            }
            thing => transition.images.contains_key(&*thing.path()),
        })
    }

    /// What updates of the OS took back and no record names yet, with the apply that put it again.
    pub(super) fn taken_back(&mut self) -> Vec<(u64, crate::store::PutAgainEntry)> {
        // The history of one that is not over is its own to write.
        if self.is_at_work() {
            return Vec::new();
        }
        let Some(store) = &self.store else { return Vec::new() };
        let last = store.generations().ok().and_then(|generations| generations.last().copied());
        let taken = last.map(|id| {
            (
                id,
                store.take_unrecorded(id).unwrap_or_else(|error| {
                    tracing::error!(%error, "What an update of the OS took back cannot be recorded.");
                    Vec::new()
                }),
            )
        });
        taken.into_iter().flat_map(|(id, taken)| taken.into_iter().map(move |taken| (id, taken))).collect()
    }

    /// How the node stands with its config.
    pub(super) fn standing(&self) -> Option<Standing> {
        self.store.as_ref()?.standing().ok().flatten()
    }

    /// Whether a difference is a step of an apply under way, or of one that was over a moment ago.
    pub(super) fn excuses(&mut self, expectation: &Expectation, seen: &Observation) -> bool {
        if self.has_moved() {
            return true;
        }
        self.refresh();
        let Some((_, transition)) = &self.open else { return false };
        transition.allows(expectation, seen)
    }

    fn refresh(&mut self) {
        if self.store.is_none() {
            self.store = existing(&self.state);
        }
        let version = self.version();
        if version == self.open.as_ref().map(|(version, _)| *version) {
            return;
        }
        let begin = self.store.as_ref().and_then(|store| Some(store.open_journal().ok()??.begin));
        self.open = version.zip(begin.map(Transition::from));
        self.under_way |= self.open.is_some();
    }
}

impl From<Begin> for Transition {
    fn from(begin: Begin) -> Self {
        let images = begin.targets.into_iter().map(|target| (target.path, (target.before, target.after)));
        let os = begin.os.is_some();
        Self { id: begin.id, images: images.collect(), units: begin.units, os }
    }
}

impl Transition {
    fn allows(&self, expectation: &Expectation, seen: &Observation) -> bool {
        match (&expectation.thing, seen) {
            (Thing::Unit { name }, _) => self.units.contains(name),
            (Thing::ClosedDirectory { path }, Observation::Names { names, more, .. }) => {
                let temporary = format!("{TEMPORARY}{}-", self.id);
                let is_ours = |name: &String| {
                    name.starts_with(&temporary) || self.images.contains_key(&path.join(name))
                };
                // Of names that were only counted nobody knows whose they are.
                *more == 0
                    && names.iter().all(|name| is_ours(name) || may_be_there(&expectation.expected, name))
            }
            // Which of the two is booted, the end of the apply decides.
            (Thing::KernelArguments | Thing::OsImage, _) => self.os,
            (Thing::ClosedDirectory { path }, _) => {
                self.images.keys().any(|changed| changed.parent() == Some(path))
            }
            (thing, seen) => self
                .images
                .get(&*thing.path())
                .is_some_and(|(before, after)| is(before, seen) || is(after, seen)),
        }
    }
}

/// Whether a closed directory may hold a name without any apply.
fn may_be_there(expected: &Expected, name: &str) -> bool {
    let Expected::ClosedDirectory(closed) = expected else { return false };
    !closed.is_unexpected(name)
}

/// Whether an image was seen, as far as an observation tells.
fn is(image: &Image, seen: &Observation) -> bool {
    let (Image::Absent, Observation::Missing) = (image, seen) else {
        let Observation::Object(object) = seen else { return false };
        return is_object(image, object);
    };
    true
}

fn is_object(image: &Image, object: &ObjectObservation) -> bool {
    let plain = |metadata: &Metadata| {
        (metadata.mode, metadata.uid, metadata.gid) == (object.mode, object.uid, object.gid)
            && !object.mounted_over
            && object.attributes.is_empty()
    };
    match image {
        Image::Absent => false,
        Image::File(file) => {
            object.file_type == FileType::Regular
                && plain(&file.metadata)
                && object.sha256.map(hex::encode).as_ref() == Some(&file.sha256)
        }
        Image::Directory(metadata) => object.file_type == FileType::Directory && plain(metadata),
        Image::Link(link) => {
            object.file_type == FileType::Symlink && object.target.as_ref() == Some(&link.target)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sensor_model::journal::{Boot, FileImage, LinkImage, codec};
    use std::path::Path;

    fn file(digest: u8) -> Image {
        let metadata = Metadata { mode: 0o644, ..Metadata::default() };
        let sha256 = hex::encode([digest; 32]);
        Image::File(FileImage { metadata, sha256, size: 1, modified_ns: None, hard: None, names: 0 })
    }

    fn seen(digest: u8, mode: u32) -> Observation {
        let mut object = ObjectObservation::new(FileType::Regular, mode, 0, 0);
        object.sha256 = Some([digest; 32]);
        Observation::Object(Box::new(object))
    }

    /// A store with the journal of an apply that has written everything, and one more record.
    fn store(state: &Path, last: Option<Record>) {
        Store::open(state).unwrap();
        let begin = serde_json::json!({
            "id": 1, "time": "", "boot_id": "b", "old": "", "new": "", "targets": [], "acts": [], "reboot": true
        });
        let begin: Begin = serde_json::from_value(begin).unwrap();
        let (mut text, mut digest) = (String::new(), String::new());
        for record in [Record::Begin(Box::new(begin)), Record::Written].into_iter().chain(last) {
            let (line, next) = codec::line(&digest, &record).unwrap();
            text += &line;
            digest = next;
        }
        std::fs::write(state.join("apply/journal"), text).unwrap();
    }

    #[test]
    fn an_apply_is_abandoned_when_its_process_is_gone_and_it_neither_waits_for_a_reboot_nor_was_left_before()
    {
        let state = tempfile::tempdir().unwrap();
        store(state.path(), None);
        let follow = || Follow { state: state.path().to_owned(), ..Follow::default() };
        let other = Store::look(state.path()).unwrap().unwrap();
        let lock = other.lock().unwrap();
        let mut beside = follow();
        assert!(!beside.is_abandoned(), "its process is there");
        drop(lock);
        assert!(beside.is_abandoned() && beside.is_abandoned());
        assert!(other.lock().unwrap().is_some(), "who looks keeps nobody out");
        beside.left = beside.version();
        assert!(!beside.is_abandoned(), "it was left so");
        store(state.path(), Some(Record::RebootRequested { boot: Boot::default() }));
        assert!(!follow().is_abandoned(), "it waits for the reboot");
        std::fs::remove_file(state.path().join("apply/journal")).unwrap();
        assert!(!beside.is_abandoned());
    }

    #[test]
    fn of_a_path_under_way_the_two_images_are_fine_and_a_third_is_drift() {
        let (before, after) = (file(1), file(2));
        for image in [&before, &after] {
            assert!(!is(image, &seen(3, 0o644)) && !is(image, &Observation::Missing));
        }
        assert!(is(&before, &seen(1, 0o644)) && is(&after, &seen(2, 0o644)));
        assert!(!is(&after, &seen(2, 0o666)), "a mode that nobody declared is drift, too");
        assert!(is(&Image::Absent, &Observation::Missing));
        let link = Image::Link(LinkImage { target: "/a".into(), uid: 0, gid: 0, label: None });
        assert!(!is(&link, &seen(1, 0o777)));
    }
}
