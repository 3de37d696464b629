//! Buildah, from Debian's package.
//!
//! In: programs, labels, a date. Out: an OCI layout with one image of them. The package is the same on each machine, since another
//! version of Buildah may compress in another way. Nothing runs in a container, so it needs neither a runtime nor a network. Without
//! root it runs in a user namespace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::apt::{self, GUEST_RELEASE};
use crate::cache::Cache;
use crate::run::output;
use crate::tools::PackageTree;

const PROGRAM: &str = "buildah";
/// The package, and the libraries that a machine may lack or have in another version.
const PACKAGES: &[&str] = &[
    "buildah",
    "libassuan0",
    "libdevmapper1.02.1",
    "libgpg-error0",
    "libgpgme11",
    "libpcre2-8-0",
    "libseccomp2",
    "libselinux1",
    "libudev1",
];
/// The name of the container that becomes the image.
const CONTAINER: &str = "holdfast";

/// What an image is to be.
#[derive(Debug)]
pub(super) struct ImageSpec<'a> {
    /// The programs, which are in the root directory. The first one is the entry point.
    pub(super) programs: &'a [PathBuf],
    /// User and group of containers that name none.
    pub(super) user: u32,
    /// Labels, which are annotations too.
    pub(super) labels: &'a [(String, String)],
    /// Seconds since the epoch.
    pub(super) date: u64,
    /// The image's tag.
    pub(super) tag: &'a str,
}

/// A step of a recipe, which makes one layer.
pub(crate) struct Step {
    /// Its line of the history.
    pub(crate) line: &'static str,
    /// What it changes in the root directory.
    pub(crate) act: fn(&Path) -> Result<()>,
}

/// Buildah with a store of its own.
#[derive(Debug)]
pub(crate) struct Buildah {
    tree: PackageTree,
    program: PathBuf,
    folder: PathBuf,
    /// Whether it runs as root without help.
    is_root: bool,
    /// How the store keeps layers.
    driver: &'static str,
}

impl Buildah {
    /// Finds or fetches the package. The store is in `folder`.
    pub(crate) fn ensure(cache: &Cache, folder: &Path) -> Result<Self> {
        let tree = PackageTree::of_packages(cache, PROGRAM, GUEST_RELEASE, PACKAGES)?;
        let program = tree.program(PROGRAM).with_context(|| format!("the package holds no {PROGRAM}"))?;
        // No image is pulled, so nothing is to be trusted.
        let policy = json!({ "default": [{ "type": "reject" }], "transports": {
            "containers-storage": { "": [{ "type": "insecureAcceptAnything" }] },
        } });
        fs::write(folder.join("policy.json"), policy.to_string())?;
        for name in ["registries.conf", "containers.conf"] {
            fs::write(folder.join(name), "")?;
        }
        fs::create_dir_all(folder.join("run"))?;
        Ok(Self { tree, program, folder: folder.to_owned(), is_root: apt::is_root()?, driver: "vfs" })
    }

    /// Name and version.
    pub(super) fn version(&self) -> Result<String> {
        Ok(output(self.command().arg("--version"))?.trim().to_owned())
    }

    /// Makes an image; gives the folder of the OCI layout.
    pub(super) fn image(&self, spec: &ImageSpec<'_>) -> Result<PathBuf> {
        let policy = self.folder.join("policy.json");
        output(
            self.command()
                .args(["from", "--name", CONTAINER, "--signature-policy"])
                .arg(&policy)
                .arg("scratch"),
        )?;
        let mut copy = self.command();
        copy.args(["copy", "--quiet", "--chown", "0:0", CONTAINER]).args(spec.programs).arg("/");
        output(&mut copy)?;

        let entry =
            spec.programs.first().and_then(|path| path.file_name()).context("an image without a program")?;
        let mut config = self.command();
        config
            .args(["config", "--created-by", "cargo xtask image", "--workingdir", "/"])
            .args(["--user", &format!("{0}:{0}", spec.user)])
            .args(["--entrypoint", &json!([format!("/{}", entry.to_string_lossy())]).to_string()]);
        for (name, value) in spec.labels {
            let text = format!("{name}={value}");
            config.args(["--label", &text, "--annotation", &text]);
        }
        output(config.arg(CONTAINER))?;

        let layout = self.folder.join("layout");
        let mut commit = self.command();
        commit
            // A client that pushes an image compresses what is not compressed, and the registry then has another digest.
            .args(["commit", "--quiet", "--rm", "--format", "oci", "--identity-label=false"])
            .arg("--disable-compression=false")
            .args(["--timestamp", &spec.date.to_string(), "--signature-policy"])
            .arg(&policy)
            .args([CONTAINER, &format!("oci:{}:{}", layout.display(), spec.tag)]);
        output(&mut commit)?;
        Ok(layout)
    }

    /// Pushes an image with one file, `/etc/ARCHITECTURE`, for each of the architectures, as one list. Gives the digest that the list
    /// has in the registry. The folder of Buildah has a copy of each file.
    #[cfg(test)]
    pub(super) fn push(
        &self,
        architectures: &[&str],
        image: &str,
        credentials: &str,
        certificates: &Path,
    ) -> Result<String> {
        const LIST: &str = "list";
        let policy = self.folder.join("policy.json");
        output(self.command().args(["manifest", "create", LIST]))?;
        for architecture in architectures {
            let file = self.folder.join(architecture);
            fs::write(&file, format!("for {architecture}\n"))?;
            let mut from = self.command();
            from.args(["from", "--name", architecture, "--signature-policy"]).arg(&policy).arg("scratch");
            output(&mut from)?;
            output(self.command().args(["copy", "--quiet", architecture]).arg(file).arg("/etc/"))?;
            output(self.command().args(["config", "--arch", architecture, architecture]))?;
            let mut commit = self.command();
            commit.args(["commit", "--quiet", "--format", "oci", "--manifest", LIST, "--signature-policy"]);
            output(commit.arg(&policy).args([architecture, &*format!("made-{architecture}")]))?;
        }
        let digest = self.folder.join("digest");
        let mut push = self.command();
        push.args(["manifest", "push", "--quiet", "--all", "--format", "oci", "--creds", credentials])
            .arg("--cert-dir")
            .arg(certificates)
            .arg("--digestfile")
            .arg(&digest)
            .arg("--signature-policy")
            .arg(&policy)
            .args([LIST, &format!("docker://{image}")]);
        output(&mut push)?;
        Ok(fs::read_to_string(digest)?.trim().to_owned())
    }

    /// Makes an image with a layer for each step, from nothing; gives the folder of the OCI layout. The driver `overlay` needs root and a kernel
    /// that allows it on this file system. It makes an opaque directory of one that a step removes and makes again; `vfs` removes name by name.
    pub(crate) fn layers(mut self, steps: &[Step]) -> Result<PathBuf> {
        self.driver = if self.is_root { "overlay" } else { "vfs" };
        let made = self.layers_by_driver(steps);
        if self.driver == "overlay" {
            // The driver mounts its folder over itself, so that it could not be removed.
            let _ = output(Command::new("umount").arg(self.folder.join("store/overlay")));
            if made.is_err() {
                self.driver = "vfs";
                return self.layers_by_driver(steps);
            }
        }
        made
    }

    fn layers_by_driver(&self, steps: &[Step]) -> Result<PathBuf> {
        let policy = self.folder.join("policy.json");
        let layout = self.folder.join("layout");
        let mut base = "scratch".to_owned();
        for (number, step) in steps.iter().enumerate() {
            let name = format!("{}-{number}", self.driver);
            let mut from = self.command();
            from.args(["from", "--pull-never", "--name", &name, "--signature-policy"]).arg(&policy);
            output(from.arg(&base))?;
            let root = output(self.command().args(["mount", &name]))?;
            (step.act)(Path::new(root.trim())).with_context(|| format!("the step {}", step.line))?;
            output(self.command().args(["umount", &name]))?;
            output(self.command().args(["config", "--created-by", step.line, &name]))?;
            base = format!("localhost/{name}");
            let to = if number + 1 == steps.len() {
                format!("oci:{}:latest", layout.display())
            } else {
                base.clone()
            };
            let mut commit = self.command();
            commit.args(["commit", "--quiet", "--rm", "--format", "oci", "--signature-policy"]).arg(&policy);
            output(commit.args([&name, &to]))?;
        }
        Ok(layout)
    }

    fn command(&self) -> Command {
        let mut command = if self.is_root {
            self.tree.command(&self.program)
        } else {
            let mut command = self.tree.command(Path::new("unshare"));
            command.arg("--map-root-user").arg(&self.program);
            // Otherwise it looks for ranges of user ids, which an image of root's files does not need.
            command.env("_CONTAINERS_USERNS_CONFIGURED", "1");
            command
        };
        let path = |name: &str| self.folder.join(name);
        command
            .args(["--storage-driver", self.driver, "--root"])
            .arg(path("store"))
            .arg("--runroot")
            .arg(path("run"))
            .env("BUILDAH_ISOLATION", "chroot")
            .env("CONTAINERS_REGISTRIES_CONF", path("registries.conf"))
            .env("CONTAINERS_CONF", path("containers.conf"))
            .env("XDG_RUNTIME_DIR", path("run"))
            .env("HOME", &self.folder);
        command
    }
}
