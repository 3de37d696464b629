//! The daemon: the detection pipeline as one loop over its parts.
//!
//! In: ring records, timers, signals. Out: verdicts, through [`reports::Reports`]. One thread; nothing in it
//! waits for anything but the ring, a timer or the disk.
//!
//! A change comes from `backend` to `receive`, which finds what it concerns (`registry`) and who made it (`intake`), and notes
//! both in the thing's `episode`. `judge` has due things looked at (`look`, `looks`), and `verdicts` reaches the verdict and
//! reports it. `state` holds the parts; `serve` is the loop, `start` what comes before it.

mod actors;
pub mod applies;
mod apply_tracker;
pub mod backend;
mod blindness;
mod budgets;
pub mod canary;
mod counting_windows;
mod deadline_timer;
mod denials;
mod deny_rules;
mod device_checks;
mod diff;
mod episode;
mod error;
mod follow_applies;
mod holdfast_writers;
mod hooks;
mod intake;
mod lock;
mod lost_entries;
pub mod mounts;
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
pub mod rule_numbers;
mod run_end;
mod run_loop;
mod service;
mod start;
mod state;
mod turn;
mod verdicts;
mod verifications;
pub mod verifier;
mod workers;
pub mod write_back;
pub(crate) mod writer_protocol;

#[cfg(test)]
mod tests;

pub use error::AgentError;
pub use options::Options;
pub use start::{Services, run};
