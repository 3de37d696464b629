//! Applies to one host: their begin, their continuation after an interruption, and the check that nothing differs.
//!
//! In: a request, or a journal. Out: the result of an apply.

mod applying;
mod boot;
mod host;
mod notes;
mod preflight;
mod recovering;
mod rollback;

pub use host::{AfterRollback, Applied, Engine, Recovered};
