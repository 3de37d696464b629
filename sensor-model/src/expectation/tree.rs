//! What directories of the OS should be: trees that the kernel proves, and what may be mounted over them.
//!
//! In: nothing. Out: the expectations of both, and what identifies the contents of a tree.

use crate::strength::SealKind;
use serde::{Deserialize, Serialize};

/// A directory tree that the kernel proves, whose entries were compared with an index when they were read. As long as it is this tree, and nothing
/// is mounted over it, they need no things of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TreeExpectation {
    /// What identifies the contents.
    pub sealed: SealedTree,
    /// How many entries of the index have no thing of their own.
    pub entries: u32,
}

/// What identifies the contents of a tree that the kernel proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SealedTree {
    /// How the kernel proves them.
    pub by: SealKind,
    /// A digest of everything that determines them.
    #[serde(with = "hex::serde")]
    #[schemars(with = "String", regex(pattern = "^[0-9a-f]{64}$"))]
    pub image: [u8; 32],
}

/// What may be mounted over a hierarchy of the OS: nothing, or the extensions that an index has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HierarchyExpectation {
    /// Names of the extensions that are merged over it, sorted; empty if none is expected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<String>,
}
