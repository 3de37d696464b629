//! Virtual machines: one kernel with one guest that runs one scenario, from its boot or from a saved state.
//!
//! Comes in: a `Vm`. Goes out: the results of its scenario, or how it failed to give them; and a log of everything it
//! printed in `target/vm-logs`. Nothing that a guest writes outlives it.

pub(crate) mod console;
mod cpio;
mod guest;
pub(crate) mod images;
mod lines;
mod machine;
mod ostree;
mod qmp;
mod runs;
mod saved;
mod selinux;

pub(crate) use guest::{Parts, Vm};
pub(crate) use runs::Outcome;
pub(crate) use saved::Saved;
