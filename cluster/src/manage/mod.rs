//! Mode `manage`: the work of the Machine Config Operator's daemon on this node, through the same annotations.
//!
//! In: the Node's annotations, the sensor's progress, and what the sensor found. Out: the annotations and the plan that the writer
//! publishes, and configs and orders for the sensor. Nothing depends on memory: after a restart the Node's annotations and the
//! sensor's progress lead to the same next step. Nothing on the host is changed here; the sensor applies.

mod annotations;
mod configs;
mod plan;
mod progress;
mod steps;
mod task;
#[cfg(test)]
mod tests;

pub use annotations::OURS;
pub use plan::{Planned, PlannedOutcome, reported};
pub use steps::{NodeDrift, Situation, Step, Then, Wanted, next};
pub use task::{ManageChannels, Manager};

pub(crate) use annotations::{
    CURRENT_CONFIG, DESIRED_CONFIG, DESIRED_DRAIN, REASON, STATE, is_cordoned_by_us,
};
pub(crate) use progress::follow as follow_progress;
