//! A host root, two configs, and the program that runs on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::LazyLock,
};
use tempfile::TempDir;

const HEAD: &str = r"
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: 99-test, labels: {machineconfiguration.openshift.io/role: worker}}
spec:
  config:
    ignition: {version: 3.4.0}
";

/// The config before: what changes, what stays, what is removed.
pub(crate) const OLD: &str = r"
    passwd: {users: [{name: core, passwordHash: '$6$old', sshAuthorizedKeys: ['ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIqDlmSXCDxZYgp7FmqGdVRTgEDgNPZQSADQBy8tGzRb old']}]}
    storage:
      directories:
      - {path: /etc/app, mode: 493}
      - {path: /etc/goes/deep, mode: 448}
      - {path: /etc/folds, mode: 448}
      files:
      - {path: /etc/app/stays, mode: 420, contents: {source: 'data:,stays'}}
      - {path: /etc/app/changes, mode: 420, contents: {source: 'data:,old'}}
      - {path: /etc/app/mode, mode: 420, contents: {source: 'data:,same'}}
      - {path: /etc/goes/deep/file, mode: 384, contents: {source: 'data:,goes'}}
      - {path: /etc/original, mode: 420, contents: {source: 'data:,declared'}}
      - {path: /etc/becomes-link, mode: 420, contents: {source: 'data:,file'}}
      - {path: /etc/unfolds, mode: 384, contents: {source: 'data:,file'}}
      - {path: /etc/folds/deep/file, mode: 384, contents: {source: 'data:,folds'}}
      links:
      - {path: /etc/leads, target: app}
      - {path: /etc/app/link, target: stays}
      - {path: /etc/app/hard, target: /etc/app/changes, hard: true}
    systemd:
      units:
      - name: on.service
        enabled: true
        contents: |
          [Service]
          ExecStart=/bin/true
          [Install]
          WantedBy=multi-user.target
        dropins: [{name: 10-goes.conf, contents: '[Service]'}]
      - {name: never.service, mask: true}
";

/// The config after.
pub(crate) const NEW: &str = r"
    passwd: {users: [{name: core, passwordHash: '$6$new', sshAuthorizedKeys: ['ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIqDlmSXCDxZYgp7FmqGdVRTgEDgNPZQSADQBy8tGzRb old', 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAqDlmSXCDxZYgp7FmqGdVRTgEDgNPZQSADQBy8tGzRb new']}]}
    storage:
      directories:
      - {path: /etc/app, mode: 488}
      - {path: /etc/new/deep, mode: 448}
      - {path: /etc/leads, mode: 448}
      files:
      - {path: /etc/app/stays, mode: 420, contents: {source: 'data:,stays'}}
      - {path: /etc/app/changes, mode: 420, contents: {source: 'data:,new'}}
      - {path: /etc/app/mode, mode: 384, contents: {source: 'data:,same'}}
      - {path: /etc/new/deep/er/file, mode: 384, contents: {source: 'data:,new'}}
      - {path: /etc/unfolds/deep/file, mode: 384, contents: {source: 'data:,unfolds'}}
      - {path: /etc/leads/changes, mode: 420, contents: {source: 'data:,leads'}}
      links:
      - {path: /etc/folds, target: app}
      - {path: /etc/app/link, target: changes}
      - {path: /etc/app/hard, target: /etc/app/changes, hard: true}
      - {path: /etc/becomes-link, target: app/stays}
    systemd:
      units:
      - name: on.service
        enabled: true
        contents: |
          [Service]
          ExecStart=/bin/false
          [Install]
          WantedBy=graphical.target
      - {name: off.service, enabled: false}
      - {name: masked.service, mask: true}
";

/// Only keys.
const KEYS: &str = r"
    passwd: {users: [{name: core, sshAuthorizedKeys: ['ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIqDlmSXCDxZYgp7FmqGdVRTgEDgNPZQSADQBy8tGzRb key']}]}
";

/// Nothing is declared any more.
pub(crate) const NOTHING: &str = "";

/// The state of each path: type and mode, owner, attributes, content or target.
pub(crate) type Snapshot = BTreeMap<PathBuf, String>;

pub(crate) struct World {
    directory: TempDir,
}

pub(crate) struct RunResult {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl RunResult {
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl World {
    /// A host with files of its own and no config.
    pub(crate) fn new() -> Self {
        let world = Self { directory: directory() };
        world.write("/etc/passwd", "root:x:0:0\ncore:x:1000:1000\n");
        world.write("/etc/group", "root:x:0\ncore:x:1000\n");
        world.write("/etc/shadow", "root:*:1:0:::::\ncore:!:1:0:::::\n");
        world.write("/etc/.pwd.lock", "");
        world.write("/etc/original", "what the host came with");
        fs::hard_link(world.at("/etc/original"), world.at("/etc/original-too")).unwrap();
        world.write("/usr/lib/systemd/system/off.service", "[Install]\nWantedBy=a.target\n");
        fs::create_dir_all(world.at("/etc/systemd/system/a.target.wants")).unwrap();
        fs::create_dir_all(world.at("/home/core")).unwrap();
        // Both are enabled. The new config disables one and masks the other.
        for name in ["off.service", "masked.service"] {
            std::os::unix::fs::symlink(
                format!("/usr/lib/systemd/system/{name}"),
                world.at(&format!("/etc/systemd/system/a.target.wants/{name}")),
            )
            .unwrap();
        }
        fs::set_permissions(world.at("/etc/shadow"), fs::Permissions::from_mode(0o640)).unwrap();
        for (name, config) in [("old", OLD), ("new", NEW), ("nothing", NOTHING), ("keys", KEYS)] {
            world.config(name, config);
        }
        world
    }

    /// The same host with the old config applied; made once and copied.
    pub(crate) fn old() -> Self {
        static OLD_WORLD: LazyLock<World> = LazyLock::new(|| {
            let world = World::new();
            let said = world.apply(&["old"], "");
            assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
            world
        });
        let world = Self { directory: directory() };
        let from = OLD_WORLD.directory.path().join(".");
        let copied = Command::new("cp").arg("-a").args([&from, world.directory.path()]).status().unwrap();
        assert!(copied.success());
        world
    }

    pub(crate) fn config(&self, name: &str, config: &str) {
        fs::write(self.config_file(name), format!("{HEAD}{config}")).unwrap();
    }

    pub(crate) fn config_file(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.yaml"))
    }

    /// Number of contents that the store has for an apply in progress.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn contents(&self) -> usize {
        fs::read_dir(self.state().join("apply/contents")).unwrap().count()
    }

    /// Number of originals that the store keeps.
    pub(crate) fn originals(&self) -> usize {
        let kept = fs::read_dir(self.state().join("apply/originals")).unwrap();
        kept.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|ending| ending == "json"))
            .count()
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join("root").join(path.trim_start_matches('/'))
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Runs a command with a fault: `apply` with the name of a config and more options.
    pub(crate) fn run(&self, arguments: &[&str], fault: &str) -> RunResult {
        RunResult::of(self.prepare(arguments, fault).output().unwrap())
    }

    pub(crate) fn apply(&self, arguments: &[&str], fault: &str) -> RunResult {
        RunResult::of(self.command(arguments, fault).output().unwrap())
    }

    /// The command of [`World::apply`].
    pub(crate) fn command(&self, arguments: &[&str], fault: &str) -> Command {
        let config = self.config_file(arguments[0]);
        let mut all = vec!["apply", config.to_str().unwrap(), "--no-acts", "--allow-empty"];
        all.extend(&arguments[1..]);
        self.prepare(&all, fault)
    }

    /// A command that the test starts itself.
    pub(crate) fn prepare(&self, arguments: &[&str], fault: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.args(arguments).arg("--host-root").arg(self.at("/")).arg("--state").arg(self.state());
        if !fault.is_empty() {
            command.env("HOLDFAST_FAULT", fault);
        }
        // No terminal to ask on. The tests of the questions remove these variables.
        command.envs([("HOLDFAST_YES", "1"), ("HOLDFAST_REBOOT", "1")]).stdin(Stdio::null());
        command
    }

    /// Finishes or undoes an interrupted apply.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn resume(&self, fault: &str) -> RunResult {
        self.run(&["apply", "--resume", "--no-acts"], fault)
    }

    pub(crate) fn has_journal(&self) -> bool {
        self.state().join("apply/journal").exists()
    }

    /// Number of the current config.
    pub(crate) fn current(&self) -> Option<String> {
        let target = fs::read_link(self.state().join("apply/current")).ok()?;
        Some(target.to_str().unwrap().to_owned())
    }

    /// Everything below the root: links with their targets, files with their content, and files of several names with
    /// all of them.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (mut snapshot, mut names) = (Snapshot::new(), BTreeMap::new());
        walk(&self.at("/"), Path::new("/"), &mut snapshot, &mut names);
        for paths in names.into_values().filter(|paths| paths.len() > 1) {
            for path in &paths {
                let text = snapshot.get_mut(path).unwrap();
                *text = format!("{text} by the names {paths:?}");
            }
        }
        snapshot
    }
}

/// In memory if possible, because tests need no real syncs.
fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn walk(real: &Path, path: &Path, into: &mut Snapshot, names: &mut BTreeMap<u64, BTreeSet<PathBuf>>) {
    let metadata = fs::symlink_metadata(real).unwrap();
    let what = if metadata.is_symlink() {
        format!("-> {}", fs::read_link(real).unwrap().display())
    } else if !metadata.is_file() {
        String::new()
    } else {
        String::from_utf8_lossy(&fs::read(real).unwrap()).into_owned()
    };
    let (mode, uid, gid) = (metadata.mode(), metadata.uid(), metadata.gid());
    into.insert(path.to_owned(), format!("{mode:o} {uid}:{gid} {} {what}", xattrs(real)));
    if metadata.is_file() {
        names.entry(metadata.ino()).or_default().insert(path.to_owned());
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(real).unwrap() {
            let name = entry.unwrap().file_name();
            walk(&real.join(&name), &path.join(&name), into, names);
        }
    }
}

/// Attributes with their values, except for those that the kernel writes by itself.
fn xattrs(path: &Path) -> String {
    let mut list = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(path, list.as_mut_slice()).unwrap_or(0);
    let mut found = Vec::new();
    for name in list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name);
        let mut value = vec![0; 64 << 10];
        if !matches!(&*name, "security.ima" | "security.evm") {
            let length = rustix::fs::lgetxattr(path, &*name, value.as_mut_slice()).unwrap();
            found.push(format!("{name}={}", hex::encode(&value[..length])));
        }
    }
    found.sort();
    found.join(" ")
}
