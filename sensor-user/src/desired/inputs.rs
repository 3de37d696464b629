//! Which configs and policies are read, and how.
//!
//! In: options, and the config that was applied last. Out: the files to read now: the named ones, the last usable ones
//! ([`Inputs::replaced`]), or those of the last apply ([`Inputs::use_applied`]).

use super::{last_usable, source::Generation, source::StateSource, unknown::Unknown};
use sensor_model::waiting::WaitingArgument;
use std::path::{Path, PathBuf};

/// Reads from a state directory which kernel arguments wait for the next boot. The store of applies is below this room, so the
/// caller passes this function.
pub type Waits = fn(&Path) -> Vec<WaitingArgument>;

/// Which configs and policies are read, and how.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// The host's root directory.
    pub root: PathBuf,
    /// The state directory.
    pub state: PathBuf,
    /// What declares the expected state.
    pub source: StateSource,
    /// Drift policies: files and directories.
    pub policies: Vec<PathBuf>,
    /// Unknown fields in configs cause a warning and no error.
    pub allow_unknown: bool,
    /// Empty configs may follow configs that declared something.
    pub allow_empty: bool,
    /// Whether a process of its own reads the files.
    pub own_process: bool,
    /// The directory in which [`super::load()`] keeps the files as the last usable ones; `None` keeps nothing.
    pub keep: Option<PathBuf>,
    /// Which kernel arguments wait for the next boot.
    pub waits: Waits,
    /// The named source and policies, while the last usable files are read instead.
    pub replaced: Option<(StateSource, Vec<PathBuf>)>,
}

impl Inputs {
    /// The inputs with the named source and policies, also while the last usable files replace these.
    #[must_use]
    pub fn as_given(&self) -> Self {
        let mut inputs = self.clone();
        inputs.restore();
        inputs
    }

    /// Names the source and policies again that the last usable files replace.
    pub fn restore(&mut self) {
        if let Some((source, policies)) = self.replaced.take() {
            (self.source, self.policies) = (source, policies);
        }
    }

    /// Whether the last usable files replace the named source and policies.
    pub fn is_replaced(&self) -> bool {
        self.replaced.is_some()
    }

    /// Puts the config that was applied last in force. Gives whether another config was in force before.
    pub fn use_applied(&mut self, generation: Generation) -> bool {
        self.restore();
        let applied = StateSource::applied(generation);
        let is_other = self.source != applied;
        self.source = applied;
        is_other
    }

    /// What is done about unknown fields. A config that was accepted before stays accepted.
    pub(super) fn unknown(&self) -> Unknown {
        Unknown::allowed(self.allow_unknown || self.source.was_accepted() || self.is_replaced())
    }

    /// The directory in which the daemon keeps the files that it reads; `None` if it reads kept files.
    pub(super) fn kept_in(&self) -> Option<PathBuf> {
        (!self.is_replaced()).then(|| last_usable::directory(&self.state))
    }
}
