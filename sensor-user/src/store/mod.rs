//! What an apply keeps: contents, originals, generations, the journal, the lock.
//!
//! In: the state directory. Out: files that are replaced atomically and synced before anything relies on them;
//! all of it is closed to everybody but root, since contents may be secret.

mod files;
mod generations;
mod history;
mod node_state;

pub(crate) use files::{AppendError, JournalFile, RESERVE};
pub use files::Store;
pub use history::{Entry, TakenBack};
pub use node_state::note;
pub(crate) use node_state::waits;
