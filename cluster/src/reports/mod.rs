//! What the sensor found, as the cluster sees it.
//!
//! In: the node's status, the log's newest entry, and the names of pods and containers. Out: the status of the node's `DriftReport`, the
//! conditions of its Node, and the Event that a change of them needs. All of it is bounded in size, and none of it has the content
//! of a file. Nothing is read or sent here.

mod actor;
mod conditions;
mod config;
mod current;
mod events;
mod finding;
mod kept_entry;
mod os_image;
mod status;
#[cfg(test)]
mod tests;
mod update;

pub use actor::{PodName, PodNames, actor_text, by};
pub use conditions::{CONDITIONS, CONFIG_DRIFT, Condition, ConditionStatus, SENSOR_READY, conditions};
pub use config::{ComparedConfig, add_config, config_sentence};
pub use current::current;
pub use events::{NodeEvent, config_event, end_of_drifts, event, rewriting_event, with_config};
pub use finding::{NodeFinding, SensorState};
pub use kept_entry::{KeptEntry, Rewriting, kept_entry, sequence_of};
pub use os_image::add_os_image;
pub use status::{drift_text, entry, name_pods, names_in, status_of, unnamed_pods};
pub use update::mark_update;
