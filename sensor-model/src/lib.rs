//! The pure domain logic of Holdfast: no I/O, no async, no clock.
//!
//! In reading order, which is the order of the data flow: MachineConfigs are read ([`machine_config`],
//! [`ignition`]), become one rendered config ([`merge`]) and a set of [`expectation`]s
//! ([`expectations`]); what is on the disk is an [`observation`]; comparing the two gives
//! [`difference`]s and a [`verdict`], and what happened is kept as a forensic [`record`]. Two rendered configs
//! give [`changes`], or why a node cannot be brought from one to the other ([`reconcile`]); under a policy
//! ([`node_disruption`]) the changes give a [`plan`].
#![forbid(unsafe_code)]

pub mod action;
pub mod adopt;
pub mod authorized_keys;
pub mod cgroup;
pub mod chain;
pub mod changes;
pub mod compare;
pub mod data_url;
pub mod difference;
pub mod drift_policy;
pub mod expectation;
pub mod expectation_watch;
pub mod expectations;
mod fields;
pub mod fit;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod host;
pub mod ignition;
pub mod journal;
pub mod machine_config;
pub mod merge;
mod names;
pub mod node_disruption;
pub mod node_state;
pub mod observation;
pub mod os;
pub mod path;
pub mod plan;
pub mod pool;
pub mod protocol;
pub mod reconcile;
pub mod record;
pub mod registries;
pub mod selinux;
pub mod status;
pub mod text;
mod unknown;
pub mod verdict;
pub mod waiting;
pub mod xattr;
