//! `holdfast image list`: the images that have an index.

use super::place::{Place, input};
use crate::{
    cli::{
        exit::{FAILURE, IN_SYNC},
        output::{Output, Screen, Tone, clean, count},
    },
    image::{BASELINE, EXTENSIONS, OSTREE, PACKAGES},
};
use sensor_model::image::{ImageMeta, ImageSource};
use serde::Serialize;

/// The value of [`ImageListReport::schema`].
const SCHEMA: &str = "holdfast.image-list/v1";

/// Arguments.
#[derive(Debug, clap::Args)]
pub(super) struct List {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

/// The images that have an index.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ImageListReport {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// The images, by their digests.
    pub images: Vec<ImageMeta>,
    /// Indexes that cannot be read.
    pub unreadable: Vec<UnreadableIndex>,
}

/// An index that cannot be read.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct UnreadableIndex {
    /// Digest of the image's manifest; `packages` or `baseline` for those of the host.
    pub digest: String,
    /// Why not.
    pub reason: String,
}

impl List {
    pub(super) fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let images = self.place.images();
        let mut report = ImageListReport { schema: SCHEMA, images: Vec::new(), unreadable: Vec::new() };
        for name in [EXTENSIONS, OSTREE, PACKAGES, BASELINE] {
            match images.named(name) {
                Ok(index) => report.images.extend(index.map(|index| index.meta().clone())),
                Err(error) => {
                    let unreadable = UnreadableIndex { digest: name.to_owned(), reason: error.to_string() };
                    report.unreadable.push(unreadable);
                }
            }
        }
        for digest in images.digests().map_err(input)? {
            match images.open(&digest) {
                Ok(index) => report.images.push(index.meta().clone()),
                Err(error) => report.unreadable.push(UnreadableIndex { digest, reason: error.to_string() }),
            }
        }
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        Ok(if report.unreadable.is_empty() { IN_SYNC } else { FAILURE })
    }
}

fn text(report: &ImageListReport, screen: &mut Screen) -> std::io::Result<()> {
    if report.images.is_empty() && report.unreadable.is_empty() {
        return screen.line("no image has an index; `holdfast image index LAYOUT` makes one");
    }
    let mut rows = Vec::new();
    for meta in &report.images {
        let (name, layers) = match meta.source {
            ImageSource::Layers => (meta.digest.clone(), "layer"),
            ImageSource::Ostree if meta.has_digests() => (OSTREE.to_owned(), "layer"),
            ImageSource::Ostree => (OSTREE.to_owned(), "commit"),
            ImageSource::Extensions => (EXTENSIONS.to_owned(), "extension"),
            ImageSource::Packages => (PACKAGES.to_owned(), "package"),
            ImageSource::Baseline => (BASELINE.to_owned(), "baseline"),
        };
        rows.push((
            None,
            vec![
                name,
                clean(&meta.platform),
                count(meta.layer_count(), layers),
                format!("{} paths", meta.entries),
                clean(&meta.created.clone().unwrap_or_default()),
                clean(&meta.names.join(", ")),
            ],
        ));
    }
    screen.table(0, &rows)?;
    for index in &report.unreadable {
        let word = screen.paint(Tone::Bad, "unreadable");
        screen.line(&format!("{word} {}: {}", index.digest, clean(&index.reason)))?;
    }
    Ok(())
}
