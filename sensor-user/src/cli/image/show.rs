//! `holdfast image show`: what an image has at a path.

use super::place::{ImageOption, Place, RootOption, input};
use crate::{
    cli::{
        exit::{DRIFT, IN_SYNC},
        output::{Output, Screen, clean},
        sources::host_path,
    },
    image::Verifier,
    inspection::{BlamedLayer, ImageState},
};
use serde::Serialize;
use std::path::PathBuf;

/// The value of [`ImageShowReport::schema`].
const SCHEMA: &str = "holdfast.image-show/v1";

/// Arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// The path. Links on the way are followed as the image has them, and the last name is not.
    #[arg(value_parser = host_path)]
    path: PathBuf,
    #[command(flatten)]
    image: ImageOption,
    #[command(flatten)]
    root: RootOption,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

/// What an image has at a path.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ImageShowReport {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Digest of the image's manifest.
    pub image: String,
    /// The path.
    pub path: String,
    /// The path without links, as the image has it; absent if the image has nothing there, or no link is on the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub real_path: Option<String>,
    /// What the image has there; null if it has nothing.
    pub state: Option<ImageState>,
    /// The layer that put it there; null if the image has nothing there.
    pub layer: Option<BlamedLayer>,
}

impl Show {
    pub(super) fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let observer = self.root.observer()?;
        let index = self.image.open(&self.place.images(), &observer)?;
        let found = Verifier::new(&index, &observer, self.root.path()).resolve(&self.path).map_err(input)?;
        let real_path = found.as_ref().map(|(real, _)| real).filter(|real| **real != self.path);
        let real_path = real_path.map(|real| real.to_string_lossy().into_owned());
        let entry = found.map(|(_, entry)| entry);
        let report = ImageShowReport {
            schema: SCHEMA,
            image: index.meta().digest.clone(),
            path: self.path.to_string_lossy().into_owned(),
            real_path,
            state: entry.as_ref().map(ImageState::from),
            layer: entry.as_ref().map(|entry| BlamedLayer::of(index.meta(), entry)),
        };
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        Ok(if entry.is_some() { IN_SYNC } else { DRIFT })
    }
}

fn text(report: &ImageShowReport, screen: &mut Screen) -> std::io::Result<()> {
    let path = clean(&report.path);
    let (Some(state), Some(layer)) = (&report.state, &report.layer) else {
        return screen.line(&format!("{path}: the image {} has nothing there", report.image));
    };
    screen.line(&format!("{path}: {}", clean(&state.summary())))?;
    let mut rows = Vec::new();
    rows.extend(report.real_path.iter().map(|real| (None, vec!["without links".to_owned(), clean(real)])));
    rows.push((None, vec!["put there by".to_owned(), clean(&layer.text())]));
    rows.extend(layer.history.iter().map(|line| (None, vec!["history".to_owned(), clean(line)])));
    let xattrs = state.xattrs.iter();
    rows.extend(xattrs.map(|(name, value)| (None, vec![clean(name), clean(value)])));
    rows.push((None, vec!["image".to_owned(), report.image.clone()]));
    screen.table(2, &rows)
}
