//! `holdfast image verify`: compares a host with an image.

use super::place::{ImageOption, Place, input};
use crate::{
    cli::{
        BadInput,
        exit::{DRIFT, FAILURE, IN_SYNC},
        output::{Output, Screen, Tone, clean},
        progress::Bar,
        sources::host_path,
    },
    image::{
        CoveredHierarchy, Found, ImageIndex, ScanFiles, UnlistedDirectory, Verified, Verifier,
        beside_extensions, covered, merged_extensions,
    },
    inspection::BlamedLayer,
    observation::Observer,
};
use sensor_model::{
    difference::Difference,
    image::{ImageSource, Strength, packages_text},
    strength::SealKind,
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The value of [`ImageVerifyReport::schema`].
const SCHEMA: &str = "holdfast.image-verify/v1";
/// Most differing paths below a covered hierarchy that the text shows, each with its differences. The JSON has all.
const SHOWN_BELOW: usize = 10;
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
    /// Also report what is in a directory of the image, and neither in the image nor in a merged extension that has an index. With `--image
    /// extensions` another index must say what the host has beside its extensions.
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
    /// How many of them the kernel proves to have a content that the scan has read, so that they were not read again.
    #[serde(skip_serializing_if = "is_zero")]
    pub sealed: u64,
    /// The same number for each way in which the kernel proves a content.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sealed_by: BTreeMap<SealKind, u64>,
    /// Hierarchies over which something is mounted that is not expected: an overlay, or extensions without an index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub over: Vec<CoveredHierarchy>,
    /// How many paths of the image are those of merged extensions, and were not compared.
    #[serde(skip_serializing_if = "is_zero")]
    pub of_extensions: u64,
    /// Paths that differ from the image.
    pub differing: Vec<DifferingPath>,
    /// Paths that could not be read, so that nothing is known about them.
    pub unreadable: Vec<DifferingPath>,
    /// Paths in the image's directories that the image does not have, if they are asked for.
    pub unexpected: Vec<String>,
    /// Directories whose names could not be read, so that it is not known what only the host has there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unlisted: Vec<UnlistedDirectory>,
    /// Directories whose contents were not compared, because they are the host's and not the image's.
    pub left_out: Vec<&'static str>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde's skip_serializing_if asks for"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
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
    /// An earlier deployment that ships something else at this path of `/etc`. So the host's file holds back what the booted deployment ships.
    /// Absent if all earlier deployments ship the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_content_in: Option<String>,
}

impl Verify {
    pub(super) fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let sealed = ScanFiles::of(&self.place.state()).sealed_with_trees();
        let observer = Observer::new(&self.root).map_err(BadInput::wrap)?;
        let observer = observer.with_settled_contents().with_sealed(sealed);
        let images = self.place.images();
        let index = self.image.open(&images, &observer)?;
        let extensions = merged_extensions(&images, &observer).map_err(input)?;
        let beside = if self.unexpected && index.meta().source == ImageSource::Extensions {
            beside_extensions(&images, &observer).map_err(input)?
        } else {
            Vec::new()
        };
        let scan = Verifier::new(&index, &observer, &self.root).below(extensions.as_ref()).beside(&beside);
        for path in &self.path {
            match scan.path(path).map_err(input)? {
                None => {
                    return Err(BadInput::because(format!("the image has nothing at {}", path.display())));
                }
                Some(found) if scan.is_of_extension(&found.path).map_err(input)? && !found.is_directory() => {
                    return Err(BadInput::because(format!(
                        "{} is a file of a merged extension; compare it with --image extensions",
                        path.display()
                    )));
                }
                Some(_) => {}
            }
        }
        let paths = index.meta().entries;
        let mut bar = Bar::new();
        let verified = scan.all(&self.path, self.unexpected, &mut |done| {
            bar.show(|| format!("{done} of {paths} paths of the image"));
        });
        bar.end();
        let verified = verified.map_err(input)?;
        let everything = [PathBuf::from("/")];
        let paths = if self.path.is_empty() { &everything[..] } else { &self.path[..] };
        let over = covered(&observer, &images, paths).map_err(input)?;
        let report = report(&index, verified, over);
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        let is_as_the_image =
            report.over.is_empty() && report.differing.is_empty() && report.unexpected.is_empty();
        let is_unknown = !report.unreadable.is_empty()
            || !report.unlisted.is_empty()
            || report.over.iter().any(CoveredHierarchy::is_unreadable);
        Ok(if is_unknown {
            FAILURE
        } else if is_as_the_image {
            IN_SYNC
        } else {
            DRIFT
        })
    }
}

fn report(index: &ImageIndex, verified: Verified, over: Vec<CoveredHierarchy>) -> ImageVerifyReport {
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
        sealed: verified.sealed.values().sum(),
        sealed_by: verified.sealed,
        over,
        of_extensions: verified.of_extensions,
        differing: differing.into_iter().map(shown).collect(),
        unreadable: unreadable.into_iter().map(shown).collect(),
        unexpected: verified.unexpected.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
        unlisted: verified.unlisted,
        left_out: verified.left_out,
    }
}

fn text(report: &ImageVerifyReport, screen: &mut Screen) -> std::io::Result<()> {
    for hierarchy in &report.over {
        let (word, tone) =
            if hierarchy.is_unreadable() { ("unknown", Tone::Notable) } else { ("over", Tone::Bad) };
        for difference in &hierarchy.differences {
            let word = screen.paint(tone, word);
            screen.line(&format!("{word} {}: {}", clean(&hierarchy.path), clean(&difference.text)))?;
        }
    }
    // What is mounted over a hierarchy may change any number of paths below.
    let mut below = vec![0usize; report.over.len()];
    let differing = report.differing.iter().map(|path| (path, "differs", Tone::Bad));
    let unreadable = report.unreadable.iter().map(|path| (path, "unknown", Tone::Notable));
    for (path, word, tone) in differing.chain(unreadable) {
        let covered = report.over.iter().rposition(|hierarchy| hierarchy.has(Path::new(&path.path)));
        if let Some(at) = covered {
            below[at] += 1;
            if below[at] > SHOWN_BELOW {
                continue;
            }
        }
        let word = screen.paint(tone, word);
        let blame = screen.paint(Tone::Quiet, &clean(&blame(&path.layer)));
        let config = if path.config { "configuration file, " } else { "" };
        screen.line(&format!("{word} {} ({config}{blame})", clean(&path.path)))?;
        for difference in &path.differences {
            screen.line(&format!("  {}", clean(&difference.text)))?;
        }
        if let Some(deployment) = &path.other_content_in {
            screen.line(&format!(
                "  holds back the image's content: the earlier deployment {} ships another one",
                clean(deployment)
            ))?;
        }
    }
    for (hierarchy, count) in report.over.iter().zip(below) {
        if let Some(more) = count.checked_sub(SHOWN_BELOW).filter(|more| *more > 0) {
            screen.line(&format!(
                "and {more} paths more below {}, over which something stands; `-o json` lists them",
                clean(&hierarchy.path)
            ))?;
        }
    }
    for path in &report.unexpected {
        let word = screen.paint(Tone::Bad, "unexpected");
        screen.line(&format!("{word} {}", clean(path)))?;
    }
    for directory in &report.unlisted {
        let word = screen.paint(Tone::Notable, "unknown");
        let path = clean(&directory.path);
        screen.line(&format!("{word} {path}: its names cannot be read: {}", clean(&directory.reason)))?;
    }
    let with = match (report.source, &report.manifest) {
        (ImageSource::Layers, _) => report.image.clone(),
        (ImageSource::Ostree, Some(image)) => format!("the ostree commit of the image {image}"),
        (ImageSource::Ostree, None) => "the ostree commit".to_owned(),
        (ImageSource::Extensions, _) => "the extensions".to_owned(),
        (ImageSource::Packages, _) => "the packages".to_owned(),
        (ImageSource::Baseline, _) => "the baseline".to_owned(),
    };
    let paths = format!("{} paths compared with {with}", report.compared);
    let differing = report.over.len() + report.differing.len() + report.unexpected.len();
    let unknown = report.unreadable.len() + report.unlisted.len();
    if differing == 0 && unknown == 0 {
        let word = match report.source {
            ImageSource::Layers => "as in the image",
            ImageSource::Ostree => "as in the ostree commit",
            ImageSource::Extensions => "as in the extensions",
            ImageSource::Packages => "as in the packages",
            ImageSource::Baseline => "as in the baseline",
        };
        let word = screen.paint(Tone::Good, word);
        screen.line(&format!("{word}: {paths} ({})", report.strength.as_str()))?;
    } else {
        screen.line(&format!("{differing} differ, {unknown} unknown: {paths}"))?;
    }
    if report.sealed > 0 {
        let by: Vec<&str> = report.sealed_by.keys().map(|kind| kind.as_str()).collect();
        screen.line(&format!(
            "sealed: {} of these files were not read, because the kernel proves their content ({})",
            report.sealed,
            by.join(", ")
        ))?;
    }
    if report.of_extensions > 0 {
        screen.line(&format!(
            "not compared: {} paths of merged extensions; `--image extensions` compares them",
            report.of_extensions
        ))?;
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
    let history = layer.history.as_ref().filter(|_| layer.components.is_empty()).map(|line| {
        let short: String = line.chars().take(HISTORY).collect();
        let more = if short.len() < line.len() { "…" } else { "" };
        format!(", {short}{more}")
    });
    let packages = packages_text(&layer.components).map(|packages| format!(", {packages}"));
    let what = packages.or(history).unwrap_or_default();
    format!("layer {} of {}, {digest}…{what}", layer.number, layer.count)
}
