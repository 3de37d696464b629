//! The disk, the journal and everybody who works on them.

use super::super::{
    Act, ActKind, Begin, Boot, Ended, Fallback, FileImage, Image, Metadata, Record, Target,
    checker::Mutation,
    machine::{Machine, Outcome, Request, Rest},
    settle::{Settling, Side, Sight},
};

/// What is somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Content {
    Nothing,
    Old,
    New,
    Strange,
    /// A directory with attributes of both.
    HalfWay,
}

/// What somebody else does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Stranger {
    Writes,
    Removes,
}

/// What is applied.
#[expect(clippy::struct_excessive_bools, reason = "facts of a model, read by name")]
#[derive(Debug, Clone)]
pub(super) struct Setting {
    targets: Vec<(Content, Content)>,
    /// The first target is a directory that stays.
    in_place: bool,
    /// The first target is a directory that turns into a file.
    turns: bool,
    /// And its file system does not keep what it had before.
    stubborn: bool,
    fallback: Option<Fallback>,
    reboot: bool,
    /// The OS is changed, too.
    os: bool,
    /// The unit of the act does not run with the new files.
    broken: bool,
    deaths: u8,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            in_place: false,
            turns: false,
            stubborn: false,
            fallback: None,
            reboot: false,
            os: false,
            broken: false,
            deaths: 2,
        }
    }
}

impl Setting {
    pub(super) fn all() -> Vec<Self> {
        use Content::{New, Nothing, Old};
        let pairs = [
            vec![(Old, New), (Nothing, New)],
            vec![(Old, Nothing), (Old, New)],
            vec![(Nothing, New), (Old, Nothing)],
        ];
        let mut settings = Vec::new();
        for targets in pairs {
            for (fallback, reboot) in [
                (None, false),
                (None, true),
                (Some(Fallback::Rollback), false),
                (Some(Fallback::Reboot), false),
            ] {
                settings.push(Self { targets: targets.clone(), fallback, reboot, ..Self::default() });
            }
        }
        let targets = vec![(Old, New), (Old, New)];
        for fallback in [None, Some(Fallback::Rollback)] {
            let in_place = Self { targets: targets.clone(), fallback, in_place: true, ..Self::default() };
            settings.extend([in_place.clone(), Self { stubborn: true, ..in_place }]);
            settings.push(Self { targets: targets.clone(), fallback, turns: true, ..Self::default() });
        }
        for fallback in [Fallback::Rollback, Fallback::Reboot] {
            let targets = vec![(Old, New)];
            settings.push(Self { targets, fallback: Some(fallback), broken: true, ..Self::default() });
        }
        // A change of the OS goes with a way back, and with a reboot unless a policy lets it wait for one.
        for reboot in [true, false] {
            let (fallback, targets) = (Some(Fallback::Rollback), vec![(Old, New)]);
            settings.push(Self { targets, fallback, reboot, os: true, ..Self::default() });
        }
        settings
    }

    fn begin(&self) -> Begin {
        let image = |content: Content, number: usize| match content {
            Content::Nothing => Image::Absent,
            other if self.in_place && number == 0 => {
                Image::Directory(Metadata { mode: u32::from(other == Content::New), ..Metadata::default() })
            }
            Content::Old if self.turns && number == 0 => Image::Directory(Metadata::default()),
            other => Image::File(FileImage {
                metadata: Metadata::default(),
                sha256: format!("{other:?}"),
                size: 0,
                modified_ns: None,
                hard: None,
                names: 0,
            }),
        };
        let targets = (0..)
            .zip(&self.targets)
            .map(|(number, (before, after)): (usize, _)| Target {
                path: format!("/{number}").into(),
                before: image(*before, number),
                after: image(*after, number),
            })
            .collect();
        let act = |fallback| Act {
            kind: if self.os { ActKind::Os } else { ActKind::Restart },
            unit: (!self.os).then(|| "a.service".to_owned()),
            timeout_s: 1,
            fallback,
            because: Vec::new(),
        };
        Begin {
            id: 1,
            previous: None,
            rollback_to: None,
            time: String::new(),
            boot: Boot::of_kernel("1"),
            old: String::new(),
            new: String::new(),
            targets,
            unmanaged: Vec::new(),
            matching: Vec::new(),
            shipped: Vec::new(),
            released: Vec::new(),
            units: Vec::new(),
            os: None,
            acts: self.fallback.into_iter().map(act).collect(),
            reboot: self.reboot,
            beside_mco: false,
        }
    }
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
}

impl Slot {
    fn side(&self, content: Content) -> Option<Side> {
        match content {
            content if content == self.before => Some(Side::Before),
            content if content == self.after => Some(Side::After),
            _ => None,
        }
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
        });
        Self {
            slots: slots.collect(),
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
                    path: slot.side(slot.path),
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
            Request::Verify => Outcome::Failed("differs".to_owned()),
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
        self.machine = Some(machine.with(mutation));
    }

    /// The next boot; `lost`: what was to be booted did not make it, and the same OS comes up again.
    pub(super) fn boot(&mut self, lost: bool) {
        self.boot += 1;
        self.machine = None;
        self.os = self.os.map(|(booted, next)| if lost { (booted, booted) } else { (next, next) });
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
            |side| self.slots.iter().filter(|slot| !slot.touched).all(|slot| slot.path == slot.content(side));
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
                self.has_old_os() && self.slots.iter().all(|slot| slot.touched || slot.path == slot.before)
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
