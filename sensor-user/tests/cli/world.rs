//! A simulated host root, a configuration, a log and a procfs, and the program that runs on them.

use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

const CONFIG: &str = r#"
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-worker-app
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  kernelArguments: [quiet]
  config:
    ignition: {version: 3.4.0}
    storage:
      directories:
      - {path: /etc/app, mode: 0755}
      files:
      - {path: /etc/app/app.conf, mode: 0644, contents: {source: "data:,key%3Dvalue%0A"}}
      - {path: /etc/app/secret, mode: 0600, contents: {source: "data:,hunter2"}}
      links:
      - {path: /etc/app/current, target: app.conf}
    systemd:
      units:
      - name: app.service
        enabled: true
        contents: |
          [Service]
          ExecStart=/usr/bin/app
          [Install]
          WantedBy=multi-user.target
        dropins:
        - {name: 10-limits.conf, contents: "[Service]\nLimitNOFILE=1024\n"}
"#;

const POLICY: &str = r"
apiVersion: holdfast.dev/v1alpha1
kind: DriftPolicy
metadata: {name: test}
spec:
  rules:
  - {path: /etc/app/secret, action: revert, secret: true, reason: it opens doors}
";

/// Everything that the program needs.
pub(crate) struct World {
    pub(crate) directory: TempDir,
}

/// The program's output and exit code.
pub(crate) struct RunResult {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl RunResult {
    /// Output, errors and exit code as one golden text.
    pub(crate) fn golden(&self) -> String {
        let err = if self.err.is_empty() { String::new() } else { format!("--- stderr\n{}", self.err) };
        format!("{}{err}--- exit {}", self.out, self.code)
    }

    /// The output as JSON, which must match a schema of `docs/schemas`.
    pub(crate) fn json(&self, schema: &str) -> Value {
        let path = format!("{}/../docs/schemas/{schema}.schema.json", env!("CARGO_MANIFEST_DIR"));
        let schema: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let value: Value =
            serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out));
        let validator = jsonschema::validator_for(&schema).unwrap();
        let faults: Vec<String> = validator
            .iter_errors(&value)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(faults.is_empty(), "{faults:#?}\n{value:#}");
        value
    }
}

impl World {
    /// A root that matches its config, except for a unit's link.
    pub(crate) fn new() -> Self {
        let world = Self { directory: tempfile::tempdir().unwrap() };
        world.write("config/99-worker-app.yaml", CONFIG);
        world.write("policy/test.yaml", POLICY);
        world.write("root/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
        world.write("root/etc/group", "root:x:0:\n");
        for directory in ["root/etc/systemd/system", "root/usr/lib/systemd/system", "log", "run"] {
            fs::create_dir_all(world.at(directory)).unwrap();
        }
        world
    }

    /// The same root, completely compliant.
    pub(crate) fn in_sync() -> Self {
        let world = Self::new();
        let result = world.run(&["repair", "--all", "--yes", "CONFIG"]);
        assert_eq!(result.code, 0, "{}{}", result.out, result.err);
        world
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// A path on the host.
    pub(crate) fn host(&self, path: &str) -> PathBuf {
        self.at("root").join(path.trim_start_matches('/'))
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.host(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// The program with arguments. `CONFIG` and `LOG` stand for the options with this host's paths.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        let show = |path: &Path| path.display().to_string();
        for argument in arguments {
            match *argument {
                "CONFIG" => {
                    command.args([
                        "--config",
                        &show(&self.at("config")),
                        "--policy",
                        &show(&self.at("policy")),
                    ]);
                    command.args(["--host-root", &show(&self.at("root"))]);
                }
                "LOG" => {
                    command.args(["--log", &show(&self.at("log"))]);
                }
                other => {
                    command.arg(other);
                }
            }
        }
        command.stdin(Stdio::null()).env_remove("RUST_LOG");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> RunResult {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let here = self.directory.path().to_str().unwrap().to_owned();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(&here, "[HERE]");
        RunResult { code: status.code().unwrap(), out: text(stdout), err: text(stderr) }
    }
}
