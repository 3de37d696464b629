//! Holdfast's daemon and command line, as a library of rooms.
//!
//! The rooms stand in the order of the data flow, and each takes only from those above it. A change goes from `kernel` to
//! `report`; a config goes from `desired` to `disk`.
//!
//! | room | what it does |
//! |---|---|
//! | [`bounded`], [`clock`], [`systemd`], [`sys`] | reads files up to a limit; tells the time; asks systemd; changes a disk |
//! | [`desired`] | reads what the node should be: configs, drift policies, generations |
//! | [`kernel`] | loads the kernel programs, and reads their ring and maps |
//! | [`fanotify`] | receives changes where no kernel program can be loaded |
//! | [`event`] | decodes and checks a ring record |
//! | [`attribution`] | finds who made a change: process, login, unit, pod |
//! | [`observation`] | reads what is there |
//! | [`labels`] | finds the SELinux label that a path should have |
//! | [`agent`] | runs the detection protocol in one loop |
//! | [`report`] | keeps one picture of the node, and writes the forensic log, the metrics and the status from it |
//! | [`disk`] | writes managed paths; nothing else does |
//! | [`store`] | keeps generations and the journal of an apply |
//! | [`repair`] | says what to write where a thing drifted |
//! | [`apply`] | brings the host from one config to another |
//! | [`cli`] | parses flags, calls one function, prints |

// Where the reader is gone they panic, which ends the process in the middle of its work: `cli::output::say` does not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod bounded;
pub mod clock;
pub mod sys;
pub mod systemd;

pub mod desired;

pub mod kernel;

pub mod fanotify;

pub mod event;

pub mod attribution;

pub mod observation;

pub mod labels;

pub mod agent;

pub mod report;

pub mod disk;

pub mod store;

pub mod repair;

pub mod apply;

pub mod cli;
