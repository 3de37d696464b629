//! What is known of a managed thing, and of a node: the worst verdict of its things.

use crate::names::names;

names! {
    /// The verdict on a managed thing or a node, the best first.
    pub enum VerdictKind {
        /// It is as declared.
        Compliant = "compliant",
        /// It was changed and is as declared again.
        Touched = "touched",
        /// Evidence was lost, and it has not been verified since.
        Unknown = "unknown",
        /// It differs from its expectation.
        Drifted = "drifted",
    }
}
