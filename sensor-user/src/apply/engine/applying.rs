//! An apply from its beginning to its end.
//!
//! In: manifests, their plan, the host. Out: the result. There is one writer at a time, and an open journal is finished first.

use super::{
    host::{Applied, Engine, Recovered},
    notes::StoreNotes,
    rollback::Configs,
};
use crate::{
    apply::{
        act_runner::ActRunner,
        acts::acts,
        error::ApplyError,
        interrupts::Interrupts,
        password,
        preflight::Mco,
        request::Request,
        run::{DaemonNotice, Progress, ResumeLimit, Run, changing},
        target_finder::Planner,
        verify::{Differences, Verifier, What},
        waiting,
    },
    clock::rfc3339,
    store::HistoryEntry,
};
use jiff::Timestamp;
use sensor_model::{
    expectations::expectations,
    journal::{
        ApplyEnd, Begin, Boot, OsChange,
        machine::{Machine, MachineEnd},
    },
    node_state::NodeEvent,
    waiting::note,
};
use sha2::{Digest as _, Sha256};

impl Engine {
    /// Applies a config.
    ///
    /// # Errors
    /// Why nothing was begun. A later failure is in the result.
    pub async fn apply(
        &self,
        request: Request,
        actor: &mut dyn ActRunner,
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
        }) = self.recover_locked(actor, ResumeLimit::NoReboot, progress).await?
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
            // The contents may fill the disk. The next start removes those that cannot be removed now.
            let _ = self.store.forget_contents();
            self.refused(&error.to_string());
        })?;
        let waited = waiting::before(&self.store, &self.boot_id)?;
        let os = waiting::os_change(&request, &waited, &self.observer);
        // Only a policy can leave the reboot out, and only for kernel arguments.
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
            reach: ResumeLimit::None,
            boot: &boot,
            daemon: DaemonNotice::of(&self.options),
            mco: Mco::of(&self.options),
            waits: None,
            unsynced: true,
            refused_os_change: false,
            changing: changing(&begin),
            interrupts: self.interrupts.as_ref(),
            tolerated: Vec::new(),
        };
        let mut ending = StoreNotes::new(self, &begin);
        let (old, new) = (request.old.clone(), &request.new);
        let is_known = previous.is_some() || !expectations(&old).is_ok_and(|nothing| nothing.is_empty());
        let configs = Configs { old: Ok(is_known.then_some(old)), new: Ok(new) };
        Ok(Box::pin(self.drive(run, configs, actor, &mut ending, progress)).await)
    }

    pub(super) async fn drive(
        &self,
        mut run: Run<'_>,
        configs: Configs<'_>,
        actor: &mut dyn ActRunner,
        ending: &mut StoreNotes<'_>,
        progress: Progress<'_>,
    ) -> Applied {
        let policy = self.policy_or_none();
        let acts = run.begin.reboot || run.begin.os.is_some() || !run.begin.acts.is_empty();
        let what = What::of(acts);
        let expected = configs.new.and_then(|rendered| {
            let mut expectations = expectations(rendered).map_err(|error| error.to_string())?;
            // If the file cannot be read, no argument waits, and a missing argument causes a rollback.
            let waiting = self.store.waiting(run.begin.id, &self.boot_id).unwrap_or_default();
            note(&mut expectations, &waiting);
            let root = &self.options.root;
            let verifier = Verifier::new(&self.observer, root, rendered, &policy, expectations, what);
            Ok(verifier.with_os_counted(run.begin.os.is_some()))
        });
        let end = run.drive(actor, expected, ending, progress).await;
        let (back, found) = self.compare(&run, &end, configs.old, what, ending).await;
        let machine = &run.machine;
        let reason = match &end {
            // All failures, the first one first.
            MachineEnd::Halted(reason) => reason.clone(),
            MachineEnd::Rebooting if !machine.is_going_back() => {
                machine.failure().unwrap_or_default().to_owned()
            }
            MachineEnd::Closed(ApplyEnd::Abandoned) => machine.problems().join("; "),
            _ => machine.reason().to_owned(),
        };
        let goes_back = machine.is_going_back();
        let problems = machine.problems().iter().cloned().chain(found).collect();
        let tolerated =
            if matches!(end, MachineEnd::Closed(ApplyEnd::Done)) { run.tolerated } else { Vec::new() };
        Applied { id: run.begin.id, end, goes_back, reason, problems, tolerated, back }
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
