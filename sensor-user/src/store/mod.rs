//! State of applies on the disk: contents, originals, generations, the journal, the lock, the node's state.
//!
//! In: the state directory. Out: files that are replaced atomically and synced before other files refer to them. Only root can
//! read them, because contents may be secret. This room writes no managed path. All writes use [`crate::sys`], so
//! that a test can stop at each of them.

mod contents;
mod error;
mod files;
mod generations;
mod history;
mod journal;
mod node_state;

pub use error::{StoreError, StoreFault, UnknownApplied};
pub use files::Store;
pub use history::{HistoryEntry, OverwrittenEntry};
pub(crate) use journal::{AppendError, JournalFile, RESERVE};
pub use node_state::note_milestone;
pub(crate) use node_state::note_wait;
