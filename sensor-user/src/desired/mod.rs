//! The expected state of a node: which configs are in force, and what they declare.
//!
//! In: MachineConfigs and drift policies in files, and facts of the host ([`HostFacts`]). Out: expectations with the ids that
//! they name, the drift policy, the rendered config. The daemon, `apply` and every command read configs through this room
//! alone. If one file of a set is wrong, it uses none of them.
//!
//! [`StateSource`] names the configs, and `files` reads their bytes. `manifests` and `policies` parse and merge them. `load`
//! makes expectations. [`reader_process`] does the same for the daemon, in a process of its own. `start` falls back to the
//! configs that [`last_usable`] kept. `queries` answers what commands ask of the result.

mod cluster_policies;
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
mod queries;
pub mod reader_process;
mod source;
mod start;
mod unknown;

pub use cluster_policies::{cluster_policies, kept_cluster_policies, put_aside};
pub use error::{DesiredError, RefusedConfigs};
pub use facts::{DirectoriesVersion, HostFacts, LabelVersion};
pub(crate) use facts::{ImagesVersion, complete};
pub use files::{Files, read};
pub use generation::{KeptConfig, as_kept, generation};
pub use inputs::{DaemonInputs, DeviceTables, Inputs, NamedSources, Waits};
pub(crate) use load::kernel_arguments;
pub use load::{Desired, DesiredWithConfig, Overruled, load, load_with_config};
pub use manifests::{compared, merged, rendered, side_name};
pub use policies::{
    disruption_policies, disruption_policy, drift_policies, drift_policy, node_policies, service_policy,
    shown_policy,
};
pub use pools::render_pool;
pub use queries::{NotChecked, declared, declared_things, not_checked, things_at};
pub(crate) use source::POLICIES;
pub use source::{
    Generation, MachineConfigs, OPERATOR_CONFIG, SERVICE_CONFIGS, STATE, StateSource, state_directory,
};
pub use start::{CONFIG, start};
pub use unknown::Unknown;
