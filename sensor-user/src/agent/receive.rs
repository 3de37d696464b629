//! From ring records and fanotify events to the detector: which things a change may concern, and who made it.
//!
//! In: records as they arrive, losses. Out: episodes with actors, things that are due. It looks at nothing but paths that a
//! record shows to lead elsewhere now.

use super::backend::Changes;
use super::canary::{CANARY_ID, DEVICES_ID, MOUNTS_ID, TAMPER_ID};
use super::deny_rules::GROUPS_ID;
use super::episode::AttributedChange;
use super::error::AgentError;
use super::lost_entries::Entry;
use super::mounts::Announced;
use super::reasons;
use super::registry::{About, Concerned, Inode};
use super::reports::{AgentEvent, LossStage};
use super::state::Agent;
use crate::attribution::NoTable;
use crate::event::{self, Change};
use crate::fanotify::{ChangeEvent, FanotifyBackend, Happening};
use crate::kernel::maps::Ring;
use sensor_common::op::Operation;
use sensor_model::protocol::Event;

/// Records read before things are looked at: a full ring, so that a burst is read at once.
const RECORDS_A_TURN: usize = 4096;

impl Agent {
    /// Reads what changed. `false` when there is more.
    pub(super) fn read(&mut self, changes: &mut Changes) -> Result<bool, AgentError> {
        match changes {
            Changes::Ring(ring) => self.drain(ring),
            Changes::Fanotify(backend) => {
                self.read_fanotify(backend)?;
                Ok(!backend.has_waiting())
            }
            #[cfg(test)]
            Changes::Test => Ok(true),
        }
    }

    /// Adds a fanotify mark on the path if it exists. If the mark fails, the verdict is `unknown`.
    pub(super) fn mark(&mut self, fanotify: &mut FanotifyBackend, id: u32) {
        let looker = &mut self.looks.looker;
        let Some(path) = looker.registry.get(id).map(|watch| watch.path.clone()) else { return };
        let is_marked = match fanotify.watch(&path) {
            Ok(_) => true,
            // The path does not exist, or cannot be opened: the mark on its directory reports its name.
            Err(error) if error.is_absence() => true,
            Err(error) => {
                tracing::warn!(%error, "Cannot add a fanotify mark: the verdict of the path is unknown.");
                false
            }
        };
        looker.set_marked(id, is_marked);
    }

    /// Reads the ring and, once it is empty, the loss counters; looks at all changed map entries after a loss. `false`
    /// when a flood left records in the ring: things are looked at in between.
    pub(super) fn drain(&mut self, ring: &mut Ring) -> Result<bool, AgentError> {
        let is_empty = self.read_ring(ring)?;
        let Some(witness) = self.looks.looker.witness.as_mut().filter(|_| is_empty) else {
            return Ok(is_empty);
        };
        let (lost, new) = self.intake.count_losses(witness, &mut *self.verdicts.reports)?;
        if self.verdicts.detector.drained(lost) {
            self.verdicts.reports.report(AgentEvent::ChangesLost(LossStage::Ring, "full", new));
            self.sweep();
        }
        Ok(true)
    }

    fn read_ring(&mut self, ring: &mut Ring) -> Result<bool, AgentError> {
        let mut result = Ok(());
        let is_empty = ring.drain(RECORDS_A_TURN, |bytes| {
            if result.is_ok() {
                result = self.record(bytes);
            }
        });
        result.map(|()| is_empty)
    }

    /// Reads what is in the ring and nothing else, which costs no system call if the ring is empty. After a look, this makes
    /// sure that every change whose effect the look saw is noted before the verdict: the record of a change is in the ring
    /// before its effect is on the disk.
    pub(super) fn read_before_verdict(&mut self, changes: &mut Changes) -> Result<(), AgentError> {
        match changes {
            Changes::Ring(ring) => self.read_ring(ring).map(drop),
            Changes::Fanotify(fanotify) => {
                for id in self.looks.looker.take_new_watches() {
                    self.mark(fanotify, id);
                }
                Ok(())
            }
            #[cfg(test)]
            Changes::Test => Ok(()),
        }
    }

    /// After a loss only the map entries show what changed.
    fn sweep(&mut self) {
        let now = self.verdicts.now();
        let Some(witness) = self.looks.looker.witness.as_mut() else { return };
        for Entry { key, id, is_lost } in self.intake.changed_entries(witness) {
            if id == MOUNTS_ID {
                self.mounts.due = Some(now);
                continue;
            }
            if self.blindness.is_switch(id) {
                self.blindness.blind(reasons::FTRACE_OPENED, &mut self.verdicts);
                continue;
            }
            if id == DEVICES_ID {
                self.blindness.device_opened(&mut self.verdicts);
                continue;
            }
            if id == GROUPS_ID {
                self.refresh_allowed();
                continue;
            }
            // The name is lost, too, so everything that the inode may concern is looked at.
            let registry = &self.looks.looker.registry;
            let (direct, beyond) = registry.all_concerned(&registry.about(id, key));
            self.looks.looker.reroute(beyond.iter().copied());
            if is_lost {
                for thing in &direct {
                    self.verdicts.note_lost(*thing);
                }
            }
            self.verdicts.changed(direct, Event { own: false, beyond: false });
            self.verdicts.changed(beyond, Event { own: false, beyond: true });
        }
    }

    /// One record.
    pub(super) fn record(&mut self, bytes: &[u8]) -> Result<(), AgentError> {
        let change = match event::decode(bytes) {
            Ok(change) => change,
            Err(error) => {
                tracing::error!(%error, "A ring record is malformed: its change is lost.");
                self.verdicts.reports.report(AgentEvent::ChangesLost(LossStage::Decode, "malformed", 1));
                return Ok(());
            }
        };
        self.verdicts.reports.report(AgentEvent::ChangeReceived(change.operation));
        match change.record.id {
            CANARY_ID => self.blindness.canary_received(),
            MOUNTS_ID => self.mounts_changed(&change),
            GROUPS_ID => self.group_made(change.record.detail),
            TAMPER_ID.. => {
                if let Some(path) = self.blindness.opened(&change) {
                    let actor = self.intake.actor(&change);
                    self.blindness.tampered(path, &change, actor, &mut self.verdicts);
                }
            }
            _ => self.changed(&change)?,
        }
        Ok(())
    }

    /// A control group was made, perhaps of a unit or a pod that a deny rule allows.
    fn group_made(&mut self, id: u64) {
        let Some(path) = self.intake.processes.group(id) else { return };
        if let Some(witness) = self.looks.looker.witness.as_mut() {
            self.denials.rules.group_made(witness, &path, id);
        }
    }

    fn mounts_changed(&mut self, change: &Change) {
        let announced = Announced {
            key: change.record.key(),
            actor: self.intake.actor(change),
            operation: change.operation,
            at_ns: change.record.time_ns,
        };
        self.mounts.announce(announced, self.verdicts.now());
    }

    /// The watches whose inode the record is about, what they concern, and what the other watches of its entry concern. Things
    /// of the others are looked at, and the record's actor is not named.
    fn concerned(&mut self, change: &Change) -> Result<(Vec<u32>, Concerned, Concerned), AgentError> {
        let record = &change.record;
        let inode = Inode { key: record.key(), generation: record.generation };
        let about = About { inode, is_name: change.name().is_some(), moves: change.moves() };
        let looker = &mut self.looks.looker;
        let (mut matching, mut others) = (Vec::new(), Vec::new());
        for watch in looker.registry.about(record.id, inode.key) {
            let mut matches = looker.registry.matches(watch, &about);
            if !matches {
                // The path may lead to this inode by now, or still: a removal may have failed.
                looker.enrol(watch)?;
                matches = looker.registry.matches(watch, &about);
            }
            if matches { matching.push(watch) } else { others.push(watch) }
        }
        if !others.is_empty() {
            looker.remove_unused(inode.key)?;
        }
        let concerned = |watches: &[u32]| {
            looker.registry.concerned(watches, change.name(), change.name_cut(), change.moves())
        };
        let concerned = (concerned(&matching), concerned(&others));
        Ok((matching, concerned.0, concerned.1))
    }

    fn changed(&mut self, change: &Change) -> Result<(), AgentError> {
        let record = &change.record;
        let (watches, concerned, others) = self.concerned(change)?;
        let own = self.intake.attributor.is_ours(record);
        // Before Linux 6.17 the hook of an ioctl runs before the lock of the inode is taken under which the change counts.
        let is_early = change.operation == Operation::Ioctl;
        self.looks.looker.reroute(concerned.beyond.iter().chain(&others.beyond).copied());
        self.verdicts.changed(others.direct, Event { own, beyond: is_early });
        self.verdicts.changed(others.beyond, Event { own, beyond: true });
        if change.operation == Operation::Denied {
            let actor = self.intake.actor(change);
            let looker = &self.looks.looker;
            self.denials.refused(&watches, &concerned, (change, &actor), looker, &mut self.verdicts);
            return Ok(());
        }
        if concerned == Concerned::default() {
            return Ok(());
        }
        let actor = self.intake.actor(change);
        if change.operation == Operation::Exec {
            let observer = &self.looks.looker.observer;
            for thing in concerned.direct {
                self.denials.executed(thing, change, &actor, observer, &mut self.verdicts);
            }
            return Ok(());
        }
        for (things, beyond) in [(concerned.direct, is_early), (concerned.beyond, true)] {
            for thing in things {
                // The process that closes a file last need not be the one that wrote to it.
                let is_named = self.verdicts.episodes.contains_key(&thing);
                if change.operation != Operation::Release || !is_named {
                    let made = AttributedChange {
                        actor: Some(actor.clone()),
                        operation: change.operation.name(),
                        at_ns: record.time_ns,
                    };
                    self.verdicts.note(thing, made, change.is_refused());
                }
                self.verdicts.changed([thing], Event { own, beyond });
            }
        }
        for watch in concerned.stale {
            self.looks.looker.enrol(watch)?;
        }
        Ok(())
    }

    /// Reads the fanotify backend, which has no evidence to give: every look is followed by a second.
    fn read_fanotify(&mut self, fanotify: &mut FanotifyBackend) -> Result<(), AgentError> {
        let happenings = fanotify.read()?;
        for happening in happenings {
            match happening {
                Happening::Lost => {
                    let lost = AgentEvent::ChangesLost(LossStage::Fanotify, "overflow", 1);
                    self.verdicts.reports.report(lost);
                    self.verdicts.missed(reasons::FANOTIFY_OVERFLOW);
                }
                Happening::Change(change) => self.fanotify_event(fanotify, &change),
            }
        }
        Ok(())
    }

    fn fanotify_event(&mut self, fanotify: &mut FanotifyBackend, change: &ChangeEvent) {
        self.verdicts.reports.report(AgentEvent::ChangeReceived(change.operation));
        let looker = &mut self.looks.looker;
        let Some(id) = looker.registry.find(&change.path) else { return };
        let moved = matches!(
            change.operation,
            Operation::Rename | Operation::RenameOver | Operation::Unlink | Operation::RemoveDirectory
        );
        let concerned = looker.registry.concerned(&[id], change.name.as_deref(), false, moved);
        if concerned == Concerned::default() || change.operation == Operation::Exec {
            return;
        }
        let attributor = &mut self.intake.attributor;
        let actor = change.pid.and_then(|pid| attributor.attribute_pid(pid, change.read_ns, &NoTable));
        let own = actor.as_ref().is_some_and(|actor| actor.holdfast);
        let things = || concerned.direct.iter().chain(&concerned.beyond).copied();
        for thing in things() {
            let made = AttributedChange {
                actor: actor.clone(),
                operation: change.operation.name(),
                at_ns: change.read_ns,
            };
            self.verdicts.note(thing, made, false);
        }
        self.verdicts.changed(things(), Event { own, beyond: true });
        looker.reroute(things());
        // The path may lead to another object now.
        let expectations = &self.verdicts.desired.expectations;
        let objects = concerned
            .direct
            .iter()
            .filter_map(|thing| Some(expectations.get(*thing as usize)?.thing.path()))
            .filter_map(|path| looker.registry.find(&path));
        let stale: Vec<u32> = objects.chain(concerned.stale.iter().copied()).collect();
        for id in stale {
            self.mark(fanotify, id);
        }
    }
}
