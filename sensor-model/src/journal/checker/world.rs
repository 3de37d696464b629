//! The disk, the journal, and the processes that change them.

use super::super::{
    ApplyEnd, Begin, Boot, JournalRecord, PathState, Target,
    machine::{Machine, MachineAnswer, MachineEnd, MachineRequest},
    mutation::Mutation,
    target_edit::{Side, TargetEdit, TargetState},
};
use super::setting::{Object, Setting};

/// A step of the other process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum OtherProcess {
    Writes,
    Removes,
}

#[expect(clippy::struct_excessive_bools, reason = "facts of a model, read by name")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    before: Object,
    after: Object,
    pub(super) path: Object,
    pub(super) temporary: Option<Object>,
    /// The other process wrote or removed it.
    touched: bool,
    /// It did so after the final verification.
    late: bool,
    /// The other process wrote it.
    pub(super) written: bool,
    /// It cannot be restored.
    stubborn: bool,
    /// The old image ships the declared state; the new one ships `before`.
    again: bool,
}

impl Slot {
    fn side(&self, content: Object) -> Option<Side> {
        match content {
            content if content == self.before => Some(Side::Before),
            content if content == self.after => Some(Side::After),
            _ => None,
        }
    }

    /// Its content on one side of the apply.
    fn on(&self, side: Side) -> Object {
        if self.again { self.after } else { self.content(side) }
    }

    fn content(&self, side: Side) -> Object {
        match side {
            Side::Before => self.before,
            Side::After => self.after,
        }
    }

    /// Carries out an edit. An edit that is no longer possible changes nothing; the next observation shows why.
    fn edit(&mut self, edit: TargetEdit) {
        match edit {
            TargetEdit::Make(side) if self.temporary.is_none() => self.temporary = Some(self.content(side)),
            TargetEdit::Swap if self.path != Object::Nothing => {
                if let Some(temporary) = self.temporary.replace(self.path) {
                    self.path = temporary;
                } else {
                    self.temporary = None;
                }
            }
            TargetEdit::PutIn if self.path == Object::Nothing => {
                if let Some(temporary) = self.temporary.take() {
                    self.path = temporary;
                }
            }
            TargetEdit::TakeAway if self.temporary.is_none() && self.path != Object::Nothing => {
                self.temporary = Some(self.path);
                self.path = Object::Nothing;
            }
            TargetEdit::Discard => self.temporary = None,
            TargetEdit::Set(Side::Before) if self.stubborn => {}
            TargetEdit::Set(side) if self.path != Object::Nothing => self.path = self.content(side),
            _ => {}
        }
    }
}

/// One state of everything.
#[expect(clippy::struct_excessive_bools, reason = "facts of a model, read by name")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    begin: Begin,
    pub(super) slots: Vec<Slot>,
    pub(super) journal: Vec<JournalRecord>,
    pub(super) machine: Option<Machine>,
    committed: Option<ApplyEnd>,
    boot: u8,
    pub(super) deaths: u8,
    pub(super) failures: u8,
    pub(super) interferences: u8,
    pub(super) died: bool,
    /// Something was restored.
    went_back: bool,
    /// The booted OS, and the OS of the next boot.
    pub(super) os: Option<(Side, Side)>,
    /// The first attempt to undo the OS failed.
    pub(super) undo_failed: bool,
    /// The action's unit does not run with the new files.
    broken: bool,
    /// The action failed.
    pub(super) act_failed: bool,
    pub(super) was_half_way: bool,
    /// An update overwrote a path.
    pub(super) was_taken_back: bool,
    /// Only that path was found to differ.
    pub(super) differs_by_update: bool,
}

impl World {
    pub(super) fn new(setting: &Setting, mutation: Option<Mutation>) -> Self {
        let begin = setting.begin();
        let slots = (0..).zip(&setting.targets).map(|(number, (before, after)): (usize, _)| Slot {
            before: *before,
            after: *after,
            path: *before,
            temporary: None,
            touched: false,
            late: false,
            written: false,
            stubborn: setting.stubborn && number == 0,
            again: false,
        });
        let again = setting.ships.map(|ships| Slot {
            before: ships,
            after: Object::New,
            path: Object::New,
            temporary: None,
            touched: false,
            late: false,
            written: false,
            stubborn: false,
            again: true,
        });
        Self {
            slots: slots.chain(again).collect(),
            machine: Some(Machine::new(&begin, &Boot::of_kernel("1")).with(mutation)),
            begin,
            journal: Vec::new(),
            committed: None,
            boot: 1,
            deaths: setting.deaths,
            failures: 1,
            interferences: 1,
            died: false,
            went_back: false,
            os: setting.os.then_some((Side::Before, Side::Before)),
            undo_failed: false,
            broken: setting.broken,
            act_failed: false,
            was_half_way: false,
            was_taken_back: false,
            differs_by_update: false,
        }
    }

    /// The number of requested reboots to restore the old OS.
    fn returns(&self) -> usize {
        self.journal.iter().filter(|record| matches!(record, JournalRecord::ReturnRequested { .. })).count()
    }

    /// The slot whose attributes are to be set next.
    pub(super) fn sets(&self) -> Option<usize> {
        match self.machine.as_ref().and_then(Machine::next) {
            Some(MachineRequest::Edit(target, TargetEdit::Set(_))) => Some(target),
            _ => None,
        }
    }

    pub(super) fn die_half_way(&mut self) {
        self.leave_half_way();
        self.die();
    }

    fn leave_half_way(&mut self) {
        if let Some(slot) = self.sets().map(|slot| &mut self.slots[slot]).filter(|slot| !slot.stubborn) {
            slot.path = Object::HalfWay;
            self.was_half_way = true;
        }
    }

    pub(super) fn go(&mut self) {
        let Some(request) = self.machine.as_ref().and_then(Machine::next) else { return };
        let outcome = match request {
            MachineRequest::Begin => {
                self.journal.push(JournalRecord::Begin(Box::new(self.begin.clone())));
                MachineAnswer::Done
            }
            MachineRequest::Append(record) => {
                self.journal.push(record);
                MachineAnswer::Done
            }
            MachineRequest::Observe(target) => {
                let slot = &self.slots[target];
                MachineAnswer::Observed(TargetState {
                    path: self.side(slot),
                    between: slot.path == Object::HalfWay,
                    temporary: slot.temporary.map(|content| slot.side(content)),
                })
            }
            MachineRequest::Edit(target, edit) => {
                self.went_back |= self.machine.as_ref().is_some_and(Machine::is_going_back);
                self.slots[target].edit(edit);
                MachineAnswer::Done
            }
            MachineRequest::Verify
                if self.slots.iter().all(|slot| slot.path == slot.after) && self.has_new_os() =>
            {
                MachineAnswer::Done
            }
            MachineRequest::Verify => {
                self.differs_by_update |= self.has_new_os() && !self.was_touched();
                MachineAnswer::Failed("differs".to_owned())
            }
            MachineRequest::Commit(ended) => {
                self.committed = Some(ended);
                MachineAnswer::Done
            }
            MachineRequest::Close => {
                self.journal.clear();
                MachineAnswer::Done
            }
            // A unit runs with the objects at its paths, even if only a part of them is new.
            MachineRequest::Act(_) | MachineRequest::Await(_)
                if self.broken && self.slots.iter().any(|slot| slot.path == slot.after) =>
            {
                self.act_failed = true;
                MachineAnswer::Failed("the unit failed".to_owned())
            }
            MachineRequest::Act(_) => {
                self.os = self.os.map(|(booted, _)| (booted, Side::After));
                MachineAnswer::Done
            }
            MachineRequest::Undo(_) => {
                self.os = self.os.map(|(booted, _)| (booted, Side::Before));
                match self.os {
                    Some((Side::After, _)) => MachineAnswer::NeedsReboot,
                    _ => MachineAnswer::Done,
                }
            }
            MachineRequest::VerifyBack if self.os.is_some_and(|(booted, _)| booted == Side::After) => {
                MachineAnswer::Failed("the OS did not come back".to_owned())
            }
            MachineRequest::Await(_) | MachineRequest::VerifyBack | MachineRequest::Reboot => {
                MachineAnswer::Done
            }
        };
        if let Some(machine) = &mut self.machine {
            machine.answer(outcome);
        }
    }

    pub(super) fn fail(&mut self) {
        self.failures -= 1;
        self.leave_half_way();
        let next = self.machine.as_ref().and_then(Machine::next);
        self.undo_failed |= self.os.is_some() && matches!(next, Some(MachineRequest::Undo(_)));
        self.act_failed |= matches!(next, Some(MachineRequest::Act(_)));
        if let Some(machine) = &mut self.machine {
            machine.answer(MachineAnswer::Failed("no".to_owned()));
        }
    }

    pub(super) fn die(&mut self) {
        self.deaths = self.deaths.saturating_sub(1);
        self.died = true;
        self.machine = None;
    }

    pub(super) fn start(&mut self, mutation: Option<Mutation>) {
        let boot = Boot::of_kernel(&self.boot.to_string());
        // Without a journal no apply continues: the same config is applied once more later.
        let machine = if self.journal.is_empty() {
            let mut machine = Machine::new(&self.begin, &boot);
            machine.answer(MachineAnswer::Failed("nothing was begun".to_owned()));
            machine
        } else {
            Machine::resume(&self.begin, &self.journal, &boot)
        };
        // The state that the booted image ships; the old image ships the declared one.
        let ships = |slot: &Slot| if self.side_of_os() == Side::After { slot.before } else { slot.after };
        let again: Vec<Target> = self
            .slots
            .iter()
            .filter(|slot| slot.again)
            .zip(&self.begin.overwritten)
            .map(|(slot, again)| again.target((ships(slot) == Object::Nothing).then_some(PathState::Absent)))
            .collect();
        self.machine = Some(machine.with_shipped(&again).with(mutation));
    }

    /// The next boot. `lost`: the expected OS does not boot, and the same OS as before runs again.
    pub(super) fn boot(&mut self, lost: bool) {
        self.boot += 1;
        self.machine = None;
        let before = self.side_of_os();
        self.os = self.os.map(|(booted, next)| if lost { (booted, booted) } else { (next, next) });
        let now = self.side_of_os();
        // A path with the state of the old image gets the state of the new one.
        for slot in self.slots.iter_mut().filter(|slot| slot.again && before != now) {
            let (from, to) = match now {
                Side::After => (slot.after, slot.before),
                Side::Before => (slot.before, slot.after),
            };
            if slot.path == from {
                slot.path = to;
                self.was_taken_back |= now == Side::After;
            }
        }
    }

    fn side_of_os(&self) -> Side {
        self.os.map_or(Side::Before, |(booted, _)| booted)
    }

    /// The state that an observation finds at a path. For a path that is written again, the booted OS decides which state an
    /// update leaves.
    fn side(&self, slot: &Slot) -> Option<Side> {
        if slot.again && slot.path != slot.after && self.side_of_os() == Side::Before {
            return None;
        }
        slot.side(slot.path)
    }

    pub(super) fn was_touched(&self) -> bool {
        self.slots.iter().any(|slot| slot.touched)
    }

    /// The number of boots, including the first one.
    pub(super) fn boots(&self) -> u8 {
        self.boot
    }

    pub(super) fn other_process(&mut self, slot: usize, what: OtherProcess) -> Option<()> {
        // No system call sets attributes only if they have their old values. The model takes the observation right before the
        // change and the change as one step.
        if self.sets() == Some(slot) {
            return None;
        }
        let next = self.machine.as_ref().and_then(Machine::next);
        let looked = matches!(next, Some(MachineRequest::Append(JournalRecord::Done)))
            || self.journal.last() == Some(&JournalRecord::Done)
            || self.is_closed(ApplyEnd::Done);
        let slot = &mut self.slots[slot];
        match what {
            OtherProcess::Writes => slot.path = Object::Foreign,
            OtherProcess::Removes if slot.path == Object::Nothing => return None,
            OtherProcess::Removes => slot.path = Object::Nothing,
        }
        slot.touched = true;
        slot.late = looked;
        slot.written = what == OtherProcess::Writes;
        self.interferences -= 1;
        Some(())
    }

    pub(super) fn is_whole(&self) -> bool {
        let all =
            |side| self.slots.iter().filter(|slot| !slot.touched).all(|slot| slot.path == slot.on(side));
        (all(Side::Before) && self.has_old_os()) || (all(Side::After) && self.has_new_os())
    }

    fn has_old_os(&self) -> bool {
        self.os.is_none_or(|os| os == (Side::Before, Side::Before))
    }

    /// The new OS is booted, or the next boot has it if the apply requests no reboot.
    fn has_new_os(&self) -> bool {
        let os = |(booted, next)| if self.begin.reboot { booted } else { next };
        self.os.is_none_or(|both| os(both) == Side::After)
    }

    /// Whether another process may reboot the host now.
    pub(super) fn may_lose_power(&self) -> bool {
        self.os.is_some() && !self.begin.reboot && self.boot == 1 && !self.journal.is_empty()
    }

    pub(super) fn is_closed(&self, ended: ApplyEnd) -> bool {
        self.machine.as_ref().and_then(Machine::end) == Some(&MachineEnd::Closed(ended))
    }

    pub(super) fn ended_truly(&self) -> bool {
        match self.committed {
            // Everything is new, except changes after the final verification.
            Some(ApplyEnd::Done) => {
                !self.went_back
                    && !self.broken
                    && self.has_new_os()
                    && self.slots.iter().all(|slot| slot.late || slot.path == slot.after)
            }
            Some(ApplyEnd::RolledBack | ApplyEnd::Abandoned) => {
                self.has_old_os()
                    && self.slots.iter().all(|slot| slot.touched || slot.path == slot.on(Side::Before))
            }
            None => true,
        }
    }

    /// Whether the apply ends without kills and failures, if it is started again after every reboot and halt.
    pub(super) fn comes_to_an_end(&self, mutation: Option<Mutation>) -> bool {
        // This takes many steps. It is checked only where a process has just died, since every path passes there.
        let fresh = self.machine.is_none();
        if !fresh {
            return true;
        }
        let mut world = self.clone();
        for _ in 0..200 {
            match world.machine.as_ref().map(|machine| machine.end().cloned()) {
                None => world.start(mutation),
                Some(None) => world.go(),
                Some(Some(MachineEnd::Rebooting)) => world.boot(false),
                // It is reported, and retried at each start.
                Some(Some(MachineEnd::Halted(_))) if world.slots.iter().any(|slot| slot.stubborn) => {
                    return true;
                }
                Some(Some(MachineEnd::Halted(_))) => {
                    // In the end a person boots the OS that no requested reboot restored.
                    if world.returns() >= 3 {
                        world.os = Some((Side::Before, Side::Before));
                    }
                    world.die();
                }
                Some(Some(MachineEnd::Closed(_))) => return world.journal.is_empty(),
            }
        }
        false
    }
}
