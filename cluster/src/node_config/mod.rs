//! Whether the config that the sensor expects is the one of the cluster.
//!
//! In: the sensor's config with the digest of what it declares, the annotations of the Node, and MachineConfigs. Out: the part of the
//! report about the config. The sensor reads its config from files of the node, which root on the node can change. It believes
//! nothing of this.

mod compare;
mod task;
#[cfg(test)]
mod task_tests;
#[cfg(test)]
mod tests;

pub use compare::{Known, Object, Subject, compared};
pub use task::ConfigFollower;
