//! What a rule decides about.

/// What a rule decides about. A path may have one rule of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleKind {
    /// Things that a config declares.
    Declared,
    /// Undeclared names in a directory.
    Closed,
    /// An undeclared object at a path.
    Absent,
    /// What the host's image has.
    Image,
}
