//! The guest side: from the kernel's start of `/init` to the last line and power off.
//!
//! Comes in: kernel parameters (`hf.guest`, `hf.kernel`), and on the second serial port the name of the scenario. Goes
//! out: messages on the same port. Between its hello and the name the program changes nothing, so that the host can save
//! the guest there and start each scenario from the saved state.
//!
//! Helpers for scenarios live beside this file: `agent` for the daemon, `service` for a node that runs it under systemd,
//! `status` and `page` for what the daemon publishes, `disks` for file systems, `bus` for messages of others on D-Bus,
//! `wait` for conditions. Runs only in a guest: it mounts, loads modules and powers off.

pub mod agent;
pub mod boot;
pub mod bus;
pub mod command;
mod context;
pub mod disks;
pub mod files;
pub mod fuse;
pub mod ostree;
pub mod page;
pub mod service;
pub mod status;
pub mod wait;

pub use command::{parameter, run, shell};
pub use context::Context;
