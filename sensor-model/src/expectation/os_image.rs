//! The expected OS image.
//!
//! In: nothing. Out: the form of the expectation, and of what an image lacks of the config that it was built from.

use serde::{Deserialize, Serialize};

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
