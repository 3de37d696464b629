//! From one config to another while the daemon watches.
//!
//! In: what writers beside the daemon say, and the journal of an apply under way. Out: the things of both configs under
//! watch from the journal's beginning on, with both images of each path as compliant; the writer's process as an actor of
//! ours; a new beginning when it is over. It writes nothing and pauses nothing.

use super::{Agent, backend::Changes, follow::Moved, look::Sight, reload::Ended, ties::Said};
use crate::apply::tie::{self, Answer, Hello};
use crate::desired::{self, StateSource, Unknown};
use crate::kernel::hooks::When;
use sensor_model::drift_policy::Action;
use sensor_model::expectation::{
    Content, DirectoryExpectation, Expectation, Expected, FileExpectation, LinkExpectation, Owner, Source,
    Thing,
};
use sensor_model::expectations::expectations;
use sensor_model::journal::{Image, Metadata};
use sensor_model::protocol::{Event, Finding};
use sensor_model::record::{RecordKind, ThingName};
use sensor_model::verdict::VerdictKind;
use sha2::Digest as _;
use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

impl Agent {
    /// Takes a step of an apply under way for what it is. `false` when another config counts by now: by it the thing may
    /// have drifted, have recovered or be a step, and by this one nothing can be said.
    pub(super) fn excuse(&mut self, id: u32, sight: &mut Sight) -> bool {
        let excused = self.follow.excuses(&self.desired.expectations[id as usize], &sight.observation);
        if self.follow.has_moved() {
            self.begin_again();
            return false;
        }
        // What had drifted before the apply began is drift until the apply has written it.
        let told = self.drift_of(id).is_some_and(|open| open.differences == sight.differences);
        if excused && !told {
            sight.differences.clear();
            sight.outcome.finding = Finding::Compliant { untouched: false };
        }
        true
    }

    /// At the start: an apply that is at work already, and writers that came before us.
    pub(super) fn follow_begun(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        for (number, hello) in self.ties.open() {
            if let Err(reason) = self.adopt(number, &hello) {
                tracing::warn!(reason, "A writer beside us is not taken for ours.");
            }
        }
        self.follow_applies(changes)
    }

    /// Begins again when another config is current than the one that the loop runs with.
    fn follow_config(&mut self) {
        if self.follow.has_moved() {
            self.begin_again();
        }
    }

    fn begin_again(&mut self) {
        self.ended.get_or_insert(Ended::Applied);
    }

    /// Notices that an apply has begun, that it is over, or that another config is current now.
    pub(super) fn follow_applies(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        self.follow_config();
        match self.follow.moved() {
            Moved::Not => {}
            Moved::Began(id) => self.widen(id, changes)?,
            // What it left is looked at anew, under the config that counts now.
            Moved::Over => self.begin_again(),
        }
        if self.ended.is_none() && self.follow.is_abandoned() {
            tracing::warn!(
                "The process of an apply is gone before its end; the daemon works it off and begins again."
            );
            self.begin_again();
        }
        let standing = self.follow.standing();
        if let Some(standing) = &standing {
            self.telemetry.node_state(standing.state, standing.wait);
        }
        if standing != self.node {
            if let Some(standing) = &standing {
                tracing::info!(
                    state = standing.state.name(),
                    reason = standing.reason,
                    waiting_for = standing.waiting_for,
                    "The node's config."
                );
            }
            self.node = standing;
            self.changed = true;
        }
        Ok(())
    }

    /// A writer beside us said something, or is gone.
    pub(super) fn heard_of(&mut self, said: Said, changes: &mut Changes) -> anyhow::Result<()> {
        match said {
            Said::Hello(number, hello) => {
                let stranger = self.adopt(number, &hello).err().unwrap_or_default();
                self.follow_applies(changes)?;
                let unwatched = match hello.apply {
                    Some(id) => self.follow.unwatched(id),
                    None => String::new(),
                };
                let unexpected = hello.apply.is_none() && !self.expects(&hello.repair);
                self.ties.answer(number, &Answer { stranger, unwatched, unexpected });
            }
            Said::Gone => {
                self.refresh_allowed();
                self.follow_applies(changes)?;
            }
        }
        Ok(())
    }

    /// Takes a writer for one of ours: no deny rule refuses what it does, and what it does is no touch.
    fn adopt(&mut self, number: u64, hello: &Hello) -> Result<(), String> {
        let process = self.ties.process(number)?;
        match hello.apply {
            Some(id) if !self.follow.is_under_way(id) => {
                return Err(format!("apply number {id} is not under way"));
            }
            Some(_) => {}
            None => {
                if hello.repair.is_empty() || !self.expects(&hello.repair) {
                    return Err("it does not restore what the daemon expects".to_owned());
                }
            }
        }
        let start_ns = self.attributor.adopt(process, &*self.processes).ok_or("it was not seen to start")?;
        self.ties.adopt(number, (process, start_ns));
        self.refresh_allowed();
        Ok(())
    }

    /// Whether all of this, by digest, is what is expected.
    fn expects(&self, digests: &[String]) -> bool {
        let ours: HashSet<String> = self.desired.expectations.iter().map(tie::digest).collect();
        digests.iter().all(|digest| ours.contains(digest))
    }

    /// Watches what only the new config declares, and what else the journal names.
    fn widen(&mut self, id: u64, changes: &mut Changes) -> anyhow::Result<()> {
        let unwatched = match self.added(id) {
            Ok(added) => {
                self.watch_more(added, changes)?;
                String::new()
            }
            Err(error) => {
                tracing::error!(
                    apply = id,
                    error = format!("{error:#}"),
                    "The new config is not watched yet."
                );
                format!("{error:#}")
            }
        };
        self.follow.widened(id, unwatched);
        Ok(())
    }

    /// Things of an apply under way that are none of the present config's.
    fn added(&self, id: u64) -> anyhow::Result<Vec<Expectation>> {
        let config = self.follow.config(id);
        let applied = StateSource::applied((id, config.clone()).into());
        let mut new = expectations(&desired::rendered(&applied, Unknown::Ignore)?)?;
        new.retain(|expectation| {
            self.desired.policy.decide(&expectation.thing.path(), None).action != Action::Ignore
                && self.looker.observer.unchecked(&expectation.thing).is_none()
        });
        let known: HashSet<&Thing> = self.desired.expectations.iter().map(|known| &known.thing).collect();
        new.retain(|expectation| !known.contains(&expectation.thing));
        let declared: BTreeSet<Arc<Path>> = self
            .desired
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

    fn watch_more(&mut self, mut added: Vec<Expectation>, changes: &mut Changes) -> anyhow::Result<()> {
        let first = u32::try_from(self.desired.expectations.len())?;
        let observer = std::sync::Arc::clone(&self.looker.observer);
        let ids = desired::complete(&mut added, &self.desired.policy, &*observer);
        self.desired.ids.users.extend(ids.users);
        self.desired.ids.groups.extend(ids.groups);
        let watches = self.looker.extend(&added);
        if self.mode == crate::report::metrics::HookMode::Lsm {
            self.deny.extend(&self.desired.policy, first, &added);
        }
        let things = first..first + u32::try_from(added.len())?;
        self.desired.expectations.extend(added);
        let deny = &self.deny;
        let protected = things.clone().filter_map(|thing| Some((thing, deny.protects(thing)?)));
        self.looker.protect(protected)?;
        self.refresh_allowed();
        if self.looker.has_links() {
            self.need(When::Links, true);
        }
        let now = self.clock.boot_ns();
        for watch in watches {
            self.looker.enrol(watch)?;
            // Enrolling took the dirty bit away: whoever wrote a moment before is looked after.
            let (direct, _) = self.looker.registry.all_concerned(&[watch]);
            for thing in direct.into_iter().filter(|thing| *thing < first) {
                self.detector.event(thing, now, Event { own: true, beyond: false });
            }
            if let Changes::Fanotify(backend) = &mut *changes {
                self.watch(backend, watch);
            }
        }
        for thing in things {
            self.detector.add(thing, now);
        }
        Ok(())
    }

    /// Drifts of what nothing declares any more are over; nobody would ever tell.
    pub(super) fn release(&mut self) {
        if self.drifts.is_empty() {
            return;
        }
        let expected = self.desired.expectations.iter();
        let expected = expected.map(|expectation| ThingName::from(&expectation.thing)).collect();
        for (name, open) in self.drifts.release(&expected) {
            self.telemetry.recovered(&name);
            let mut record = self.log.record(RecordKind::Recovered);
            record.set_name(name);
            record.before = open.found;
            record.detail.insert("since".into(), open.since.into());
            record.operation = Some("config".to_owned());
            record.verdict = Some(VerdictKind::Compliant);
            record.detail.insert("released".into(), "no config declares it any more".into());
            self.group.push(record);
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
    Some(Expectation { thing, expected, ssh_keys: false, label: None, source: source.clone() })
}
