//! The tests in virtual machines: the scenarios, the guest's program, and the result lines between guest and host.
//!
//! In: the name of a scenario, from the kernel's command line. Out: result lines on the second serial port. To add a
//! scenario, write a file in `scenarios/` and a row in its table. `cargo xtask test` runs the scenario on every kernel
//! that the row names. This crate never starts a virtual machine: xtask does.

pub mod act;
pub mod bench;
pub mod guest;
pub mod protocol;
pub mod run;
pub mod scenario;
pub mod scenarios;
pub mod vectors;
