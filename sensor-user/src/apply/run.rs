//! Doing what the journal's machine asks for.
//!
//! In: a machine and the records on which it rests. Out: how it came to rest. Each request is one step; what the
//! machine decides is in `sensor_model::journal` and is checked there.

mod before;
mod durable;
mod told;
mod turning;

use told::{image, stuck};
pub(super) use turning::turning;

use super::{
    actions::{Acted, Actor, Rested, Undone},
    error::ApplyError,
    interrupts::Interrupts,
    names,
    password::ShadowLock,
    preflight::Mco,
    tie::{self, Hello, Tie},
    verify::{Differences, Verifier},
};
use crate::{
    disk::{self, Identity, Place, Removed},
    observation::Observer,
    store::{AppendError, JournalFile, Store},
};
use sensor_model::journal::{
    ActKind, Begin, Boot, Brings, Ended, FileImage, Image, Record, Target,
    machine::{Machine, Outcome, Request, Rest},
    settle::{Settling, Side, Sight},
};
use sensor_model::node_state::{NodeEvent, Wait};
use std::{collections::BTreeSet, ffi::OsString, path::PathBuf};

/// Told how it goes on, one line for each step.
pub(super) type Progress<'a> = &'a mut dyn FnMut(&str);

/// Who takes note of what happens, besides the journal.
pub(super) trait Ending {
    /// The node's state changes.
    fn happened(&mut self, event: NodeEvent, reason: &str, waiting_for: &str);
    /// It waits for something, in the same state.
    fn waits(&mut self, wait: Wait, what: &str);
    /// What an update of the OS took back is about to be put again.
    fn put_again(&mut self, target: &Target) -> Result<(), ApplyError>;
    /// The config that holds now becomes the current one, and the history says so. May be called twice.
    fn commit(&mut self, ended: Ended, machine: &Machine) -> Result<(), ApplyError>;
}

/// One apply under way.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) observer: &'a Observer,
    pub(super) store: &'a Store,
    pub(super) begin: &'a Begin,
    /// What is put again after an update of the OS, numbered behind the journal's targets.
    pub(super) again: &'a [Target],
    pub(super) machine: Machine,
    /// Absent until the first record is written.
    pub(super) journal: Option<JournalFile>,
    /// Kept from the reading of the shadow file until it is written.
    pub(super) shadow: Option<ShadowLock>,
    /// How far it may go now.
    pub(super) reach: Reach,
    /// The boot that runs.
    pub(super) boot: &'a Boot,
    /// How it stands with the daemon.
    pub(super) tie: Tying,
    /// And with the Machine Config Operator's.
    pub(super) mco: Mco<'a>,
    /// What was told last that it waits for.
    pub(super) waits: Option<(Wait, String)>,
    /// Steps may have been taken since the disks were last made durable; also by a process that is dead.
    pub(super) unsynced: bool,
    /// Paths that are a directory before or after it, and something else on the other side.
    pub(super) turning: BTreeSet<PathBuf>,
    /// Signals that ask it to stop.
    pub(super) interrupts: Option<&'a Interrupts>,
    /// What the drift policy left alone in the comparison.
    pub(super) tolerated: Vec<String>,
}

/// How far an apply is taken by who goes on with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// To its end, with the reboot that it needs.
    End,
    /// What an update of the OS took back is put again, and nothing else is done: what starts then reads it.
    Early,
    /// As far as it comes without a reboot.
    NoReboot,
    /// As far as it comes without a reboot and without a change of the OS. The daemon's service has no right to what the
    /// tools for that do: they make namespaces and mount.
    NoOs,
}

/// What waits for a reboot after a soft one says so: that left the kernel running, or was not what was to come.
const NOT_BY_SOFT: &str = "; the soft reboot since then has not brought the new OS or its kernel arguments";

/// What leaves the OS as it is says so.
const NO_OS: &str = "the daemon changes no OS; `holdfast apply --resume` does it";

/// The daemon beside us.
#[derive(Debug)]
pub(super) enum Tying {
    /// It is to be told before anything is written; this is the state directory.
    Due(PathBuf),
    /// It was told, where there is one, and learns of our end by the end of this.
    Told { _tie: Option<Tie> },
    /// We are the daemon.
    Never,
}

impl Tying {
    /// As the options want it.
    pub(super) fn of(options: &super::Options) -> Self {
        if options.asks_daemon { Self::Due(options.state.clone()) } else { Self::Never }
    }
}

/// What is waited for at first.
const WRITTEN: &str = "files to be written";

impl Run<'_> {
    /// Works until the machine rests. Without a verifier, why there is none is what the comparison says.
    pub(super) async fn drive(
        &mut self,
        actor: &mut dyn Actor,
        mut verifier: Result<Verifier<'_>, String>,
        ending: &mut dyn Ending,
        progress: Progress<'_>,
    ) -> Rest {
        while let Some(request) = self.machine.next() {
            if let Some(rest) = self.leaves(&request, ending) {
                return rest;
            }
            self.tie(ending, &mut *progress).await;
            self.tell_wait(&request, ending);
            if let Some(line) = self.line(&request) {
                progress(&line);
            }
            let was_going_back = self.machine.is_going_back();
            let no_look = was_going_back || self.machine.puts_again();
            let interrupted = self.interrupts.and_then(|asked| asked.before(&request, no_look));
            let outcome = match request {
                _ if let Some(reason) = interrupted => Outcome::Failed(reason),
                Request::Begin => {
                    let begun = self.begin();
                    if begun == Outcome::Done {
                        ending.happened(NodeEvent::Begun, "", WRITTEN);
                        self.waits = Some((Wait::Files, WRITTEN.to_owned()));
                    }
                    begun
                }
                Request::Append(record) => {
                    if matches!(record, Record::Written | Record::RolledBack { .. }) {
                        // What acts may have users to make.
                        self.shadow = None;
                    }
                    match self.make_durable(&record) {
                        Ok(()) => self.append(&record),
                        Err(error) => failed(error),
                    }
                }
                Request::Look(target) => self.look(target).map_or_else(failed, Outcome::Sight),
                Request::Step(number, step) => match self.before_step(number, step, ending).await {
                    Ok(()) => self.step(number, step),
                    Err(error) => failed(error),
                },
                // What runs since another boot was started with what is written already. A job now would only stand in
                // the way of the boot's own.
                Request::Act(act) | Request::Await(act) if self.awaits(&request) => {
                    self.rested(actor, act).await
                }
                Request::Act(act) | Request::Await(act) => {
                    match actor.act(&self.begin.acts[act], self.begin).await {
                        Ok(Acted::Done) => Outcome::Done,
                        Ok(Acted::Skipped(reason)) => Outcome::Skipped(reason),
                        Err(reason) => Outcome::Failed(reason),
                    }
                }
                Request::Undo(act) if self.reach == Reach::NoOs && self.is_of_os(act) => {
                    Outcome::Failed(NO_OS.to_owned())
                }
                Request::Undo(act) => match actor.undo(&self.begin.acts[act], self.begin).await {
                    Ok(Undone::Now) => Outcome::Done,
                    Ok(Undone::WithTheNextBoot) => Outcome::NeedsReboot,
                    Err(reason) => Outcome::Failed(reason),
                },
                Request::Reboot => {
                    let why = match self.machine.failure() {
                        _ if was_going_back => {
                            format!("the old OS comes back with a reboot: {}", self.machine.reason())
                        }
                        Some(failure) => failure.to_owned(),
                        None => "the new config needs a reboot".to_owned(),
                    };
                    ending.happened(NodeEvent::RebootRequested, &why, "the reboot");
                    match actor.reboot().await {
                        Ok(()) => Outcome::Done,
                        Err(reason) => Outcome::Failed(reason),
                    }
                }
                Request::Verify => match &mut verifier {
                    Ok(verifier) => {
                        let Differences { problems, tolerated } = verifier.verify().await;
                        self.tolerated = tolerated;
                        if problems.is_empty() { Outcome::Done } else { Outcome::Failed(problems.join("; ")) }
                    }
                    Err(reason) => Outcome::Failed(format!("the new config cannot be read: {reason}")),
                },
                Request::VerifyBack => match self.begin.os.as_ref().map(|change| actor.is_back(change)) {
                    None | Some(Ok(())) => Outcome::Done,
                    Some(Err(reason)) => Outcome::Failed(reason),
                },
                Request::Commit(ended) => {
                    ending.commit(ended, &self.machine).map_or_else(failed, |()| Outcome::Done)
                }
                Request::Close => self.close().map_or_else(failed, |()| Outcome::Done),
            };
            match &outcome {
                Outcome::Failed(reason) | Outcome::Broken(reason) => progress(&format!("failed: {reason}")),
                Outcome::Skipped(reason) => progress(reason),
                _ => {}
            }
            self.machine.answer(outcome);
            if self.machine.is_going_back() && !was_going_back {
                progress(&format!("going back: {}", self.machine.reason()));
            }
        }
        let rest = self.machine.rest().cloned().unwrap_or(Rest::Halted("no next step".to_owned()));
        stuck(&rest, ending);
        rest
    }

    /// How it comes to rest where it may not go on; `None` where it may.
    fn leaves(&self, request: &Request, ending: &mut dyn Ending) -> Option<Rest> {
        if self.reach == Reach::Early && !self.machine.puts_again() {
            return Some(
                self.machine.halted("the rest is left to the daemon or to `holdfast apply --resume`"),
            );
        }
        match request {
            Request::Reboot if self.reach != Reach::End => {
                let not_by = if self.booted_since() { NOT_BY_SOFT } else { "" };
                ending.waits(
                    Wait::Reboot,
                    &format!("a reboot, which `holdfast apply --resume` asks for{not_by}"),
                );
                let needed = format!("a reboot is needed; `holdfast apply --resume` asks for it{not_by}");
                Some(self.machine.halted(&needed))
            }
            Request::Act(act) if self.reach == Reach::NoOs && self.is_of_os(*act) => {
                let rest = self.machine.halted(NO_OS);
                stuck(&rest, ending);
                Some(rest)
            }
            _ => None,
        }
    }

    /// Before anything is written the daemon watches it.
    async fn tie(&mut self, ending: &mut dyn Ending, progress: Progress<'_>) {
        let (Some(_), Tying::Due(state)) = (&self.journal, &self.tie) else { return };
        if tie::socket(state).exists() {
            ending.waits(
                Wait::Daemon,
                &format!("the daemon to watch it, {} s at most", tie::PATIENCE.as_secs()),
            );
            self.waits = None;
        }
        let hello = Hello { apply: Some(self.begin.id), ..Hello::default() };
        let tie = Tie::make(state, &hello, &mut *progress).await;
        self.tie = Tying::Told { _tie: tie };
    }

    fn is_of_os(&self, act: usize) -> bool {
        self.begin.acts[act].kind == ActKind::Os
    }

    /// Whether the boot in which it began is over.
    fn booted_since(&self) -> bool {
        self.begin.boot.is_over(self.boot, Brings::Services)
    }

    /// Looks at an act's unit after a boot. Where nobody can tell how it is there is nothing to be done, not even to go
    /// back: the next start asks again.
    async fn rested(&self, actor: &mut dyn Actor, act: usize) -> Outcome {
        match actor.rested(&self.begin.acts[act], self.begin).await {
            Ok(Rested::Well) => Outcome::Done,
            Ok(Rested::Failed(reason)) => Outcome::Failed(format!("after the reboot: {reason}")),
            Err(reason) => Outcome::Broken(format!("nobody can tell what the reboot made of {reason}")),
        }
    }

    fn begin(&mut self) -> Outcome {
        // The preflight took a while, and what did not run then may do so by now.
        if let Some(reason) = self.mco.refuses() {
            return Outcome::Failed(reason);
        }
        match self.store.begin(&Record::Begin(Box::new(self.begin.clone()))) {
            Ok(journal) => {
                self.journal = Some(journal);
                Outcome::Done
            }
            Err(error) => failed(error),
        }
    }

    fn append(&mut self, record: &Record) -> Outcome {
        let Some(journal) = &mut self.journal else { return Outcome::Broken("no journal".to_owned()) };
        match journal.append(record) {
            Ok(()) => Outcome::Done,
            Err(AppendError::Clean(error)) => failed(error),
            Err(AppendError::Broken(error)) => Outcome::Broken(error.to_string()),
        }
    }

    fn close(&mut self) -> Result<(), ApplyError> {
        if self.journal.is_some() {
            // Without the journal the config that is current, history and originals have to be there.
            self.store.sync()?;
        }
        self.store.close()?;
        self.journal = None;
        // Contents that stay behind are removed by the next apply, and are readable to root alone.
        if let Err(error) = self.store.forget_contents() {
            tracing::warn!(%error, "Contents of an apply that is over stay in the store.");
        }
        Ok(())
    }

    pub(super) fn temporary(&self, number: usize) -> OsString {
        let path = self.target(number).temporary(self.begin.id, number);
        path.file_name().map(OsString::from).unwrap_or_default()
    }

    fn look(&self, number: usize) -> Result<Sight, ApplyError> {
        let target = self.target(number);
        let absent = |image: &Image| *image == Image::Absent;
        let Some(place) = self.place(target)? else {
            let side = match (absent(&target.before), absent(&target.after)) {
                (true, _) => Some(Side::Before),
                (_, true) => Some(Side::After),
                _ => None,
            };
            return Ok(Sight { path: side, between: false, temporary: None });
        };
        let name = self.temporary(number);
        place.remove_unfinished(&disk::part(&name))?;
        let path = place.see()?;
        let side = self.side(target, path.image.as_ref(), path.identity)?;
        let between = path.image.as_ref().is_some_and(|seen| target.is_between(seen));
        let beside = place.see_name(&name, &mut |_| {})?;
        let temporary = match &beside.image {
            Some(Image::Absent) => None,
            image => Some(self.side(target, image.as_ref(), beside.identity)?),
        };
        Ok(Sight { path: side, between, temporary })
    }

    /// Which of a target's images was seen.
    fn side(
        &self,
        target: &Target,
        seen: Option<&Image>,
        identity: Option<Identity>,
    ) -> Result<Option<Side>, ApplyError> {
        let Some(seen) = seen else { return Ok(None) };
        // Our own new name of a file whose inode has gone back meanwhile is still ours.
        let before = target.before.is(seen);
        if target.after.is(seen) && (!before || self.is_linked(&target.after, identity)?) {
            return Ok(Some(Side::After));
        }
        Ok(before.then_some(Side::Before))
    }

    /// Whether another name of a file is one, in truth.
    fn is_linked(&self, image: &Image, identity: Option<Identity>) -> Result<bool, ApplyError> {
        let Image::File(FileImage { hard: Some(of), .. }) = image else { return Ok(true) };
        let Some(place) = Place::find(self.observer.root(), of)? else { return Ok(false) };
        Ok(place.see()?.identity == identity)
    }

    fn step(&mut self, number: usize, step: Settling) -> Outcome {
        self.unsynced = true;
        match self.try_step(number, step) {
            Ok(outcome) => outcome,
            // The next look shows what the other process left.
            Err(ApplyError::Disk(error)) if error.is_race() => Outcome::Done,
            Err(error) => failed(error),
        }
    }

    fn try_step(&self, number: usize, step: Settling) -> Result<Outcome, ApplyError> {
        let target = self.target(number);
        let place =
            self.place(target)?.ok_or_else(|| ApplyError::refused(&target.path, "its directory is gone"))?;
        let name = self.temporary(number);
        match step {
            Settling::Make(side) => {
                self.make(&place, &name, number, side)?;
                return Ok(Outcome::Done);
            }
            Settling::Swap if target.turns() && turning::must_stay(target, &place, &name)? => {
                return Ok(Outcome::Kept);
            }
            Settling::Swap => place.swap(&name)?,
            Settling::PutIn => place.put_in(&name)?,
            Settling::TakeAway if place.is_directory(&place.name)? == Some(true) => {
                if place.take_away_directory()? == Removed::NotEmpty {
                    return Ok(Outcome::Kept);
                }
            }
            Settling::TakeAway => place.take_away(&name)?,
            Settling::Set(side) => {
                let file = place.open_directory()?;
                // No call sets attributes on the condition that they are unchanged. So they are read again right before.
                let present = place.read_metadata(&file)?;
                if !target.is_between(&Image::Directory(present)) {
                    return Ok(Outcome::Done);
                }
                if let Image::Directory(metadata) = image(target, side) {
                    place.set_metadata(&file, metadata)?;
                }
            }
            Settling::Discard => {
                let is_directory = place.is_directory(&name)? == Some(true);
                match place.discard(&name, is_directory)? {
                    Removed::Yes => {}
                    Removed::NotEmpty if target.turns() => {
                        turning::stays_after_all(target, &place, &name)?;
                        return Ok(Outcome::Kept);
                    }
                    Removed::NotEmpty => return Err(place.not_empty().into()),
                }
            }
            Settling::Finished | Settling::Foreign => {}
        }
        place.sync_names()?;
        Ok(Outcome::Done)
    }

    fn make(
        &self,
        place: &Place,
        name: &std::ffi::OsStr,
        number: usize,
        side: Side,
    ) -> Result<(), ApplyError> {
        let image = image(self.target(number), side);
        let hard = self.same_file(number, side)?;
        if hard.is_some() {
            match place.make(name, image, None, hard.as_ref()) {
                // Where the names cannot be joined again, the path gets a file of its own with the same content; this is reported.
                Err(error) if error.is_no_hard_link() && names::had(image) => {}
                made => return Ok(made?),
            }
        }
        let content = image.content().map(|sha256| self.store.content(sha256)).transpose()?;
        Ok(place.make(name, image, content.as_deref(), None)?)
    }
}

fn failed(error: impl Into<ApplyError>) -> Outcome {
    Outcome::Failed(error.into().to_string())
}
