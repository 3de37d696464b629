//! Bringing the host from one config to another, crash-safely.
//!
//! In: two rendered configs, a plan, the host. Out: the new config on the host, verified, or the old one. Every step is in a
//! journal before it is taken ([`sensor_model::journal`]). If the process dies, the next start finishes the apply or rolls it
//! back. Only the acts of the plan are run, and no content is in an error or a log.

mod act_runner;
mod actions;
mod acts;
pub mod agent_view;
mod engine;
mod error;
mod generations;
mod hard_links;
mod interrupts;
mod labels;
mod originals;
pub mod os;
mod os_update;
mod password;
pub mod past;
mod preflight;
mod removed_by_force;
pub mod repairs;
mod request;
mod run;
mod target_finder;
mod targets;
mod type_changes;
mod unit_links;
mod verify;
mod waiting;

pub(crate) use crate::agent::writer_protocol;
pub use crate::desired::STATE;
pub use crate::store::Store;
pub use act_runner::{ActResult, ActRunner, NoActs, UndoResult, UnitAfterBoot};
pub use actions::Systemd;
pub use engine::{AfterRollback, Applied, Engine, Recovered};
pub use error::ApplyError;
pub use generations::{GenerationError, present_config, rollback_target};
pub use interrupts::Interrupts;
pub use os_update::foreseen;
pub use removed_by_force::removed_by_force;
pub use request::{Options, Request};
pub use run::ResumeLimit;
pub use verify::Differences;
pub use waiting::{waits, waits_or_none};

/// The file by which the Machine Config Operator asks for everything to be written again.
pub const FORCE_FILE: &str = "/run/machine-config-daemon-force";
