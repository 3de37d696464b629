//! The index of an OS image: made from layouts, shown, compared with a host, and with what umoci unpacks; the packages of a host as an image.
#![expect(clippy::unwrap_used, reason = "a test's world that cannot be built is a failed test")]

mod archive;
mod baselines;
mod booted;
mod closed;
mod encapsulated;
mod explained;
mod extensions;
mod held_back;
mod indexed;
mod layout;
mod ostree;
mod ostree_commits;
mod ostree_layers;
mod packages;
mod policies;
mod readers;
mod refused;
mod repository;
mod rpm;
mod scanned;
mod unpacked;
mod updates;
mod watched;
mod world;
