//! `holdfast image show`: what an image has at a path.

use super::place::{ImageOption, Place, RootOption, input};
use crate::{
    cli::{
        exit::{DRIFT, IN_SYNC},
        output::{Output, Screen, clean},
        sources::host_path,
    },
    inspection::{BlamedLayer, ImageState},
};
use serde::Serialize;
use std::{os::unix::ffi::OsStrExt as _, path::PathBuf};

/// The value of [`ImageShowReport::schema`].
const SCHEMA: &str = "holdfast.image-show/v1";

/// Arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// The path, without links on the way.
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
    /// What the image has there; null if it has nothing.
    pub state: Option<ImageState>,
    /// The layer that put it there; null if the image has nothing there.
    pub layer: Option<BlamedLayer>,
}

impl Show {
    pub(super) fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let observer = self.root.observer()?;
        let index = self.image.open(&self.place.images(), &observer)?;
        let entry = index.find(self.path.as_os_str().as_bytes()).map_err(input)?;
        let report = ImageShowReport {
            schema: SCHEMA,
            image: index.meta().digest.clone(),
            path: self.path.to_string_lossy().into_owned(),
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
    let mut rows = vec![(None, vec!["put there by".to_owned(), clean(&layer.text())])];
    rows.extend(layer.history.iter().map(|line| (None, vec!["history".to_owned(), clean(line)])));
    let xattrs = state.xattrs.iter();
    rows.extend(xattrs.map(|(name, value)| (None, vec![clean(name), clean(value)])));
    rows.push((None, vec!["image".to_owned(), report.image.clone()]));
    screen.table(2, &rows)
}
