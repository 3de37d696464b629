//! The expected kernel arguments and OS image, and an object of its commit.
//!
//! In: nothing. Out: the forms of these expectations, and of what an image lacks of the config that it was built from.

use serde::{Deserialize, Serialize};

/// Arguments that the running kernel must have. It may have others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct KernelArgumentsExpectation {
    /// One argument each, in their order.
    pub arguments: Vec<String>,
    /// Those among them that take effect with the next boot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<String>,
}

/// The image that must be booted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OsImageExpectation {
    /// As declared (`osImageURL`).
    pub image: String,
    /// What the booted image lacks of the config that it was built from. Absent if it lacks nothing, was not built from the node's config, or
    /// has no index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_carried: Option<Box<NotCarried>>,
}

impl OsImageExpectation {
    /// The image that a config declares.
    pub fn of(image: impl Into<String>) -> Self {
        Self { image: image.into(), not_carried: None }
    }
}

/// Declared files that an image, built from the config that declares them, has in another state or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NotCarried {
    /// The config.
    pub config: String,
    /// The first of the paths, in their order.
    pub paths: Vec<String>,
    /// How many paths there are beyond those.
    pub more: usize,
}

/// The object of an ostree commit, by its checksum alone. The checksum covers type, owner, mode, extended attributes, target and content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OstreeObjectExpectation {
    /// The checksum.
    #[serde(with = "hex::serde")]
    #[schemars(with = "String", regex(pattern = "^[0-9a-f]{64}$"))]
    pub checksum: [u8; 32],
}
