//! The command line from the user's side: the built program on a host root of its own, its output as golden files, its
//! JSON by the schemas in `docs/schemas`, its exit codes.

#![expect(clippy::unwrap_used, reason = "a test's world that cannot be built is a failed test")]

mod compare;
mod errors;
mod forensic;
mod plan;
mod render;
mod world;
