//! An image of two platforms goes through a registry: Buildah pushes it, `holdfast-cluster image pull` fetches it, and `holdfast image`
//! reads it.
//!
//! The registry is Debian's package of the CNCF's. It has TLS with a certificate that only its clients here know, and asks for a
//! password. `cargo xtask test` runs the test after it has built the programs.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use serde_json::{Value, json};

use super::buildah::Buildah;
use crate::apt::GUEST_RELEASE;
use crate::cache::Cache;
use crate::dist;
use crate::kube::{LoggedProcess, free_ports};
use crate::run::output;
use crate::tools::PackageTree;

const PACKAGE: &str = "docker-registry";
/// The user and the password that the registry asks for.
const CREDENTIALS: &str = "team:pass";
/// The line of an htpasswd file for them. The hash is bcrypt's, with the fewest rounds.
const PASSWORDS: &str = "team:$2y$05$abcdefghijklmnopqrstuuZFBUbfXoM8LFiPx8LYlO/sXZB/Cwk3K\n";
/// How long the registry may take to listen.
const LIMIT: Duration = Duration::from_mins(1);

/// A running registry.
struct Registry {
    _process: LoggedProcess,
    address: String,
    /// The folder with its certificate, as Buildah wants it.
    certificates: PathBuf,
}

impl Registry {
    fn start(cache: &Cache, folder: &Path) -> Result<Self> {
        let tree = PackageTree::of_packages(cache, PACKAGE, GUEST_RELEASE, &[PACKAGE])?;
        let program = tree.program(PACKAGE).context("the package holds no registry")?;
        let certificates = folder.join("certificates");
        fs::create_dir(&certificates)?;
        let made = rcgen::generate_simple_self_signed([Ipv4Addr::LOCALHOST.to_string()])?;
        fs::write(certificates.join("ca.crt"), made.cert.pem())?;
        fs::write(folder.join("key.pem"), made.signing_key.serialize_pem())?;
        fs::write(folder.join("htpasswd"), PASSWORDS)?;
        let [port] = free_ports()?;
        let address = format!("{}:{port}", Ipv4Addr::LOCALHOST);
        // JSON is YAML as well.
        let config = json!({
            "version": 0.1,
            "storage": { "filesystem": { "rootdirectory": folder.join("storage") } },
            "http": { "addr": address, "tls": {
                "certificate": certificates.join("ca.crt"), "key": folder.join("key.pem"),
            } },
            "auth": { "htpasswd": { "realm": "holdfast", "path": folder.join("htpasswd") } },
        });
        fs::write(folder.join("registry.yml"), config.to_string())?;
        let mut command = tree.command(&program);
        command.arg("serve").arg(folder.join("registry.yml"));
        let process = LoggedProcess::start(PACKAGE, &mut command, &folder.join("registry.log"))?;
        process.until(LIMIT, || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("it does not listen").map(drop)
        })?;
        Ok(Self { _process: process, address, certificates })
    }

    /// A pull of the image into `layout`, with a password.
    fn pull(&self, folder: &Path, password: &str, layout: &Path) -> Command {
        let authfile = folder.join("auth.json");
        let encoded = base64::engine::general_purpose::STANDARD.encode(password);
        let auths = json!({ "auths": { &self.address: { "auth": encoded } } });
        fs::write(&authfile, auths.to_string()).unwrap();
        let mut command = Command::new(dist::target_dir().join("debug/holdfast-cluster"));
        command.args(["image", "pull", &self.image()]).arg(layout).arg("--authfile").arg(authfile);
        command.args(["-o", "json", "--platform", "linux/arm64"]);
        command
    }

    fn image(&self) -> String {
        format!("{}/team/os:1", self.address)
    }
}

#[test]
#[ignore = "needs buildah and a registry, from Debian's packages, and both programs"]
fn an_image_that_buildah_pushed_to_a_registry_is_pulled_and_indexed_with_the_digests_that_it_has_there() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let cache = Cache::open().unwrap();
    let registry = Registry::start(&cache, folder.path()).unwrap();
    fs::create_dir(at("buildah")).unwrap();
    let buildah = Buildah::ensure(&cache, &at("buildah")).unwrap();
    let pushed =
        buildah.push(&["amd64", "arm64"], &registry.image(), CREDENTIALS, &registry.certificates).unwrap();

    let trusted = registry.certificates.join("ca.crt");
    let refused =
        registry.pull(folder.path(), "team:wrong", &at("layout")).arg("--ca").arg(&trusted).output();
    let refused = refused.unwrap();
    assert!(!refused.status.success() && !at("layout/index.json").exists(), "{refused:?}");
    let distrusted = registry.pull(folder.path(), CREDENTIALS, &at("layout")).output().unwrap();
    assert!(!distrusted.status.success() && !at("layout/index.json").exists(), "{distrusted:?}");

    let mut pull = registry.pull(folder.path(), CREDENTIALS, &at("layout"));
    let pulled: Value = serde_json::from_str(&output(pull.arg("--ca").arg(&trusted)).unwrap()).unwrap();
    assert_eq!(pulled["digest"], pushed);
    assert_eq!(pulled["transferred"], pulled["bytes"]);
    assert_ne!(pulled["digest"], pulled["manifest"], "the list and the manifest of the platform");
    let again: Value = serde_json::from_str(&output(&mut pull).unwrap()).unwrap();
    assert_eq!(again["transferred"], 0);

    let holdfast = || {
        let mut command = Command::new(dist::target_dir().join("debug/holdfast"));
        command.arg("image");
        command
    };
    let mut index = holdfast();
    index.arg("index").arg(at("layout")).args(["--platform", "linux/arm64", "--state"]).arg(at("state"));
    output(&mut index).unwrap();
    // The list's digest names the image of the platform.
    let mut show = holdfast();
    show.args(["show", "/etc/arm64", "-o", "json", "--image", &pushed, "--state"]).arg(at("state"));
    let shown = output(&mut show).unwrap();
    assert!(shown.contains(pulled["manifest"].as_str().unwrap()), "{shown}");
    let sha256 = crate::cache::sha256_file(&at("buildah/arm64")).unwrap();
    assert!(shown.contains(&sha256), "{shown}");
}
