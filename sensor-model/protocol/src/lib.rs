//! The detection protocol: from the kernel's events to a verdict that is never wrongly compliant.
//!
//! In: changes, losses, gaps, finished verifications and the time (monotonic nanoseconds). Out: the things to verify and when,
//! [`Transition`]s, verdicts. No I/O, no clock, no content. The daemon runs this code. The tests in `checker` run the same code
//! through every interleaving of writers, losses and crashes.
//!
//! # How the daemon drives it
//!
//! 1. Call [`Detector::add`] for every managed thing. All are due at once. That includes a restart: pinned maps keep the changes
//!    of the time between, and the full verification finds their effect.
//! 2. Whenever the ring is readable, and at every canary: drain the ring until it is empty, and call [`Detector::changed`] for each
//!    record. **Then** read the kernel's loss counter and call [`Detector::drained`]. If that returns `true`, sweep: read every
//!    entry and call `changed` for the ones that are dirty or lost a record. The canary matters: a hook on another CPU
//!    finds the ring full, and counts its loss later. So a loss can become visible after the drain that made room.
//! 3. Call [`Detector::due`], verify each returned thing, and call [`Detector::conclude`] with the result. A verification opens
//!    the object for observation. In that open the kernel takes its part of the [`Evidence`]. Then it reads everything, and
//!    checks that the path still leads to the same inode. If not, the daemon enrols the other inode and starts over. Last it
//!    reads the entry. If nothing is at the path, it observes the directory's inode, opened *before* the lookup of the name.
//! 4. Sleep until the ring is readable or [`Detector::next_deadline`].
//!
//! A module takes only from the modules above it in the table of `docs/architecture.md`.
#![forbid(unsafe_code)]

mod detector;
mod evidence;
mod gap_reason;
mod gaps;
mod names;
mod thing;
mod things;
mod timing;
pub mod verdict;

#[cfg(test)]
mod checker;
#[cfg(test)]
mod tests;

pub use detector::{Detector, ThingChange, ThingVerdict, Transition, VerificationResult};
pub use evidence::{Evidence, Finding, Verification};
pub use gap_reason::GapReason;
pub use gaps::{Gap, Scope};
pub use things::ThingId;
pub use timing::Timing;
