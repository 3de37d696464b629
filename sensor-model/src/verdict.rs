//! What is known about a managed thing, and about a node: the worst verdict of its things.
//!
//! In: nothing. Out: the verdicts, in the order from the best to the worst, with their names. `protocol` decides them.

use crate::names::names;

names! {
    /// The verdict on a managed thing or a node, the best first. Only a record has the verdict `touched`.
    pub enum VerdictKind {
        /// It matches its expectation.
        Compliant = "compliant",
        /// It was changed and matches its expectation again.
        Touched = "touched",
        /// It was not verified since the start or since evidence was lost, or events do not report its changes, or it cannot be
        /// read, or no daemon runs.
        Unknown = "unknown",
        /// It differs from its expectation.
        Drifted = "drifted",
    }
}
