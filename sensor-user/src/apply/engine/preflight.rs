//! The checks before an apply, and the comparison if there is nothing to apply.
//!
//! In: the request, the host, the drift policy. Out: every reason against the apply, as text.

use super::state::Engine;
use crate::{
    apply::{
        actions::check_bus,
        acts::{self, acts},
        error::ApplyError,
        operator::Mco,
        os, preflight_checks,
        request::ApplyRequest,
        targets::Writes,
        verify::{ComparedThings, Differences, HostComparer},
        waiting,
    },
    desired::{self, DesiredError},
};
use sensor_model::{
    drift_policy::DriftPolicy, expectations::expectations, journal::OsChange, merge::Rendered,
    node_state::Milestone,
};
use std::error::Error;

/// The text of a problem.
fn text(checked: Result<(), impl Error>) -> Option<String> {
    checked.err().map(|problem| problem.to_string())
}

impl Engine {
    /// The drift policy: the given one, else that of the host's service.
    pub(super) fn policy(&self) -> Result<DriftPolicy, DesiredError> {
        match &self.policies[..] {
            [] => desired::service_policy(&self.options.root),
            policies => desired::drift_policy(policies),
        }
    }

    /// The drift policy for an apply that has begun. If it cannot be read, no drift is tolerated.
    pub(super) fn policy_or_none(&self) -> DriftPolicy {
        self.policy().unwrap_or_else(|error| {
            tracing::warn!(%error, "Cannot read the drift policies; no drift is tolerated.");
            DriftPolicy::default()
        })
    }

    pub(super) async fn preflight(
        &self,
        request: &ApplyRequest,
        writes: &Writes,
        policy: &DriftPolicy,
        os: Option<&OsChange>,
    ) -> Result<Differences, ApplyError> {
        let mut found = Differences::default();
        if !request.force {
            let old = waiting::expected(&self.store, &self.boot_id, &request.old)?;
            let new = expectations(&request.new).map_err(ApplyError::Expectation)?;
            let (root, scope) = (&self.options.root, ComparedThings::of(request.act));
            let mut comparer = HostComparer::new(&self.observer, root, &request.old, policy, old, scope);
            found = preflight_checks::drift(&mut comparer).await;
            preflight_checks::closed(&self.observer, policy, &new, &writes.targets, &mut found);
        }
        let problems = &mut found.problems;
        if request.act {
            problems.extend(text(acts::check_extensions(&request.old, &request.new)));
            let reboots = request.plan.reboot || request.force || os.is_some();
            if reboots || !acts(&request.plan, &request.new, false).is_empty() {
                problems.extend(text(check_bus(&self.options.root)));
            }
        }
        let kept = request.manifests.iter().map(|(_, bytes)| bytes.len() as u64 + 4096).sum();
        problems.extend(preflight_checks::space(&self.observer, writes, self.store.path(), kept)?);
        problems.extend(text(Mco::of(&self.options).check()));
        problems.extend(os.and_then(|change| text(os::OsTool::find(&self.options.root).check(change))));
        Ok(found)
    }

    /// Compares the host with the current config. If nothing differs, the node's state becomes Done.
    ///
    /// # Errors
    /// Another config is current, or another process has the lock.
    pub async fn confirm(
        &self,
        current: &Rendered,
        id: Option<u64>,
        acts: bool,
    ) -> Result<Differences, ApplyError> {
        let Some(_lock) = self.store.lock()? else {
            return Err(ApplyError::Locked(self.store.path().join("lock")));
        };
        self.is_current(id)?;
        let expected = waiting::expected(&self.store, &self.boot_id, current)?;
        let (root, scope) = (&self.options.root, ComparedThings::of(acts));
        let policy = self.policy_or_none();
        let mut comparer = HostComparer::new(&self.observer, root, current, &policy, expected, scope);
        let found = preflight_checks::drift(&mut comparer).await;
        if found.problems.is_empty() {
            self.note(Milestone::Verified, "")?;
        }
        Ok(found)
    }
}
