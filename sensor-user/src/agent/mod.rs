//! The daemon: the detection pipeline as one loop over its parts.
//!
//! In: ring records, timers, signals. Out: verdicts, through [`reports::Reports`]. One thread; nothing in it
//! waits for anything but the ring, a timer or the disk.
//!
//! A change comes from `backend` to `receive`, which finds what it concerns (`registry`) and who made it (`intake`), and notes
//! both in the thing's `episode`. `judge` has due things looked at (`look`, `looks`), and `verdicts` reaches the verdict and
//! reports it. `state` holds the parts; `serve` is the loop, `start` what comes before it.

mod actors;
mod alarm;
pub mod applies;
pub mod backend;
mod blindness;
mod budgets;
pub mod canary;
mod denials;
mod deny;
mod device;
mod diff;
mod ended;
mod episode;
mod error;
mod follow;
mod follow_applies;
mod hooks;
mod intake;
mod judge;
mod lock;
pub mod look;
mod looks;
mod lost;
pub mod mounts;
pub mod numbers;
pub mod open_drift;
mod options;
mod overwritten;
pub mod privileges;
pub mod reasons;
mod receive;
pub mod registry;
mod reload;
pub mod reports;
mod revert;
mod serve;
mod service;
mod start;
mod state;
mod verdicts;
mod windows;
mod workers;
pub mod write_back;
pub(crate) mod writer_protocol;
mod writers;

#[cfg(test)]
mod tests;

pub use error::AgentError;
pub use options::Options;
pub use start::{Services, run};
