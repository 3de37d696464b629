//! The command line as a user sees it: output as golden files, JSON by the schemas in `docs/schemas`, exit codes. Each test runs
//! the built program on a host root of its own.

#![expect(clippy::unwrap_used, reason = "a test's world that cannot be built is a failed test")]

mod compare;
mod detach;
mod errors;
mod forensic;
mod plan;
mod render;
mod world;
