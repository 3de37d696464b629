//! The cluster that a guest with a kubelet joins.
//!
//! In: a run's name, the programs of Kubernetes, and those of Holdfast. Out: a control plane on this machine's loopback, for a
//! scenario that asks for it a Prometheus, and what the guest gets: how it reaches both, the container images, and the manifests
//! of `deploy/`. The control plane and Prometheus end with their value.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::json;
use tempfile::TempDir;
use vm_tests::guest::api::PROXY;
use vm_tests::guest::kube::{
    ADDRESS, ADMIN, ARCHIVE, AUDIT, DEPLOY, DIGEST, IMAGES, KUBELET, KUBELET_PORT, NODE, PORT,
};
use vm_tests::guest::prometheus;

use super::audit::AuditLog;
use super::egress::Egress;
use super::payload::Payload;
use super::prometheus::Prometheus;
use crate::dist::{self, Profile};
use crate::image as product;
use crate::kube::image::{self, ImageConfig, ImageFile};
use crate::kube::{ClientPlace, ControlPlane, KubeAssets, LoggedProcess, User, Wanted, free_ports};
use crate::tools::PackageTree;

/// The name of the image with busybox; `vm-tests/kube/editor.yaml` has it too.
const TOOLS: &str = "localhost/tools:1";

/// The programs in the images.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImagePrograms<'a> {
    /// The sensor.
    pub(crate) holdfast: &'a Path,
    /// The reporter.
    pub(crate) reporter: &'a Path,
    /// The profile by which both were built.
    pub(crate) profile: Profile,
    /// The shell of other people's pods.
    pub(crate) busybox: &'a Path,
}

/// A cluster without nodes.
#[derive(Debug)]
pub(super) struct Cluster {
    _prometheus: Option<Prometheus>,
    _proxy: LoggedProcess,
    _plane: ControlPlane,
    _egress: Egress,
    _audit: AuditLog,
    /// The port of this machine that the emulator leads to the kubelet.
    kubelet: u16,
    /// The port of this machine that the emulator leads to the reporter, if Prometheus runs.
    reporter: Option<u16>,
    /// The files of `payload`.
    _folder: TempDir,
    /// What the guest gets.
    pub(super) payload: Vec<Payload>,
}

impl Cluster {
    /// Starts the control plane of one run, and Prometheus if its program is there.
    pub(super) fn start(name: &str, assets: &KubeAssets, program: Option<&PackageTree>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let [kubelet] = free_ports()?;
        let egress = Egress::start(folder.path(), kubelet)?;
        // What gives a user a process in a pod.
        let resources = ["pods/exec", "pods/attach", "pods/ephemeralcontainers"];
        let of_core = |resources: &[&str]| json!([{ "group": "", "resources": resources }]);
        let recorded = [
            json!({ "level": "Metadata", "resources": of_core(&resources) }),
            // `kubectl debug node/NODE` makes a pod.
            json!({ "level": "Metadata", "verbs": ["create"], "resources": of_core(&["pods"]) }),
        ];
        let audit = AuditLog::start(folder.path(), &recorded)?;
        let flags: Vec<&str> = [&egress.flag].into_iter().chain(&audit.flags).map(String::as_str).collect();
        let plane = ControlPlane::start(assets, Wanted { name, nodes: &[NODE], apiserver: &flags })?;
        let (proxy, proxy_port) = plane.proxy()?;
        let mut contents = vec![
            (ADMIN, plane.kubeconfig(User::Admin, ClientPlace::Guest)?),
            (KUBELET, plane.kubeconfig(User::Node(NODE), ClientPlace::Guest)?),
            (PORT, plane.port().to_string()),
            (PROXY, proxy_port.to_string()),
            (AUDIT, audit.port.to_string()),
        ];
        let (mut prometheus, mut reporter) = (None, None);
        if let Some(program) = program {
            let [own, forwarded] = free_ports()?;
            prometheus = Some(Prometheus::start(&plane, program, own, forwarded)?);
            contents.push((prometheus::PORT, own.to_string()));
            reporter = Some(forwarded);
        }
        let mut payload = Vec::new();
        for (place, content) in contents {
            let source = folder.path().join(payload.len().to_string());
            fs::write(&source, content).with_context(|| format!("cannot write {}", source.display()))?;
            payload.push(Payload { source, place: place.to_owned(), mode: 0o600 });
        }
        Ok(Self {
            _prometheus: prometheus,
            _proxy: proxy,
            _plane: plane,
            _egress: egress,
            _audit: audit,
            kubelet,
            reporter,
            _folder: folder,
            payload,
        })
    }

    /// The guest's network, as arguments of QEMU: the emulator's own one. The guest reaches the control plane on the host's loopback,
    /// and no other machine.
    pub(super) fn network(&self) -> [String; 4] {
        let forwarded =
            [Some((self.kubelet, KUBELET_PORT)), self.reporter.map(|port| (port, prometheus::REPORTER))];
        let forwards = forwarded
            .into_iter()
            .flatten()
            .map(|(from, to)| format!(",hostfwd=tcp:127.0.0.1:{from}-{ADDRESS}:{to}"));
        let forward: Vec<String> = forwards.collect();
        let forward = forward.concat();
        let network = format!("user,id=cluster,ipv6=off{forward}");
        ["-netdev".to_owned(), network, "-device".to_owned(), "virtio-net-pci,netdev=cluster".to_owned()]
    }
}

/// What each guest with a kubelet gets: the container images, and the manifests.
pub(crate) fn files(programs: ImagePrograms<'_>) -> Result<Vec<Payload>> {
    let folder = dist::root().join("target/dist");
    let busybox =
        fs::read(programs.busybox).with_context(|| format!("cannot read {}", programs.busybox.display()))?;
    let busybox = ImageFile { path: "/busybox".to_owned(), mode: 0o755, content: busybox };
    let tools = image::image_tar(TOOLS, &[busybox], &ImageConfig::default())?;
    // The very image that is shipped; before a merge its programs are those of guests.
    let product = product::of_programs(programs.holdfast, programs.reporter, programs.profile)?;
    let digest = product.archive.with_file_name("guest-image.digest");
    fs::write(&digest, product.digest).with_context(|| format!("cannot write {}", digest.display()))?;
    let mut files = vec![
        Payload { source: product.archive, place: ARCHIVE.to_owned(), mode: 0o644 },
        Payload { source: digest, place: DIGEST.to_owned(), mode: 0o644 },
    ];
    for (name, archive) in [("pause.tar", image::pause()?), ("tools.tar", tools)] {
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
