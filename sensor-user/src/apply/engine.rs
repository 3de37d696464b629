//! Applies to one host: their begin, their continuation after an interruption, and the check that nothing differs.
//!
//! In: a request, or a journal. Out: the result of an apply.

mod applying;
mod notes;
mod preflight;
mod present_boot;
mod recovering;
mod rollback;
mod state;

pub use state::{AfterRollback, Applied, Engine, Recovered};
