//! Holdfast's daemon and command line, as a library of pipeline stages.

// Where the reader is gone they panic, which ends the process in the middle of its work: `cli::output::say` does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod agent;
pub mod apply;
pub mod attribution;
pub mod bounded;
pub mod cli;
pub mod clock;
pub mod desired;
pub mod event;
pub mod fanotify;
pub mod kernel;
pub mod labels;
pub mod observation;
pub mod repair;
pub mod report;
pub mod store;
pub mod sys;
pub mod systemd;
