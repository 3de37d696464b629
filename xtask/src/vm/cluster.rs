//! The cluster that a guest with a kubelet joins.
//!
//! In: a run's name, the programs of Kubernetes, and those of Holdfast. Out: a control plane on this machine's loopback, and
//! what the guest gets: how it reaches the control plane, the container images, and the manifests of `deploy/`. The control plane
//! ends with its value.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempDir;
use vm_tests::guest::kube::{ADMIN, DEPLOY, IMAGES, KUBELET, NODE, PORT};

use super::payload::Payload;
use crate::dist;
use crate::kube::image::{self, ImageConfig, ImageFile};
use crate::kube::{ClientPlace, ControlPlane, KubeAssets, User, Wanted};

/// The name of the product's image in guests; `vm-tests/kube/kustomization.yaml` has it too.
const IMAGE: &str = "localhost/holdfast:1";
/// The name of the image with busybox; `vm-tests/kube/editor.yaml` has it too.
const TOOLS: &str = "localhost/tools:1";

/// The programs in the images.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImagePrograms<'a> {
    /// The sensor.
    pub(crate) holdfast: &'a Path,
    /// The reporter.
    pub(crate) reporter: &'a Path,
    /// The shell of other people's pods.
    pub(crate) busybox: &'a Path,
}

/// A cluster without nodes.
#[derive(Debug)]
pub(super) struct Cluster {
    _plane: ControlPlane,
    /// The files of `payload`.
    _folder: TempDir,
    /// What the guest gets.
    pub(super) payload: Vec<Payload>,
}

impl Cluster {
    /// Starts the control plane of one run.
    pub(super) fn start(name: &str, assets: &KubeAssets) -> Result<Self> {
        let plane = ControlPlane::start(assets, Wanted { name, nodes: &[NODE], apiserver: &[] })?;
        let folder = tempfile::tempdir()?;
        let contents = [
            (ADMIN, plane.kubeconfig(User::Admin, ClientPlace::Guest)?),
            (KUBELET, plane.kubeconfig(User::Node(NODE), ClientPlace::Guest)?),
            (PORT, plane.port().to_string()),
        ];
        let mut payload = Vec::new();
        for (place, content) in contents {
            let source = folder.path().join(payload.len().to_string());
            fs::write(&source, content).with_context(|| format!("cannot write {}", source.display()))?;
            payload.push(Payload { source, place: place.to_owned(), mode: 0o600 });
        }
        Ok(Self { _plane: plane, _folder: folder, payload })
    }
}

/// What each guest with a kubelet gets: the container images, and the manifests.
pub(crate) fn files(programs: ImagePrograms<'_>) -> Result<Vec<Payload>> {
    let folder = dist::root().join("target/dist");
    let program = |path: &Path, name: &str| -> Result<ImageFile> {
        let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(ImageFile { path: name.to_owned(), mode: 0o755, content })
    };
    let product =
        [program(programs.holdfast, "/holdfast")?, program(programs.reporter, "/holdfast-cluster")?];
    let product = image::image_tar(IMAGE, &product, &ImageConfig::default())?;
    let tools = image::image_tar(TOOLS, &[program(programs.busybox, "/busybox")?], &ImageConfig::default())?;
    let mut files = Vec::new();
    for (name, archive) in [("pause.tar", image::pause()?), ("holdfast.tar", product), ("tools.tar", tools)] {
        let source = folder.join(format!("guest-{name}"));
        fs::write(&source, archive).with_context(|| format!("cannot write {}", source.display()))?;
        files.push(Payload { source, place: format!("{IMAGES}/{name}"), mode: 0o644 });
    }
    let deploy = dist::root().join("deploy");
    for part in ["apparmor", "crds", "admission", "kustomize"] {
        tree(&deploy.join(part), &format!("{DEPLOY}/{part}"), &mut files)?;
    }
    Ok(files)
}

/// Adds every file below a folder.
fn tree(folder: &Path, place: &str, files: &mut Vec<Payload>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let source: PathBuf = entry?.path();
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let place = format!("{place}/{name}");
        if source.is_dir() {
            tree(&source, &place, files)?;
        } else {
            files.push(Payload { source, place, mode: 0o644 });
        }
    }
    Ok(())
}
