//! Doing what the journal's machine asks for.
//!
//! In: a machine and the records on which it rests. Out: how it came to rest. Each request is one step; what the
//! machine decides is in `sensor_model::journal` and is checked there.

use super::{
    ApplyError,
    actions::{Actor, Undone},
    image::Place,
    password::{self, ShadowLock},
    preflight::Mco,
    store::{AppendError, JournalFile, Store},
    sys,
    tie::{Hello, Tie},
    verify::Verifier,
};
use crate::observation::Observer;
use nix::{
    errno::Errno,
    fcntl::{OFlag, openat},
    sys::stat::Mode,
};
use sensor_model::journal::{
    ActKind, Begin, Ended, FileImage, Image, Record, Target,
    machine::{Machine, Outcome, Request, Rest},
    settle::{Settling, Side, Sight},
};
use sensor_model::node_state::{NodeEvent, Wait};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// Told how it goes on, one line for each step.
pub(super) type Progress<'a> = &'a mut dyn FnMut(&str);

/// Who takes note of what happens, besides the journal.
pub(super) trait Ending {
    /// The node's state changes.
    fn happened(&mut self, event: NodeEvent, reason: &str, waiting_for: &str);
    /// It waits for something, in the same state.
    fn waits(&mut self, wait: Wait, what: &str);
    /// The config that holds now becomes the current one, and the history says so. May be called twice.
    fn commit(&mut self, ended: Ended, machine: &Machine) -> Result<(), ApplyError>;
}

/// One apply under way.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) observer: &'a Observer,
    pub(super) store: &'a Store,
    pub(super) begin: &'a Begin,
    pub(super) machine: Machine,
    /// Absent until the first record is written.
    pub(super) journal: Option<JournalFile>,
    /// Kept from the reading of the shadow file until it is written.
    pub(super) shadow: Option<ShadowLock>,
    /// Whether a reboot may be asked for now.
    pub(super) may_reboot: bool,
    /// How it stands with the daemon.
    pub(super) tie: Tying,
    /// And with the Machine Config Operator's.
    pub(super) mco: Mco<'a>,
}

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
            if let Some(line) = self.line(&request) {
                progress(&line);
            }
            if self.journal.is_some()
                && let Tying::Due(state) = &self.tie
            {
                let hello = Hello { apply: Some(self.begin.id), ..Hello::default() };
                let tie = Tie::make(state, &hello, &mut *progress).await;
                self.tie = Tying::Told { _tie: tie };
            }
            let was_going_back = self.machine.is_going_back();
            let outcome = match request {
                Request::Begin => {
                    let begun = self.begin();
                    if begun == Outcome::Done {
                        ending.happened(NodeEvent::Begun, "", "files to be written");
                    }
                    begun
                }
                Request::Append(record) => {
                    if matches!(record, Record::Written | Record::RolledBack { .. }) {
                        // What acts may have users to make.
                        self.shadow = None;
                    }
                    self.append(&record)
                }
                Request::Look(target) => self.look(target).map_or_else(failed, Outcome::Sight),
                Request::Step(target, step) => match self.lock_shadow(target).await {
                    Ok(()) => self.step(target, step),
                    Err(error) => failed(error),
                },
                Request::Act(act) => {
                    let act = &self.begin.acts[act];
                    let what = format!("{}, {} s at most", super::actions::describe(act), act.timeout_s);
                    ending.waits(Wait::Act, &what);
                    match actor.act(act, self.begin).await {
                        Ok(()) => Outcome::Done,
                        Err(reason) => Outcome::Failed(reason),
                    }
                }
                Request::Undo(act) => match actor.undo(&self.begin.acts[act], self.begin).await {
                    Ok(Undone::Now) => Outcome::Done,
                    Ok(Undone::WithTheNextBoot) => Outcome::NeedsReboot,
                    Err(reason) => Outcome::Failed(reason),
                },
                Request::Reboot if !self.may_reboot => {
                    ending.waits(Wait::Reboot, "a reboot, which `holdfast apply --resume` asks for");
                    return Rest::Halted(
                        "a reboot is needed; `holdfast apply --resume` asks for it".to_owned(),
                    );
                }
                Request::Reboot => {
                    let why = if was_going_back {
                        format!("the old OS comes back with a reboot: {}", self.machine.reason())
                    } else {
                        "the new config needs a reboot".to_owned()
                    };
                    ending.happened(NodeEvent::RebootRequested, &why, "the reboot");
                    match actor.reboot().await {
                        Ok(()) => Outcome::Done,
                        Err(reason) => Outcome::Failed(reason),
                    }
                }
                Request::Verify => match &mut verifier {
                    Ok(verifier) => match verifier.verify().await {
                        problems if problems.is_empty() => Outcome::Done,
                        problems => Outcome::Failed(problems.join("; ")),
                    },
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
            if let Outcome::Failed(reason) | Outcome::Broken(reason) = &outcome {
                progress(&format!("failed: {reason}"));
            }
            self.machine.answer(outcome);
            if self.machine.is_going_back() && !was_going_back {
                progress(&format!("going back: {}", self.machine.reason()));
            }
        }
        let rest = self.machine.rest().cloned().unwrap_or(Rest::Halted("no next step".to_owned()));
        if let Rest::Halted(reason) = &rest {
            ending.happened(NodeEvent::Stuck, reason, "the next start");
        }
        rest
    }

    /// What a person is told before a request.
    fn line(&self, request: &Request) -> Option<String> {
        let path = |target: usize| self.begin.targets[target].path.display().to_string();
        Some(match request {
            Request::Begin => format!("write down {} changes of paths", self.begin.targets.len()),
            Request::Step(target, Settling::PutIn | Settling::Swap | Settling::Set(_)) => {
                let verb = if self.machine.is_going_back() { "give back" } else { "write" };
                format!("{verb} {}", path(*target))
            }
            Request::Step(target, Settling::TakeAway) => format!("remove {}", path(*target)),
            Request::Act(act) => format!("run {}", super::actions::describe(&self.begin.acts[*act])),
            Request::Undo(act) if self.begin.acts[*act].kind == ActKind::Os => {
                "bring the old OS back".to_owned()
            }
            Request::VerifyBack => "compare the OS with what it was".to_owned(),
            Request::Undo(act) => {
                format!("run {} again, with the old config", super::actions::describe(&self.begin.acts[*act]))
            }
            Request::Reboot => "reboot".to_owned(),
            Request::Verify => "compare everything with the new config".to_owned(),
            Request::Append(_)
            | Request::Look(_)
            | Request::Step(..)
            | Request::Commit(_)
            | Request::Close => return None,
        })
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
        self.store.close()?;
        self.journal = None;
        // Contents that stay behind are removed by the next apply, and are readable to root alone.
        if let Err(error) = self.store.forget_contents() {
            tracing::warn!(%error, "Contents of an apply that is over stay in the store.");
        }
        Ok(())
    }

    /// On the way back, and after a death, the shadow file is written without having been read before.
    async fn lock_shadow(&mut self, target: usize) -> Result<(), ApplyError> {
        if self.begin.targets[target].path == Path::new(password::SHADOW) && self.shadow.is_none() {
            self.shadow = Some(ShadowLock::take(self.observer).await?);
        }
        Ok(())
    }

    fn place(&self, target: &Target) -> Result<Option<Place>, ApplyError> {
        Place::find(self.observer.root(), &target.path)
    }

    fn temporary(&self, number: usize) -> OsString {
        let path = self.begin.targets[number].temporary(self.begin.id, number);
        path.file_name().map(OsString::from).unwrap_or_default()
    }

    fn look(&self, number: usize) -> Result<Sight, ApplyError> {
        let target = &self.begin.targets[number];
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
        let part = super::image::part(&name);
        // What was never finished counts for nothing.
        if let Some(is_directory) = kind(&place, &part)? {
            sys::remove(&place.directory, &part, is_directory)
                .map_err(|errno| ApplyError::failed(&target.path, "remove what was never finished", errno))?;
        }
        let path = place.see()?;
        let side = self.side(target, path.image.as_ref(), path.identity)?;
        let between = path.image.as_ref().is_some_and(|seen| target.is_between(seen));
        let beside = place.see_name(&name, &mut |_| Ok(()))?;
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
        identity: Option<super::image::Identity>,
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
    fn is_linked(&self, image: &Image, identity: Option<super::image::Identity>) -> Result<bool, ApplyError> {
        let Image::File(FileImage { hard: Some(of), .. }) = image else { return Ok(true) };
        let Some(place) = Place::find(self.observer.root(), of)? else { return Ok(false) };
        Ok(place.see()?.identity == identity)
    }

    fn step(&self, number: usize, step: Settling) -> Outcome {
        match self.try_step(number, step) {
            Ok(outcome) => outcome,
            // Somebody was faster: the next look tells what is there now.
            Err(ApplyError::Failed {
                errno: Errno::ENOENT | Errno::EEXIST,
                operation: "put in" | "swap" | "take away" | "discard",
                ..
            }) => Outcome::Done,
            Err(error) => failed(error),
        }
    }

    fn try_step(&self, number: usize, step: Settling) -> Result<Outcome, ApplyError> {
        let target = &self.begin.targets[number];
        let place =
            self.place(target)?.ok_or_else(|| ApplyError::refused(&target.path, "its directory is gone"))?;
        let name = self.temporary(number);
        let failed = |operation| move |errno| ApplyError::failed(&target.path, operation, errno);
        match step {
            Settling::Make(side) => {
                self.make(&place, &name, image(target, side))?;
                return Ok(Outcome::Done);
            }
            Settling::Swap => sys::exchange(&place.directory, &name, &place.name).map_err(failed("swap"))?,
            Settling::PutIn => {
                sys::rename_free(&place.directory, &name, &place.name).map_err(failed("put in"))?;
            }
            Settling::TakeAway if kind(&place, &place.name)? == Some(true) => {
                match sys::remove(&place.directory, &place.name, true) {
                    Ok(()) => {}
                    Err(Errno::ENOTEMPTY | Errno::EEXIST) => return Ok(Outcome::Kept),
                    Err(errno) => return Err(failed("take away")(errno)),
                }
            }
            Settling::TakeAway => {
                sys::rename_free(&place.directory, &place.name, &name).map_err(failed("take away"))?;
            }
            Settling::Set(side) => {
                let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let file =
                    openat(&place.directory, &*place.name, flags, Mode::empty()).map_err(failed("open"))?;
                // Nothing sets attributes on the condition that they are what they were: so they are looked at once
                // more, as late as that can be.
                let (present, _) = super::image::metadata(&file).map_err(failed("read attributes"))?;
                if !target.is_between(&Image::Directory(present)) {
                    return Ok(Outcome::Done);
                }
                if let Image::Directory(metadata) = image(target, side) {
                    place.set(&file, metadata)?;
                }
                sys::sync(&file).map_err(failed("sync"))?;
            }
            Settling::Discard => {
                let is_directory = kind(&place, &name)?;
                sys::remove(&place.directory, &name, is_directory == Some(true))
                    .map_err(failed("discard"))?;
            }
            Settling::Finished | Settling::Foreign => {}
        }
        sys::sync(&place.directory).map_err(failed("sync the directory"))?;
        Ok(Outcome::Done)
    }

    fn make(&self, place: &Place, name: &std::ffi::OsStr, image: &Image) -> Result<(), ApplyError> {
        let hard = match image {
            Image::File(FileImage { hard: Some(of), .. }) => self.same_file(of, image)?,
            _ => None,
        };
        let content = match (&hard, image.content()) {
            (None, Some(sha256)) => Some(self.store.content(sha256)?),
            _ => None,
        };
        place.make(name, image, content.as_deref(), hard.as_ref())
    }

    /// The file of which an image is to be another name, where it is what the image says.
    fn same_file(&self, of: &Path, image: &Image) -> Result<Option<Place>, ApplyError> {
        let Some(place) = Place::find(self.observer.root(), of)? else { return Ok(None) };
        let seen = place.see()?;
        Ok(seen.image.is_some_and(|seen| image.is(&seen)).then_some(place))
    }
}

fn image(target: &Target, side: Side) -> &Image {
    match side {
        Side::Before => &target.before,
        Side::After => &target.after,
    }
}

/// Whether a name is that of a directory; `None` when nothing has it.
fn kind(place: &Place, name: &std::ffi::OsStr) -> Result<Option<bool>, ApplyError> {
    let seen = nix::sys::stat::fstatat(&place.directory, name, nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW);
    match seen {
        Ok(stat) => Ok(Some(stat.st_mode & nix::libc::S_IFMT == nix::libc::S_IFDIR)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(ApplyError::failed(&place.path, "stat", errno)),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the last use of an error")]
fn failed(error: ApplyError) -> Outcome {
    Outcome::Failed(error.to_string())
}
