//! A host, and what is declared for it.
//!
//! In: options that name configs, and an observer. Out: the expectations of the host or of one of its paths, and what its policy
//! does about drift.

use crate::{
    desired::{
        self, Desired, DesiredError, DesiredWithConfig, HostFacts as _, NamedSources, NotChecked, Overruled,
        Waits,
    },
    image::{self, ImageError},
    observation::{Observer, RootError},
    repair::Restorer,
    store::{Store, UnknownApplied},
};
use sensor_model::{
    drift_policy::{DriftAction, DriftDecision},
    expectation::Expectation,
    waiting::WaitingOutput,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Why the declared state of a host cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DeclaredHostError {
    /// The root directory of the host cannot be opened.
    #[error("--host-root: {0}")]
    Root(RootError),
    /// No config is named, and which one was applied last cannot be read.
    #[error(transparent)]
    Applied(#[from] UnknownApplied),
    /// A config or a policy cannot be used.
    #[error(transparent)]
    Desired(#[from] DesiredError),
}

impl DeclaredHostError {
    /// Whether the mistake is in the options or in a file that they name.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Root(_) | Self::Desired(_) => true,
            Self::Applied(_) => false,
        }
    }
}

/// Why it is not known what to restore.
#[derive(Debug, thiserror::Error)]
pub enum ThingsToRestoreError {
    /// Nothing declares a path.
    #[error(transparent)]
    Desired(#[from] DesiredError),
    /// An index cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl ThingsToRestoreError {
    /// Whether the mistake is in the options.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Desired(error) => error.is_input(),
            Self::Image(error) => error.is_input(),
        }
    }
}

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
    /// Reads the configs and policies that the options name, or the config that was applied last. `observer` opens the host's
    /// root.
    ///
    /// # Errors
    /// A file that cannot be read or used, with file, field and reason.
    pub fn load(
        named: NamedSources,
        waits: Waits,
        observer: impl FnOnce(&Path) -> Result<Observer, RootError>,
    ) -> Result<Self, DeclaredHostError> {
        let observer = Arc::new(observer(&named.root).map_err(DeclaredHostError::Root)?);
        let inputs = named.inputs(Store::applied_in, waits)?;
        let whole = desired::load_with_config(&inputs, &*observer)?;
        Ok(Self { root: inputs.root, observer, whole })
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

    /// The same, and what the image has at a path that no config declares. `state`: the state directory, with the indexes.
    ///
    /// # Errors
    /// As [`Self::declared_things`], and an index that cannot be read.
    pub fn things_to_restore(
        &self,
        paths: &[PathBuf],
        state: &Path,
    ) -> Result<Vec<Expectation>, ThingsToRestoreError> {
        let mut things = Vec::new();
        for path in paths {
            match self.declared_things(std::slice::from_ref(path)) {
                Err(DesiredError::NotDeclared(path)) => {
                    let of_image = image::expected_at(&self.observer, state, &path)?;
                    things.push(of_image.ok_or(DesiredError::NotDeclared(path))?);
                }
                found => things.extend(found?),
            }
        }
        self.observer.label(&mut things, &self.desired().policy);
        Ok(things)
    }

    /// What the image has below `/etc` at paths that no config declares and no rule ignores. `state`: the state directory, with the indexes.
    ///
    /// # Errors
    /// The host keeps no pristine `/etc`, and an index that is missing, old, or cannot be read.
    pub fn image_etc(&self, state: &Path) -> Result<Vec<Expectation>, ThingsToRestoreError> {
        let mut things = image::expected_in_etc(&self.observer, state)?;
        let declared = desired::declared(&self.whole.rendered)?;
        Overruled::by(declared.iter()).remove_from(&mut things);
        things.retain(|thing| self.decision_about(thing).action != DriftAction::Ignore);
        self.observer.label(&mut things, &self.desired().policy);
        Ok(things)
    }

    /// What the policy does about drift of a path by an unknown actor.
    pub fn decision(&self, path: &Path) -> DriftDecision<'_> {
        self.desired().policy.decide(path, None)
    }

    /// The same about a thing.
    pub fn decision_about(&self, expectation: &Expectation) -> DriftDecision<'_> {
        self.desired().policy.decide_about(expectation, None)
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
