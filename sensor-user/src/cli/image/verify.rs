//! `holdfast image verify`: compares a host with an image.

use super::place::{ImageOption, Place, input};
use crate::{
    cli::{
        BadInput,
        exit::{DRIFT, FAILURE, IN_SYNC},
        output::{Output, Screen, Tone, clean},
        sources::host_path,
    },
    image::{Found, ImageIndex, Verified, Verifier},
    inspection::BlamedLayer,
    observation::Observer,
};
use sensor_model::{
    difference::Difference,
    image::{ImageSource, Strength},
};
use serde::Serialize;
use std::path::PathBuf;

/// The value of [`ImageVerifyReport::schema`].
const SCHEMA: &str = "holdfast.image-verify/v1";
/// Most characters of a line of the history that the text shows.
const HISTORY: usize = 60;

/// Arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Verify {
    /// Compare only these paths, and what is below them. [default: all of the image; on the running host without /dev, /proc,
    /// /run, /sys, /sysroot, /tmp and /var]
    #[arg(value_parser = host_path)]
    path: Vec<PathBuf>,
    #[command(flatten)]
    image: ImageOption,
    /// The root directory to compare.
    #[arg(long, default_value = "/", value_name = "DIRECTORY")]
    root: PathBuf,
    /// Also report what is in a directory of the image and is not in the image.
    #[arg(long)]
    unexpected: bool,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

/// What differs from an image.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ImageVerifyReport {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Digest of the image's manifest.
    pub image: String,
    /// Digest of the manifest of the image that an ostree commit was made from; absent if the commit was made in another way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// What the index was made from.
    pub source: ImageSource,
    /// What verdicts about contents rest on. Each differing path has its own.
    pub strength: Strength,
    /// How many paths were compared.
    pub compared: u64,
    /// Paths that differ from the image.
    pub differing: Vec<DifferingPath>,
    /// Paths that could not be read, so that nothing is known about them.
    pub unreadable: Vec<DifferingPath>,
    /// Paths in the image's directories that the image does not have, if they are asked for.
    pub unexpected: Vec<String>,
    /// Directories whose contents were not compared, because they are the host's and not the image's.
    pub left_out: Vec<&'static str>,
}

/// A path that differs from the image.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct DifferingPath {
    /// The path.
    pub path: String,
    /// The layer that put it there, or the package that owns it.
    pub layer: BlamedLayer,
    /// What the verdict rests on.
    pub strength: Strength,
    /// Whether it is a configuration file, which an admin may change: of a package, or in `/etc`, with the first state that an ostree commit
    /// gives it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub config: bool,
    /// Every difference.
    pub differences: Vec<Difference>,
    /// Another deployment that ships something else at this path of `/etc`. So the host's file holds back what the booted deployment ships.
    /// Absent if all deployments ship the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_content_in: Option<String>,
}

impl Verify {
    pub(super) fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let observer = Observer::new(&self.root).map_err(BadInput::wrap)?;
        let index = self.image.open(&self.place.images(), &observer)?;
        let scan = Verifier::new(&index, &observer, &self.root);
        for path in &self.path {
            if scan.path(path).map_err(input)?.is_none() {
                return Err(BadInput::because(format!("the image has nothing at {}", path.display())));
            }
        }
        let verified = scan.all(&self.path, self.unexpected).map_err(input)?;
        let report = report(&index, verified);
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        let is_as_the_image = report.differing.is_empty() && report.unexpected.is_empty();
        Ok(if !report.unreadable.is_empty() {
            FAILURE
        } else if is_as_the_image {
            IN_SYNC
        } else {
            DRIFT
        })
    }
}

fn report(index: &ImageIndex, verified: Verified) -> ImageVerifyReport {
    let shown = |found: Found| DifferingPath {
        path: found.path.to_string_lossy().into_owned(),
        layer: BlamedLayer::of(index.meta(), &found.entry),
        strength: index.meta().strength(&found.entry),
        config: found.entry.config,
        differences: found.differences,
        other_content_in: found.other_content_in,
    };
    let (unreadable, differing): (Vec<Found>, Vec<Found>) =
        verified.differing.into_iter().partition(Found::is_unreadable);
    ImageVerifyReport {
        schema: SCHEMA,
        image: index.meta().digest.clone(),
        manifest: index.meta().manifest.clone(),
        source: index.meta().source,
        strength: index.meta().strength_of_contents(),
        compared: verified.compared,
        differing: differing.into_iter().map(shown).collect(),
        unreadable: unreadable.into_iter().map(shown).collect(),
        unexpected: verified.unexpected.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
        left_out: verified.left_out,
    }
}

fn text(report: &ImageVerifyReport, screen: &mut Screen) -> std::io::Result<()> {
    let differing = report.differing.iter().map(|path| (path, "differs", Tone::Bad));
    let unreadable = report.unreadable.iter().map(|path| (path, "unknown", Tone::Notable));
    for (path, word, tone) in differing.chain(unreadable) {
        let word = screen.paint(tone, word);
        let blame = screen.paint(Tone::Quiet, &clean(&blame(&path.layer)));
        let config = if path.config { "configuration file, " } else { "" };
        screen.line(&format!("{word} {} ({config}{blame})", clean(&path.path)))?;
        for difference in &path.differences {
            screen.line(&format!("  {}", clean(&difference.text)))?;
        }
        if let Some(deployment) = &path.other_content_in {
            screen.line(&format!(
                "  holds back the image's content: the deployment {} ships another one",
                clean(deployment)
            ))?;
        }
    }
    for path in &report.unexpected {
        let word = screen.paint(Tone::Bad, "unexpected");
        screen.line(&format!("{word} {}", clean(path)))?;
    }
    let with = match (report.source, &report.manifest) {
        (ImageSource::Layers, _) => report.image.clone(),
        (ImageSource::Ostree, Some(image)) => format!("the ostree commit of the image {image}"),
        (ImageSource::Ostree, None) => "the ostree commit".to_owned(),
        (ImageSource::Packages, _) => "the packages".to_owned(),
        (ImageSource::Baseline, _) => "the baseline".to_owned(),
    };
    let paths = format!("{} paths compared with {with}", report.compared);
    let differing = report.differing.len() + report.unexpected.len();
    if differing == 0 && report.unreadable.is_empty() {
        let word = match report.source {
            ImageSource::Layers => "as in the image",
            ImageSource::Ostree => "as in the ostree commit",
            ImageSource::Packages => "as in the packages",
            ImageSource::Baseline => "as in the baseline",
        };
        let word = screen.paint(Tone::Good, word);
        screen.line(&format!("{word}: {paths} ({})", report.strength.as_str()))?;
    } else {
        screen.line(&format!("{differing} differ, {} unknown: {paths}", report.unreadable.len()))?;
    }
    if !report.left_out.is_empty() {
        screen.line(&format!("not compared: what is in {}", report.left_out.join(", ")))?;
    }
    Ok(())
}

/// A layer in a few words.
pub(super) fn blame(layer: &BlamedLayer) -> String {
    if layer.digest.is_empty() {
        return layer.text();
    }
    let digest: String = layer.digest.chars().take(19).collect();
    let history = layer.history.as_ref().map(|line| {
        let short: String = line.chars().take(HISTORY).collect();
        let more = if short.len() < line.len() { "…" } else { "" };
        format!(", {short}{more}")
    });
    format!("layer {} of {}, {digest}…{}", layer.number, layer.count, history.unwrap_or_default())
}
