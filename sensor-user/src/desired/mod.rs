//! The expected state of a node: which configs are in force, and what they declare.
//!
//! In: MachineConfigs and drift policies in files, and facts of the host ([`HostFacts`]). Out: expectations with the ids that
//! they name, the drift policy, the rendered config. The daemon, `apply` and every command read configs through this room
//! alone. It uses nothing of a set of files in which one file is wrong.
//!
//! In the order of reading: [`StateSource`] says where a config is; `files` reads bytes; `manifests` and `policies` parse
//! and merge them; `load` makes expectations; `apart` does the same in a process of its own; `start` falls back to the
//! configs that [`last_usable`] kept.

mod error;
mod facts;
mod files;
mod generation;
mod inputs;
pub(crate) mod last_usable;
mod load;
mod manifests;
mod policies;
mod pools;
pub mod reader_process;
mod source;
mod start;
mod unknown;

pub use error::{DesiredError, Refused};
pub(crate) use facts::complete;
pub use facts::{HostFacts, LabelVersion};
pub use files::{Files, read};
pub use generation::{Kept, as_kept, generation};
pub use inputs::{Inputs, Waits};
pub(crate) use load::kernel_arguments;
pub use load::{Desired, NotChecked, Whole, declared_things, load, load_whole, not_checked, things_at};
pub use manifests::{compared, merged, rendered, side_name};
pub use policies::{
    disruption_policies, disruption_policy, drift_policies, drift_policy, service_policy, shown_policy,
};
pub use pools::render_pool;
pub use source::{Generation, MachineConfigs, STATE, StateSource, choose, state_directory};
pub use start::{CONFIG, start};
pub use unknown::Unknown;
