//! The checks before an apply, and the comparison where there is nothing to apply.
//!
//! In: the request, the host, the drift policy. Out: every reason against the apply, as text.

use super::host::Engine;
use crate::{
    apply::{
        actions::missing_bus,
        acts::{self, acts},
        error::ApplyError,
        os,
        preflight::{self, Mco},
        request::Request,
        targets::Writes,
        verify::{Differences, Verifier, What},
        waiting,
    },
    desired::{self, DesiredError},
};
use sensor_model::{
    drift_policy::DriftPolicy, expectations::expectations, journal::OsChange, merge::Rendered,
    node_state::NodeEvent,
};

impl Engine {
    /// The drift policy: the given one, else that of the host's service.
    pub(super) fn policy(&self) -> Result<DriftPolicy, DesiredError> {
        match &self.policies[..] {
            [] => desired::service_policy(&self.options.root),
            policies => desired::drift_policy(policies),
        }
    }

    /// The drift policy for an apply that has begun already. One that cannot be read tolerates nothing.
    pub(super) fn policy_or_none(&self) -> DriftPolicy {
        self.policy().unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "The drift policies cannot be read; all drift counts."
            );
            DriftPolicy::default()
        })
    }

    pub(super) async fn preflight(
        &self,
        request: &Request,
        writes: &Writes,
        policy: &DriftPolicy,
        os: Option<&OsChange>,
    ) -> Result<Differences, ApplyError> {
        let mut found = Differences::default();
        if !request.force {
            let old = waiting::expected(&self.store, &self.boot_id, &request.old)?;
            let new = expectations(&request.new).map_err(ApplyError::Expectation)?;
            let (root, what) = (&self.options.root, What::of(request.act));
            let mut verifier = Verifier::new(&self.observer, root, &request.old, policy, old, what);
            found = preflight::drift(&mut verifier).await;
            preflight::closed(&self.observer, policy, &new, &writes.targets, &mut found);
        }
        let problems = &mut found.problems;
        if request.act {
            problems.extend(acts::unused(&request.old, &request.new));
            let reboots = request.plan.reboot || request.force || os.is_some();
            if reboots || !acts(&request.plan, &request.new, false).is_empty() {
                problems.extend(missing_bus(&self.options.root));
            }
        }
        let kept = request.manifests.iter().map(|(_, bytes)| bytes.len() as u64 + 4096).sum();
        problems.extend(preflight::space(&self.observer, writes, self.store.path(), kept)?);
        problems.extend(Mco::of(&self.options).refuses());
        problems.extend(os.and_then(|change| os::Backend::find(&self.options.root).refuses(change)));
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
        let (root, what) = (&self.options.root, What::of(acts));
        let policy = self.policy_or_none();
        let mut verifier = Verifier::new(&self.observer, root, current, &policy, expected, what);
        let found = preflight::drift(&mut verifier).await;
        if found.problems.is_empty() {
            self.note(NodeEvent::Verified, "")?;
        }
        Ok(found)
    }
}
