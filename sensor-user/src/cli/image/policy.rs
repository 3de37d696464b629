//! `holdfast image policy`: a policy for remote attestation, which has the digest of each file of images.

use super::place::{ImageOption, Place, RootOption, input, open_other};
use crate::{
    cli::{exit::IN_SYNC, output::Screen},
    image::{ImageError, ImageIndex},
};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Policy {
    /// The form of the policy.
    #[arg(long, value_enum)]
    format: PolicyFormat,
    #[command(flatten)]
    image: ImageOption,
    /// Another image whose files may be there, too, such as the one that is staged for the next boot. May be repeated.
    #[arg(long, value_name = "DIGEST")]
    and: Vec<String>,
    #[command(flatten)]
    root: RootOption,
    #[command(flatten)]
    place: Place,
}

/// A form of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PolicyFormat {
    /// The runtime policy of Keylime, in JSON.
    Keylime,
    /// A line for each file: its digest as in the kernel's list of measurements, and its path.
    Ima,
}

/// The digests of each path. Of two images a path may have two.
type Digests = BTreeMap<String, BTreeSet<String>>;

impl Policy {
    pub(super) fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let observer = self.root.observer()?;
        let images = self.place.images();
        let mut digests = Digests::new();
        let mut left_out = add(&self.image.open(&images, &observer)?, &mut digests).map_err(input)?;
        for other in &self.and {
            left_out += add(&open_other(&images, other, &observer)?, &mut digests).map_err(input)?;
        }
        if left_out > 0 {
            tracing::warn!(
                files = left_out,
                "The policy does not have some files: the index does not have their SHA-256, as that of a damaged object of ostree, or their path is \
                 no text or has a control character; \
                 `holdfast image show PATH` prints what the index has."
            );
        }
        match self.format {
            PolicyFormat::Keylime => screen.json(&keylime(&digests))?,
            PolicyFormat::Ima => {
                for (path, sums) in &digests {
                    for sum in sums {
                        screen.line(&format!("sha256:{sum} {path}"))?;
                    }
                }
            }
        }
        screen.flush()?;
        Ok(IN_SYNC)
    }
}

/// Adds the files of an image. Gives how many have no digest, or a path that a policy cannot have.
fn add(index: &ImageIndex, digests: &mut Digests) -> Result<usize, ImageError> {
    let mut left_out = 0;
    index.each(|path, entry| {
        // Of a damaged object of ostree nothing is known but its checksum, not even whether it is a file.
        if !entry.is_file() && entry.ostree.is_none() {
            return Ok(());
        }
        let text = std::str::from_utf8(path).ok().filter(|path| !path.chars().any(char::is_control));
        if let (Some(path), Some(sha256)) = (text, entry.sha256) {
            digests.entry(path.to_owned()).or_default().insert(hex::encode(sha256));
        } else {
            left_out += 1;
        }
        Ok::<(), ImageError>(())
    })?;
    Ok(left_out)
}

/// A runtime policy of version 1 (`RUNTIME_POLICY_SCHEMA` of Keylime 7). The algorithm of the log is Keylime's own default.
fn keylime(digests: &Digests) -> serde_json::Value {
    json!({
        "meta": { "version": 1, "generator": 0 },
        "release": 0,
        "digests": digests,
        "excludes": [],
        "keyrings": {},
        "ima": { "ignored_keyrings": [], "log_hash_alg": "sha1", "dm_policy": null },
        "ima-buf": {},
        "verification-keys": "",
    })
}
