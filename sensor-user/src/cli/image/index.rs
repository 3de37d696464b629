//! `holdfast image index`: reads a layout, an ostree commit, merged extensions, the databases of packages, or a baseline.

use super::place::{Place, input};
use crate::{
    bounded,
    cli::{
        BadInput,
        exit::{DRIFT, IN_SYNC},
        output::{Output, Screen, Tone, clean, count},
        progress::Bar,
    },
    image::{
        BOOTED, ImageError, Indexed, LeftOutExtension, Progress, index_baseline, index_extensions,
        index_image, index_ostree, index_packages,
    },
    observation::Observer,
};
use anyhow::Context as _;
use sensor_model::image::{
    Choice, DamagedFiles, ImageLimits, ImageMeta, ImageSource, Platform, UnmatchedFiles, is_digest,
};
use serde::Serialize;
use std::{
    io,
    path::{Path, PathBuf},
};

/// The value of [`IndexedReport::schema`].
const SCHEMA: &str = "holdfast.image-index/v1";
/// Most bytes of a baseline's file. A path takes about 250 bytes.
const BASELINE_BYTES: u64 = 512 << 20;
/// Most damaged files of a commit, or files without the MD5 of their package, that the text shows. The JSON has up to a thousand.
const SHOWN_FILES: usize = 20;

/// Arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Index {
    /// Directory with an OCI image layout: `oci-layout`, `index.json` and `blobs`.
    #[arg(required_unless_present_any = ["packages", "baseline", "ostree", "extensions"])]
    layout: Option<PathBuf>,
    /// Index an ostree commit from this host's repository: `booted`, `staged` for that of the next boot, a checksum, the beginning of a
    /// deployment's, or the image or branch of a deployment. [default without a value: booted]
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, require_equals = true, default_missing_value = BOOTED)]
    #[arg(conflicts_with_all = ["layout", "digest", "platform", "packages", "baseline", "extensions"])]
    ostree: Option<String>,
    /// Index the directories of the system and configuration extensions that are merged on this host now.
    #[arg(long, conflicts_with_all = ["layout", "digest", "platform", "packages", "baseline"])]
    extensions: bool,
    /// Index the packages of this host, by the databases of dpkg and rpm. It reads each file of dpkg's packages once.
    #[arg(long, conflicts_with_all = ["layout", "digest", "platform"])]
    packages: bool,
    /// Index a baseline: the file that `holdfast baseline` printed.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["layout", "digest", "platform", "packages"])]
    baseline: Option<PathBuf>,
    /// The root directory whose packages, extensions or ostree commit are indexed.
    #[arg(long, default_value = "/", value_name = "DIRECTORY", conflicts_with_all = ["layout", "baseline"])]
    root: PathBuf,
    /// The image to take: the digest of its manifest, or of the image index that leads to it.
    #[arg(long, value_name = "DIGEST", value_parser = digest)]
    digest: Option<String>,
    /// The platform to take of an image index. [default: linux on this machine's processor]
    #[arg(long, value_name = "OS/ARCHITECTURE")]
    platform: Option<Platform>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

/// An image that was indexed.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct IndexedReport {
    /// Name and version of this contract.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// The image.
    pub image: ImageMeta,
    /// The index file.
    pub path: String,
    /// Bytes of the index file.
    pub size: u64,
    /// Merged extensions that are not in the index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutExtension>,
    /// Files of dpkg's packages that do not have the MD5 of dpkg's database, without configuration files; absent if each has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmatched: Option<UnmatchedFiles>,
}

fn digest(text: &str) -> Result<String, &'static str> {
    if is_digest(text) {
        Ok(text.to_owned())
    } else {
        Err("a digest has the form sha256:<64 hexadecimal digits>")
    }
}

impl Index {
    pub(super) fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let (mut left_out, mut unmatched) = (Vec::new(), None);
        let indexed = if let Some(layout) = &self.layout {
            self.layout(layout)
        } else if let Some(file) = &self.baseline {
            let text = bounded::read(file, BASELINE_BYTES)
                .with_context(|| format!("cannot read {}", file.display()));
            index_baseline(file, &text.map_err(BadInput::wrap)?, &self.place.images())
        } else {
            let observer = Observer::new(&self.root).map_err(BadInput::wrap)?;
            if let Some(wanted) = &self.ostree {
                self.commit(&observer, wanted)
            } else if self.extensions {
                index_extensions(&observer, &self.place.images()).map(|(indexed, without)| {
                    left_out = without;
                    indexed
                })
            } else {
                self.packages(&observer).map(|(indexed, files)| {
                    unmatched = Some(files).filter(|files| files.count > 0);
                    indexed
                })
            }
        };
        let Indexed { meta, path, size } = indexed.map_err(input)?;
        let report = IndexedReport {
            schema: SCHEMA,
            image: meta,
            path: path.to_string_lossy().into_owned(),
            size,
            left_out,
            unmatched,
        };
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        Ok(if report.image.damaged.is_some() { DRIFT } else { IN_SYNC })
    }

    fn packages(&self, observer: &Observer) -> Result<(Indexed, UnmatchedFiles), ImageError> {
        let mut bar = Bar::new();
        let indexed = index_packages(observer, &self.place.images(), &mut |done, files| {
            bar.show(|| format!("{done} of {files} files of packages"));
        });
        bar.end();
        indexed
    }

    fn commit(&self, observer: &Observer, wanted: &str) -> Result<Indexed, ImageError> {
        let mut bar = Bar::new();
        let indexed = index_ostree(observer, &self.place.images(), wanted, &mut |read| {
            bar.show(|| format!("{} MiB of files", read >> 20));
        });
        bar.end();
        indexed
    }

    fn layout(&self, layout: &Path) -> Result<Indexed, ImageError> {
        let choice = Choice { digest: self.digest.clone(), platform: self.platform.clone() };
        let mut bar = Bar::new();
        let indexed =
            index_image(layout, &choice, &self.place.images(), ImageLimits::default(), &mut |progress| {
                bar.show(|| of_layers(&progress));
            });
        bar.end();
        indexed
    }
}

fn of_layers(progress: &Progress) -> String {
    let Progress { layer, layers, read, size } = progress;
    let percent = (u128::from(*read) * 100).checked_div(u128::from(*size)).unwrap_or(100);
    format!("layer {layer} of {layers}, {percent} % of {} MiB", size >> 20)
}

fn text(report: &IndexedReport, screen: &mut Screen) -> io::Result<()> {
    let meta = &report.image;
    let word = screen.paint(Tone::Good, "indexed");
    let paths = count(usize::try_from(meta.entries).unwrap_or(usize::MAX), "path");
    if meta.source == ImageSource::Extensions {
        let extensions = count(meta.layers.len(), "merged extension");
        screen.line(&format!("{word} {extensions}: {paths}"))?;
        for layer in meta.layers.iter().filter_map(|layer| layer.history.as_ref()) {
            screen.line(&format!("  {}", clean(layer)))?;
        }
        for left_out in &report.left_out {
            let word = screen.paint(Tone::Notable, "left out");
            let (class, name, reason) = (left_out.class.as_str(), &left_out.name, &left_out.reason);
            screen.line(&format!("{word} {}", clean(&format!("extension {name} ({class}): {reason}"))))?;
        }
        return screen.line(&format!("index file: {} ({} bytes)", clean(&report.path), report.size));
    }
    if meta.source == ImageSource::Packages {
        let packages = count(meta.layers.len(), "package");
        screen.line(&format!("{word} {packages} of {}: {paths}", clean(&meta.platform)))?;
        if let Some(files) = &report.unmatched {
            unmatched_files(files, screen)?;
        }
        return screen.line(&format!("index file: {} ({} bytes)", clean(&report.path), report.size));
    }
    let blame = |number: usize| clean(&meta.blame(u16::try_from(number).unwrap_or(u16::MAX), 100));
    if meta.source == ImageSource::Layers {
        screen.line(&format!("{word} {}: {paths}, {}", meta.digest, clean(&meta.platform)))?;
    } else {
        // A baseline, or an ostree commit, which follows the layers that it was made from.
        screen.line(&format!("{word} {}: {paths}", blame(meta.layers.len().saturating_sub(1))))?;
    }
    if let Some(image) = &meta.manifest {
        screen.line(&format!("  made from the image {}, {}", clean(image), clean(&meta.platform)))?;
    }
    for index in &meta.indexes {
        screen.line(&format!("  of the image index {index}"))?;
    }
    if let Some(config) = &meta.machine_config {
        screen.line(&format!("  built from the MachineConfig {}", clean(config)))?;
    }
    for number in 0..if meta.has_digests() { meta.layer_count() } else { 0 } {
        screen.line(&format!("  {}", blame(number)))?;
    }
    if let Some(damaged) = &meta.damaged {
        damaged_files(damaged, screen)?;
    }
    screen.line(&format!("index file: {} ({} bytes)", clean(&report.path), report.size))
}

/// The files of dpkg's packages that do not have the MD5 of dpkg's database.
fn unmatched_files(files: &UnmatchedFiles, screen: &mut Screen) -> io::Result<()> {
    for file in files.first.iter().take(SHOWN_FILES) {
        let word = screen.paint(Tone::Bad, "differs");
        let (path, package, reason) = (clean(&file.path), clean(&file.package.text()), file.reason.as_str());
        screen.line(&format!("{word} {path} (package {package}): {reason}"))?;
    }
    let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let all = count(number(files.count), "file");
    screen.line(&format!(
        "{all} of packages without the MD5 of dpkg's database: rules can watch {} of them, by what the last index has, and cannot watch {}, of \
         which only the MD5 is known; `holdfast image verify --image packages` compares all of them, and `apt-get install --reinstall PACKAGE` \
         restores them",
        number(files.kept),
        number(files.unwatched())
    ))
}

/// The files whose objects in the ostree repository are damaged.
fn damaged_files(damaged: &DamagedFiles, screen: &mut Screen) -> io::Result<()> {
    for file in damaged.first.iter().take(SHOWN_FILES) {
        let word = screen.paint(Tone::Bad, "damaged");
        let (path, object, reason) = (clean(&file.path), &file.object, file.reason.as_str());
        screen.line(&format!("{word} {path}: its object {object}: {reason}"))?;
    }
    let files = count(usize::try_from(damaged.count).unwrap_or(usize::MAX), "file");
    screen.line(&format!(
        "{files} of the commit with a damaged object in /ostree/repo: the index has the checksum of the commit there, and what does not have this \
         checksum differs; `ostree fsck` lists all damaged objects, and a new deployment replaces them"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_names_the_layer_and_the_part_of_the_bytes() {
        let of = |read: u64, size: u64| {
            of_layers(&Progress { layer: 11, layers: 12, read: read << 20, size: size << 20 })
        };
        assert_eq!(of(50, 200), "layer 11 of 12, 25 % of 200 MiB");
        assert_eq!(of(0, 0), "layer 11 of 12, 100 % of 0 MiB");
    }
}
