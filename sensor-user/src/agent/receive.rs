//! From ring records and fanotify events to the detector: the things that a change may concern, and its actor.
//!
//! In: records as they arrive, losses. Out: episodes with actors, things that are due. It owns nothing. It verifies no thing, and
//! opens only paths that lead to another inode according to a record.

use super::canary::{CANARY_ID, DEVICES_ID, MOUNTS_ID, TAMPER_ID};
use super::changes::Changes;
use super::deny_rules::GROUPS_ID;
use super::episode::AttributedChange;
use super::error::AgentError;
use super::lost_entries::ChangedEntry;
use super::mounts::AnnouncedMount;
use super::registry::{Concerned, Inode, RecordTarget};
use super::reports::{AgentReport, LossReason, LossStage};
use super::state::Agent;
use crate::attribution::NoTable;
use crate::event::{self, CheckedRecord};
use crate::fanotify::{ChangeEvent, FanotifyBackend, FanotifyEvent};
use crate::kernel::maps::Rings;
use sensor_common::op::{Operation, PRIVATE_MOUNT};
use sensor_model::expectation::ExpectationSource;
use sensor_model::protocol::{GapReason, ThingChange, ThingId};

/// Records that the loop reads before it verifies things: a full ring, so that it reads a burst at once.
const RECORDS_A_TURN: usize = 4096;

/// The watches of a record, and the things that it concerns.
struct MatchedRecord {
    /// The watches that led to the record's inode.
    watches: Vec<u32>,
    /// What these watches concern: the record's actor changed it.
    with_actor: Concerned,
    /// What the other watches of the map entry concern. The daemon only verifies it, and names no actor.
    without_actor: Concerned,
}

impl Agent {
    /// Reads changes. `false`: more are waiting.
    pub(super) fn read_changes(&mut self, changes: &mut Changes) -> Result<bool, AgentError> {
        match changes {
            Changes::Ring(ring) => self.read_ring_and_losses(ring),
            Changes::Fanotify(backend) => {
                self.read_fanotify(backend)?;
                Ok(!backend.has_waiting())
            }
            #[cfg(test)]
            Changes::Test(_) => Ok(true),
        }
    }

    /// Adds a fanotify mark on the path if it exists. If the mark fails, the verdict is `unknown`.
    pub(super) fn add_fanotify_mark(&mut self, fanotify: &mut FanotifyBackend, watch_id: u32) {
        let verifier = &mut self.verifications.verifier;
        let Some(path) = verifier.registry.get(watch_id).map(|watch| watch.path.clone()) else { return };
        let is_marked = match fanotify.watch(&path) {
            Ok(_) => true,
            // The path does not exist, or cannot be opened. The mark on its directory reports when its name appears.
            Err(error) if error.is_absence() => true,
            Err(error) => {
                tracing::warn!(%error, "Cannot add a fanotify mark: the verdict of the path is unknown.");
                false
            }
        };
        verifier.set_marked(watch_id, is_marked);
    }

    /// Reads the ring and, once it is empty, the loss counters. After a loss it sweeps the map. `false`: a flood left records in
    /// the ring, and the loop verifies things before it reads them.
    pub(super) fn read_ring_and_losses(&mut self, ring: &mut Rings) -> Result<bool, AgentError> {
        let is_empty = self.read_ring(ring)?;
        let Some(kernel) = self.verifications.verifier.kernel.as_mut().filter(|_| is_empty) else {
            return Ok(is_empty);
        };
        let (lost, new) = self.intake.count_losses(kernel, &mut *self.verdicts.reports)?;
        if self.verdicts.detector.drained(lost) {
            self.verdicts.report(AgentReport::ChangesLost(LossStage::Ring, LossReason::Full, new));
            self.sweep();
        }
        Ok(true)
    }

    fn read_ring(&mut self, ring: &mut Rings) -> Result<bool, AgentError> {
        let mut result = Ok(());
        let is_empty = ring.drain(RECORDS_A_TURN, |bytes| {
            if result.is_ok() {
                result = self.handle_record(bytes);
            }
        });
        result.map(|()| is_empty)
    }

    /// Reads the ring, and not the loss counters, so that an empty ring costs no system call. The record of a change is in the
    /// ring before its effect is on the disk. So this call finds the record of each change that the verification observed.
    pub(super) fn read_before_verdict(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        match changes {
            Changes::Ring(ring) => self.read_ring(ring).map(drop),
            Changes::Fanotify(fanotify) => {
                for watch_id in self.verifications.verifier.take_new_watches() {
                    self.add_fanotify_mark(fanotify, watch_id);
                }
                Ok(())
            }
            #[cfg(test)]
            Changes::Test(records) => {
                for (thing, change) in records.drain(..) {
                    self.verdicts.add_change(thing, change, false);
                }
                Ok(())
            }
        }
    }

    /// Finds the changes without a record: after a loss only the map entries show them.
    fn sweep(&mut self) {
        let now = self.verdicts.now();
        let Some(kernel) = self.verifications.verifier.kernel.as_mut() else { return };
        for ChangedEntry { key, number, is_lost } in self.intake.changed_entries(kernel) {
            if number == MOUNTS_ID {
                self.mounts.due = Some(now);
                continue;
            }
            if self.blindness.is_switch(number) {
                self.blindness.begin(GapReason::FtraceOpened, &mut self.verdicts);
                continue;
            }
            if number == DEVICES_ID {
                self.blindness.device_opened(&mut self.verdicts);
                continue;
            }
            if number == GROUPS_ID {
                self.refresh_allowed();
                continue;
            }
            // The name is lost, too, so everything that the inode may concern is verified.
            let registry = &self.verifications.verifier.registry;
            let watches = registry.watches_of_record(number, key);
            let (in_evidence, outside_evidence) = registry.all_concerned(&watches);
            self.glob_names_changed(&watches);
            self.verifications.verifier.mark_rerouted(outside_evidence.iter().copied());
            if is_lost {
                for thing in &in_evidence {
                    self.verdicts.add_unnamed_change(*thing);
                }
            }
            self.verdicts.verify_soon(in_evidence, ThingChange { own: false, outside_evidence: false });
            self.verdicts.verify_soon(outside_evidence, ThingChange { own: false, outside_evidence: true });
        }
    }

    /// Decodes a record, and passes it on by the number of its watch.
    pub(super) fn handle_record(&mut self, bytes: &[u8]) -> Result<(), AgentError> {
        let change = match event::decode(bytes) {
            Ok(change) => change,
            Err(error) => {
                tracing::error!(%error, "A ring record is malformed: its change is lost.");
                self.verdicts.report(AgentReport::ChangesLost(LossStage::Decode, LossReason::Malformed, 1));
                return Ok(());
            }
        };
        self.verdicts.report(AgentReport::ChangeReceived(change.operation));
        match change.record.id {
            CANARY_ID => self.blindness.canary_received(),
            MOUNTS_ID => self.handle_mount_record(&change),
            GROUPS_ID => self.allow_new_cgroup(change.record.detail),
            TAMPER_ID.. => {
                if let Some(path) = self.blindness.tampered_object(&change) {
                    let actor = self.intake.actor(&change);
                    self.blindness.record_tampering(path, &change, actor, &mut self.verdicts);
                }
            }
            _ => self.handle_change(&change)?,
        }
        Ok(())
    }

    /// Adds a new control group to the allowed actors, if a deny rule allows its unit or pod.
    fn allow_new_cgroup(&mut self, cgroup_id: u64) {
        let Some(path) = self.intake.processes.group(cgroup_id) else { return };
        if let Some(kernel) = self.verifications.verifier.kernel.as_mut() {
            self.denials.rules.allow_new_cgroup(kernel, &path, cgroup_id);
        }
    }

    fn handle_mount_record(&mut self, change: &CheckedRecord) {
        let announced = AnnouncedMount {
            key: change.record.key(),
            actor: self.intake.actor(change),
            operation: change.operation,
            at_ns: change.record.time_ns,
            is_private: change.record.detail & PRIVATE_MOUNT != 0,
        };
        self.mounts.announce(announced, self.verdicts.now());
    }

    /// Finds the watches that a record is about. A path that led to another inode may lead to the record's inode now, so this opens
    /// it again.
    fn match_record(&mut self, change: &CheckedRecord) -> Result<MatchedRecord, AgentError> {
        let record = &change.record;
        let inode = Inode { key: record.key(), generation: record.generation };
        let target = RecordTarget { inode, is_name: change.name().is_some(), moves: change.moves() };
        let verifier = &mut self.verifications.verifier;
        let (mut matching, mut others) = (Vec::new(), Vec::new());
        for watch in verifier.registry.watches_of_record(record.id, inode.key) {
            let mut matches = verifier.registry.matches(watch, &target);
            if !matches {
                // The path may lead to this inode now, or still: a removal may have failed.
                verifier.enrol(watch)?;
                matches = verifier.registry.matches(watch, &target);
            }
            if matches { matching.push(watch) } else { others.push(watch) }
        }
        if !others.is_empty() {
            verifier.remove_unused(inode.key)?;
        }
        let concerned = |watches: &[u32]| {
            verifier.registry.concerned(watches, change.name(), change.name_cut(), change.moves())
        };
        let (with_actor, without_actor) = (concerned(&matching), concerned(&others));
        Ok(MatchedRecord { watches: matching, with_actor, without_actor })
    }

    /// Adds the actor of a record to the episodes of the things that it concerns, and has them verified.
    fn handle_change(&mut self, change: &CheckedRecord) -> Result<(), AgentError> {
        let record = &change.record;
        let MatchedRecord { watches, with_actor: concerned, without_actor: others } =
            self.match_record(change)?;
        let own = self.intake.attributor.is_ours(record);
        let is_execution = matches!(change.operation, Operation::Exec | Operation::Load);
        if is_execution && change.name().is_some() {
            if !own {
                self.executed_without_entry(&watches, change);
            }
            return Ok(());
        }
        if change.name().is_some() {
            self.glob_names_changed(&watches);
        }
        self.glob_names_changed(&concerned.stale);
        // Before Linux 6.17 the hook of an ioctl runs before the kernel takes the inode's lock for the change. So the inode's
        // evidence does not cover the change.
        let is_outside_evidence = change.operation == Operation::Ioctl;
        self.verifications
            .verifier
            .mark_rerouted(concerned.outside_evidence.iter().chain(&others.outside_evidence).copied());
        self.verdicts
            .verify_soon(others.in_evidence, ThingChange { own, outside_evidence: is_outside_evidence });
        self.verdicts.verify_soon(others.outside_evidence, ThingChange { own, outside_evidence: true });
        if change.operation == Operation::Denied {
            let actor = self.intake.actor(change);
            let verifier = &self.verifications.verifier;
            self.denials.record_denial(&watches, &concerned, (change, &actor), verifier, &mut self.verdicts);
            return Ok(());
        }
        if concerned == Concerned::default() {
            return Ok(());
        }
        if is_execution {
            self.executed(&concerned.in_evidence, change);
            return Ok(());
        }
        let actor = self.intake.actor(change);
        for (things, outside_evidence) in
            [(concerned.in_evidence, is_outside_evidence), (concerned.outside_evidence, true)]
        {
            for thing in things {
                // The process that closes a file last may not be the process that wrote to it.
                let has_episode = self.verdicts.has_changed(thing);
                if change.operation != Operation::Release || !has_episode {
                    let made = AttributedChange {
                        actor: Some(actor.clone()),
                        operation: change.operation.name(),
                        at_ns: record.time_ns,
                    };
                    self.verdicts.add_change(thing, made, change.is_unpermitted());
                }
                self.verdicts.verify_soon([thing], ThingChange { own, outside_evidence });
            }
        }
        for watch in concerned.stale {
            self.verifications.verifier.enrol(watch)?;
        }
        Ok(())
    }

    /// A name changed in the directories of watches, or they lead to other inodes: globs that look for names there are evaluated again.
    fn glob_names_changed(&mut self, watches: &[u32]) {
        if self.verifications.verifier.registry.is_searched(watches) {
            self.evaluation.name_changed(self.verdicts.now(), self.options.canary_every);
        }
    }

    /// Records the execution of managed files, or that they are loaded as libraries. A program of the image is executed all the time, so
    /// its execution has a record only if the program differs from the image, or was changed and is not verified yet.
    pub(super) fn executed(&mut self, things: &[ThingId], change: &CheckedRecord) {
        let verdicts = &mut self.verdicts;
        let is_recorded = |thing: &&ThingId| {
            let source = &verdicts.expectation(**thing).source;
            !matches!(source, ExpectationSource::ImageLayer(_)) || verdicts.may_differ(**thing)
        };
        let recorded: Vec<ThingId> = things.iter().filter(is_recorded).copied().collect();
        if recorded.is_empty() {
            return;
        }
        let actor = self.intake.actor(change);
        let observer = &self.verifications.verifier.observer;
        for thing in recorded {
            self.denials.record_execution(thing, change, &actor, observer, &mut self.verdicts);
        }
    }

    /// Reads the fanotify backend. It gives no evidence, so a second verification follows each one.
    fn read_fanotify(&mut self, fanotify: &mut FanotifyBackend) -> Result<(), AgentError> {
        let happenings = fanotify.read()?;
        for happening in happenings {
            match happening {
                FanotifyEvent::Lost => {
                    let lost = AgentReport::ChangesLost(LossStage::Fanotify, LossReason::Overflow, 1);
                    self.verdicts.report(lost);
                    self.verdicts.changes_missed(GapReason::FanotifyOverflow);
                }
                FanotifyEvent::Change(change) => self.handle_fanotify_event(fanotify, &change),
            }
        }
        Ok(())
    }

    fn handle_fanotify_event(&mut self, fanotify: &mut FanotifyBackend, change: &ChangeEvent) {
        self.verdicts.report(AgentReport::ChangeReceived(change.operation));
        let Some(watch_id) = self.verifications.verifier.registry.find(&change.path) else { return };
        if change.name.is_some() {
            self.glob_names_changed(&[watch_id]);
        }
        let verifier = &mut self.verifications.verifier;
        let moved = event::moves(change.operation);
        let concerned = verifier.registry.concerned(&[watch_id], change.name.as_deref(), false, moved);
        if concerned == Concerned::default() || change.operation == Operation::Exec {
            return;
        }
        let attributor = &mut self.intake.attributor;
        let actor = change.pid.and_then(|pid| attributor.attribute_pid(pid, change.read_ns, &NoTable));
        let own = actor.as_ref().is_some_and(|actor| actor.holdfast);
        let things = || concerned.in_evidence.iter().chain(&concerned.outside_evidence).copied();
        for thing in things() {
            let made = AttributedChange {
                actor: actor.clone(),
                operation: change.operation.name(),
                at_ns: change.read_ns,
            };
            self.verdicts.add_change(thing, made, false);
        }
        self.verdicts.verify_soon(things(), ThingChange { own, outside_evidence: true });
        verifier.mark_rerouted(things());
        // The path may lead to another object now.
        let expectations = &self.verdicts.desired.expectations;
        let objects = concerned
            .in_evidence
            .iter()
            .filter_map(|thing| Some(expectations.get(thing.index())?.thing.path()))
            .filter_map(|path| verifier.registry.find(&path));
        let stale: Vec<u32> = objects.chain(concerned.stale.iter().copied()).collect();
        for watch_id in stale {
            self.add_fanotify_mark(fanotify, watch_id);
        }
    }
}
