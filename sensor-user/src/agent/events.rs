//! From ring records to the detector: which things a change may concern, and who made it.

use super::canary::{CANARY_ID, DEVICES_ID, MOUNTS_ID, Pulse, TAMPER_ID, UNHEARD};
use super::deny::GROUPS_ID;
use super::episode::{Deed, Noted};
use super::mounts::{self, Announced, MountTable, RETRY_NS};
use super::registry::{About, Concerned, Inode};
use super::reload::Ended;
use super::sweep::Untold;
use super::{Agent, backend::Changes};
use crate::attribution::NoTable;
use crate::event::{self, Change};
use crate::fanotify::{ChangeEvent, FanotifyBackend, Happening};
use crate::kernel::maps::Ring;
use crate::report::metrics::LossStage;
use sensor_common::map::Counter;
use sensor_common::op::Operation;
use sensor_model::protocol::{Event, Scope};
use sensor_model::record::{Actor, Record, RecordKind};
use std::fs;

/// Records read before things are looked at: a full ring, so that a burst is read at once.
const RECORDS_A_TURN: usize = 4096;

/// Map entries looked after at each canary: all of most nodes, and those of the largest within minutes.
const ENTRIES_A_TICK: u32 = 256;

/// A directory on the way to more things than this makes one gap, not one for each of them.
const GAPS_AT_ONCE: usize = 16;

impl Agent {
    /// Watches a path by fanotify, where there is something to be watched. Of what is there and cannot be watched
    /// nobody vouches.
    pub(super) fn watch(&mut self, fanotify: &mut FanotifyBackend, id: u32) {
        let Some(path) = self.looker.registry.get(id).map(|watch| watch.path.clone()) else { return };
        let is_told = match fanotify.watch(&path) {
            Ok(_) => true,
            // Nothing is there, or nothing that can be opened: its directory's names tell of it.
            Err(error) if error.is_absence() => true,
            Err(error) => {
                tracing::warn!(%error, "Changes of it are not told by fanotify.");
                false
            }
        };
        self.looker.is_watched(id, is_told);
    }

    /// Reads the ring and, once it is empty, the loss counters; sweeps the map entries after a loss. `false`
    /// when a flood left records in the ring: things are looked at in between.
    pub(super) fn drain(&mut self, ring: &mut Ring) -> anyhow::Result<bool> {
        let mut failed = None;
        let empty = ring.drain(RECORDS_A_TURN, |bytes| {
            if failed.is_none() {
                failed = self.record(bytes).err();
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        if !empty {
            return Ok(false);
        }
        let Some(witness) = self.witness() else { return Ok(true) };
        let (lost, processes) =
            (witness.maps().count(Counter::Lost)?, witness.maps().count(Counter::ProcessLost)?);
        self.telemetry.lost(LossStage::Process, "full", processes.saturating_sub(self.lost_processes));
        self.lost_processes = processes;
        let before = self.lost_records;
        self.lost_records = lost;
        if self.detector.drained(lost) {
            self.telemetry.lost(LossStage::Ring, "full", lost.saturating_sub(before));
            self.sweep();
        }
        Ok(true)
    }

    /// Reads what is in the ring and nothing else, which costs no system call when that is nothing. After a look
    /// it makes sure that whatever the look saw the effect of was told before it is judged: the record of a
    /// change is in the ring before its effect is on the disk.
    pub(super) fn hear(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        let ring = match changes {
            Changes::Ring(ring) => ring,
            Changes::Fanotify(fanotify) => {
                for id in self.looker.fresh() {
                    self.watch(fanotify, id);
                }
                return Ok(());
            }
            #[cfg(test)]
            Changes::Told => return Ok(()),
        };
        let mut failed = None;
        ring.drain(RECORDS_A_TURN, |bytes| {
            if failed.is_none() {
                failed = self.record(bytes).err();
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// After a loss only the map entries know what changed.
    fn sweep(&mut self) {
        let now = self.clock.boot_ns();
        let Some(witness) = self.looker.witness.as_mut() else { return };
        let changed: Vec<_> = self.swept.take(witness.maps().entries());
        for Untold { key, id, is_lost } in changed {
            if id == MOUNTS_ID {
                self.mounts_due = Some(now);
                continue;
            }
            if self.canary.as_ref().is_some_and(|canary| canary.is_switch(id)) {
                self.blind("ftrace-opened");
                continue;
            }
            if id == DEVICES_ID {
                self.look_beneath();
                continue;
            }
            if id == GROUPS_ID {
                self.refresh_allowed();
                continue;
            }
            // Which name it was is lost too, so everything that the inode may concern is looked at.
            let registry = &self.looker.registry;
            let (direct, beyond) = registry.all_concerned(&registry.about(id, key));
            self.looker.stray(beyond.iter().copied());
            for (things, beyond) in [(direct, false), (beyond, true)] {
                for thing in things {
                    if is_lost && !beyond {
                        self.changes.entry(thing).and_modify(Noted::lose).or_insert_with(|| Noted::lost(now));
                    }
                    self.detector.event(thing, now, Event { own: false, beyond });
                }
            }
        }
    }

    /// A change of anything may have been missed: of whatever is not at rest, somebody who is not named may have made it.
    pub(super) fn missed(&mut self, reason: &str) {
        self.changes.values_mut().for_each(Noted::lose);
        let told = self.detector.open_gap(Scope::All, reason, self.clock.boot_ns());
        self.tell(told, None);
    }

    /// One record.
    pub(super) fn record(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let change = match event::decode(bytes) {
            Ok(change) => change,
            Err(error) => {
                tracing::error!(%error, "A record is malformed.");
                self.telemetry.lost(LossStage::Decode, "malformed", 1);
                return Ok(());
            }
        };
        self.telemetry.event(change.operation);
        match change.record.id {
            CANARY_ID => {
                if let Some(canary) = &mut self.canary {
                    canary.heard();
                }
            }
            MOUNTS_ID => self.mounts_changed(&change),
            GROUPS_ID => self.group_made(change.record.detail),
            TAMPER_ID.. => self.tampered(&change),
            _ => self.changed(&change)?,
        }
        Ok(())
    }

    /// A control group was made, perhaps of a unit or a pod that a deny rule allows.
    fn group_made(&mut self, id: u64) {
        let Some(path) = self.processes.group(id) else { return };
        if let Some(witness) = self.looker.witness.as_mut() {
            self.deny.group_made(witness, &path, id);
        }
    }

    /// Which watches a record tells the actor for, and what they and the others concern, which are only to be looked at
    /// because of it.
    fn told_about(&mut self, change: &Change) -> anyhow::Result<(Vec<u32>, Concerned, Concerned)> {
        let record = &change.record;
        let inode = Inode { key: record.key(), generation: record.generation };
        let about = About { inode, is_name: change.name().is_some(), moves: change.moves() };
        let (mut speaks, mut others) = (Vec::new(), Vec::new());
        for watch in self.looker.registry.about(record.id, inode.key) {
            let mut known = self.looker.registry.speaks(watch, &about);
            if !known {
                // Perhaps the path leads to this inode by now, or still does: a removal may have failed.
                self.looker.enrol(watch)?;
                known = self.looker.registry.speaks(watch, &about);
            }
            if known { speaks.push(watch) } else { others.push(watch) }
        }
        if !others.is_empty() {
            self.looker.drop_stray(inode.key)?;
        }
        let concerned = |watches: &[u32]| {
            self.looker.registry.concerned(watches, change.name(), change.name_cut(), change.moves())
        };
        let concerned = (concerned(&speaks), concerned(&others));
        Ok((speaks, concerned.0, concerned.1))
    }

    fn changed(&mut self, change: &Change) -> anyhow::Result<()> {
        let record = &change.record;
        let (watches, concerned, others) = self.told_about(change)?;
        let now = self.clock.boot_ns();
        let own = self.attributor.is_ours(record);
        self.looker.stray(concerned.beyond.iter().chain(&others.beyond).copied());
        for (things, beyond) in
            [(&others.direct, change.operation == Operation::Ioctl), (&others.beyond, true)]
        {
            for thing in things {
                self.detector.event(*thing, now, Event { own, beyond });
            }
        }
        if change.operation == Operation::Denied {
            self.refused(&watches, &concerned, change);
            return Ok(());
        }
        if concerned == Concerned::default() {
            return Ok(());
        }
        let actor = self.attributor.attribute(record, &*self.processes);
        if change.operation == Operation::Exec {
            for thing in concerned.direct {
                self.executed(thing, change, &actor);
            }
            return Ok(());
        }
        // Up to 6.16 an ioctl is told before the inode's lock is taken under which it counts.
        let is_early = change.operation == Operation::Ioctl;
        for (things, beyond) in [(&concerned.direct, is_early), (&concerned.beyond, true)] {
            for thing in things {
                // Whoever holds a file last need not be who wrote to it.
                if change.operation != Operation::Release || !self.changes.contains_key(thing) {
                    let deed = Deed {
                        actor: Some(actor.clone()),
                        operation: change.operation.name(),
                        at_ns: record.time_ns,
                    };
                    self.note(*thing, deed, change.is_refused());
                }
                self.detector.event(*thing, now, Event { own, beyond });
            }
        }
        for watch in concerned.stale {
            self.looker.enrol(watch)?;
        }
        Ok(())
    }

    /// A change of a thing. `refused`: the kernel refuses it, as far as owner and capabilities tell.
    pub(super) fn note(&mut self, thing: u32, deed: Deed, refused: bool) {
        match (self.changes.get_mut(&thing), refused) {
            (Some(noted), false) => noted.add(deed),
            (Some(noted), true) => noted.attempt(deed),
            (None, false) => drop(self.changes.insert(thing, Noted::new(deed))),
            (None, true) => drop(self.changes.insert(thing, Noted::attempted(deed))),
        }
    }

    /// Events of the fanotify backend, which has no evidence to give: every look is followed by a second.
    pub(super) fn happened(&mut self, fanotify: &mut FanotifyBackend) -> anyhow::Result<()> {
        for happening in fanotify.read()? {
            let now = self.clock.boot_ns();
            match happening {
                Happening::Lost => {
                    self.telemetry.lost(LossStage::Fanotify, "overflow", 1);
                    self.missed("fanotify-overflow");
                }
                Happening::Change(change) => self.heard(fanotify, &change, now),
            }
        }
        Ok(())
    }

    fn heard(&mut self, fanotify: &mut FanotifyBackend, change: &ChangeEvent, now: u64) {
        self.telemetry.event(change.operation);
        let Some(id) = self.looker.registry.find(&change.path) else { return };
        let moved = matches!(
            change.operation,
            Operation::Rename | Operation::RenameOver | Operation::Unlink | Operation::RemoveDirectory
        );
        let concerned = self.looker.registry.concerned(&[id], change.name.as_deref(), false, moved);
        if concerned == Concerned::default() || change.operation == Operation::Exec {
            return;
        }
        let actor = change.pid.and_then(|pid| self.attributor.attribute_pid(pid, change.read_ns, &NoTable));
        let own = actor.as_ref().is_some_and(|actor| actor.holdfast);
        for thing in concerned.direct.iter().chain(&concerned.beyond) {
            let deed =
                Deed { actor: actor.clone(), operation: change.operation.name(), at_ns: change.read_ns };
            self.note(*thing, deed, false);
            self.detector.event(*thing, now, Event { own, beyond: true });
        }
        self.looker.stray(concerned.direct.iter().chain(&concerned.beyond).copied());
        // The path may lead to another object now.
        let objects = concerned
            .direct
            .iter()
            .filter_map(|thing| Some(self.desired.expectations.get(*thing as usize)?.thing.path()))
            .filter_map(|path| self.looker.registry.find(&path));
        let stale: Vec<u32> = objects.chain(concerned.stale).collect();
        for id in stale {
            self.watch(fanotify, id);
        }
    }

    /// A record about a thing at the moment of a change that is not itself a change of the thing.
    pub(super) fn about(&self, kind: RecordKind, thing: u32, change: &Change, actor: &Actor) -> Record {
        let expectation = &self.desired.expectations[thing as usize];
        let mut record = self.log.record(kind);
        record.monotonic_ns = change.record.time_ns;
        record.time = self.wall(change.record.time_ns);
        record.set_name(self.name(thing));
        record.operation = Some(change.operation.name().to_owned());
        record.actor = Some(actor.clone());
        record.verdict = self.detector.standing(thing).map(|standing| standing.verdict);
        record.source = Some(expectation.source.machine_config.to_string());
        if let Some(open) = self.drift_of(thing) {
            record.differences.clone_from(&open.differences);
        }
        record
    }

    fn mounts_changed(&mut self, change: &Change) {
        let actor = self.attributor.attribute(&change.record, &*self.processes);
        self.announced.push(Announced {
            key: change.record.key(),
            actor,
            operation: change.operation,
            at_ns: change.record.time_ns,
        });
        // A hook runs before its mount is there, so the table is compared when all records are read, and again a
        // little later.
        self.mounts_due = Some(self.clock.boot_ns());
    }

    /// Compares the mount table with the last one, and looks at everything that a difference touches. Not only
    /// because a mount was announced: some calls that change mounts fire no hook.
    pub(super) fn compare_mounts(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        let table = match MountTable::read(&self.mount_table) {
            Ok(table) => table,
            Err(error) => {
                // Nobody knows what is mounted over what until it can be read again.
                let now = self.clock.boot_ns();
                if self.mounts_unread.is_none() {
                    tracing::error!(%error, "Cannot read the mount table.");
                    let gap = self.detector.open_blindness(Scope::All, "mounts-unreadable", now);
                    self.mounts_unread = Some(gap.number);
                    self.tell(vec![sensor_model::protocol::Report::GapOpened(gap)], None);
                }
                self.mounts_due = Some(now.saturating_add(RETRY_NS));
                return Ok(());
            }
        };
        if let Some(number) = self.mounts_unread.take() {
            let told = self.detector.end_blindness(number, self.clock.boot_ns());
            self.tell(told, None);
        }
        if table.has_btrfs() {
            self.learn_volumes()?;
        }
        let points = self.mounts.differences(&table);
        if !points.is_empty() {
            self.looker.observer.mounts_changed();
            // Whoever made them was told of before they were there.
            self.hear(changes)?;
        }
        self.mounts = table;
        let now = self.clock.boot_ns();
        let root =
            fs::canonicalize(&self.options.inputs.root).unwrap_or_else(|_| self.options.inputs.root.clone());
        for point in points.iter().filter_map(|point| mounts::below(&root, point)) {
            let keys: Vec<_> = self.looker.registry.keys_at(&point).collect();
            let announced = self.announced.of(&keys).cloned();
            let touched = self.looker.registry.under_mount(&point);
            self.looker.stray(touched.iter().copied());
            for thing in touched {
                if let Some(Announced { actor, operation, at_ns, .. }) = announced.clone() {
                    let deed = Deed { actor: Some(actor), operation: operation.name(), at_ns };
                    self.note(thing, deed, false);
                }
                self.detector.event(thing, now, Event { own: false, beyond: true });
            }
        }
        self.announced.shown(now);
        self.mounts_due = self.announced.due(now);
        Ok(())
    }

    /// Compares the mount table when that is due.
    pub(super) fn follow_mounts(&mut self, changes: &mut Changes) -> anyhow::Result<()> {
        if self.mounts_due.is_some_and(|at| at <= self.clock.boot_ns()) {
            self.compare_mounts(changes)
        } else {
            Ok(())
        }
    }

    /// Whoever may write to the maps can make the programs forget an inode: what lies behind one that is not
    /// there as it was put there is unknown until it was looked at again.
    fn check_entries(&mut self) -> anyhow::Result<()> {
        for watch in self.looker.check_entries(ENTRIES_A_TICK)? {
            let (direct, beyond) = self.looker.registry.all_concerned(&[watch]);
            let path = self.looker.registry.get(watch).map(|watch| watch.path.display().to_string());
            tracing::warn!(path, "The kernel programs no longer knew it.");
            let now = self.clock.boot_ns();
            let things: Vec<u32> = direct.into_iter().chain(beyond).collect();
            let scopes = match things.len() {
                ..=GAPS_AT_ONCE => things.into_iter().map(Scope::Thing).collect(),
                _ => vec![Scope::All],
            };
            for scope in scopes {
                let told = self.detector.open_gap(scope, "entry-removed", now);
                self.tell(told, None);
            }
        }
        Ok(())
    }

    /// A call that a program was left out of may have been any change.
    fn check_recursion(&mut self) -> anyhow::Result<()> {
        let Some(recursion) = &mut self.recursion else { return Ok(()) };
        if recursion.missed()? > 0 {
            self.missed("recursion-missed");
        }
        Ok(())
    }

    /// Sings, listens, and opens or ends blindness.
    pub(super) fn check_canary(&mut self, ring: &mut Ring) -> anyhow::Result<()> {
        let observer = std::sync::Arc::clone(&self.looker.observer);
        self.refresh_allowed();
        self.check_entries()?;
        self.check_recursion()?;
        let (Some(witness), Some(canary)) = (self.looker.witness.as_mut(), self.canary.as_mut()) else {
            return Ok(());
        };
        canary.sing(&observer, witness);
        self.drain(ring)?;
        let (Some(witness), Some(canary)) = (self.looker.witness.as_mut(), self.canary.as_mut()) else {
            return Ok(());
        };
        let mut pulse = canary.listen(witness);
        if pulse == Pulse::Alive {
            self.telemetry.canary(self.clock.now());
            if !canary.is_out_of_reach(&observer, witness) {
                pulse = Pulse::Blind("ftrace-opened".to_owned());
            }
        }
        if pulse == Pulse::Alive && canary.begins_to_see(&observer, witness)? {
            self.ended = Some(Ended::Seeing);
            return Ok(());
        }
        if canary.is_silent() {
            self.ended = Some(Ended::Silent);
        }
        match pulse {
            Pulse::Alive => self.see_again(),
            Pulse::Drowned => self.blind(UNHEARD),
            Pulse::Blind(reason) => self.blind(&reason),
        }
        Ok(())
    }

    /// Before the first look: somebody may have opened what switches the programs off while no daemon ran.
    pub(super) fn check_reach(&mut self) {
        let observer = std::sync::Arc::clone(&self.looker.observer);
        if let (Some(witness), Some(canary)) = (self.looker.witness.as_mut(), self.canary.as_mut())
            && !canary.is_out_of_reach(&observer, witness)
        {
            self.blind("ftrace-opened");
        }
    }

    /// Events may not come from now on.
    pub(super) fn blind(&mut self, reason: &str) {
        if self.blindness.is_some() {
            return;
        }
        self.readiness.not_ready("canary", reason);
        let gap = self.detector.open_blindness(Scope::All, reason, self.clock.boot_ns());
        self.blindness = Some((gap.number, reason.to_owned()));
        self.tell(vec![sensor_model::protocol::Report::GapOpened(gap)], None);
    }

    /// Events come, and nobody can stop them without one.
    fn see_again(&mut self) {
        let Some((number, _)) = self.blindness.take() else { return };
        self.readiness.ready("canary");
        let told = self.detector.end_blindness(number, self.clock.boot_ns());
        self.tell(told, None);
    }
}
