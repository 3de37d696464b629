//! From one config to another while the daemon watches.
//!
//! In: what writers beside the daemon announce, and the journal of an open apply. Out: both configs' things under watch from
//! the journal's beginning on; the writer's process as one of Holdfast's; a new run of the loop when the apply is over. It
//! writes nothing and pauses nothing.

use super::apply_tracker::ApplyChange;
use super::backend::Changes;
use super::error::AgentError;
use super::holdfast_writers::{Stranger, WriterEvent};
use super::reports::{AgentEvent, HookMode};
use super::run_end::Ended;
use super::state::Agent;
use super::writer_protocol::{self, Answer, Hello};
use crate::clock::rfc3339;
use crate::desired::{self, DesiredError, StateSource, Unknown};
use crate::kernel::hooks::When;
use sensor_model::drift_policy::DriftAction;
use sensor_model::expectation::{
    Content, DirectoryExpectation, Expectation, Expected, FileExpectation, LinkExpectation, Owner, Source,
    Thing,
};
use sensor_model::expectations::{ExpectationError, expectations};
use sensor_model::journal::{Image, Metadata};
use sensor_model::protocol::Event;
use sensor_model::record::{RecordKind, ThingName};
use sensor_model::verdict::VerdictKind;
use sha2::Digest as _;
use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

/// The new config of an apply is not watched yet.
#[derive(Debug, thiserror::Error)]
enum WidenError {
    /// It cannot be read.
    #[error(transparent)]
    Config(#[from] DesiredError),
    /// It cannot be verified.
    #[error(transparent)]
    Expectation(#[from] ExpectationError),
}

impl Agent {
    /// At the start: an apply that goes on already, and writers that announced themselves before.
    pub(super) fn follow_begun(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        for (number, hello) in self.writers.open() {
            if let Err(reason) = self.adopt(number, &hello) {
                tracing::warn!(%reason, "A writer beside the daemon does not count as Holdfast.");
            }
        }
        self.follow_applies(changes)
    }

    /// Begins a new run, since another config is current or an apply is over.
    pub(super) fn begin_again(&mut self) {
        self.ended.get_or_insert(Ended::Applied);
    }

    /// Notices that an apply has begun, that it is over, or that another config is current now.
    pub(super) fn follow_applies(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        if self.follow.has_moved() {
            self.begin_again();
        }
        match self.follow.moved() {
            ApplyChange::Not => {}
            ApplyChange::Began(id) => self.widen(id, changes)?,
            // The next run looks at what the apply left, under the config that is current then.
            ApplyChange::Over => self.begin_again(),
        }
        if self.ended.is_none() && self.follow.is_abandoned() {
            tracing::warn!("The process of an apply is gone before its end: the daemon recovers the apply.");
            self.begin_again();
        }
        self.verdicts.reports.report(AgentEvent::NodeState(self.follow.standing()));
        Ok(())
    }

    /// A writer beside the daemon announced itself, or is gone.
    pub(super) fn writer(&mut self, said: WriterEvent, changes: &mut Changes) -> Result<(), AgentError> {
        match said {
            WriterEvent::Hello(number, hello) => {
                let stranger =
                    self.adopt(number, &hello).err().map(|reason| reason.to_string()).unwrap_or_default();
                self.follow_applies(changes)?;
                let unwatched = match hello.apply {
                    Some(id) => self.follow.unwatched(id),
                    None => String::new(),
                };
                let unexpected = hello.apply.is_none() && !self.expects(&hello.repair);
                self.writers.answer(number, &Answer { stranger, unwatched, unexpected });
            }
            WriterEvent::Gone => {
                self.refresh_allowed();
                self.follow_applies(changes)?;
            }
        }
        Ok(())
    }

    /// Accepts a writer as Holdfast: no deny rule refuses it, and what it writes is no touch.
    fn adopt(&mut self, number: u64, hello: &Hello) -> Result<(), Stranger> {
        let process = self.writers.process(number)?;
        match hello.apply {
            Some(id) if !self.follow.is_under_way(id) => return Err(Stranger::NotUnderWay(id)),
            Some(_) => {}
            None => {
                if hello.repair.is_empty() || !self.expects(&hello.repair) {
                    return Err(Stranger::OtherState);
                }
            }
        }
        let intake = &mut self.intake;
        let start_ns = intake.attributor.adopt(process, &*intake.processes).ok_or(Stranger::NotSeen)?;
        self.writers.adopt(number, (process, start_ns));
        self.refresh_allowed();
        Ok(())
    }

    /// Whether the daemon expects all of this, by digest.
    fn expects(&self, digests: &[String]) -> bool {
        let expectations = self.verdicts.desired.expectations.iter();
        let ours: HashSet<String> = expectations.map(writer_protocol::digest).collect();
        digests.iter().all(|digest| ours.contains(digest))
    }

    /// Watches what only the new config declares, and what else the journal names.
    fn widen(&mut self, id: u64, changes: &mut Changes) -> Result<(), AgentError> {
        let unwatched = match self.added(id) {
            Ok(added) => {
                self.watch_more(added, changes)?;
                String::new()
            }
            Err(error) => {
                tracing::error!(apply = id, %error, "Cannot watch the new config before the apply is over.");
                error.to_string()
            }
        };
        self.follow.widened(id, unwatched);
        Ok(())
    }

    /// Things of an open apply that the present config does not declare.
    fn added(&self, id: u64) -> Result<Vec<Expectation>, WidenError> {
        let config = self.follow.config(id);
        let applied = StateSource::applied((id, config.clone()).into());
        let mut new = expectations(&desired::rendered(&applied, Unknown::Ignore)?)?;
        let present = &self.verdicts.desired;
        new.retain(|expectation| {
            present.policy.decide(&expectation.thing.path(), None).action != DriftAction::Ignore
                && self.looks.looker.observer.unchecked(&expectation.thing).is_none()
        });
        let known: HashSet<&Thing> = present.expectations.iter().map(|known| &known.thing).collect();
        new.retain(|expectation| !known.contains(&expectation.thing));
        let declared: BTreeSet<Arc<Path>> = present
            .expectations
            .iter()
            .chain(&new)
            .filter(|expectation| {
                !matches!(expectation.thing, Thing::Unit { .. } | Thing::ClosedDirectory { .. })
            })
            .map(|expectation| expectation.thing.path())
            .collect();
        let source = Source::new(format!("apply number {id}"), config.display().to_string());
        let others = self.follow.targets().filter(|(path, _)| !declared.contains(path.as_path()));
        new.extend(others.filter_map(|(path, after)| on_the_way(path, after, &source)));
        Ok(new)
    }

    fn watch_more(&mut self, mut added: Vec<Expectation>, changes: &mut Changes) -> Result<(), AgentError> {
        let number = |count: usize| u32::try_from(count).map_err(|_| AgentError::TooMany);
        let first = number(self.verdicts.desired.expectations.len())?;
        let things = first..first.saturating_add(number(added.len())?);
        let looker = &mut self.looks.looker;
        let present = &mut self.verdicts.desired;
        let ids = desired::complete(&mut added, &present.policy, &*looker.observer);
        present.ids.users.extend(ids.users);
        present.ids.groups.extend(ids.groups);
        let watches = looker.extend(&added);
        let rules = &mut self.denials.rules;
        if self.hooks.mode == HookMode::Lsm {
            rules.extend(&present.policy, first, &added);
        }
        present.expectations.extend(added);
        let protected = things.clone().filter_map(|thing| Some((thing, rules.protects(thing)?)));
        looker.protect(protected)?;
        self.refresh_allowed();
        if self.looks.looker.has_links() {
            self.hooks.need(When::Links, true, &mut *self.verdicts.reports);
        }
        let now = self.verdicts.now();
        for watch in watches {
            let looker = &mut self.looks.looker;
            looker.enrol(watch)?;
            // Enrolling cleared the dirty bit of an inode that other things share: they may have changed a moment before.
            let (direct, _) = looker.registry.all_concerned(&[watch]);
            let known = direct.into_iter().filter(|thing| *thing < first);
            self.verdicts.changed(known, Event { own: true, beyond: false });
            if let Changes::Fanotify(backend) = &mut *changes {
                self.mark(backend, watch);
            }
        }
        for thing in things {
            self.verdicts.detector.add(thing, now);
        }
        Ok(())
    }

    /// Closes the drifts of things that no config declares any more.
    pub(super) fn release(&mut self) {
        let verdicts = &mut self.verdicts;
        if verdicts.reports.drifts().is_empty() {
            return;
        }
        let declared = verdicts.desired.expectations.iter();
        let declared: HashSet<ThingName> = declared.map(|one| ThingName::from(&one.thing)).collect();
        let open = verdicts.reports.drifts().iter().filter(|(name, _)| !declared.contains(*name));
        let undeclared: Vec<_> = open.map(|(name, open)| (name.clone(), open.clone())).collect();
        for (name, open) in undeclared {
            verdicts.reports.report(AgentEvent::Recovered(&name));
            let mut record = verdicts.new_record(RecordKind::Recovered);
            record.set_name(name);
            record.before = open.found;
            record.detail.insert("since".into(), rfc3339(open.since).into());
            record.operation = Some("config".to_owned());
            record.verdict = Some(VerdictKind::Compliant);
            record.detail.insert("released".into(), "no config declares it any more".into());
            verdicts.records.push(record);
        }
    }
}

/// What a path of an apply is to be that no config declares: a parent, a link that enables a unit, the shadow file, or
/// what goes back to its original. Both of its images are compliant while the apply is under way, and it is forgotten after.
fn on_the_way(path: &Path, after: &Image, source: &Source) -> Option<Expectation> {
    let owner = |metadata: &Metadata| (Owner::Id(metadata.uid), Owner::Id(metadata.gid));
    let file = |content, mode, (user, group), may_be_missing| {
        Expected::File(FileExpectation {
            content: Some(content),
            keys: Vec::new(),
            layout_free: false,
            mode,
            user,
            group,
            may_be_missing,
        })
    };
    let path = path.to_owned();
    let (thing, expected) = match after {
        Image::Absent => {
            let empty = Content { size: 0, sha256: sha2::Sha256::digest([]).into() };
            (Thing::file(path), file(empty, 0o644, (Owner::Id(0), Owner::Id(0)), true))
        }
        Image::File(image) => {
            let mut sha256 = [0; 32];
            hex::decode_to_slice(&image.sha256, &mut sha256).ok()?;
            let content = Content { size: image.size, sha256 };
            let metadata = &image.metadata;
            (Thing::file(path), file(content, metadata.mode, owner(metadata), false))
        }
        Image::Directory(metadata) => {
            let (user, group) = owner(metadata);
            let expected = DirectoryExpectation { mode: metadata.mode, user, group };
            (Thing::directory(path), Expected::Directory(expected))
        }
        Image::Link(link) => {
            let (user, group) = (Owner::Id(link.uid), Owner::Id(link.gid));
            let expected = LinkExpectation { target: link.target.clone(), hard: false, user, group };
            (Thing::link(path), Expected::Link(expected))
        }
    };
    Some(Expectation { thing, expected, ssh_keys: false, label: None, source: source.clone().into() })
}
