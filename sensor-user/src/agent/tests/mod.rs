//! The loop without kernel programs: changes are told by the tests, time is theirs, files are real.

mod applies;
mod denial_counts;
mod drift;
mod hanging_file_systems;
mod record_contents;
mod unusable_configs;

use super::apply_tracker::Follow;
use super::backend::{Changes, Parts};
use super::episode::AttributedChange;
use super::holdfast_writers::Writers;
use super::options::Options;
use super::reasons;
use super::reload::Carried;
use super::reports::{DaemonFacts, HookMode, Reports as _};
use super::run_end::Ended;
use super::start::{self, Host, Run};
use super::state::Agent;
use crate::apply::agent_view::AgentView;
use crate::attribution::NoTable;
use crate::clock::Clock;
use crate::desired::{Desired, Inputs, StateSource, last_valid};
use crate::observation::Observer;
use crate::repair::revert::Reverter;
use crate::report::forensic::{self, Filter, LogEntry};
use crate::report::http::Readiness;
use crate::report::metrics::{BuildInfo, Telemetry};
use crate::report::reporter::{Places, Reporter};
use crate::report::status;
use jiff::Timestamp;
use sensor_common::op::Operation;
use sensor_model::expectation::Thing;
use sensor_model::protocol::Event;
use sensor_model::record::{Actor, Record, RecordKind};
use sensor_model::status::NodeStatus;
use serde_json::json;
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// A clock that stands until it is moved.
#[derive(Debug)]
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanosecond(1_767_323_045_000_000_000 + i128::from(self.boot_ns())).unwrap()
    }

    fn boot_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A host whose one file is as declared.
struct Node {
    directory: TempDir,
    clock: Arc<Hand>,
    telemetry: Arc<Telemetry>,
    /// Nobody tells of changes of the file.
    unwatched: Cell<bool>,
}

/// A daemon on it.
struct Daemon {
    agent: Agent,
    changes: Changes,
    readiness: Readiness,
}

const FILE: &str = "/etc/a.conf";
const DECLARED: &str = "one\ntwo\nthree\n";

impl Node {
    /// With this action for everything, and more fields of its rule.
    fn new(rule: &serde_json::Value) -> Self {
        let build = BuildInfo {
            version: "1".to_owned(),
            commit: "c".to_owned(),
            object: "o".to_owned(),
            kernel: "k".to_owned(),
        };
        let node = Self {
            directory: tempfile::tempdir().unwrap(),
            clock: Arc::new(Hand(AtomicU64::new(1_000_000_000))),
            telemetry: Arc::new(Telemetry::new(build, Timestamp::UNIX_EPOCH)),
            unwatched: Cell::new(false),
        };
        for directory in ["root/etc/systemd/system", "state", "run", "config", "policy"] {
            fs::create_dir_all(node.path(directory)).unwrap();
        }
        fs::write(node.path("root/etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
        fs::write(node.path("root/etc/group"), "root:x:0:\n").unwrap();
        node.declare(DECLARED);
        node.decide(rule);
        node.write(DECLARED);
        fs::set_permissions(node.file(), fs::Permissions::from_mode(0o644)).unwrap();
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    fn file(&self) -> PathBuf {
        self.path("root").join(FILE.trim_start_matches('/'))
    }

    fn write(&self, content: &str) {
        fs::write(self.file(), content).unwrap();
    }

    fn content(&self) -> String {
        fs::read_to_string(self.file()).unwrap()
    }

    fn declare(&self, content: &str) {
        let owner = fs::metadata(self.directory.path()).unwrap();
        let source = format!("data:,{}", content.replace('\n', "%0A"));
        let config = json!({
            "ignition": { "version": "3.4.0" },
            "storage": { "files": [{
                "path": FILE, "mode": 0o644, "contents": { "source": source },
                "user": { "id": owner.uid() }, "group": { "id": owner.gid() },
            }] },
            "systemd": { "units": [{
                "name": "a.service", "enabled": true,
                "contents": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
            }] },
        });
        fs::write(self.path("config/a.ign"), config.to_string()).unwrap();
    }

    fn decide(&self, rule: &serde_json::Value) {
        let policy = json!({
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "DriftPolicy",
            "metadata": { "name": "test" },
            "spec": { "rules": [rule, { "path": "/etc/systemd/", "action": "observe" }] },
        });
        fs::write(self.path("policy/a.json"), policy.to_string()).unwrap();
    }

    fn reporter(&self) -> Reporter {
        let places =
            Places { log: self.path("log"), state: self.path("state"), run: self.path("run"), listen: None };
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let mut reporter = Reporter::new(places, clock, Arc::clone(&self.telemetry));
        let facts = DaemonFacts { boot_id: "boot".to_owned(), ..DaemonFacts::default() };
        reporter.open(facts).unwrap();
        reporter
    }

    /// What the status file says.
    fn status(&self) -> NodeStatus {
        status::read(&self.path("run")).unwrap()
    }

    fn options(&self) -> Options {
        Options {
            inputs: Inputs {
                root: self.path("root"),
                state: self.path("state"),
                source: StateSource::named(vec![self.path("config")]),
                policies: vec![self.path("policy")],
                allow_unknown: false,
                allow_empty: false,
                apart: false,
                keep: None,
                waits: crate::apply::waits_or_none,
                replaced: None,
            },
            run: self.path("run"),
            pins: None,
            verify_every: Duration::from_mins(10),
            canary_every: Duration::from_secs(5),
        }
    }

    /// A daemon as it begins: the first one, one that was started again, or the same with another config.
    async fn begin(&self, carried: Option<Carried>) -> Daemon {
        let mut options = self.options();
        let observer = Arc::new(Observer::guarded_by(&options.inputs.root, &self.path("mounts")).unwrap());
        let view = AgentView::new(&options.inputs.root, &options.inputs.state);
        let follow = Follow::new(Box::new(view)).start(&mut options, &observer).await;
        let loaded = start::load(&mut options, &observer).unwrap();
        let writers = Writers::listen(&options.inputs.state);
        let host =
            Host { clock: Arc::clone(&self.clock) as Arc<dyn Clock>, observer, boot_id: "boot".to_owned() };
        let parts = Parts {
            mode: HookMode::Fanotify,
            sensor: None,
            witness: None,
            canary: None,
            recursion: None,
            processes: Box::new(NoTable),
            changes: Changes::Test,
            backlog: Vec::new(),
            adopted: true,
        };
        let carried = carried.unwrap_or_default();
        // A reload goes on with the reporter that it has; one that starts from the log knows the same.
        let reporter = self.reporter();
        let readiness = reporter.readiness();
        let reports = Box::new(reporter);
        let write_back = Box::new(Reverter::new(&options.inputs.root));
        let run = Run { options, parts, follow, writers, loaded, carried, reports, write_back };
        let (mut agent, changes) = run.begin(&host).unwrap();
        let own = agent.looks.looker.registry.find(FILE.as_ref()).unwrap();
        agent.looks.looker.set_marked(own, !self.unwatched.get());
        let mut daemon = Daemon { agent, changes, readiness };
        self.settle(&mut daemon).await;
        daemon
    }

    /// Lets a second go by, and whatever is due in it be done.
    async fn settle(&self, daemon: &mut Daemon) {
        let end = self.clock.boot_ns() + 1_000_000_000;
        loop {
            daemon.agent.turn(&mut daemon.changes).await.unwrap();
            let next = daemon
                .agent
                .verdicts
                .detector
                .next_deadline()
                .into_iter()
                .chain(daemon.agent.verdicts.reverts.next());
            match next.min().filter(|at| *at < end) {
                Some(at) => self.clock.0.fetch_max(at, Ordering::Relaxed),
                None => break,
            };
        }
        self.clock.0.fetch_max(end, Ordering::Relaxed);
    }

    /// Somebody changed a file.
    async fn changed(&self, daemon: &mut Daemon, thing: &Thing, actor: Option<Actor>) {
        self.announced(daemon, thing, actor, false);
        self.settle(daemon).await;
    }

    /// Somebody is about to change a file, which is not looked at yet. `refused`: the kernel does not let them.
    fn announced(&self, daemon: &mut Daemon, thing: &Thing, actor: Option<Actor>, refused: bool) {
        let at_ns = self.clock.boot_ns();
        let expectations = &daemon.agent.verdicts.desired.expectations;
        let id = expectations.iter().position(|expectation| expectation.thing == *thing).unwrap();
        let id = u32::try_from(id).unwrap();
        let operation = Operation::Write.name();
        daemon.agent.verdicts.note(id, AttributedChange { actor, operation, at_ns }, refused);
        daemon.agent.verdicts.detector.event(id, at_ns, Event { own: false, beyond: true });
    }

    /// Ends a run of the loop.
    async fn end(&self, mut daemon: Daemon) -> Carried {
        let carried = daemon.agent.carry();
        daemon.agent.write();
        daemon.agent.verdicts.reports.close().await.unwrap();
        carried
    }

    /// What the log says of a kind.
    fn told(&self, kind: RecordKind) -> Vec<Record> {
        let filter = Filter { kinds: vec![kind], ..Filter::default() };
        let entries: Vec<LogEntry> = forensic::tail(&self.path("log"), 1000, &filter).unwrap();
        entries.into_iter().map(|entry| entry.record).collect()
    }
}

fn file() -> Thing {
    Thing::file(FILE)
}

fn alice() -> Actor {
    Actor {
        pid: 7,
        login_uid: Some(1000),
        login_user: Some("alice".to_owned()),
        session: Some(3),
        unit: Some("session-3.scope".to_owned()),
        slice: Some("user-1000.slice".to_owned()),
        ..Actor::default()
    }
}

fn mallory() -> Actor {
    Actor { pid: 8, login_uid: Some(1001), login_user: Some("mallory".to_owned()), ..Actor::default() }
}
