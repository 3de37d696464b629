//! What is known about a managed thing, and about a node: the worst verdict of its things.
//!
//! In: nothing. Out: the verdicts, in the order from the best to the worst, with their names. `detector` decides them.

use crate::names;

names! {
    /// The verdict on a managed thing or a node, the best first. Only a record has the verdict `touched`.
    pub enum VerdictKind {
        /// It matches its expectation.
        Compliant = "compliant",
        /// It was changed and matches its expectation again.
        Touched = "touched",
        /// No daemon runs, or the daemon has not verified it since the start or since a loss of evidence. Or events do not
        /// report its changes, or the daemon cannot read it.
        Unknown = "unknown",
        /// It differs from its expectation.
        Drifted = "drifted",
    }
}
