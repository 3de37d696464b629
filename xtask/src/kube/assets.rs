//! The programs of a cluster: Kubernetes and containerd built by Go, and etcd, runc and the CNI plugins from Debian.
//!
//! In: the cache, and a release of Kubernetes that has pins in `vm-tests/kube-assets`. Out: the path of each
//! program. What is built or unpacked once stays in the cache until its pins or flags change. With `KUBEBUILDER_ASSETS`
//! set, API server, etcd and kubectl are those of that folder, by the contract of envtest.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::go::{self, Go, GoSource};
use crate::apt::{self, GUEST_RELEASE};
use crate::cache::Cache;
use crate::run::say;
use crate::tools::PackageTree;

/// The newest release of Kubernetes with pins.
pub(crate) const NEWEST: &str = "1.37";

/// An older release that Holdfast supports, for `cargo xtask test --full` alone.
pub(crate) const OLDER: &str = "1.33";

/// The variable with the release on which the tests of the control plane run, and the guests with a kubelet.
pub(crate) const RELEASE: &str = "HOLDFAST_KUBE_RELEASE";

/// Tests of the control plane that need more than every release has: the test, the first release that passes it by default, and what
/// it needs.
const NEEDS: [(&str, [u32; 2], &str); 2] = [
    (
        "policies_from_files_guard_nodes_although_the_api_has_no_policy",
        [1, 37],
        "admission policies from files",
    ),
    (
        "an_api_server_without_constrained_impersonation_is_read_with_the_rights_of_the_component_plain_reads",
        IMPERSONATION,
        "constrained impersonation to switch off",
    ),
];

/// The first release in which a token may read in the name of its node. Clusters of older ones have the component `plain-reads`.
pub(super) const IMPERSONATION: [u32; 2] = [1, 36];

/// The tests that a release cannot pass, each with what it needs.
pub(crate) fn beyond(release: &str) -> Vec<(&'static str, &'static str)> {
    let missing = NEEDS.into_iter().filter(|(_, first, _)| is_before(release, *first));
    missing.map(|(test, _, what)| (test, what)).collect()
}

fn is_before(release: &str, first: [u32; 2]) -> bool {
    let numbers: Vec<u32> = release.split('.').filter_map(|number| number.parse().ok()).collect();
    numbers.as_slice() < &first[..]
}

/// Whether the tests run on a release before this one.
#[cfg(test)]
pub(super) fn is_tested_before(first: [u32; 2]) -> bool {
    is_before(&tested(), first)
}

/// The release on which a test of the control plane or a guest with a kubelet runs: that of the variable, or the newest.
pub(crate) fn tested() -> String {
    std::env::var(RELEASE).unwrap_or_else(|_| NEWEST.to_owned())
}

/// The folder with one folder of pins for each release of Kubernetes, and one for containerd.
const PINS: &str = "vm-tests/kube-assets";
/// What envtest and its users call the folder with an API server, etcd and kubectl.
const ENVTEST: &str = "KUBEBUILDER_ASSETS";
/// The packages of the node beside kubelet and containerd. A guest has libc and libseccomp; the libraries are those of iptables.
const NODE_PACKAGES: &[&str] = &[
    "runc",
    "containernetworking-plugins",
    "iptables",
    "libip4tc2",
    "libip6tc2",
    "libxtables12",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
];

/// The programs.
#[derive(Debug, Clone)]
pub(crate) struct KubeAssets {
    /// `kube-apiserver`.
    pub(crate) apiserver: PathBuf,
    /// `kube-controller-manager`.
    pub(crate) controller_manager: PathBuf,
    /// `kube-scheduler`.
    pub(crate) scheduler: PathBuf,
    /// `kubelet`.
    pub(crate) kubelet: PathBuf,
    /// `kubectl`.
    pub(crate) kubectl: PathBuf,
    /// `etcd`, which runs on this machine.
    pub(crate) etcd: PathBuf,
    /// `containerd`.
    pub(crate) containerd: PathBuf,
    /// `ctr`, containerd's own client.
    pub(crate) ctr: PathBuf,
    /// `containerd-shim-runc-v2`, which containerd looks for on the search path.
    pub(crate) shim: PathBuf,
    /// `runc`. It needs libc and libseccomp.
    pub(crate) runc: PathBuf,
    /// The folder with the CNI plugins.
    pub(crate) cni: PathBuf,
    /// The packages of the node, unpacked: runc, the CNI plugins, iptables and its libraries, at their paths in the guest.
    /// Debian makes the link `iptables` at installation: the guest has to link it to `xtables-nft-multi`.
    pub(crate) node: PathBuf,
}

impl KubeAssets {
    /// Finds the programs, and builds or fetches those that the cache lacks.
    pub(crate) fn ensure(cache: &Cache, release: &str) -> Result<Self> {
        let sources = sources(release);
        let missing: Vec<&GoSource> = sources
            .iter()
            .map(|source| source.is_built(cache).map(|built| (!built).then_some(source)))
            .filter_map(Result::transpose)
            .collect::<Result<_>>()?;
        if !missing.is_empty() {
            let mut needed = missing.iter().map(|source| source.needed()).collect::<Result<Vec<_>>>()?;
            needed.sort();
            let toolchain = Go::find(cache, &needed.pop().context("a source is missing")?)?;
            say("kube", "Kubernetes and containerd are built once (about 15 minutes)");
            missing.iter().try_for_each(|source| source.build(cache, &toolchain))?;
        }
        // Also those of a build that was interrupted just before this.
        go::clean(cache)?;
        let release_of_machine = apt::codename()?;
        for (name, suite, packages) in debian(&release_of_machine) {
            PackageTree::of_packages(cache, name, suite, packages)?;
        }
        // The control plane's keys are made with it.
        apt::install(&[("openssl", "openssl")])?;
        Self::cached(cache, release)
    }

    /// Finds the programs. A missing one is an error that names the command which builds it.
    pub(crate) fn cached(cache: &Cache, release: &str) -> Result<Self> {
        let [kubernetes, containerd] = sources(release);
        let tree =
            |name: &str| PackageTree::cached(cache, name).with_context(|| format!("the cache has no {name}"));
        let found = || -> Result<Self> {
            let etcd = tree(ETCD)?.program("etcd").context("etcd-server holds no etcd")?;
            let node = tree(NODE)?;
            Ok(Self {
                apiserver: kubernetes.program(cache, "kube-apiserver"),
                controller_manager: kubernetes.program(cache, "kube-controller-manager"),
                scheduler: kubernetes.program(cache, "kube-scheduler"),
                kubelet: kubernetes.program(cache, "kubelet"),
                kubectl: kubernetes.program(cache, "kubectl"),
                etcd,
                containerd: containerd.program(cache, "containerd"),
                ctr: containerd.program(cache, "ctr"),
                shim: containerd.program(cache, "containerd-shim-runc-v2"),
                runc: node.program("runc").context("runc holds no runc")?,
                cni: node.path("usr/lib/cni"),
                node: node.path(""),
            })
        };
        let mut assets = found().context("run `cargo xtask kube-assets` first")?;
        if let Some(folder) = std::env::var_os(ENVTEST) {
            assets.take_from(Path::new(&folder))?;
        }
        for (name, path) in assets.rows() {
            ensure!(
                path.exists(),
                "{name} is not at {}: run `cargo xtask kube-assets` first",
                path.display()
            );
        }
        Ok(assets)
    }

    /// Takes what envtest's contract names from a folder.
    fn take_from(&mut self, folder: &Path) -> Result<()> {
        for (name, path) in [
            ("kube-apiserver", &mut self.apiserver),
            ("etcd", &mut self.etcd),
            ("kubectl", &mut self.kubectl),
        ] {
            *path = folder.join(name);
            if !path.is_file() {
                bail!("{ENVTEST} is set to {}, which holds no {name}", folder.display());
            }
        }
        Ok(())
    }

    /// Each program with its name.
    pub(crate) fn rows(&self) -> [(&'static str, &Path); 12] {
        [
            ("kube-apiserver", &self.apiserver),
            ("kube-controller-manager", &self.controller_manager),
            ("kube-scheduler", &self.scheduler),
            ("kubelet", &self.kubelet),
            ("kubectl", &self.kubectl),
            ("etcd", &self.etcd),
            ("containerd", &self.containerd),
            ("ctr", &self.ctr),
            ("containerd-shim-runc-v2", &self.shim),
            ("runc", &self.runc),
            ("CNI plugins", &self.cni),
            ("packages of the node", &self.node),
        ]
    }
}

/// Folders of the cache.
const ETCD: &str = "kube/etcd";
const NODE: &str = "kube/node";

/// What Go builds.
fn sources(release: &str) -> [GoSource; 2] {
    [
        GoSource {
            folder: format!("{PINS}/{release}"),
            module: "k8s.io/kubernetes",
            // Most packages of the others are in kubelet and the API server.
            programs: &["kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"],
            tags: "",
            // Without it the API server calls itself v0.0.0, which kubectl cannot parse.
            version_variable: Some("k8s.io/component-base/version.gitVersion"),
            cached: format!("kube/{release}"),
        },
        GoSource {
            folder: format!("{PINS}/containerd"),
            module: "github.com/containerd/containerd/v2",
            programs: &["containerd", "ctr", "containerd-shim-runc-v2"],
            tags: "no_btrfs no_devmapper",
            version_variable: None,
            cached: "kube/containerd".to_owned(),
        },
    ]
}

/// What Debian's packages hold: etcd for this machine, the parts of the node for the guest.
fn debian(release_of_machine: &str) -> [(&'static str, &str, &'static [&'static str]); 2] {
    [(ETCD, release_of_machine, &["etcd-server"]), (NODE, GUEST_RELEASE, NODE_PACKAGES)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist;

    #[test]
    fn both_releases_and_containerd_have_pins_with_sums() {
        for source in [NEWEST, OLDER].into_iter().flat_map(sources) {
            let folder = dist::root().join(&source.folder);
            for file in ["go.mod", "go.sum"] {
                assert!(folder.join(file).is_file(), "{} has no {file}", source.folder);
            }
            assert!(source.needed().is_ok(), "{}", source.folder);
        }
    }

    #[test]
    fn only_tests_that_exist_are_beyond_the_older_release_and_none_is_beyond_the_newest() {
        let tests = [include_str!("deploy_tests.rs"), include_str!("rights_tests.rs")].concat();
        let missing = beyond(OLDER);
        assert!(!missing.is_empty());
        for (test, _) in missing {
            assert!(tests.contains(&format!("fn {test}()")), "{test}");
        }
        assert_eq!(beyond(NEWEST), []);
    }

    #[test]
    fn a_folder_of_envtest_gives_three_programs_and_must_have_all_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| PathBuf::from("/cache").join(name);
        let mut assets = KubeAssets {
            apiserver: at("kube-apiserver"),
            controller_manager: at("kube-controller-manager"),
            scheduler: at("kube-scheduler"),
            kubelet: at("kubelet"),
            kubectl: at("kubectl"),
            etcd: at("etcd"),
            containerd: at("containerd"),
            ctr: at("ctr"),
            shim: at("containerd-shim-runc-v2"),
            runc: at("runc"),
            cni: at("cni"),
            node: at("node"),
        };
        for name in ["kube-apiserver", "etcd"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let error = assets.take_from(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("which holds no kubectl"), "{error}");
        std::fs::write(folder.path().join("kubectl"), "").unwrap();
        assets.take_from(folder.path()).unwrap();
        let outside: Vec<&str> = assets
            .rows()
            .into_iter()
            .filter(|(_, path)| path.starts_with(folder.path()))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(outside, ["kube-apiserver", "kubectl", "etcd"]);
    }
}
