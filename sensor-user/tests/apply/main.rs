//! `holdfast apply` as users run it: on a root of its own, with every kind of thing that a config declares.

#![expect(clippy::unwrap_used, reason = "a test's world that cannot be built is a failed test")]

mod asked;
mod bounded;
mod daemon_restarts;
mod drift_policy;
#[cfg(feature = "fault-injection")]
mod faults;
#[cfg(feature = "fault-injection")]
mod foreign;
mod golden;
mod hard;
mod host;
mod links;
mod mco;
mod orders;
mod originals;
mod overwritten;
mod properties;
mod readers;
mod recovery;
#[cfg(feature = "fault-injection")]
mod repair_faults;
#[cfg(feature = "fault-injection")]
mod signals;
mod standing;
mod strict;
mod table;
mod waiting;
mod waits;
mod world;
