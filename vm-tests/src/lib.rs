//! What is tested in virtual machines: the scenarios, the program in the guest, and the lines it reports with.
//!
//! Comes in: the name of a scenario, from the kernel's command line. Goes out: result lines on the second serial
//! port. To add a scenario, write a file in `scenarios/` and a row in its table; `cargo xtask test` runs it on
//! every kernel that the row names. Nothing here starts a virtual machine: that is xtask's part.

pub mod bench;
pub mod guest;
pub mod protocol;
pub mod scenarios;
pub mod vectors;
