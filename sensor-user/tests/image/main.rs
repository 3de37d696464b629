//! The index of an OS image: made from layouts, shown, compared with a host, and with what umoci unpacks.
#![expect(clippy::unwrap_used, reason = "a test's world that cannot be built is a failed test")]

mod archive;
mod explained;
mod indexed;
mod layout;
mod refused;
mod unpacked;
mod world;
