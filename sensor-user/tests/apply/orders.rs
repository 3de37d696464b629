//! Configs that a reporter hands in over the daemon's socket, with the daemon's own orders and the process that plans.
//!
//! The daemon is `played_sensor`, an example of this crate. These tests give it no picture. `cargo test` builds it.

use crate::recovery::{begin, this_boot};
use crate::world::World;
use sensor_model::journal::{Begin, JournalRecord, codec};
use sensor_model::socket::{CONFIG, PlannedConfig, SocketError, SocketErrorReason};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A daemon that takes configs for a host. It ends with its input.
struct Daemon {
    world: World,
    child: Child,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    /// A host whose present config declares `/etc/file` with the content `old`.
    fn start() -> Self {
        let world = World::new();
        let folder = world.state().parent().unwrap().to_owned();
        let uid = fs::metadata(&folder).unwrap().uid();
        let program = Path::new(env!("CARGO_BIN_EXE_holdfast")).with_file_name("examples/played_sensor");
        let child = Command::new(program)
            .arg(&folder)
            .args([&uid.to_string(), "manage"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`cargo build --example played_sensor` builds it");
        let mut daemon = Self { world, child };
        daemon.world.write("/etc/holdfast/machine-configs/present.yaml", &daemon.config("old").to_string());
        daemon.world.write("/etc/file", "old");
        // Its socket is there when it answers a line.
        daemon.child.stdin.as_mut().unwrap().write_all(b"current none\n").unwrap();
        let mut answer = String::new();
        BufReader::new(daemon.child.stdout.as_mut().unwrap()).read_line(&mut answer).unwrap();
        assert_eq!(answer, "done\n");
        daemon
    }

    /// A config that declares `/etc/file` with this content, and nothing else.
    fn config(&self, content: &str) -> Value {
        let owner = fs::metadata(self.world.at("/")).unwrap();
        json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": { "name": format!("rendered-{content}"),
                "labels": { "machineconfiguration.openshift.io/role": "worker" } },
            "spec": { "config": {
                "ignition": { "version": "3.4.0" },
                "storage": { "files": [{
                    "path": "/etc/file", "mode": 0o644, "contents": { "source": format!("data:,{content}") },
                    "user": { "id": owner.uid() }, "group": { "id": owner.gid() },
                }] },
            } },
        })
    }

    /// Hands a body in. Gives the status code and the body of the answer.
    fn put(&self, body: &str) -> (u16, String) {
        self.ask("PUT", body)
    }

    /// Sends a request about the config. Gives the status code and the body of the answer.
    fn ask(&self, method: &str, body: &str) -> (u16, String) {
        let socket = self.world.state().with_file_name("run/reporter.sock");
        let mut stream = UnixStream::connect(socket).unwrap();
        let head = format!(
            "{method} {CONFIG} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn planned(&self, config: &Value) -> PlannedConfig {
        let (code, body) = self.put(&json!({ "machine_config": config }).to_string());
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn refused(&self, body: &str) -> SocketError {
        let (code, answer) = self.put(body);
        assert_eq!(code, 422, "{body}: {answer}");
        let error: SocketError = serde_json::from_str(&answer).unwrap();
        assert_eq!(error.reason, SocketErrorReason::Refused, "{body}: {answer}");
        error
    }

    /// The files of the configs that have a plan or are ordered.
    fn accepted(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for directory in ["planned", "ordered"] {
            let path = self.world.state().join("order").join(directory);
            for entry in fs::read_dir(path).into_iter().flatten() {
                let path = entry.unwrap().path();
                files.insert(path.display().to_string(), fs::read(path).unwrap());
            }
        }
        files
    }
}

#[test]
fn a_config_that_cannot_be_applied_is_refused_with_its_field_and_the_accepted_one_stays() {
    let daemon = Daemon::start();
    let good = daemon.config("new");
    let planned = daemon.planned(&good);
    assert!(!planned.has_nothing_to_do && planned.config == "rendered-new", "{planned:?}");
    let newest = || {
        let (code, body) = daemon.ask("GET", "");
        assert_eq!(code, 200, "{body}");
        serde_json::from_str::<PlannedConfig>(&body).unwrap()
    };
    assert_eq!(newest(), planned, "the plan can be read again");
    let accepted = daemon.accepted();
    assert!(!accepted.is_empty());

    let changed = |pointer: &str, value: Value| {
        let mut config = good.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        config.pointer_mut(parent).unwrap()[field] = value;
        json!({ "machine_config": config }).to_string()
    };
    let with_policy =
        |policy: Value| json!({ "machine_config": good, "node_disruption": policy }).to_string();
    for (body, named) in [
        // The body is no config.
        (String::new(), "the body is no config: line 1, column 0"),
        ("{".to_owned(), "the body is no config: line 1"),
        (json!({ "machine_config": {} }).to_string(), "machine_config: metadata.name: is missing"),
        // A config that declares nothing, of which every file would be removed.
        (changed("/spec/config", json!({ "ignition": { "version": "3.4.0" } })), "declares nothing"),
        (changed("/spec", json!({})), "declares nothing"),
        // Values and fields.
        (changed("/spec/config/storage/files", json!([{ "path": "etc/file" }])), "storage.files[0].path"),
        (
            changed("/spec/config/storage/files", json!([{ "path": "/etc/file", "mode": "0644" }])),
            "files[0].mode",
        ),
        (changed("/spec/config/ignition/version", json!("9.9.9")), "9.9.9"),
        (changed("/spec/confg", json!({})), "spec.confg: unknown field; did you mean config?"),
        (changed("/spec/config/storage/file", json!([])), "spec.config.storage.file: unknown field"),
        (changed("/kind", json!("MachineConfg")), "machine_config: kind: must be `MachineConfig`"),
        (with_policy(json!({ "kind": "MachineConfiguration" })), "apiVersion"),
    ] {
        let error = daemon.refused(&body).error;
        assert!(error.contains(named), "{body}: no `{named}` in `{error}`");
        assert_eq!(daemon.accepted(), accepted, "after {body}");
    }
    assert_eq!(daemon.world.read("/etc/file"), "old", "a plan writes nothing");
    assert_eq!(daemon.planned(&good).id, planned.id);
}

#[test]
fn a_config_that_is_equal_to_the_present_one_has_nothing_to_do() {
    let daemon = Daemon::start();
    let planned = daemon.planned(&daemon.config("old"));
    assert!(planned.has_nothing_to_do, "{planned:?}");
    assert!(!planned.drains && !planned.reboots, "{planned:?}");
    // It replaces a config that was planned before, which an order can no longer name.
    let other = daemon.planned(&daemon.config("new"));
    assert!(!other.has_nothing_to_do, "{other:?}");
    let again = daemon.planned(&daemon.config("old"));
    assert_eq!((again.has_nothing_to_do, &again.id), (true, &planned.id));
    assert_ne!(other.id, again.id);
}

#[test]
fn while_an_apply_that_reboots_is_open_the_answer_says_so_and_that_there_is_something_to_do() {
    let daemon = Daemon::start();
    let planned = daemon.planned(&daemon.config("old"));
    assert!(planned.has_nothing_to_do && !planned.drains && !planned.reboots, "{planned:?}");
    let config = daemon.world.state().join("apply/generations/2/config");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("000-a.yaml"), daemon.config("old").to_string()).unwrap();
    let begin = Begin { previous: None, reboot: true, ..begin(&this_boot(), Vec::new()) };
    let (line, _) = codec::line("", &JournalRecord::Begin(Box::new(begin))).unwrap();
    fs::write(daemon.world.state().join("apply/journal"), line).unwrap();
    let planned = daemon.planned(&daemon.config("old"));
    assert!(!planned.has_nothing_to_do && planned.drains && planned.reboots, "{planned:?}");
}
