//! Tracks `holdfast apply`: which config is current, and what an open apply may change.
//!
//! In: the applies of the host. Out: the config to start with, whether another one is current now, and whether a state
//! belongs to an open apply. It owns the number of the daemon's generation and the content of the open journal. While an apply is
//! open, both states that its journal names for a path match the declaration; any other state is drift. It writes nothing, but
//! has an apply recovered whose process is gone.

use super::{
    applies::{Applies, JournalVersion, Overwritten},
    options::AgentOptions,
    service,
};
use crate::{desired::Inputs, observation::Observer};
use sensor_model::{
    expectation::{Expectation, Expected, Thing},
    journal::{Begin, JournalRecord, Metadata, PathState, TEMPORARY},
    node_state::Standing,
    observation::{FileType, ObjectObservation, Observation},
};
use std::{
    collections::HashMap,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Tracks the applies of one host.
pub(super) struct ApplyTracker {
    applies: Box<dyn Applies>,
    /// The generation whose config the daemon uses.
    generation: Option<u64>,
    /// The journal of the open apply, and what that apply changes.
    open: Option<(JournalVersion, OpenApply)>,
    /// The daemon saw the beginning of an apply, and not its end yet.
    is_end_pending: bool,
    /// The apply whose things the daemon watches, and why it does not watch all of them; empty if it does.
    watched: Option<(u64, String)>,
    /// The journal after a recovery that could not end the apply. Only a person or the next start of the daemon can.
    unrecovered: Option<JournalVersion>,
    /// The versions of the files that are followed, before they were read last.
    followed: FollowedFiles,
}

/// The versions of the config of the Machine Config Operator's daemon, if it is the source, and of the policies of the cluster.
type FollowedFiles = [Option<FileVersion>; 2];

/// The version of a file that is replaced and not written in place: its inode, its length, and its change time.
type FileVersion = (u64, u64, i64, i64);

/// The change of applies since the last call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApplyChange {
    /// No change.
    Unchanged,
    /// An apply began, with this number.
    Began(u64),
    /// The open apply is over.
    Over,
}

/// What an open apply changes.
#[derive(Debug, Default)]
struct OpenApply {
    id: u64,
    /// The states of each path before and after.
    states: HashMap<PathBuf, (PathState, PathState)>,
    units: Vec<String>,
    /// The apply changes the OS image or kernel arguments.
    os: bool,
}

/// The versions of the files that are followed, also while the last usable configs and policies replace them.
fn followed(inputs: &Inputs) -> FollowedFiles {
    let version = |path: &Path| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.ino(), file.len(), file.ctime(), file.ctime_nsec()))
    };
    let given = inputs.as_given();
    [given.source.of_operator().and_then(version), given.cluster_policies().as_deref().and_then(version)]
}

impl ApplyTracker {
    /// A tracker before [`ApplyTracker::start`].
    pub(super) fn new(applies: Box<dyn Applies>) -> Self {
        Self {
            applies,
            generation: None,
            open: None,
            is_end_pending: false,
            watched: None,
            unrecovered: None,
            followed: FollowedFiles::default(),
        }
    }

    /// Whether a recovery must come first: a journal is open, or cannot be read.
    pub(super) fn is_interrupted(&self) -> bool {
        matches!(self.applies.journal(), Ok(Some(_)) | Err(_))
    }

    /// Recovers an apply whose process is gone, without a reboot. Then chooses the config: the one that was applied last, else the
    /// one of the command line.
    pub(super) async fn start(self, options: &mut AgentOptions, observer: &Arc<Observer>) -> Self {
        let mut tracker = Self::new(self.applies);
        tracker.followed = followed(&options.inputs);
        if tracker.is_interrupted() && !options.writes_managed_paths {
            tracing::warn!(
                "An apply was interrupted. This daemon leaves it as it is: `holdfast apply --resume` on the host, or the order of the reporter, continues it."
            );
            tracker.unrecovered = tracker.applies.journal_version();
        } else if tracker.is_interrupted() {
            let recovery = tracker.applies.recover(observer, &options.inputs.policies);
            // Actions may take longer than systemd waits for a start, or for the watchdog.
            let is_ours =
                service::notify_during(recovery, service::WATCHDOG_PAUSE, &service::notify_recovery).await;
            service::notify_recovery_ended();
            if is_ours {
                tracker.unrecovered = tracker.applies.journal_version();
            }
        }
        let current = tracker.applies.current().unwrap_or_else(|error| {
            tracing::error!(%error, "Cannot read which config was applied last: the daemon uses the one of --config.");
            None
        });
        let Some((id, path)) = current else { return tracker };
        if options.inputs.use_applied((id, path.clone()).into()) {
            tracing::warn!(apply = id, config = %path.display(), "The daemon uses the config that was applied last, not --config.");
        }
        tracker.generation = Some(id);
        tracker
    }

    /// The config that was applied last. The daemon uses it instead of `--config`.
    pub(super) fn applied(&self) -> Option<(u64, PathBuf)> {
        self.generation.map(|id| (id, self.config(id)))
    }

    /// Whether another config is current than the daemon's.
    pub(super) fn has_new_generation(&mut self) -> bool {
        let current = self.applies.current().ok().flatten().map(|(id, _)| id);
        current.is_some() && current != self.generation
    }

    /// Whether since the last call the Machine Config Operator's daemon stored another config, if its file is the source, or the
    /// reporter handed in other policies.
    pub(super) fn has_new_files(&mut self, inputs: &Inputs) -> bool {
        let versions = followed(inputs);
        std::mem::replace(&mut self.followed, versions) != versions
    }

    /// The change of applies since the last call.
    pub(super) fn next_change(&mut self) -> ApplyChange {
        self.refresh();
        match &self.open {
            Some((_, apply)) if self.watched.as_ref().is_none_or(|(id, _)| *id != apply.id) => {
                ApplyChange::Began(apply.id)
            }
            None if std::mem::take(&mut self.is_end_pending) => ApplyChange::Over,
            _ => ApplyChange::Unchanged,
        }
    }

    /// Whether an apply is open.
    pub(super) fn has_open_apply(&mut self) -> bool {
        self.refresh();
        self.open.is_some()
    }

    /// Whether the process of the open apply is gone before the apply is over. An apply that waits for a reboot has no process. A
    /// failed recovery is not tried again.
    pub(super) fn is_abandoned(&mut self) -> bool {
        self.refresh();
        let Some((version, _)) = &self.open else { return false };
        if self.unrecovered.as_ref() == Some(version) || !self.applies.is_idle() {
            return false;
        }
        let last = self.applies.journal().ok().flatten().and_then(|mut journal| journal.records.pop());
        let is_over = last.is_none();
        let waits = matches!(
            last,
            Some(JournalRecord::RebootRequested { .. } | JournalRecord::ReturnRequested { .. })
        );
        if waits {
            self.unrecovered = Some(*version);
        }
        !waits && !is_over
    }

    /// Notes that the daemon watches the things of an apply. `unwatched`: why not all of them; empty if it does.
    pub(super) fn set_unwatched(&mut self, id: u64, unwatched: String) {
        self.watched = Some((id, unwatched));
    }

    /// Why the daemon does not watch all things of an apply; empty if it does.
    pub(super) fn unwatched(&self, id: u64) -> String {
        match &self.watched {
            Some((watched, reason)) if *watched == id => reason.clone(),
            _ => "its journal cannot be read".to_owned(),
        }
    }

    /// Whether this apply is open.
    pub(super) fn is_under_way(&mut self, id: u64) -> bool {
        self.refresh();
        self.open.as_ref().is_some_and(|(_, apply)| apply.id == id)
    }

    /// The path of an apply's config.
    pub(super) fn config(&self, id: u64) -> PathBuf {
        self.applies.config(id)
    }

    /// The paths that the open apply writes, with their states afterwards.
    pub(super) fn targets(&self) -> impl Iterator<Item = (&PathBuf, &PathState)> {
        let states = self.open.iter().flat_map(|(_, apply)| &apply.states);
        states.map(|(path, (_, after))| (path, after))
    }

    /// Whether the open apply writes a thing.
    pub(super) fn writes(&self, thing: &Thing) -> bool {
        self.open.as_ref().is_some_and(|(_, apply)| match thing {
            Thing::Unit { name } => apply.units.contains(name),
            Thing::ClosedDirectory { path } => {
                apply.states.keys().any(|target| target.parent() == Some(path))
            }
            thing => apply.states.contains_key(&*thing.path()),
        })
    }

    /// The paths that OS updates overwrote and no record names yet.
    pub(super) fn take_overwritten(&mut self) -> Vec<Overwritten> {
        // An open apply still writes its own history.
        if self.has_open_apply() {
            return Vec::new();
        }
        self.applies.take_overwritten().unwrap_or_else(|error| {
            tracing::error!(%error, "Cannot record which paths an OS update overwrote.");
            Vec::new()
        })
    }

    /// The state of the node's config.
    pub(super) fn standing(&self) -> Option<Standing> {
        self.applies.node_state()
    }

    /// Whether an observed state belongs to an open apply, or to one that ended a moment ago.
    pub(super) fn allows_difference(&mut self, expectation: &Expectation, seen: &Observation) -> bool {
        if self.has_new_generation() {
            return true;
        }
        self.refresh();
        let Some((_, apply)) = &self.open else { return false };
        apply.allows(expectation, seen)
    }

    fn refresh(&mut self) {
        let version = self.applies.journal_version();
        if version == self.open.as_ref().map(|(version, _)| *version) {
            return;
        }
        let begin = self.applies.journal().ok().flatten().map(|journal| journal.begin);
        self.open = version.zip(begin.map(OpenApply::from));
        self.is_end_pending |= self.open.is_some();
    }
}

impl From<Begin> for OpenApply {
    fn from(begin: Begin) -> Self {
        let states = begin.targets.into_iter().map(|target| (target.path, (target.before, target.after)));
        let os = begin.os.is_some();
        Self { id: begin.id, states: states.collect(), units: begin.units, os }
    }
}

impl OpenApply {
    fn allows(&self, expectation: &Expectation, seen: &Observation) -> bool {
        match (&expectation.thing, seen) {
            (Thing::Unit { name }, _) => self.units.contains(name),
            (Thing::ClosedDirectory { path }, Observation::Names { names, more, .. }) => {
                let temporary = format!("{TEMPORARY}{}-", self.id);
                let is_ours = |name: &String| {
                    name.starts_with(&temporary) || self.states.contains_key(&path.join(name))
                };
                // The observation names only some entries of a large directory; the others may be any.
                *more == 0
                    && names.iter().all(|name| is_ours(name) || is_expected_name(&expectation.expected, name))
            }
            // The end of the apply decides which of the two should be booted.
            (thing, _) if thing.changes_with_a_boot() => self.os,
            (Thing::ClosedDirectory { path }, _) => {
                self.states.keys().any(|changed| changed.parent() == Some(path))
            }
            (thing, seen) => self
                .states
                .get(&*thing.path())
                .is_some_and(|(before, after)| matches_state(before, seen) || matches_state(after, seen)),
        }
    }
}

/// Whether a closed directory may hold a name by its expectation.
fn is_expected_name(expected: &Expected, name: &str) -> bool {
    let Expected::ClosedDirectory(closed) = expected else { return false };
    !closed.is_unexpected(name)
}

/// Whether an observation matches a state.
fn matches_state(state: &PathState, seen: &Observation) -> bool {
    let (PathState::Absent, Observation::Missing) = (state, seen) else {
        let Observation::Object(object) = seen else { return false };
        return object_matches(state, object);
    };
    true
}

fn object_matches(state: &PathState, object: &ObjectObservation) -> bool {
    let has_metadata = |metadata: &Metadata| {
        (metadata.mode, metadata.uid, metadata.gid) == (object.mode, object.uid, object.gid)
            && !object.mounted_over
            && object.attributes.is_empty()
    };
    match state {
        PathState::Absent => false,
        PathState::File(file) => {
            object.file_type == FileType::Regular
                && has_metadata(&file.metadata)
                && object.sha256.map(hex::encode).as_ref() == Some(&file.sha256)
        }
        PathState::Directory(metadata) => object.file_type == FileType::Directory && has_metadata(metadata),
        PathState::Link(link) => {
            object.file_type == FileType::Symlink && object.target.as_ref() == Some(&link.target)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::{Store, agent_view::AgentView};
    use sensor_model::expectation::{ClosedBy, ExpectationSource};
    use sensor_model::journal::{Boot, FileState, LinkState, codec};
    use std::path::Path;

    fn file(digest: u8) -> PathState {
        let metadata = Metadata { mode: 0o644, ..Metadata::default() };
        let sha256 = hex::encode([digest; 32]);
        PathState::File(FileState { metadata, sha256, size: 1, modified_ns: None, hard: None, names: 0 })
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
    fn an_apply_is_abandoned_if_its_process_is_gone_unless_it_waits_for_a_reboot_or_its_recovery_failed() {
        let state = tempfile::tempdir().unwrap();
        store(state.path(), None);
        let follow = || ApplyTracker::new(Box::new(AgentView::new(Path::new("/"), state.path())));
        let other = Store::open_existing(state.path()).unwrap().unwrap();
        let lock = other.lock().unwrap();
        let mut daemon = follow();
        assert!(!daemon.is_abandoned(), "its process runs");
        drop(lock);
        assert!(daemon.is_abandoned() && daemon.is_abandoned());
        assert!(other.lock().unwrap().is_some(), "the check keeps no lock");
        daemon.unrecovered = daemon.applies.journal_version();
        assert!(!daemon.is_abandoned(), "its recovery failed before");
        store(state.path(), Some(JournalRecord::RebootRequested { boot: Boot::default() }));
        assert!(!follow().is_abandoned(), "it waits for the reboot");
        std::fs::remove_file(state.path().join("apply/journal")).unwrap();
        assert!(!daemon.is_abandoned());
    }

    #[test]
    fn what_an_apply_makes_where_nothing_may_be_belongs_to_it_and_another_content_does_not() {
        let rule = ClosedBy {
            rule: "/etc/a".into(),
            policy: "a.yaml".into(),
            packages_unread: false,
            image_unindexed: false,
        };
        let absent = |path: &str| Expectation {
            thing: Thing::file(path),
            expected: Expected::Absent,
            ssh_keys: false,
            label: None,
            source: ExpectationSource::ClosedBy(rule.clone()),
        };
        let states = [("/etc/a".into(), (PathState::Absent, file(1)))].into();
        let apply = OpenApply { id: 1, states, units: Vec::new(), os: false };
        assert!(apply.allows(&absent("/etc/a"), &seen(1, 0o644)));
        assert!(!apply.allows(&absent("/etc/a"), &seen(2, 0o644)));
        assert!(!apply.allows(&absent("/etc/b"), &seen(1, 0o644)));
    }

    #[test]
    fn a_path_of_an_apply_may_match_both_images_and_a_third_is_drift() {
        let (before, after) = (file(1), file(2));
        for state in [&before, &after] {
            assert!(!matches_state(state, &seen(3, 0o644)) && !matches_state(state, &Observation::Missing));
        }
        assert!(matches_state(&before, &seen(1, 0o644)) && matches_state(&after, &seen(2, 0o644)));
        assert!(!matches_state(&after, &seen(2, 0o666)), "an undeclared mode is drift too");
        assert!(matches_state(&PathState::Absent, &Observation::Missing));
        let link = PathState::Link(LinkState { target: "/a".into(), uid: 0, gid: 0, label: None });
        assert!(!matches_state(&link, &seen(1, 0o777)));
    }
}
