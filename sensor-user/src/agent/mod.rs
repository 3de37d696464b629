//! The daemon: the detection pipeline as one loop over its parts.
//!
//! ```text
//! ring of the kernel programs, fanotify events
//!      │ changes
//!      ▼
//!   receive ─── registry: which things a record concerns; intake: its actor
//!      │ verdicts: the actor in the thing's episode, the change to the detector
//!      ▼
//!    turn ───── verifier: each due thing as it is, with the kernel's evidence
//!      │ verdicts: the detector decides the verdict
//!      ▼
//!   Reports ──► room `report`        WriteBack ──► room `repair`        Applies ◄── room `apply`
//! ```
//!
//! One thread runs `Agent` (`state`), which owns one struct for each part. A part calls only the parts that its methods take.
//!
//! | part of `Agent` | what it owns | comes in | goes out |
//! |---|---|---|---|
//! | `intake` | table of processes, loss counters | a ring record | its actor; how many records were lost |
//! | `mounts` | the last mount table | mountinfo, records of mounts | changed mount points, with actors |
//! | `blindness` | canary, times of device checks | canary writes, records of the daemon's own objects | gaps |
//! | `verifications` | verifier (registry, maps), worker processes | a due thing | the thing as it is, with evidence |
//! | `hooks` | the attached programs | whether links or file writers exist | attached and detached hooks |
//! | `denials` | deny rules, counts of denials and executions | the drift policy, denials | allowed actors, records |
//! | `verdicts` | `Detector` of `sensor_model::protocol`, episodes | changes, verifications, gaps | records, reports |
//! | `holdfast_writers` | connections of other Holdfast processes | announcements | their processes |
//! | `apply_tracker` | the current generation, the open journal | [`applies::Applies`] | which states belong to an open apply |
//! | `image_indexing` | the process that makes the index of the booted commit | the time | a process once in a run |
//! | `image_scan` | the process of the scan of the image | the time | a process while a round is due |
//! | `write_back` | an implementation of [`write_back::WriteBack`] | a drifted thing | the declared state |
//! | `revert_orders` | in `manage`: an implementation of [`ordered_reverts::RevertOrders`] | drifted things | what another process wrote back |
//!
//! The methods of `Agent` are the loop. `run_loop` runs one `turn` after another and waits between them. A turn has `receive` take
//! the changes; then it verifies things, and `reverting` writes back. `follow_applies` handles applies, and `reload` reads configs again.
//! Between turns the loop waits for changes, timers, signals, other processes of Holdfast and the log. In a turn it waits only for
//! the disk and systemd. Verdicts leave through [`reports::Reports`]: as a report at once, and as a record at the end of the turn.
//! `cli::agent` passes the implementations of all traits to [`run`].
//!
//! The other files, by what they belong to:
//!
//! - start and end: `options`, `lock`, `trial`, `backend`, `privileges`, `new_root`, `start`, `enrolment`, `run_end`, `error`,
//!   `service`, `deadline_timer`, `detach`
//! - sources of changes: `changes` (the rings or fanotify), which `receive` reads
//! - blindness: `canary`, `device_checks`, `lost_entries`
//! - deny rules: `deny_rules`, `earlier_rules`, `rule_numbers`, `budgets`, `counting_windows`
//! - executions: `executions`, `unknown_executions`
//! - verdicts: `episode`, `actors`, `open_drift`, `diff`, `revert`
//! - applies: `writer_protocol`, `expected_digests`, `overwritten`
//! - verification: `kernel_programs`, `foreign`, `workers`

mod actors;
pub mod applies;
mod apply_tracker;
pub mod backend;
mod blindness;
mod budgets;
pub mod canary;
mod changes;
mod counting_windows;
mod deadline_timer;
mod denials;
mod deny_rules;
pub mod detach;
mod device_checks;
mod diff;
mod earlier_rules;
mod enrolment;
mod episode;
mod error;
mod evaluation;
mod executions;
mod expected_digests;
mod follow_applies;
mod foreign;
mod holdfast_writers;
mod hooks;
mod image_scan;
mod intake;
pub mod kernel_programs;
mod lock;
mod lost_entries;
pub mod mounts;
mod new_root;
pub mod open_drift;
mod options;
pub mod ordered_reverts;
mod overwritten;
mod own_process;
pub mod privileges;
mod program_pages;
mod receive;
pub mod registry;
mod reload;
pub mod reports;
mod revert;
mod reverting;
pub mod rule_numbers;
mod run_end;
mod run_loop;
mod service;
mod start;
mod state;
pub(crate) mod trial;
mod turn;
mod unknown_executions;
mod verdicts;
mod verifications;
pub mod verifier;
mod workers;
pub mod write_back;
pub(crate) mod writer_protocol;

#[cfg(test)]
mod tests;

pub use enrolment::{Enrolment, enrol};
pub use error::AgentError;
pub use options::AgentOptions;
pub use start::{Services, run};
