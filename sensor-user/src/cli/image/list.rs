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
    /// Digest of the image's manifest; `ostree-` and the checksum of a commit; `extensions`, `ostree`, `packages` or `baseline` for those of the host.
    pub digest: String,
    /// Why not.
    pub reason: String,
}

impl List {
    pub(super) fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let images = self.place.images();
        let mut report = ImageListReport { schema: SCHEMA, images: Vec::new(), unreadable: Vec::new() };
        let others = [images.commits(), images.digests()].into_iter().collect::<Result<Vec<_>, _>>();
        let known = [EXTENSIONS, OSTREE, PACKAGES, BASELINE].map(str::to_owned);
        let mut names = Vec::new();
        for name in known.into_iter().chain(others.map_err(input)?.concat()) {
            match images.named(&name) {
                Ok(Some(index)) => {
                    report.images.push(index.meta().clone());
                    names.push(name);
                }
                Ok(None) => {}
                Err(error) => {
                    report.unreadable.push(UnreadableIndex { digest: name, reason: error.to_string() });
                }
            }
        }
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, &names, screen)?;
        }
        Ok(if report.unreadable.is_empty() { IN_SYNC } else { FAILURE })
    }
}

/// `names` are those of the images, in their order.
fn text(report: &ImageListReport, names: &[String], screen: &mut Screen) -> std::io::Result<()> {
    if report.images.is_empty() && report.unreadable.is_empty() {
        return screen.line("no image has an index; `holdfast image index LAYOUT` makes one");
    }
    let mut rows = Vec::new();
    for (meta, name) in report.images.iter().zip(names) {
        let layers = match meta.source {
            ImageSource::Layers => "layer",
            ImageSource::Ostree if meta.has_digests() => "layer",
            ImageSource::Ostree => "commit",
            ImageSource::Extensions => "extension",
            ImageSource::Packages => "package",
            ImageSource::Baseline => "baseline",
        };
        rows.push((
            None,
            vec![
                name.clone(),
                clean(&meta.platform),
                count(meta.layer_count(), layers),
                format!("{} paths", meta.entries),
                clean(&meta.created.clone().unwrap_or_default()),
                clean(&meta.names.join(", ")),
            ],
        ));
    }
    screen.table(0, &rows)?;
    for (meta, name) in report.images.iter().zip(names) {
        for file in meta.damaged.iter().flat_map(|damaged| &damaged.first) {
            let word = screen.paint(Tone::Bad, "damaged");
            let (path, object, reason) = (clean(&file.path), &file.object, file.reason.as_str());
            screen.line(&format!("{word} {path} of {name}: its object {object}: {reason}"))?;
        }
    }
    for index in &report.unreadable {
        let word = screen.paint(Tone::Bad, "unreadable");
        screen.line(&format!("{word} {}: {}", index.digest, clean(&index.reason)))?;
    }
    Ok(())
}
