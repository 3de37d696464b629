//! `holdfast image diff`: what an update from one image to another changes.

use super::place::{Place, input};
use crate::{
    cli::{
        exit::{DRIFT, IN_SYNC},
        output::{Output, Screen, Tone, clean, count},
    },
    image::{ChangedPath, ImageIndex, diff},
    inspection::{BlamedLayer, ImageState},
};
use serde::Serialize;

/// The value of [`ImageDiffReport::schema`].
const SCHEMA: &str = "holdfast.image-diff/v1";

/// Arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Diff {
    /// The old image: a digest, or its beginning of at least six digits.
    old: String,
    /// The new image: a digest, or its beginning of at least six digits.
    new: String,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

/// What differs between two images.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ImageDiffReport {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Digest of the old image's manifest.
    pub old: String,
    /// Digest of the new image's manifest.
    pub new: String,
    /// Paths that differ.
    pub changes: Vec<ImagePathChange>,
}

/// A path that differs between two images.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ImagePathChange {
    /// The path.
    pub path: String,
    /// What the old image has there; null if nothing.
    pub old: Option<ImageState>,
    /// What the new image has there; null if nothing.
    pub new: Option<ImageState>,
    /// Which parts differ: type, content, mode, owner, xattr, link-target, device.
    pub parts: Vec<&'static str>,
    /// The layer of the new image that put it there; of the old one if the new one has nothing there.
    pub layer: BlamedLayer,
}

impl Diff {
    pub(super) fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let images = self.place.images();
        let open = |wanted: &String| images.open(wanted).map_err(input);
        let (old, new) = (open(&self.old)?, open(&self.new)?);
        let found = diff(&old, &new).map_err(input)?;
        let changes: Vec<_> = found.into_iter().filter_map(|change| shown(&old, &new, &change)).collect();
        let report = ImageDiffReport {
            schema: SCHEMA,
            old: old.meta().digest.clone(),
            new: new.meta().digest.clone(),
            changes,
        };
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        Ok(if report.changes.is_empty() { IN_SYNC } else { DRIFT })
    }
}

fn shown(old: &ImageIndex, new: &ImageIndex, change: &ChangedPath) -> Option<ImagePathChange> {
    let layer = match (&change.old, &change.new) {
        (_, Some(entry)) => BlamedLayer::of(new.meta(), entry),
        (Some(entry), None) => BlamedLayer::of(old.meta(), entry),
        (None, None) => return None,
    };
    Some(ImagePathChange {
        path: String::from_utf8_lossy(&change.path).into_owned(),
        old: change.old.as_ref().map(ImageState::from),
        new: change.new.as_ref().map(ImageState::from),
        parts: change.parts.clone(),
        layer,
    })
}

fn text(report: &ImageDiffReport, screen: &mut Screen) -> std::io::Result<()> {
    for change in &report.changes {
        let (word, tone) = match (&change.old, &change.new) {
            (None, _) => ("added".to_owned(), Tone::Good),
            (_, None) => ("removed".to_owned(), Tone::Bad),
            _ => (format!("changed ({})", change.parts.join(", ")), Tone::Notable),
        };
        let word = screen.paint(tone, &word);
        let blame = screen.paint(Tone::Quiet, &clean(&super::verify::blame(&change.layer)));
        screen.line(&format!("{word} {} ({blame})", clean(&change.path)))?;
    }
    screen.line(&format!("{} from {} to {}", count(report.changes.len(), "change"), report.old, report.new))
}
