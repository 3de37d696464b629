//! The loop during an apply: from one config to another without a pause of detection.
//!
//! In: announcements of other Holdfast processes, and the journal of an open apply. Out: watches on the things of both configs
//! from the beginning of the journal, accepted writers, and a new run after the apply. It owns nothing and writes nothing.

use super::apply_tracker::ApplyChange;
use super::changes::Changes;
use super::error::AgentError;
use super::holdfast_writers::{WriterRefusal, WriterUpdate};
use super::reports::{AgentReport, BackendName};
use super::run_end::RunEnd;
use super::state::Agent;
use super::writer_protocol::{DaemonAnswer, WriterAnnouncement};
use crate::clock::rfc3339;
use crate::desired::{self, DesiredError, StateSource, Unknown};
use crate::kernel::hooks::When;
use sensor_model::drift_policy::DriftAction;
use sensor_model::expectation::{
    Content, DirectoryExpectation, Expectation, Expected, FileExpectation, LinkExpectation, Owner, Source,
    Thing,
};
use sensor_model::expectations::{ExpectationError, expectations};
use sensor_model::journal::{Metadata, PathState};
use sensor_model::protocol::{Scope, ThingChange, ThingId};
use sensor_model::record::{RecordKind, ThingName};
use sensor_model::verdict::VerdictKind;
use sha2::Digest as _;
use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

/// The daemon cannot watch the new config of an apply before the apply is over.
#[derive(Debug, thiserror::Error)]
enum WatchApplyError {
    /// The config cannot be read.
    #[error(transparent)]
    Config(#[from] DesiredError),
    /// A thing of the config cannot be verified.
    #[error(transparent)]
    Expectation(#[from] ExpectationError),
}

impl Agent {
    /// At the start of a run: follows an open apply, and accepts the writers that announced themselves in an earlier run.
    pub(super) fn follow_open_apply(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        for (number, announcement) in self.holdfast_writers.open() {
            if let Err(reason) = self.adopt(number, &announcement) {
                tracing::warn!(%reason, "The daemon does not accept a writer as Holdfast.");
            }
        }
        self.follow_applies(changes)
    }

    /// Asks for a new run, because another config is current or an apply is over.
    pub(super) fn request_new_run(&mut self) {
        self.run_end.get_or_insert(RunEnd::ApplyEnded);
    }

    /// Notices that an apply has begun, that it is over, or that another config is current now.
    pub(super) fn follow_applies(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        if self.apply_tracker.has_new_generation() {
            self.request_new_run();
        }
        match self.apply_tracker.next_change() {
            ApplyChange::Unchanged => {}
            ApplyChange::Began(id) => self.watch_apply(id, changes)?,
            // The next run verifies the result of the apply by the config that is current then.
            ApplyChange::Over => self.request_new_run(),
        }
        if self.run_end.is_none() && self.apply_tracker.is_abandoned() {
            tracing::warn!("The process of an apply is gone before its end: the daemon recovers the apply.");
            self.request_new_run();
        }
        self.verdicts.report(AgentReport::NodeState(self.apply_tracker.standing()));
        Ok(())
    }

    /// Handles a writer that announced itself, or whose connection is closed.
    pub(super) fn handle_writer_update(
        &mut self,
        update: WriterUpdate,
        changes: &mut Changes,
    ) -> Result<(), AgentError> {
        match update {
            WriterUpdate::Announced(number, announcement) => {
                let refused = self.adopt(number, &announcement).err();
                let refused_because = refused.map(|reason| reason.to_string()).unwrap_or_default();
                self.follow_applies(changes)?;
                let unwatched = match announcement.apply {
                    Some(id) => self.apply_tracker.unwatched(id),
                    None => String::new(),
                };
                let unexpected = announcement.apply.is_none() && !self.expects(&announcement.repair);
                self.holdfast_writers
                    .answer(number, &DaemonAnswer { refused_because, unwatched, unexpected });
            }
            WriterUpdate::Gone => {
                let now = self.verdicts.now();
                for thing in std::mem::take(&mut self.holdfast_writers.excused) {
                    // An earlier run may have had more things.
                    if thing.index() < self.verdicts.things() {
                        self.verdicts.detector.recheck(Scope::Thing(thing), now);
                    }
                }
                self.refresh_allowed();
                self.follow_applies(changes)?;
            }
        }
        Ok(())
    }

    /// Accepts a writer as Holdfast: no deny rule refuses it, and its changes are not `touched`.
    fn adopt(&mut self, number: u64, announcement: &WriterAnnouncement) -> Result<(), WriterRefusal> {
        let process = self.holdfast_writers.process(number)?;
        match announcement.apply {
            Some(id) if !self.apply_tracker.is_under_way(id) => return Err(WriterRefusal::NotUnderWay(id)),
            Some(_) => {}
            None => {
                if announcement.repair.is_empty() || !self.expects(&announcement.repair) {
                    return Err(WriterRefusal::OtherState);
                }
            }
        }
        let intake = &mut self.intake;
        let start_ns =
            intake.attributor.add_own_process(process, &*intake.processes).ok_or(WriterRefusal::NotSeen)?;
        self.holdfast_writers.adopt(number, (process, start_ns));
        self.refresh_allowed();
        Ok(())
    }

    /// Whether the daemon expects all things of these digests.
    fn expects(&mut self, digests: &[String]) -> bool {
        self.expected_digests.have_all(&self.verdicts.desired.expectations, digests)
    }

    /// Watches the things that only the new config declares, and the other paths of the journal.
    fn watch_apply(&mut self, id: u64, changes: &mut Changes) -> Result<(), AgentError> {
        let unwatched = match self.things_of_apply(id) {
            Ok(added) => {
                self.watch_more(added, changes)?;
                String::new()
            }
            Err(error) => {
                tracing::error!(apply = id, %error, "Cannot watch the new config before the apply is over.");
                error.to_string()
            }
        };
        self.apply_tracker.set_unwatched(id, unwatched);
        Ok(())
    }

    /// The things of an open apply that the present config does not declare.
    fn things_of_apply(&self, id: u64) -> Result<Vec<Expectation>, WatchApplyError> {
        let config = self.apply_tracker.config(id);
        let applied = StateSource::applied((id, config.clone()).into());
        let mut new = expectations(&desired::rendered(&applied, Unknown::Ignore)?)?;
        let present = &self.verdicts.desired;
        new.retain(|expectation| {
            present.policy.decide(&expectation.thing.path(), None).action != DriftAction::Ignore
                && self.verifications.verifier.observer.unchecked(&expectation.thing).is_none()
        });
        let known: HashSet<&Thing> = present.expectations.iter().map(|known| &known.thing).collect();
        new.retain(|expectation| !known.contains(&expectation.thing));
        let declared: BTreeSet<Arc<Path>> = present
            .expectations
            .iter()
            .chain(&new)
            .filter(|expectation| expectation.thing.is_object())
            .map(|expectation| expectation.thing.path())
            .collect();
        let source = Source::new(format!("apply number {id}"), config.display().to_string());
        let others = self.apply_tracker.targets().filter(|(path, _)| !declared.contains(path.as_path()));
        new.extend(others.filter_map(|(path, after)| expectation_of_target(path, after, &source)));
        Ok(new)
    }

    fn watch_more(&mut self, mut added: Vec<Expectation>, changes: &mut Changes) -> Result<(), AgentError> {
        let number = |count: usize| u32::try_from(count).map_err(|_| AgentError::TooMany);
        let first = number(self.verdicts.desired.expectations.len())?;
        let things = (first..first.saturating_add(number(added.len())?)).map(ThingId);
        let verifier = &mut self.verifications.verifier;
        let present = &mut self.verdicts.desired;
        let ids = desired::complete(&mut added, &present.policy, &*verifier.observer);
        present.ids.users.extend(ids.users);
        present.ids.groups.extend(ids.groups);
        let watches = verifier.extend(&added);
        let rules = &mut self.denials.rules;
        if self.hooks.backend == BackendName::Lsm {
            rules.extend(&present.policy, first, &added);
        }
        present.expectations.extend(added);
        let protected = things.clone().filter_map(|thing| Some((thing, rules.rule_of(thing)?)));
        verifier.protect(protected)?;
        self.refresh_allowed();
        if self.verifications.verifier.has_links() {
            self.hooks.set_needed(When::Links, true, &mut *self.verdicts.reports);
        }
        let now = self.verdicts.now();
        for watch in watches {
            let verifier = &mut self.verifications.verifier;
            verifier.enrol(watch)?;
            // Enrolling cleared the dirty bit of an inode that other things share. They may have changed a moment before.
            let (in_evidence, _) = verifier.registry.all_concerned(&[watch]);
            let known = in_evidence.into_iter().filter(|thing| thing.0 < first);
            self.verdicts.verify_soon(known, ThingChange { own: true, outside_evidence: false });
            if let Changes::Fanotify(backend) = &mut *changes {
                self.add_fanotify_mark(backend, watch);
            }
        }
        for thing in things {
            self.verdicts.detector.add(thing, now);
        }
        Ok(())
    }

    /// Closes the open drifts of things that no config, policy or index declares any more. A drift below a directory without an index stays
    /// open, because the actor of the drift may have removed the index.
    pub(super) fn close_undeclared_drifts(&mut self) {
        let verdicts = &mut self.verdicts;
        if verdicts.reports.drifts().is_empty() {
            return;
        }
        let declared = verdicts.desired.expectations.iter();
        let declared: HashSet<ThingName> = declared.map(|one| ThingName::from(&one.thing)).collect();
        let all = verdicts.desired.expectations.iter();
        let unindexed: Vec<Arc<Path>> =
            all.filter(|one| one.expected == Expected::Unindexed).map(|one| one.thing.path()).collect();
        let is_unknown =
            |name: &ThingName| unindexed.iter().any(|above| Path::new(&name.path).starts_with(above));
        let open = verdicts.reports.drifts().iter();
        let open = open.filter(|(name, _)| !declared.contains(*name) && !is_unknown(name));
        let undeclared: Vec<_> = open.map(|(name, open)| (name.clone(), open.clone())).collect();
        for (name, open) in undeclared {
            verdicts.reports.report(AgentReport::Recovered(&name));
            let mut record = verdicts.new_record(RecordKind::Recovered);
            record.set_name(name);
            record.before = open.found;
            record.detail.insert("since".into(), rfc3339(open.since).into());
            record.operation = Some("config".to_owned());
            record.verdict = Some(VerdictKind::Compliant);
            record.detail.insert("released".into(), "no config, policy or index declares it any more".into());
            verdicts.records.push(record);
        }
    }
}

/// The expectation of a path that an apply writes and no config declares. It is a parent, a link that enables a unit, the
/// shadow file, or a file that returns to its original. It lasts as long as the apply. Meanwhile both states of the journal are
/// compliant.
fn expectation_of_target(path: &Path, after: &PathState, source: &Source) -> Option<Expectation> {
    let owner = |metadata: &Metadata| (Owner::Id(metadata.uid), Owner::Id(metadata.gid));
    let file = |content, mode, (user, group), may_be_missing| {
        Expected::File(FileExpectation {
            content: Some(content),
            keys: Box::default(),
            layout_free: false,
            mode,
            user,
            group,
            may_be_missing,
            xattrs: None,
        })
    };
    let path = path.to_owned();
    let (thing, expected) = match after {
        PathState::Absent => {
            let empty = Content { size: 0, sha256: sha2::Sha256::digest([]).into() };
            (Thing::file(path), file(empty, 0o644, (Owner::Id(0), Owner::Id(0)), true))
        }
        PathState::File(state) => {
            let mut sha256 = [0; 32];
            hex::decode_to_slice(&state.sha256, &mut sha256).ok()?;
            let content = Content { size: state.size, sha256 };
            let metadata = &state.metadata;
            (Thing::file(path), file(content, metadata.mode, owner(metadata), false))
        }
        PathState::Directory(metadata) => {
            let (user, group) = owner(metadata);
            let expected = DirectoryExpectation { mode: metadata.mode, user, group };
            (Thing::directory(path), Expected::Directory(expected))
        }
        PathState::Link(link) => {
            let (user, group) = (Owner::Id(link.uid), Owner::Id(link.gid));
            let expected = LinkExpectation { target: link.target.clone(), hard: false, user, group };
            (Thing::link(path), Expected::Link(expected))
        }
    };
    Some(Expectation { thing, expected, ssh_keys: false, label: None, source: source.clone().into() })
}
