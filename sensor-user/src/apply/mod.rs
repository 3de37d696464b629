//! Bringing the host from one config to another, crash-safely.
//!
//! In: two rendered configs, a plan, the host. Out: the new config on the host, verified, or the old one. What is to be
//! done is written to a journal before anything is done ([`sensor_model::journal`]); whoever starts next finishes or
//! gives back what a dead process left. Nothing outside the declared set of acts is ever run, and no content is in
//! an error or a log.

mod actions;
mod acts;
mod engine;
mod error;
mod forced;
mod interrupts;
mod labels;
mod links;
mod names;
mod originals;
pub mod os;
mod password;
mod preflight;
mod run;
mod taken_back;
mod targets;
pub(crate) mod tie;
mod turns;
mod verify;
mod waiting;

pub use crate::desired::STATE;
pub use crate::store::Store;
pub use actions::{Acted, Actor, NoActs, Rested, Systemd, Undone};
pub use engine::{Applied, Back, Engine, Options, Recovered, Request};
pub use error::ApplyError;
pub use forced::removed_by_force;
pub use interrupts::Interrupts;
pub use os::is_there as os_is_there;
pub use run::Reach;
pub use taken_back::foreseen;
pub use verify::Differences;
pub use waiting::{waits, waits_or_none};

/// The Machine Config Operator's wish that everything be written again.
pub const FORCE_FILE: &str = "/run/machine-config-daemon-force";
