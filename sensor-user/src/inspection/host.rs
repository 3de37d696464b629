//! A host, and what is declared for it.
//!
//! In: inputs and an observer. Out: the expectations of the host or of one of its paths, and what its policy does about drift.

use crate::{
    desired::{self, Desired, DesiredError, DesiredWithConfig, Inputs, NotChecked},
    observation::Observer,
    repair::Restorer,
};
use sensor_model::{drift_policy::DriftDecision, expectation::Expectation, waiting::WaitingOutput};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// A host, and what is declared for it.
#[derive(Debug)]
pub struct DeclaredHost {
    /// The host's root directory.
    pub root: PathBuf,
    /// Reads the host's files.
    pub observer: Arc<Observer>,
    /// The rendered config, and its expectations without those that the policy ignores.
    pub whole: DesiredWithConfig,
}

impl DeclaredHost {
    /// Reads the configs and policies of the inputs for the host that the observer reads.
    ///
    /// # Errors
    /// A file that cannot be read or used, with file, field and reason.
    pub fn load(inputs: &Inputs, observer: Observer) -> Result<Self, DesiredError> {
        let observer = Arc::new(observer);
        let whole = desired::load_with_config(inputs, &*observer)?;
        Ok(Self { root: inputs.root.clone(), observer, whole })
    }

    /// Observes and restores things of the host.
    pub fn restorer(&self) -> Restorer {
        Restorer::new(Arc::clone(&self.observer), &self.root)
    }

    /// The expectations and the policy.
    pub fn desired(&self) -> &Desired {
        &self.whole.desired
    }

    /// Every expectation of a path, also one that the policy ignores, and that of the closed directory that the path is in.
    ///
    /// # Errors
    /// Contents that cannot be decoded.
    pub fn things_at(&self, path: &Path) -> Result<Vec<Expectation>, DesiredError> {
        desired::things_at(&self.whole, path, &*self.observer)
    }

    /// Every expectation of paths, but not that of a closed directory above a path.
    ///
    /// # Errors
    /// A path without an expectation of its own, and contents that cannot be decoded.
    pub fn declared_things(&self, paths: &[PathBuf]) -> Result<Vec<Expectation>, DesiredError> {
        desired::declared_things(&self.whole, paths, &*self.observer)
    }

    /// What the policy does about drift of a path by an unknown actor.
    pub fn decision(&self, path: &Path) -> DriftDecision<'_> {
        self.desired().policy.decide(path, None)
    }

    /// The kernel arguments that wait for the next boot.
    pub(super) fn waiting(&self) -> Vec<WaitingOutput> {
        self.desired().waiting.iter().cloned().map(WaitingOutput::from).collect()
    }

    /// What the config declares and Holdfast does not compare, and why.
    pub(super) fn not_checked(&self) -> Vec<NotChecked> {
        desired::not_checked(&self.whole.rendered, &*self.observer)
    }
}
