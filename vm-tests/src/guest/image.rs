//! The product's image in a guest with a kubelet.
//!
//! In: the archive of `cargo xtask image` and its digest, which the host puts into the guest. Out: an image that containerd has under
//! that digest, its programs as files, and the proof that kubelet runs a pod from it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{api, run};

/// The archive of the product's image.
pub const ARCHIVE: &str = "/opt/holdfast/product.oci.tar";
/// The file with the digest of its manifest.
pub const DIGEST: &str = "/opt/holdfast/product.digest";
/// The repository of the image; the kustomizations of the scenarios have it too.
const REPOSITORY: &str = "localhost/holdfast";
/// What the kustomizations of the scenarios have in the place of the digest.
const PLACEHOLDER: &str = "sha256:DIGEST";
/// The folder of the image's programs.
const FILES: &str = "/opt/holdfast/product";

/// The digest of the image's manifest, as the host printed it when it built the image.
fn digest() -> Result<String> {
    let digest = fs::read_to_string(DIGEST).with_context(|| format!("cannot read {DIGEST}"))?;
    Ok(digest.trim().to_owned())
}

/// Imports the image. containerd computes the digest of the manifest itself, and knows the image by that digest. Without `--local` it
/// takes that of the archive's index.
pub(super) fn import() -> Result<()> {
    let options = ["--local", "--base-name", REPOSITORY, "--digests"];
    run("ctr", &[&["-n", "k8s.io", "images", "import"][..], &options, &[ARCHIVE]].concat()).map(drop)
}

/// A kustomization with the digest in the place of its placeholder.
///
/// # Errors
/// The kustomization names the image by something else.
pub fn in_kustomization(kustomization: &str) -> Result<String> {
    ensure!(kustomization.contains(PLACEHOLDER), "no image with {PLACEHOLDER} in {kustomization}");
    Ok(kustomization.replace(PLACEHOLDER, &digest()?))
}

/// The folder with the programs of the image: its only layer, unpacked.
pub fn files() -> Result<&'static str> {
    if !fs::exists(format!("{FILES}/holdfast-cluster"))? {
        let layout = format!("{FILES}/layout");
        fs::create_dir_all(&layout)?;
        run("tar", &["-xf", ARCHIVE, "-C", &layout])?;
        let manifest = read(&blob(&layout, &digest()?)?)?;
        let layers = manifest["layers"].as_array().context("the manifest has no layers")?;
        ensure!(layers.len() == 1, "{manifest}");
        let layer = blob(&layout, layers[0]["digest"].as_str().unwrap_or_default())?;
        run("tar", &["-xzf", &layer, "-C", FILES])?;
    }
    Ok(FILES)
}

/// The path of a blob in an OCI layout.
fn blob(layout: &str, digest: &str) -> Result<String> {
    let name = digest.strip_prefix("sha256:").with_context(|| format!("`{digest}` is no digest"))?;
    Ok(format!("{layout}/blobs/sha256/{name}"))
}

fn read(path: &str) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    serde_json::from_str(&text).with_context(|| format!("no JSON in {path}"))
}

/// Both containers of a pod run from the image: kubelet reports its digest, and their processes execute the archive's programs.
pub fn runs_in(pod: &str) -> Result<String> {
    let digest = digest()?;
    let pod = api::get(&format!("/api/v1/namespaces/holdfast-system/pods/{pod}"))?;
    let statuses = pod["status"]["containerStatuses"].as_array().context("no containers")?;
    for (container, pattern, program) in [
        ("sensor", "^/holdfast agent", "holdfast"),
        ("reporter", "^/holdfast-cluster node", "holdfast-cluster"),
    ] {
        let status = statuses.iter().find(|status| status["name"] == container).context(container)?;
        ensure!(status["imageID"] == format!("{REPOSITORY}@{digest}"), "{digest} is not in {status}");
        let pid = run("pgrep", &["-f", pattern])?;
        let pid = pid.lines().next().with_context(|| format!("no {container}"))?;
        let file = Path::new(files()?).join(program);
        run("cmp", &[&format!("/proc/{pid}/exe"), &file.to_string_lossy()])?;
    }
    Ok(digest)
}
