//! The daemon and `holdfast apply`: which config is current, and what an open apply may change.
//!
//! In: the applies of the host. Out: the configs to start with, whether another one is current by now, and whether a difference
//! is a step of an open apply. Both images that its journal names for a path match the declaration then; any other image is
//! drift. Detection is never paused. It writes nothing, but recovers an apply whose process is gone.

use super::{
    applies::{Applies, JournalVersion, Overwritten},
    options::Options,
    service,
};
use crate::observation::Observer;
use sensor_model::{
    expectation::{Expectation, Expected, Thing},
    journal::{Begin, Image, JournalRecord, Metadata, TEMPORARY},
    node_state::Standing,
    observation::{FileType, ObjectObservation, Observation},
};
use std::{collections::HashMap, path::PathBuf, sync::Arc};

/// Follows applies on one host.
pub(super) struct Follow {
    applies: Box<dyn Applies>,
    /// The generation that the daemon runs with.
    generation: Option<u64>,
    open: Option<(JournalVersion, Transition)>,
    /// An apply was seen whose end was not.
    under_way: bool,
    /// The apply whose things are watched, and why not all of them are.
    widened: Option<(u64, String)>,
    /// The journal as the last recovery left it. Only a person or the next start of the daemon ends it.
    left: Option<JournalVersion>,
}

/// What changed since the last question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApplyChange {
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

impl Follow {
    /// Follows nothing yet; see [`Follow::start`].
    pub(super) fn new(applies: Box<dyn Applies>) -> Self {
        Self { applies, generation: None, open: None, under_way: false, widened: None, left: None }
    }

    /// Whether an apply has to be recovered before anything else.
    pub(super) fn is_interrupted(&self) -> bool {
        matches!(self.applies.journal(), Ok(Some(_)) | Err(_))
    }

    /// Recovers an apply whose process is gone, without a reboot, and chooses the configs: those that were applied last, else
    /// those that the daemon was given.
    pub(super) async fn start(self, options: &mut Options, observer: &Arc<Observer>) -> Self {
        let mut follow = Self::new(self.applies);
        if follow.is_interrupted() {
            let recovery = follow.applies.recover(observer, &options.inputs.policies);
            // Actions may take longer than systemd waits for a start, or for the watchdog.
            let is_ours = service::patiently(recovery, service::WATCHDOG_PAUSE, &service::work_goes_on).await;
            service::work_is_over();
            if is_ours {
                follow.left = follow.applies.journal_version();
            }
        }
        let current = follow.applies.current().unwrap_or_else(|error| {
            tracing::error!(%error, "Cannot read which config was applied last: the daemon uses the one of --config.");
            None
        });
        let Some((id, path)) = current else { return follow };
        if options.inputs.follow((id, path.clone()).into()) {
            tracing::warn!(apply = id, config = %path.display(), "The daemon uses the config that was applied last, not --config.");
        }
        follow.generation = Some(id);
        follow
    }

    /// The config that was applied last. The daemon uses it instead of `--config`.
    pub(super) fn applied(&self) -> Option<(u64, PathBuf)> {
        self.generation.map(|id| (id, self.config(id)))
    }

    /// Whether another config is current than the one that the daemon runs with.
    pub(super) fn has_moved(&mut self) -> bool {
        let current = self.applies.current().ok().flatten().map(|(id, _)| id);
        current.is_some() && current != self.generation
    }

    /// What is new of applies since the last call.
    pub(super) fn moved(&mut self) -> ApplyChange {
        self.refresh();
        match &self.open {
            Some((_, transition)) if self.widened.as_ref().is_none_or(|(id, _)| *id != transition.id) => {
                ApplyChange::Began(transition.id)
            }
            None if std::mem::take(&mut self.under_way) => ApplyChange::Over,
            _ => ApplyChange::Not,
        }
    }

    /// Whether any apply is under way.
    pub(super) fn is_at_work(&mut self) -> bool {
        self.refresh();
        self.open.is_some()
    }

    /// Whether the process of the open apply is gone before the apply is over. An apply that waits for a reboot has no process,
    /// and one that could not be recovered before is not tried again.
    pub(super) fn is_abandoned(&mut self) -> bool {
        self.refresh();
        let Some((version, _)) = &self.open else { return false };
        if self.left.as_ref() == Some(version) || !self.applies.is_idle() {
            return false;
        }
        let last = self.applies.journal().ok().flatten().and_then(|mut journal| journal.records.pop());
        let is_over = last.is_none();
        let waits = matches!(
            last,
            Some(JournalRecord::RebootRequested { .. } | JournalRecord::ReturnRequested { .. })
        );
        if waits {
            self.left = Some(*version);
        }
        !waits && !is_over
    }

    /// The things of an apply are watched, or not, for this reason.
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
        self.applies.config(id)
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

    /// Paths that OS updates overwrote and no record names yet.
    pub(super) fn overwritten(&mut self) -> Vec<Overwritten> {
        // An apply that goes on writes its own history.
        if self.is_at_work() {
            return Vec::new();
        }
        self.applies.take_overwritten().unwrap_or_else(|error| {
            tracing::error!(%error, "Cannot record which paths an OS update overwrote.");
            Vec::new()
        })
    }

    /// How the node stands with its config.
    pub(super) fn standing(&self) -> Option<Standing> {
        self.applies.node_state()
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
        let version = self.applies.journal_version();
        if version == self.open.as_ref().map(|(version, _)| *version) {
            return;
        }
        let begin = self.applies.journal().ok().flatten().map(|journal| journal.begin);
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
                // Names that were only counted may be any.
                *more == 0
                    && names.iter().all(|name| is_ours(name) || may_be_there(&expectation.expected, name))
            }
            // Which of the two is booted, the end of the apply decides.
            (thing, _) if thing.changes_with_a_boot() => self.os,
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

/// Whether an observation matches an image.
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
    use crate::apply::{Store, agent_view::AgentView};
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
    fn store(state: &Path, last: Option<JournalRecord>) {
        Store::open(state).unwrap();
        let begin = serde_json::json!({
            "id": 1, "time": "", "boot_id": "b", "old": "", "new": "", "targets": [], "acts": [], "reboot": true
        });
        let begin: Begin = serde_json::from_value(begin).unwrap();
        let (mut text, mut digest) = (String::new(), String::new());
        for record in [JournalRecord::Begin(Box::new(begin)), JournalRecord::Written].into_iter().chain(last)
        {
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
        let follow = || Follow::new(Box::new(AgentView::new(Path::new("/"), state.path())));
        let other = Store::look(state.path()).unwrap().unwrap();
        let lock = other.lock().unwrap();
        let mut beside = follow();
        assert!(!beside.is_abandoned(), "its process is there");
        drop(lock);
        assert!(beside.is_abandoned() && beside.is_abandoned());
        assert!(other.lock().unwrap().is_some(), "who looks keeps nobody out");
        beside.left = beside.applies.journal_version();
        assert!(!beside.is_abandoned(), "it was left so");
        store(state.path(), Some(JournalRecord::RebootRequested { boot: Boot::default() }));
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
