//! One apply, from its begin to its end.
//!
//! In: manifests, their plan, the host. Out: the result. A lock allows one apply at a time. An interrupted apply is finished or
//! rolled back first.

use super::{
    notes::StoreNotes,
    rollback::OldAndNew,
    state::{Applied, Engine, Recovered},
};
use crate::{
    apply::{
        act_runner::ActRunner,
        acts::acts,
        driver::{DaemonNotice, Driver, ResumeLimit, changing},
        error::ApplyError,
        generations::forget_old,
        interrupts::Interrupts,
        operator::Mco,
        password,
        request::{ApplyRequest, OperatorRule, Progress},
        target_finder::TargetFinder,
        verify::{ComparedThings, Differences, HostComparer},
        waiting,
    },
    clock::rfc3339,
    store::HistoryEntry,
};
use jiff::Timestamp;
use sensor_model::{
    expectations::expectations,
    journal::{
        ApplyEnd, Begin, Boot, OsChange, Target,
        machine::{Machine, MachineEnd},
    },
    node_state::Milestone,
    waiting::note,
};
use sha2::{Digest as _, Sha256};

impl Engine {
    /// Applies a config.
    ///
    /// # Errors
    /// The apply did not begin. A later failure is in the result.
    pub async fn apply(
        &self,
        request: ApplyRequest,
        runner: &mut dyn ActRunner,
        progress: Progress<'_>,
    ) -> Result<Applied, ApplyError> {
        let _under_way = self.interrupts.as_ref().map(Interrupts::begin);
        let Some(_lock) = self.store.lock()? else {
            return Err(ApplyError::Locked(self.store.path().join("lock")));
        };
        if let Recovered::Over(Applied {
            end: MachineEnd::Rebooting | MachineEnd::Halted(_),
            id,
            reason,
            ..
        }) = self.recover_locked(runner, ResumeLimit::NoReboot, progress).await?
        {
            return Err(ApplyError::Unfinished { id, reason });
        }
        self.is_current(request.previous)?;
        let now = Timestamp::now();
        if !request.plan.reconcilable {
            let reasons: Vec<String> = request.plan.reasons.iter().map(ToString::to_string).collect();
            self.note(Milestone::NotReconcilable, &reasons.join("; "))?;
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
        let finder = TargetFinder {
            observer: &self.observer,
            store: &self.store,
            old: &request.old,
            new: &request.new,
            everything: request.force,
            drift: &drift,
            today: now.as_second() / 86_400,
        };
        let writes = finder.writes().inspect_err(|error| {
            // The contents may have filled the disk. The next start removes those that stay.
            let _ = self.store.forget_contents();
            self.refused(&error.to_string());
        })?;
        let waited = waiting::before(&self.store, &self.boot_id)?;
        let os = waiting::os_change(&request, &waited, &self.observer);
        // Only a policy can make a reboot unnecessary, and only one for kernel arguments.
        let stays = request.plan.reconcilable && !request.plan.reboot && !request.force;
        let reboot = request.act && !(stays && os.as_ref().is_none_or(OsChange::is_of_arguments));
        let overwritten = finder.overwritten(&writes, os.as_ref())?;
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
        let boot = if request.act { self.boot(runner).await } else { Boot::of_kernel(&self.boot_id) };
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
            overwritten,
            os,
            beside_mco: self.options.operator == OperatorRule::Beside,
        };
        let again: Vec<_> = begin.overwritten.iter().map(|again| again.target(None)).collect();
        let waiting = waiting::after(&request, &waited, begin.os.as_ref(), reboot, &self.observer);
        if let Err(error) = forget_old(&self.store) {
            tracing::warn!(%error, "Cannot remove old configs; they stay.");
        }
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
                overwritten: Vec::new(),
                without_acts: !request.act,
            },
        )?;
        let driver = Driver { shadow, ..self.start(&begin, &again, &boot, Machine::new(&begin, &boot)) };
        let mut notes = StoreNotes::new(self, &begin);
        let (old, new) = (request.old.clone(), &request.new);
        let is_known = previous.is_some() || !expectations(&old).is_ok_and(|nothing| nothing.is_empty());
        let configs = OldAndNew { old: Ok(is_known.then_some(old)), new: Ok(new) };
        Ok(Box::pin(self.drive_to_end(driver, configs, runner, &mut notes, progress)).await)
    }

    /// The driver of an apply, before the first request in this process.
    pub(super) fn start<'a>(
        &'a self,
        begin: &'a Begin,
        again: &'a [Target],
        boot: &'a Boot,
        machine: Machine,
    ) -> Driver<'a> {
        Driver {
            observer: &self.observer,
            store: &self.store,
            begin,
            again,
            machine,
            journal: None,
            shadow: None,
            limit: ResumeLimit::Unlimited,
            boot,
            daemon: DaemonNotice::of(&self.options),
            mco: Mco::of(&self.options),
            waits: None,
            unsynced: true,
            refused_os_change: false,
            changing: changing(begin),
            interrupts: self.interrupts.as_ref(),
            tolerated: Vec::new(),
        }
    }

    /// Drives an apply to its end, and compares the host after a rollback.
    pub(super) async fn drive_to_end(
        &self,
        mut driver: Driver<'_>,
        configs: OldAndNew<'_>,
        runner: &mut dyn ActRunner,
        notes: &mut StoreNotes<'_>,
        progress: Progress<'_>,
    ) -> Applied {
        let policy = self.policy_or_none();
        let acts = driver.begin.reboot || driver.begin.os.is_some() || !driver.begin.acts.is_empty();
        let scope = ComparedThings::of(acts);
        let expected = configs.new.and_then(|rendered| {
            let mut expectations = expectations(rendered).map_err(ApplyError::Expectation)?;
            // If the file cannot be read, no argument is taken to wait, and a missing argument causes a rollback.
            let waiting = self.store.waiting(driver.begin.id, &self.boot_id).unwrap_or_default();
            note(&mut expectations, &waiting);
            let root = &self.options.root;
            let comparer = HostComparer::new(&self.observer, root, rendered, &policy, expectations, scope);
            Ok(comparer.with_os_counted(driver.begin.os.is_some()))
        });
        let end = driver.drive(runner, expected, notes, progress).await;
        let (after_rollback, found) =
            self.compare_after_rollback(&driver, &end, configs.old, scope, notes).await;
        let machine = &driver.machine;
        let is_fallback = machine.failure().is_some();
        let reason = match &end {
            // It names all failures, in their order.
            MachineEnd::Halted(reason) => reason.clone(),
            MachineEnd::Rebooting if !machine.is_going_back() => {
                machine.failure().unwrap_or_default().to_owned()
            }
            MachineEnd::Closed(ApplyEnd::Abandoned) => machine.problems().join("; "),
            _ => machine.reason().to_owned(),
        };
        let rolls_back = machine.is_going_back();
        let problems = machine.problems().iter().cloned().chain(found).collect();
        let tolerated =
            if matches!(end, MachineEnd::Closed(ApplyEnd::Done)) { driver.tolerated } else { Vec::new() };
        Applied {
            id: driver.begin.id,
            end,
            rolls_back,
            is_fallback,
            reason,
            problems,
            left: machine.left().to_vec(),
            tolerated,
            after_rollback,
        }
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
