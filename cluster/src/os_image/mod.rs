//! What the cluster says about the node's OS image.
//!
//! In: the booted image as the sensor reports it, the annotations of the Node, the `MachineOSBuilds`, the node's `BootcNode`, and two
//! rendered MachineConfigs. Out: the part of the report about the OS image, with a sentence that says which of them is out of step.
//! The sensor compares the booted image with the node's own files, and believes nothing of this.

mod objects;
mod opinions;
mod sentences;
mod task;
#[cfg(test)]
mod task_tests;
#[cfg(test)]
mod tests;
mod verdict;

pub use opinions::{BootcNode, Build, Opinions, OsFields, Subject};
pub use task::OsImageFollower;
pub use verdict::{Verdict, verdict};
