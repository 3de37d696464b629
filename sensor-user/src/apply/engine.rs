//! Applies to one host: beginning, going on after an interruption, confirming that nothing differs.

mod applying;
mod boot;
mod host;
mod notes;
mod preflight;
mod recovering;
mod rollback;

pub use host::{AfterRollback, Applied, Engine, Recovered};
