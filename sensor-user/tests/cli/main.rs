//! The command line as its users meet it: the built program on a host root of its own, its output as
//! golden files, its JSON by the schemas in `docs/schemas`, its exit codes.

mod compare;
mod errors;
mod forensic;
mod world;
