//! An apply from its beginning to its end, and going on with one that was interrupted.
//!
//! In: manifests, their plan, the host. Out: what became of it. One writer at a time; an open journal is worked off
//! before anything new is begun.

mod back;
mod before;
mod boot;
mod notes;

pub use back::Back;

use super::{
    Interrupts,
    actions::Actor,
    acts::acts,
    error::ApplyError,
    password::{self, ShadowLock},
    preflight::Mco,
    run::{Ending as _, Progress, Reach, Run, Tying, turning},
    taken_back,
    targets::Planner,
    verify::{Differences, Verifier, What},
    waiting,
};
use crate::{
    clock::{boot_id, rfc3339},
    desired::{self, StateSource, Unknown},
    observation::Observer,
    store::{self, HistoryEntry, Store},
};
use back::Configs;
use boot::rebooted;
use jiff::Timestamp;
use notes::Notes;
use sensor_model::{
    expectations::expectations,
    journal::{
        Begin, Boot, Ended, OsChange,
        machine::{Machine, Rest},
    },
    merge::Rendered,
    node_state::{NodeEvent, Wait},
    plan::Plan,
    waiting::note,
};
use sha2::{Digest as _, Sha256};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where an apply works.
#[derive(Debug, Clone)]
pub struct Options {
    /// The host's root directory.
    pub root: PathBuf,
    /// The state directory.
    pub state: PathBuf,
    /// Write although the Machine Config Operator's daemon runs.
    pub beside_mco: bool,
    /// Whether a daemon beside us is told before anything is written, and given time to watch it.
    pub asks_daemon: bool,
}

/// What is to be applied.
#[derive(Debug)]
pub struct Request {
    /// The manifests by file name, as they were read.
    pub manifests: Vec<(String, Vec<u8>)>,
    /// The config that the host has.
    pub old: Rendered,
    /// The generation from which `old` was read; `None` where none is current.
    pub previous: Option<u64>,
    /// The config that it shall have.
    pub new: Rendered,
    /// How to get there.
    pub plan: Plan,
    /// Bring everything that is declared to its declared state, drift or not, and reboot.
    pub force: bool,
    /// Run the plan's acts, the reboot included; without them the files alone are written.
    pub act: bool,
    /// The generation that is brought back.
    pub rollback_to: Option<u64>,
}

/// What became of an apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Its number.
    pub id: u64,
    /// How it came to rest.
    pub rest: Rest,
    /// The old config is there, or on its way.
    pub goes_back: bool,
    /// Why it went back, could not go on, or reboots although no plan says so.
    pub reason: String,
    /// What was left as somebody else wrote it, acts that were skipped, what failed on the way back, and how the host differs
    /// from the old config.
    pub problems: Vec<String>,
    /// What differs at the end and the drift policy ignores or only observes.
    pub tolerated: Vec<String>,
    /// What the comparison with the config that came back found.
    pub back: Back,
}

/// What became of an apply that was interrupted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovered {
    /// None was.
    Nothing,
    /// It was not even begun, or is over now.
    Over(Applied),
    /// Another process is at work on it.
    AtWork,
}

/// Applies configs to one host.
#[derive(Debug)]
pub struct Engine {
    options: Options,
    observer: Arc<Observer>,
    store: Store,
    boot_id: String,
    interrupts: Option<Interrupts>,
    /// Where drift policies are; none for the service's own.
    policies: Vec<PathBuf>,
}

impl Engine {
    /// For the host of the options.
    ///
    /// # Errors
    /// A state directory that cannot be made.
    pub fn new(options: Options, observer: &Arc<Observer>) -> Result<Self, ApplyError> {
        let store = Store::open(&options.state)?;
        let proc = Path::new("/proc");
        let boot_id = boot_id(proc).map_err(|error| ApplyError::io(proc, "read the boot id", &error))?;
        Ok(Self {
            options,
            observer: Arc::clone(observer),
            store,
            boot_id,
            interrupts: None,
            policies: Vec::new(),
        })
    }

    /// With signals that ask it to stop.
    #[must_use]
    pub fn heeding(mut self, interrupts: &Interrupts) -> Self {
        self.interrupts = Some(interrupts.clone());
        self
    }

    /// With other drift policies than those of the host's service; none changes nothing.
    #[must_use]
    pub fn with_policies(mut self, policies: &[PathBuf]) -> Self {
        self.policies = policies.to_vec();
        self
    }

    /// What it keeps.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Finishes or gives back an apply that was interrupted.
    ///
    /// # Errors
    /// A journal that cannot be relied on; nothing is changed then.
    pub async fn recover(
        &self,
        actor: &mut dyn Actor,
        reach: Reach,
        progress: Progress<'_>,
    ) -> Result<Recovered, ApplyError> {
        let _under_way = self.interrupts.as_ref().map(Interrupts::begin);
        let Some(_lock) = self.store.lock()? else { return Ok(Recovered::AtWork) };
        self.recover_locked(actor, reach, progress).await
    }

    async fn recover_locked(
        &self,
        actor: &mut dyn Actor,
        reach: Reach,
        progress: Progress<'_>,
    ) -> Result<Recovered, ApplyError> {
        let Some(parsed) = self.store.open_journal()? else {
            if reach != Reach::Early {
                self.tidy()?;
            }
            return Ok(Recovered::Nothing);
        };
        let begin = parsed.begin.clone();
        let mco = Mco::of(&self.options).or_allowed(begin.beside_mco);
        if let Some(reason) = mco.refuses() {
            return Err(ApplyError::Unfinished(reason));
        }
        progress(&format!("an earlier apply (number {}) was interrupted", begin.id));
        let journal = self.store.go_on(&parsed)?;
        let mut ending = Notes::new(self, &begin);
        let boot = self.boot(actor).await;
        if reach != Reach::Early && rebooted(&parsed, &boot) {
            ending.happened(NodeEvent::Booted, "", "the comparison after the reboot");
        }
        let again = taken_back::targets(&self.observer, &begin.put_again);
        let machine = Machine::resume(&begin, &parsed.records, &boot).with_image(&again);
        // Nothing else is touched before services start, and nothing else is noted.
        if reach == Reach::Early && !machine.puts_again() {
            return Ok(Recovered::Nothing);
        }
        let run = Run {
            observer: &self.observer,
            store: &self.store,
            begin: &begin,
            again: &again,
            machine,
            journal: Some(journal),
            shadow: None,
            reach,
            boot: &boot,
            tie: Tying::of(&self.options),
            mco,
            waits: None,
            unsynced: true,
            turning: turning(&begin),
            interrupts: self.interrupts.as_ref(),
            tolerated: Vec::new(),
        };
        // The way back needs the journal alone; what cannot be compared with its config goes back.
        let rendered = self.rendered_of(begin.id).map_err(|error| error.to_string());
        let old = begin.previous.map(|id| self.rendered_of(id)).transpose();
        let old = old.map_err(|error| error.to_string());
        let configs = Configs { old, new: rendered.as_ref().map_err(Clone::clone) };
        // A large future, which is not to make those of the daemon larger.
        let applied = Box::pin(self.drive(run, configs, actor, &mut ending, progress)).await;
        Ok(Recovered::Over(applied))
    }

    /// Without a journal nothing is under way: what a process left that died before it began one, or after it was
    /// closed, goes away.
    fn tidy(&self) -> Result<(), ApplyError> {
        self.store.forget_new_journal()?;
        self.store.forget_contents()?;
        if self.store.standing()?.is_some_and(|standing| standing.wait.is_some()) {
            store::note_wait(&self.store, None)?;
        }
        for id in self.store.generations()? {
            if let Some(mut entry) = self.store.history(id)?
                && entry.result.is_none()
            {
                entry.result = Some(Ended::Abandoned);
                self.store.set_history(id, &entry)?;
            }
        }
        Ok(())
    }

    /// The merge of a generation's manifests.
    fn rendered_of(&self, id: u64) -> Result<Rendered, ApplyError> {
        let path = self.store.config(id);
        let source = StateSource::applied((id, path.clone()).into());
        desired::rendered(&source, Unknown::Ignore)
            .map_err(|error| ApplyError::refused(&path, error.to_string()))
    }

    /// Applies a config.
    ///
    /// # Errors
    /// Why nothing was begun. What went wrong later is in the result.
    pub async fn apply(
        &self,
        request: Request,
        actor: &mut dyn Actor,
        progress: Progress<'_>,
    ) -> Result<Applied, ApplyError> {
        let _under_way = self.interrupts.as_ref().map(Interrupts::begin);
        let Some(_lock) = self.store.lock()? else {
            return Err(ApplyError::Locked(self.store.path().join("lock")));
        };
        if let Recovered::Over(Applied { rest: Rest::Rebooting | Rest::Halted(_), id, reason, .. }) =
            self.recover_locked(actor, Reach::NoReboot, progress).await?
        {
            return Err(ApplyError::Unfinished(format!("number {id}: {reason}")));
        }
        self.is_current(request.previous)?;
        let now = Timestamp::now();
        if !request.plan.reconcilable {
            let reasons = request.plan.reasons.clone();
            self.note(NodeEvent::NotReconcilable, &reasons.join("; "))?;
            return Err(ApplyError::Unreconcilable(reasons));
        }
        let shadow = if password::concerned(&request.old, &request.new, request.force) {
            Some(self.shadow().await?)
        } else {
            None
        };
        let drift = self.policy().map_err(|error| {
            let problem = format!("the drift policies cannot be used: {error:#}");
            self.refused(&problem);
            ApplyError::Preflight(vec![problem])
        })?;
        let planner = Planner {
            observer: &self.observer,
            store: &self.store,
            old: &request.old,
            new: &request.new,
            everything: request.force,
            drift: &drift,
            today: now.as_second() / 86_400,
        };
        let writes = planner.writes().inspect_err(|error| {
            // What was kept so far may fill the disk; what cannot be removed goes with the next start.
            let _ = self.store.forget_contents();
            self.refused(&error.to_string());
        })?;
        let waited = waiting::before(&self.store, &self.boot_id)?;
        let os = waiting::os_change(&request, &waited, &self.observer);
        // Nothing but a policy keeps the OS from the reboot, and only kernel arguments.
        let stays = request.plan.reconcilable && !request.plan.reboot && !request.force;
        let reboot = request.act && !(stays && os.as_ref().is_none_or(OsChange::is_of_arguments));
        let put_again = planner.put_again(&writes, os.as_ref())?;
        let Differences { problems, tolerated } =
            self.preflight(&request, &writes, &drift, os.as_ref()).await?;
        for difference in &tolerated {
            progress(&format!("left alone: {difference}"));
        }
        if !problems.is_empty() {
            self.refused(&problems.join("; "));
            self.store.forget_contents()?;
            return Err(ApplyError::Preflight(problems));
        }
        let id = self.store.generations()?.last().map_or(1, |last| last + 1);
        let (config, previous) = (digest(&request.manifests), request.previous);
        let boot = if request.act { self.boot(actor).await } else { Boot::of_kernel(&self.boot_id) };
        let begin = Begin {
            id,
            previous,
            rollback_to: request.rollback_to,
            time: rfc3339(now),
            boot: boot.clone(),
            old: previous.and_then(|id| self.store.history(id).ok()??.config.into()).unwrap_or_default(),
            new: config.clone(),
            acts: if request.act { acts(&request.plan, &request.new, os.is_some()) } else { Vec::new() },
            reboot,
            targets: writes.targets,
            unmanaged: writes.unmanaged,
            matching: writes.matching,
            shipped: writes.shipped,
            released: writes.released,
            units: writes.units,
            put_again,
            os,
            beside_mco: self.options.beside_mco,
        };
        let again: Vec<_> = begin.put_again.iter().map(|again| again.target(None)).collect();
        let waiting = waiting::after(&request, &waited, begin.os.as_ref(), reboot, &self.observer);
        self.store.add_generation(id, &request.manifests)?;
        self.store.set_waiting(id, &waiting)?;
        self.store.set_history(
            id,
            &HistoryEntry {
                id,
                previous,
                rollback_to: request.rollback_to,
                began: begin.time.clone(),
                ended: None,
                result: None,
                reason: String::new(),
                problems: Vec::new(),
                config,
                plan: request.plan,
                paths: begin.targets.len(),
                put_again: Vec::new(),
                without_acts: !request.act,
            },
        )?;
        let run = Run {
            observer: &self.observer,
            store: &self.store,
            begin: &begin,
            again: &again,
            machine: Machine::new(&begin, &boot),
            journal: None,
            shadow,
            reach: Reach::End,
            boot: &boot,
            tie: Tying::of(&self.options),
            mco: Mco::of(&self.options),
            waits: None,
            unsynced: true,
            turning: turning(&begin),
            interrupts: self.interrupts.as_ref(),
            tolerated: Vec::new(),
        };
        let mut ending = Notes::new(self, &begin);
        let (old, new) = (request.old.clone(), &request.new);
        let is_known = previous.is_some() || !expectations(&old).is_ok_and(|nothing| nothing.is_empty());
        let configs = Configs { old: Ok(is_known.then_some(old)), new: Ok(new) };
        Ok(Box::pin(self.drive(run, configs, actor, &mut ending, progress)).await)
    }

    async fn drive(
        &self,
        mut run: Run<'_>,
        configs: Configs<'_>,
        actor: &mut dyn Actor,
        ending: &mut Notes<'_>,
        progress: Progress<'_>,
    ) -> Applied {
        let policy = self.policy_or_none();
        let acts = run.begin.reboot || run.begin.os.is_some() || !run.begin.acts.is_empty();
        let what = What::of(acts);
        let expected = configs.new.and_then(|rendered| {
            let mut expectations = expectations(rendered).map_err(|error| error.to_string())?;
            // Where it cannot be read, nothing waits, and what is not there leads to the way back.
            let waiting = self.store.waiting(run.begin.id, &self.boot_id).unwrap_or_default();
            note(&mut expectations, &waiting);
            let root = &self.options.root;
            let verifier = Verifier::new(&self.observer, root, rendered, &policy, expectations, what);
            Ok(verifier.with_os_counted(run.begin.os.is_some()))
        });
        let rest = run.drive(actor, expected, ending, progress).await;
        let (back, found) = self.compare(&run, &rest, configs.old, what, ending).await;
        let machine = &run.machine;
        let reason = match &rest {
            // All that went wrong, the first of it first.
            Rest::Halted(reason) => reason.clone(),
            Rest::Rebooting if !machine.is_going_back() => machine.failure().unwrap_or_default().to_owned(),
            Rest::Closed(Ended::Abandoned) => machine.problems().join("; "),
            _ => machine.reason().to_owned(),
        };
        let goes_back = machine.is_going_back();
        let problems = machine.problems().iter().cloned().chain(found).collect();
        let tolerated = if matches!(rest, Rest::Closed(Ended::Done)) { run.tolerated } else { Vec::new() };
        Applied { id: run.begin.id, rest, goes_back, reason, problems, tolerated, back }
    }

    /// A plan starts from the config that it was made for, and from no other.
    fn is_current(&self, planned: Option<u64>) -> Result<(), ApplyError> {
        match self.store.current()?.map(|(id, _)| id) {
            current if current == planned => Ok(()),
            Some(id) => Err(ApplyError::Overtaken(format!("number {id}"))),
            None => Err(ApplyError::Overtaken("none".to_owned())),
        }
    }

    fn refused(&self, reason: &str) {
        if let Err(error) = self.note(NodeEvent::Refused, reason) {
            tracing::error!(%error, "The node's state cannot be noted.");
        }
    }

    /// The lock of the shadow file.
    async fn shadow(&self) -> Result<ShadowLock, ApplyError> {
        let mut waited = false;
        let mut told = |what: &str| {
            waited = true;
            self.waits(Some((Wait::Lock, what)));
        };
        let taken = ShadowLock::take(&self.observer, &mut told).await;
        if waited {
            self.waits(None);
        }
        taken
    }

    fn waits(&self, wait: Option<(Wait, &str)>) {
        if let Err(error) = store::note_wait(&self.store, wait) {
            tracing::error!(%error, "What is waited for cannot be noted.");
        }
    }

    fn note(&self, event: NodeEvent, reason: &str) -> Result<(), ApplyError> {
        store::note_event(&self.store, event, None, reason, "", Timestamp::now())?;
        Ok(())
    }
}

/// One digest for all manifests.
fn digest(manifests: &[(String, Vec<u8>)]) -> String {
    let mut hasher = Sha256::new();
    for (_, bytes) in manifests {
        hasher.update((bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    hex::encode(hasher.finalize())
}
