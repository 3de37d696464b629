//! The build of the image.
//!
//! In: the working tree, or its programs. Out: the archive, the list of components and the digest as files of `target/dist`. An image
//! above its size limit is an error.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::buildah::{Buildah, ImageSpec};
use super::sbom;
use crate::cache::{Cache, sha256_file};
use crate::dist::{self, Profile, VERSION};
use crate::kube::tar::Archive;
use crate::run::say;

/// The user of containers that name none: that of the reporter.
const USER: u32 = 64_837;
/// Most bytes of the archive.
const LIMIT: usize = 30 << 20;
/// With this variable the image is dated; its date is the start of the epoch otherwise.
const DATE: &str = "SOURCE_DATE_EPOCH";
/// The commit of the sources, where the build is told: also shown by the metric of the build.
const COMMIT: &str = "HOLDFAST_COMMIT";

/// A built image.
#[derive(Debug)]
pub(crate) struct BuiltImage {
    /// The OCI archive.
    pub(crate) archive: PathBuf,
    /// The digest of its manifest: `sha256:` and 64 digits. A registry has the image under it.
    pub(crate) digest: String,
}

/// Builds the programs as they are shipped, and the image of them.
pub(crate) fn build() -> Result<BuiltImage> {
    of_programs(
        &dist::build_holdfast(Profile::Release)?,
        &dist::build_cluster(Profile::Release)?,
        Profile::Release,
    )
}

/// Builds the image of two programs that were built by this profile.
pub(crate) fn of_programs(holdfast: &Path, cluster: &Path, profile: Profile) -> Result<BuiltImage> {
    let folder = tempfile::tempdir().context("cannot make a folder for the image")?;
    // Programs that are not shipped have other names here.
    let programs = [(holdfast, "holdfast"), (cluster, "holdfast-cluster")].map(|(program, name)| {
        let place = folder.path().join(name);
        fs::copy(program, &place).with_context(|| format!("cannot copy {}", program.display()))?;
        anyhow::Ok(place)
    });
    let [holdfast, cluster] = programs;
    let programs = [holdfast?, cluster?];
    let name = image_name(profile);
    let list = sbom::of_programs(&programs)?;
    let list_name = format!("{name}.cdx.json");
    dist::deliver(list.as_bytes(), 0o644, &list_name)?;

    let date = date()?;
    let labels = labels(date, &list_name, &hex::encode(Sha256::digest(&list)))?;
    let buildah = Buildah::ensure(&Cache::open()?, folder.path())?;
    say("image", &buildah.version()?);
    let spec = ImageSpec { programs: &programs, user: USER, labels: &labels, date, tag: VERSION };
    let layout = buildah.image(&spec)?;

    let archive = archive_of(&layout)?;
    ensure!(
        archive.len() <= LIMIT,
        "the image has {} KiB, and its limit is {} KiB: find out which program grew",
        archive.len() / 1024,
        LIMIT / 1024
    );
    let digest = digest_of(&layout)?;
    let archive = dist::deliver(&archive, 0o644, &format!("{name}.oci.tar"))?;
    dist::deliver(format!("{digest}\n").as_bytes(), 0o644, &format!("{name}.digest"))?;
    say("image", &digest);
    Ok(BuiltImage { archive, digest })
}

/// The name of the image's files. One of programs that are not shipped has another name.
fn image_name(profile: Profile) -> String {
    match profile {
        Profile::Release => format!("holdfast-{VERSION}"),
        Profile::Merge => format!("holdfast-merge-{VERSION}"),
        Profile::Dev => format!("holdfast-debug-{VERSION}"),
    }
}

/// The date of the image and of the files in it, in seconds.
fn date() -> Result<u64> {
    match std::env::var(DATE) {
        Ok(text) => text.parse().with_context(|| format!("{DATE}={text} is no number of seconds")),
        Err(_) => Ok(0),
    }
}

/// The image's labels, which are its annotations too.
fn labels(date: u64, list: &str, list_digest: &str) -> Result<Vec<(String, String)>> {
    let standard = |name: &str| format!("org.opencontainers.image.{name}");
    let mut labels = vec![
        (standard("title"), "holdfast".to_owned()),
        (standard("description"), "Holdfast's sensor and reporter of a node".to_owned()),
        (standard("version"), VERSION.to_owned()),
        (standard("licenses"), "Apache-2.0".to_owned()),
        (standard("created"), rfc3339(date)?),
        ("dev.holdfast.sbom".to_owned(), list.to_owned()),
        ("dev.holdfast.sbom.digest".to_owned(), format!("sha256:{list_digest}")),
    ];
    if let Ok(commit) = std::env::var(COMMIT) {
        labels.push((standard("revision"), commit));
    }
    Ok(labels)
}

/// A time as the labels have it.
fn rfc3339(seconds: u64) -> Result<String> {
    let at = format!("@{seconds}");
    let mut date = std::process::Command::new("date");
    let text = crate::run::output(date.args(["--utc", "--date", &at, "+%Y-%m-%dT%H:%M:%SZ"]))?;
    Ok(text.trim().to_owned())
}

/// The files of an OCI layout as one archive, in which everything has the same date and owner.
fn archive_of(layout: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    let blobs = layout.join("blobs/sha256");
    for entry in fs::read_dir(&blobs).with_context(|| format!("cannot read {}", blobs.display()))? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let name = name.to_str().context("a blob without a name")?;
        ensure!(sha256_file(&path)? == name, "the blob {name} has another digest than its name");
        archive.file(&format!("blobs/sha256/{name}"), 0o644, fs::read(&path)?)?;
    }
    for name in ["index.json", "oci-layout"] {
        archive.file(name, 0o644, fs::read(layout.join(name))?)?;
    }
    Ok(archive.finish())
}

/// The digest of the only manifest of an OCI layout.
fn digest_of(layout: &Path) -> Result<String> {
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?)?;
    let manifests = index["manifests"].as_array().context("the index of the layout has no manifests")?;
    ensure!(manifests.len() == 1, "the layout has {} manifests", manifests.len());
    let digest = manifests[0]["digest"].as_str().context("a manifest without a digest")?;
    Ok(digest.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    /// An image of two small files in place of the programs.
    fn image(folder: &Path) -> (PathBuf, Vec<u8>) {
        let programs = ["holdfast", "holdfast-cluster"].map(|name| {
            let path = folder.join(name);
            fs::write(&path, name).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        });
        let work = folder.join("work");
        fs::create_dir(&work).unwrap();
        let buildah = Buildah::ensure(&Cache::open().unwrap(), &work).unwrap();
        let labels = labels(0, "holdfast.cdx.json", "0123").unwrap();
        let spec = ImageSpec { programs: &programs, user: USER, labels: &labels, date: 0, tag: "1" };
        let layout = buildah.image(&spec).unwrap();
        let archive = archive_of(&layout).unwrap();
        (layout, archive)
    }

    fn blob(layout: &Path, digest: &Value) -> Value {
        let name = digest.as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned();
        serde_json::from_slice(&fs::read(layout.join("blobs/sha256").join(name)).unwrap()).unwrap()
    }

    /// `cargo xtask test` runs it where buildah was fetched.
    #[test]
    #[ignore = "needs buildah, from Debian's package"]
    fn the_image_has_two_programs_and_nothing_else_and_is_the_same_when_it_is_made_again() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [(layout, first), (_, second)] = folders.each_ref().map(|folder| image(folder.path()));
        assert_eq!(first, second);

        let manifest = blob(&layout, &json!(digest_of(&layout).unwrap()));
        assert_eq!(manifest["annotations"]["dev.holdfast.sbom"], "holdfast.cdx.json");
        let config = blob(&layout, &manifest["config"]["digest"]);
        assert_eq!(config["created"], "1970-01-01T00:00:00Z");
        assert_eq!(config["config"]["User"], format!("{USER}:{USER}"));
        assert_eq!(config["config"]["Entrypoint"], json!(["/holdfast"]));
        assert_eq!(config["config"]["Labels"]["dev.holdfast.sbom.digest"], "sha256:0123");
        let version = &config["config"]["Labels"]["org.opencontainers.image.version"];
        assert_eq!(version, VERSION);

        let layers = manifest["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 1, "{manifest}");
        let layer = layers[0]["digest"].as_str().unwrap().replace("sha256:", "blobs/sha256/");
        let mut list = std::process::Command::new("tar");
        list.args(["--list", "--verbose", "--numeric-owner", "--file"]).arg(layout.join(layer));
        let list = crate::run::output(&mut list).unwrap();
        let files: Vec<(&str, &str)> = list
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .map(|words| (words[1], words[5]))
            .collect();
        assert_eq!(files, [("0/0", "holdfast"), ("0/0", "holdfast-cluster")]);
    }

    #[test]
    fn the_user_of_the_image_is_that_of_the_reporter_in_the_daemon_set() {
        let pods = fs::read_to_string(dist::root().join("deploy/kustomize/base/daemonset.yaml")).unwrap();
        assert!(pods.contains(&format!("runAsUser: {USER}")), "{USER}");
    }

    #[test]
    fn dates_are_written_as_the_labels_need_them() {
        assert_eq!(rfc3339(0).unwrap(), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(1_700_000_000).unwrap(), "2023-11-14T22:13:20Z");
    }
}
