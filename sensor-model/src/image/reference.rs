//! The names of an image and of its layers, and how strong a verdict by them is.

use crate::names::names;
use serde::{Deserialize, Serialize};

names! {
    /// What a verdict rests on.
    pub enum Strength {
        /// The SHA-256 of the content in a layer whose own digest was verified.
        Layer = "sha256 of a layer",
    }
}

/// One layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LayerMeta {
    /// Digest of the layer's blob.
    pub digest: String,
    /// Digest of the uncompressed layer.
    pub diff_id: String,
    /// Size of the blob in bytes.
    pub size: u64,
    /// The line of the image's history that made the layer; null if the image has none for it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub history: Option<String>,
}

/// What an index says about its image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ImageMeta {
    /// Digest of the manifest of the platform.
    pub digest: String,
    /// Digests of the image indexes that lead to the manifest, the outermost first. They name the same image.
    pub indexes: Vec<String>,
    /// Digest of the image's config.
    pub config: String,
    /// The platform, such as `linux/amd64`.
    pub platform: String,
    /// Names that the layout gives to the image.
    pub names: Vec<String>,
    /// When the image was made, by its own word.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub created: Option<String>,
    /// The layers, the lowest first.
    pub layers: Vec<LayerMeta>,
    /// How many paths the index has.
    pub entries: u64,
    /// Bytes of all uncompressed layers.
    pub bytes: u64,
    /// The image is an encapsulated ostree commit. Its extended attributes are in objects of their own, so the index does not
    /// know them.
    pub ostree: bool,
}

impl ImageMeta {
    /// Whether a digest names this image: that of the manifest, or of an image index that leads to it.
    pub fn is(&self, digest: &str) -> bool {
        self.digest == digest || self.indexes.iter().any(|index| index == digest)
    }

    /// The blame in words: `layer 2 of 3, sha256:…, "RUN …"`. The line is cut to `most` characters.
    pub fn blame(&self, layer: u16, most: usize) -> String {
        let number = usize::from(layer);
        let count = self.layers.len();
        let Some(meta) = self.layers.get(number) else { return format!("layer {} of {count}", number + 1) };
        let digest: String = meta.digest.chars().take(19).collect();
        let mut text = format!("layer {} of {count}, {digest}…", number + 1);
        if let Some(line) = &meta.history {
            let mut short: String = line.chars().take(most).collect();
            if short.len() < line.len() {
                short.push('…');
            }
            text.extend([", `", &short, "`"]);
        }
        text
    }
}

/// Whether a text is a digest of the one kind that is supported: `sha256:` and 64 lower-case hexadecimal digits.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|digits| {
        digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}
