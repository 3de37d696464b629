//! `holdfast image policy`: a policy for remote attestation, which has the digest of each file of images.

use super::place::{ImageOption, Place, RootOption, input, open_other};
use crate::{
    cli::{BadInput, exit::IN_SYNC, output::Screen},
    image::{ImageError, ImageIndex},
};
use sensor_model::image::{ImageMeta, ImageSource};
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
        let mut indexes = vec![self.image.open(&images, &observer)?];
        for other in &self.and {
            indexes.push(open_other(&images, other, &observer)?);
        }
        for index in &indexes {
            let files = add(index, &mut digests).map_err(input)?;
            if files > 0 {
                tracing::warn!(source = %name(index), files, "{}", left_out(index.meta()));
            }
        }
        if digests.is_empty() {
            return Err(empty(&indexes));
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

/// The source of an index, in words.
fn name(index: &ImageIndex) -> String {
    let meta = index.meta();
    match meta.source {
        ImageSource::Layers => format!("image {}", meta.digest),
        ImageSource::Ostree => format!("ostree commit {}", meta.digest),
        ImageSource::Extensions => "extensions".to_owned(),
        ImageSource::Packages => format!("packages of {}", meta.platform),
        ImageSource::Baseline => "baseline".to_owned(),
    }
}

/// Why a policy does not have some files of an index.
fn left_out(meta: &ImageMeta) -> &'static str {
    match meta.source {
        ImageSource::Packages => {
            "The policy does not have some files of packages: the index has no SHA-256 of them, because they are configuration files of dpkg's packages \
             or did not have the package's MD5 when `holdfast image index --packages` read them, or their path is no text or has a control character; \
             take the digests of a baseline, which `holdfast baseline` makes, by --and baseline."
        }
        _ => {
            "The policy does not have some files: the index does not have their SHA-256, as that of a damaged object of ostree, or their path is \
             no text or has a control character; `holdfast image show PATH` prints what the index has."
        }
    }
}

/// The error of a policy without any digest: a verifier with such a policy would refuse each file.
fn empty(indexes: &[ImageIndex]) -> anyhow::Error {
    let names: Vec<String> = indexes.iter().map(name).collect();
    let of_packages = indexes.iter().any(|index| index.meta().source == ImageSource::Packages);
    let why = if of_packages {
        " (that of an earlier version of Holdfast has none of dpkg's packages: run `holdfast image index --packages`)"
    } else {
        ""
    };
    BadInput::because(format!(
        "the policy would be empty: the index of {} has no SHA-256 of any file{why}; or note what the host has now with `holdfast baseline /usr > \
         baseline.json`, index that with `holdfast image index --baseline baseline.json`, and use --image baseline",
        names.join(", of ")
    ))
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
