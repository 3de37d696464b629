//! The drift policies of the cluster for this node.
//!
//! In: `DriftPolicies`, the labels and the pool of the own Node, and its pods. Out: the policies that select the node, for the sensor;
//! and which of them it has taken, for the report. Faults and conflicts are found before the sensor gets anything: then it keeps the
//! policies that it has.

mod evaluate;
mod node;
mod pods;
mod task;
#[cfg(test)]
mod tests;

pub use task::PolicyFollower;
