//! What is read, and how.

use super::{last_usable, source::Generation, source::StateSource, unknown::Unknown};
use sensor_model::waiting::WaitingArgument;
use std::path::{Path, PathBuf};

/// Reads from a state directory which kernel arguments wait for the next boot. The store of applies comes after this room, so
/// whoever reads configs hands this in.
pub type Waits = fn(&Path) -> Vec<WaitingArgument>;

/// What is read, and how.
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
    /// Unknown fields in configs are warned of and not refused.
    pub allow_unknown: bool,
    /// Configs that declare nothing may follow some that declared something.
    pub allow_empty: bool,
    /// A process of its own reads the files.
    pub apart: bool,
    /// The directory in which [`super::load`] keeps the files as the last usable ones; `None` keeps nothing.
    pub keep: Option<PathBuf>,
    /// Which kernel arguments wait for the next boot.
    pub waits: Waits,
    /// What was to be read, while the last usable files are read instead.
    pub replaced: Option<(StateSource, Vec<PathBuf>)>,
}

impl Inputs {
    /// Reads what is in force again, as the daemon does at its start, unless the last usable files replace it.
    #[must_use]
    pub fn as_given(&self) -> Self {
        let mut inputs = self.clone();
        inputs.restore();
        inputs
    }

    /// Names again what was to be read, where the last usable files replace it.
    pub fn restore(&mut self) {
        if let Some((source, policies)) = self.replaced.take() {
            (self.source, self.policies) = (source, policies);
        }
    }

    /// Whether the last usable files replace what was to be read.
    pub fn is_replaced(&self) -> bool {
        self.replaced.is_some()
    }

    /// Puts the config that was applied last in force. Gives whether another config was in force before.
    pub fn follow(&mut self, generation: Generation) -> bool {
        self.restore();
        let applied = StateSource::applied(generation);
        let is_other = self.source != applied;
        self.source = applied;
        is_other
    }

    /// What is done about unknown fields: a config that was accepted before stays accepted.
    pub(super) fn unknown(&self) -> Unknown {
        Unknown::allowed(self.allow_unknown || self.source.was_accepted() || self.is_replaced())
    }

    /// Where the daemon keeps the files that it reads, unless it reads kept ones.
    pub(super) fn kept_in(&self) -> Option<PathBuf> {
        (!self.is_replaced()).then(|| last_usable::directory(&self.state))
    }
}
