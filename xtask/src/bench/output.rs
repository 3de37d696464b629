//! The result of a bench, and how it is printed.

use clap::ValueEnum;
use serde::Serialize;

use super::rows::Row;

/// How the result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchFormat {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// The result of a bench.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) schema: &'static str,
    pub(super) kernel: String,
    pub(super) qemu: String,
    /// The largest relative difference between the base after the daemon ended and the base before it started.
    pub(super) between_the_bases: f64,
    pub(super) rows: Vec<Row>,
}
