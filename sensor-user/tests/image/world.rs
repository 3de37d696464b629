//! A directory with layouts, a state directory and a root, and the program that runs on them.

use crate::{
    archive::Archive,
    layout::{Layer, LayoutMaker, Stored},
};
use rustix::fs::{XattrFlags, removexattr, setxattr};
use sensor_model::xattr;
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::PathBuf,
    process::Command,
};
use tempfile::TempDir;

/// A config that declares `/etc/motd`.
pub(crate) const CONFIG: &str = r#"
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-motd
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  config:
    ignition: {version: 3.4.0}
    storage:
      files:
      - {path: /etc/motd, mode: 0644, contents: {source: "data:,declared"}}
"#;

/// The link to the deployment that the kernel's argument names.
pub(crate) const BOOT_LINK: &str = "ostree/boot.1/os/c/0";

pub(crate) struct World {
    directory: TempDir,
}

/// The program's output and exit code.
#[derive(Debug)]
pub(crate) struct RunResult {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl RunResult {
    /// The output as JSON, which must match a schema of `docs/schemas`.
    pub(crate) fn json(&self, schema: &str) -> Value {
        let path = format!("{}/../docs/schemas/{schema}.schema.json", env!("CARGO_MANIFEST_DIR"));
        let schema: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let value: Value = serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{error}: {}{}", self.out, self.err));
        let validator = jsonschema::validator_for(&schema).unwrap();
        let faults: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(faults.is_empty(), "{faults:#?}\n{value:#}");
        value
    }
}

/// The base layer of the image that most tests use, and the layer on top of it.
pub(crate) fn two_layers() -> [Layer; 2] {
    let base = Archive::new()
        .entry(b'5', "./", 0o755, "", b"")
        .directory("etc")
        .directory("usr")
        .directory("usr/bin")
        .symlink("bin", "usr/bin")
        .entry(b'0', "usr/bin/tool", 0o755, "", b"old tool")
        .file("etc/app.conf", "a=1\n")
        .file("etc/gone", "x");
    let top = Archive::new()
        .entry(b'0', "usr/bin/tool", 0o755, "", b"new tool")
        .file("etc/.wh.gone", "")
        .file("etc/motd", "hello\n");
    [
        Layer::new(&base.end(), Stored::Gzip, "/bin/sh -c #(nop) ADD rootfs.tar /"),
        Layer::new(&top.end(), Stored::Zstd, "/bin/sh -c dnf install -y tool"),
    ]
}

impl World {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// A world with an image of two layers, its index, and a root that is as the image.
    pub(crate) fn in_sync() -> (Self, String) {
        let world = Self::new();
        let digest = LayoutMaker::one(&world.at("layout"), &two_layers());
        let result = world.run(&["image", "index", "LAYOUT", "STATE"]);
        assert_eq!(result.code, 0, "{}", result.err);
        world.write_host("usr/bin/tool", "new tool", 0o755);
        world.write_host("etc/app.conf", "a=1\n", 0o644);
        world.write_host("etc/motd", "hello\n", 0o644);
        symlink("usr/bin", world.at("root/bin")).unwrap();
        for directory in ["root", "root/etc", "root/usr", "root/usr/bin"] {
            fs::set_permissions(world.at(directory), fs::Permissions::from_mode(0o755)).unwrap();
        }
        (world, digest)
    }

    /// Makes the root one that booted an image.
    pub(crate) fn boot(&self, digest: &str) {
        let image = format!("container-image-reference=ostree-unverified-registry:os.example/os@{digest}");
        self.boot_deployment("abc", &image);
    }

    /// Makes the root one that booted an ostree commit.
    pub(crate) fn boot_commit(&self, checksum: &str) {
        self.boot_deployment(checksum, "refspec=os/stable");
    }

    /// The same with the name of an image in the deployment's origin.
    pub(crate) fn boot_commit_by_tag(&self, checksum: &str, image: &str) {
        let image = format!("container-image-reference=ostree-unverified-registry:{image}");
        self.boot_deployment(checksum, &image);
    }

    fn boot_deployment(&self, checksum: &str, origin: &str) {
        self.deploy(checksum, origin);
        self.write_host("run/ostree-booted", "", 0o644);
        self.write_host("proc/cmdline", &format!("root=/dev/vda ostree=/{BOOT_LINK}\n"), 0o444);
        let link = self.at("root").join(BOOT_LINK);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&link);
        symlink(format!("../../../deploy/os/deploy/{checksum}.0"), link).unwrap();
    }

    /// Makes a deployment of a commit, with its origin. Gives its directory.
    pub(crate) fn deploy(&self, checksum: &str, origin: &str) -> PathBuf {
        let deployment = format!("ostree/deploy/os/deploy/{checksum}.0");
        self.write_host(&format!("{deployment}.origin"), &format!("[origin]\n{origin}\n"), 0o644);
        let directory = self.at("root").join(deployment);
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    pub(crate) fn write_host(&self, path: &str, content: &str, mode: u32) {
        let path = self.at("root").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Gives a file of the host an extended attribute with the set of capabilities.
    pub(crate) fn set_capability(&self, path: &str, value: &[u8]) {
        setxattr(self.at("root").join(path), xattr::CAPABILITY, value, XattrFlags::empty()).unwrap();
    }

    /// Takes the capabilities from a file of the host.
    pub(crate) fn remove_capability(&self, path: &str) {
        removexattr(self.at("root").join(path), xattr::CAPABILITY).unwrap();
    }

    /// Runs the program. `LAYOUT`, `STATE`, `ROOT`, `HOST`, `CONFIG`, `POLICY` and `LOG` stand for the options with this world's paths.
    pub(crate) fn run(&self, arguments: &[&str]) -> RunResult {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        for argument in arguments {
            match *argument {
                "LAYOUT" => command.arg(self.at("layout")),
                "STATE" => command.arg("--state").arg(self.at("state")),
                "ROOT" => command.arg("--root").arg(self.at("root")),
                "HOST" => command.arg("--host-root").arg(self.at("root")),
                "POLICY" => command.arg("--policy").arg(self.at("policy.yaml")),
                "CONFIG" => command.arg("--config").arg(self.at("config.yaml")),
                "LOG" => command.arg("--log").arg(self.at("log")),
                argument => command.arg(argument),
            };
        }
        let output = command.env("NO_COLOR", "1").output().unwrap();
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.replace(&self.directory.path().display().to_string(), "WORLD")
        };
        RunResult {
            code: output.status.code().unwrap_or(-1),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }
}
