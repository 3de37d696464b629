//! The applies of this host, as the daemon reads them: a trait that the room `apply` implements.
//!
//! In: nothing. Out: the current config, the open journal, the state of the node's config, and the recovery of an apply whose
//! process is gone. No state: the daemon itself reads and writes no store.

use crate::observation::Observer;
use sensor_model::journal::codec::ParsedJournal;
use sensor_model::node_state::Standing;
use std::error::Error;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

/// The version of a journal: its inode, and its change time in seconds and nanoseconds.
pub type JournalVersion = (u64, i64, i64);

/// The store of applies cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct AppliesError(Box<dyn Error + Send + Sync>);

impl AppliesError {
    /// With the error of an implementation of [`Applies`].
    pub fn new(source: impl Error + Send + Sync + 'static) -> Self {
        Self(Box::new(source))
    }
}

/// A path that an OS update overwrote and an apply restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overwritten {
    /// The apply that restored it.
    pub apply: u64,
    /// The path.
    pub path: PathBuf,
    /// When it was restored, RFC 3339.
    pub time: String,
    /// What the update left there: `absent`, `file`, `directory` or `link`.
    pub found: String,
}

/// The applies of one host.
pub trait Applies {
    /// The generation that was applied last, and the directory of its manifests. `None` before the first apply.
    ///
    /// # Errors
    /// The current generation cannot be read.
    fn current(&mut self) -> Result<Option<(u64, PathBuf)>, AppliesError>;

    /// The directory of a generation's manifests.
    fn config(&self, id: u64) -> PathBuf;

    /// The version of the open journal; `None` without one.
    fn journal_version(&mut self) -> Option<JournalVersion>;

    /// The open journal.
    ///
    /// # Errors
    /// The journal cannot be read.
    fn journal(&self) -> Result<Option<ParsedJournal>, AppliesError>;

    /// Whether the lock of applies is free, so that no process applies a config.
    fn is_idle(&self) -> bool;

    /// The state of the node's config.
    fn node_state(&self) -> Option<Standing>;

    /// The paths that OS updates overwrote and no record names yet. Each is returned once.
    ///
    /// # Errors
    /// The history of the last apply cannot be read or written.
    fn take_overwritten(&self) -> Result<Vec<Overwritten>, AppliesError>;

    /// Finishes or undoes an apply whose process is gone, without a reboot. Gives `false` if another process recovers it.
    fn recover<'a>(
        &'a mut self,
        observer: &'a Arc<Observer>,
        policies: &'a [PathBuf],
    ) -> Pin<Box<dyn Future<Output = bool> + 'a>>;
}
