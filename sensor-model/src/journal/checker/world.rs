//! The disk, the journal and everybody who works on them.

use super::super::{
    Begin, Boot, Ended, Image, Record, Target,
    machine::{Machine, Outcome, Request, Rest},
    mutation::Mutation,
    settle::{Settling, Side, Sight},
};
use super::setting::{Content, Setting};

/// What somebody else does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Stranger {
    Writes,
    Removes,
}

#[expect(clippy::struct_excessive_bools, reason = "facts of a model, read by name")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    before: Content,
    after: Content,
    pub(super) path: Content,
    pub(super) temporary: Option<Content>,
    /// Somebody else wrote or removed it.
    touched: bool,
    /// And did so after everything was looked at.
    late: bool,
    /// Somebody else wrote it.
    pub(super) written: bool,
    /// It does not become what it was.
    stubborn: bool,
    /// The old image ships what is declared, which stays; the new one ships what is here called before.
    again: bool,
}

impl Slot {
    fn side(&self, content: Content) -> Option<Side> {
        match content {
            content if content == self.before => Some(Side::Before),
            content if content == self.after => Some(Side::After),
            _ => None,
        }
    }

    /// What it is on one side of the apply.
    fn on(&self, side: Side) -> Content {
        if self.again { self.after } else { self.content(side) }
    }

    fn content(&self, side: Side) -> Content {
        match side {
            Side::Before => self.before,
            Side::After => self.after,
        }
    }

    /// A step. One that cannot be taken any more changes nothing: the next look tells why.
    fn step(&mut self, step: Settling) {
        match step {
            Settling::Make(side) if self.temporary.is_none() => self.temporary = Some(self.content(side)),
            Settling::Swap if self.path != Content::Nothing => {
                if let Some(temporary) = self.temporary.replace(self.path) {
                    self.path = temporary;
                } else {
                    self.temporary = None;
                }
            }
            Settling::PutIn if self.path == Content::Nothing => {
                if let Some(temporary) = self.temporary.take() {
                    self.path = temporary;
                }
            }
            Settling::TakeAway if self.temporary.is_none() && self.path != Content::Nothing => {
                self.temporary = Some(self.path);
                self.path = Content::Nothing;
            }
            Settling::Discard => self.temporary = None,
            Settling::Set(Side::Before) if self.stubborn => {}
            Settling::Set(side) if self.path != Content::Nothing => self.path = self.content(side),
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
    pub(super) journal: Vec<Record>,
    pub(super) machine: Option<Machine>,
    committed: Option<Ended>,
    boot: u8,
    pub(super) deaths: u8,
    pub(super) failures: u8,
    pub(super) strangers: u8,
    pub(super) died: bool,
    /// Something was given back.
    went_back: bool,
    /// The OS that is booted, and the one that the next boot takes.
    pub(super) os: Option<(Side, Side)>,
    /// The OS could not be undone when that was tried first.
    pub(super) undo_failed: bool,
    /// The unit of the act does not run with the new files.
    broken: bool,
    /// The act failed.
    pub(super) act_failed: bool,
    pub(super) was_half_way: bool,
    /// An update took a path back.
    pub(super) was_taken_back: bool,
    /// And that alone was found to differ.
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
            after: Content::New,
            path: Content::New,
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
            strangers: 1,
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

    /// How often a reboot was asked for to bring the old OS back.
    fn returns(&self) -> usize {
        self.journal.iter().filter(|record| matches!(record, Record::ReturnRequested { .. })).count()
    }

    /// The slot whose attributes are to be set next.
    pub(super) fn sets(&self) -> Option<usize> {
        match self.machine.as_ref().and_then(Machine::next) {
            Some(Request::Step(target, Settling::Set(_))) => Some(target),
            _ => None,
        }
    }

    pub(super) fn die_half_way(&mut self) {
        self.leave_half_way();
        self.die();
    }

    fn leave_half_way(&mut self) {
        if let Some(slot) = self.sets().map(|slot| &mut self.slots[slot]).filter(|slot| !slot.stubborn) {
            slot.path = Content::HalfWay;
            self.was_half_way = true;
        }
    }

    pub(super) fn go(&mut self) {
        let Some(request) = self.machine.as_ref().and_then(Machine::next) else { return };
        let outcome = match request {
            Request::Begin => {
                self.journal.push(Record::Begin(Box::new(self.begin.clone())));
                Outcome::Done
            }
            Request::Append(record) => {
                self.journal.push(record);
                Outcome::Done
            }
            Request::Look(target) => {
                let slot = &self.slots[target];
                Outcome::Sight(Sight {
                    path: self.side(slot),
                    between: slot.path == Content::HalfWay,
                    temporary: slot.temporary.map(|content| slot.side(content)),
                })
            }
            Request::Step(target, step) => {
                self.went_back |= self.machine.as_ref().is_some_and(Machine::is_going_back);
                self.slots[target].step(step);
                Outcome::Done
            }
            Request::Verify if self.slots.iter().all(|slot| slot.path == slot.after) && self.has_new_os() => {
                Outcome::Done
            }
            Request::Verify => {
                self.differs_by_update |= self.has_new_os() && !self.was_touched();
                Outcome::Failed("differs".to_owned())
            }
            Request::Commit(ended) => {
                self.committed = Some(ended);
                Outcome::Done
            }
            Request::Close => {
                self.journal.clear();
                Outcome::Done
            }
            // A unit runs with what is at its paths, also where that is half of ours.
            Request::Act(_) | Request::Await(_)
                if self.broken && self.slots.iter().any(|slot| slot.path == slot.after) =>
            {
                self.act_failed = true;
                Outcome::Failed("the unit failed".to_owned())
            }
            Request::Act(_) => {
                self.os = self.os.map(|(booted, _)| (booted, Side::After));
                Outcome::Done
            }
            Request::Undo(_) => {
                self.os = self.os.map(|(booted, _)| (booted, Side::Before));
                match self.os {
                    Some((Side::After, _)) => Outcome::NeedsReboot,
                    _ => Outcome::Done,
                }
            }
            Request::VerifyBack if self.os.is_some_and(|(booted, _)| booted == Side::After) => {
                Outcome::Failed("the OS did not come back".to_owned())
            }
            Request::Await(_) | Request::VerifyBack | Request::Reboot => Outcome::Done,
        };
        if let Some(machine) = &mut self.machine {
            machine.answer(outcome);
        }
    }

    pub(super) fn fail(&mut self) {
        self.failures -= 1;
        self.leave_half_way();
        let next = self.machine.as_ref().and_then(Machine::next);
        self.undo_failed |= self.os.is_some() && matches!(next, Some(Request::Undo(_)));
        self.act_failed |= matches!(next, Some(Request::Act(_)));
        if let Some(machine) = &mut self.machine {
            machine.answer(Outcome::Failed("no".to_owned()));
        }
    }

    pub(super) fn die(&mut self) {
        self.deaths = self.deaths.saturating_sub(1);
        self.died = true;
        self.machine = None;
    }

    pub(super) fn start(&mut self, mutation: Option<Mutation>) {
        let boot = Boot::of_kernel(&self.boot.to_string());
        // Without a journal there is nothing to go on with: the same config is applied once more later.
        let machine = if self.journal.is_empty() {
            let mut machine = Machine::new(&self.begin, &boot);
            machine.answer(Outcome::Failed("nothing was begun".to_owned()));
            machine
        } else {
            Machine::resume(&self.begin, &self.journal, &boot)
        };
        // What the booted image ships; with the old one that is what is declared.
        let ships = |slot: &Slot| if self.side_of_os() == Side::After { slot.before } else { slot.after };
        let again: Vec<Target> = self
            .slots
            .iter()
            .filter(|slot| slot.again)
            .zip(&self.begin.put_again)
            .map(|(slot, again)| again.target((ships(slot) == Content::Nothing).then_some(Image::Absent)))
            .collect();
        self.machine = Some(machine.with_image(&again).with(mutation));
    }

    /// The next boot; `lost`: what was to be booted did not make it, and the same OS comes up again.
    pub(super) fn boot(&mut self, lost: bool) {
        self.boot += 1;
        self.machine = None;
        let before = self.side_of_os();
        self.os = self.os.map(|(booted, next)| if lost { (booted, booted) } else { (next, next) });
        let now = self.side_of_os();
        // What is as the image has it becomes what the other image has.
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

    /// Which side is seen at a path. Of one that is put again the booted image tells what an update would have left there.
    fn side(&self, slot: &Slot) -> Option<Side> {
        if slot.again && slot.path != slot.after && self.side_of_os() == Side::Before {
            return None;
        }
        slot.side(slot.path)
    }

    pub(super) fn was_touched(&self) -> bool {
        self.slots.iter().any(|slot| slot.touched)
    }

    /// How many boots there were, the first one included.
    pub(super) fn boots(&self) -> u8 {
        self.boot
    }

    pub(super) fn stranger(&mut self, slot: usize, what: Stranger) -> Option<()> {
        // Nothing sets attributes on the condition that they are what they were: the look right before the setting is
        // taken for one with it.
        if self.sets() == Some(slot) {
            return None;
        }
        let next = self.machine.as_ref().and_then(Machine::next);
        let looked = matches!(next, Some(Request::Append(Record::Done)))
            || self.journal.last() == Some(&Record::Done)
            || self.is_closed(Ended::Done);
        let slot = &mut self.slots[slot];
        match what {
            Stranger::Writes => slot.path = Content::Strange,
            Stranger::Removes if slot.path == Content::Nothing => return None,
            Stranger::Removes => slot.path = Content::Nothing,
        }
        slot.touched = true;
        slot.late = looked;
        slot.written = what == Stranger::Writes;
        self.strangers -= 1;
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

    /// The new OS is booted; where it waits for a reboot that is not asked for, the next boot takes it.
    fn has_new_os(&self) -> bool {
        let counts = |(booted, next)| if self.begin.reboot { booted } else { next };
        self.os.is_none_or(|os| counts(os) == Side::After)
    }

    /// Whether the host may be rebooted by somebody else now.
    pub(super) fn may_lose_power(&self) -> bool {
        self.os.is_some() && !self.begin.reboot && self.boot == 1 && !self.journal.is_empty()
    }

    pub(super) fn is_closed(&self, ended: Ended) -> bool {
        self.machine.as_ref().and_then(Machine::rest) == Some(&Rest::Closed(ended))
    }

    pub(super) fn ended_truly(&self) -> bool {
        match self.committed {
            // Everything, unless somebody came after the last look.
            Some(Ended::Done) => {
                !self.went_back
                    && !self.broken
                    && self.has_new_os()
                    && self.slots.iter().all(|slot| slot.late || slot.path == slot.after)
            }
            Some(Ended::RolledBack | Ended::Abandoned) => {
                self.has_old_os()
                    && self.slots.iter().all(|slot| slot.touched || slot.path == slot.on(Side::Before))
            }
            None => true,
        }
    }

    /// Without deaths and failures, and started again after every reboot and halt.
    pub(super) fn comes_to_an_end(&self, mutation: Option<Mutation>) -> bool {
        // A long way; checked from where a process has just started, which every way passes.
        let fresh = self.machine.is_none();
        if !fresh {
            return true;
        }
        let mut world = self.clone();
        for _ in 0..200 {
            match world.machine.as_ref().map(|machine| machine.rest().cloned()) {
                None => world.start(mutation),
                Some(None) => world.go(),
                Some(Some(Rest::Rebooting)) => world.boot(false),
                // It is told, and tried again at each start.
                Some(Some(Rest::Halted(_))) if world.slots.iter().any(|slot| slot.stubborn) => return true,
                Some(Some(Rest::Halted(_))) => {
                    // What no reboot of ours brings back a person boots in the end.
                    if world.returns() >= 3 {
                        world.os = Some((Side::Before, Side::Before));
                    }
                    world.die();
                }
                Some(Some(Rest::Closed(_))) => return world.journal.is_empty(),
            }
        }
        false
    }
}
