//! Tests of the loop without kernel programs: the tests report changes and set the time; the files are real.

mod absent;
mod applies;
mod closed;
mod cluster_policies;
mod denial_counts;
mod drift;
mod hanging_file_systems;
mod hierarchies;
mod operator_config;
mod ordered_reverts;
mod record_contents;
mod sources;
mod unknown_executions;
mod unusable_configs;

use super::apply_tracker::ApplyTracker;
use super::backend::BackendParts;
use super::changes::Changes;
use super::episode::AttributedChange;
use super::holdfast_writers::HoldfastWriters;
use super::options::AgentOptions;
use super::ordered_reverts::RevertOrders;
use super::reload::CarriedState;
use super::reports::{BackendName, DaemonFacts, Reports as _};
use super::run_end::RunEnd;
use super::start::{self, AgentRun, RunEnvironment, RunState};
use super::state::Agent;
use crate::apply::agent_view::AgentView;
use crate::attribution::NoTable;
use crate::clock::Clock;
use crate::desired::{Desired, Inputs, StateSource, last_usable};
use crate::observation::Observer;
use crate::repair::revert::Reverter;
use crate::report::forensic::{self, Filter, LogEntry};
use crate::report::http::Readiness;
use crate::report::metrics::{BuildInfo, Metrics};
use crate::report::reporter::{Places, Reporter};
use crate::report::socket::ReporterOrders;
use crate::report::status_file;
use jiff::Timestamp;
use sensor_common::op::Operation;
use sensor_model::expectation::Thing;
use sensor_model::protocol::{GapReason, ThingChange, ThingId};
use sensor_model::record::{Actor, Record, RecordKind};
use sensor_model::status::NodeStatus;
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// A clock that a test sets.
#[derive(Debug)]
struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanosecond(1_767_323_045_000_000_000 + i128::from(self.boot_ns())).unwrap()
    }

    fn boot_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A host with one file, in its declared state.
struct Node {
    directory: TempDir,
    clock: Arc<TestClock>,
    metrics: Arc<Metrics>,
    /// The file has no fanotify mark.
    unwatched: Cell<bool>,
    /// The daemon writes no managed path.
    observes: Cell<bool>,
    /// What writes back for the next run of a daemon that writes no managed path.
    reverts: RefCell<Option<Box<dyn RevertOrders>>>,
}

/// A daemon on this host.
struct Daemon {
    agent: Agent,
    changes: Changes,
    readiness: Readiness,
}

const FILE: &str = "/etc/a.conf";
const DECLARED: &str = "one\ntwo\nthree\n";

impl Daemon {
    /// The number of a thing.
    fn thing(&self, thing: &Thing) -> ThingId {
        let expectations = &self.agent.verdicts.desired.expectations;
        let index = expectations.iter().position(|expectation| expectation.thing == *thing).unwrap();
        ThingId(u32::try_from(index).unwrap())
    }
}

impl Node {
    /// A host with this rule in its drift policy.
    fn new(rule: &serde_json::Value) -> Self {
        let build = BuildInfo {
            version: "1".to_owned(),
            commit: "c".to_owned(),
            object: "o".to_owned(),
            kernel: "k".to_owned(),
        };
        let node = Self {
            directory: tempfile::tempdir().unwrap(),
            clock: Arc::new(TestClock(AtomicU64::new(1_000_000_000))),
            metrics: Arc::new(Metrics::new(build, Timestamp::UNIX_EPOCH)),
            unwatched: Cell::new(false),
            observes: Cell::new(false),
            reverts: RefCell::default(),
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
        let places = Places {
            log: self.path("log"),
            state: self.path("state"),
            run: self.path("run"),
            listen: None,
            reporter: None,
            orders: ReporterOrders::default(),
        };
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let mut reporter = Reporter::new(places, clock, Arc::clone(&self.metrics));
        let facts = DaemonFacts { boot_id: "boot".to_owned(), ..DaemonFacts::default() };
        reporter.open(facts).unwrap();
        reporter
    }

    /// The status file.
    fn status(&self) -> NodeStatus {
        status_file::read(&self.path("run")).unwrap()
    }

    fn options(&self) -> AgentOptions {
        AgentOptions {
            inputs: Inputs {
                with_cluster_policies: false,
                root: self.path("root"),
                state: self.path("state"),
                source: StateSource::named(vec![self.path("config")]),
                policies: vec![self.path("policy")],
                allow_unknown: false,
                allow_empty: false,
                own_process: false,
                keep: None,
                waits: crate::apply::waits_or_none,
                root_image: None,
                device_tables: None,
                replaced: None,
            },
            run: self.path("run"),
            pins: None,
            verify_every: Duration::from_mins(10),
            canary_every: Duration::from_secs(5),
            writes_managed_paths: !self.observes.get(),
        }
    }

    /// Begins a run. With `carried`: the next run of a daemon; without: a daemon that starts.
    async fn begin(&self, carried: Option<CarriedState>) -> Daemon {
        let mut options = self.options();
        let observer = Arc::new(Observer::guarded_by(&options.inputs.root, &self.path("mounts")).unwrap());
        let view = AgentView::new(&options.inputs.root, &options.inputs.state);
        let apply_tracker = ApplyTracker::new(Box::new(view)).start(&mut options, &observer).await;
        let loaded = start::load(&mut options, &observer).unwrap();
        let holdfast_writers = HoldfastWriters::listen(&options.inputs.state);
        let host = RunEnvironment {
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            observer,
            boot_id: "boot".to_owned(),
        };
        let parts = BackendParts {
            backend: BackendName::Fanotify,
            sensor: None,
            kernel: None,
            canary: None,
            recursion: None,
            processes: Box::new(NoTable),
            changes: Changes::Test(Vec::new()),
            backlog: Vec::new(),
            adopted: true,
        };
        let carried = carried.unwrap_or_default();
        // A run after a reload keeps its reporter. A new reporter restores the same state from the log.
        let reporter = self.reporter();
        let readiness = reporter.readiness();
        let reports = Box::new(reporter);
        let write_back = Box::new(Reverter::new(&options.inputs.root, &options.inputs.state, Vec::new()));
        let revert_orders = self.reverts.borrow_mut().take();
        let state = RunState {
            options,
            parts,
            apply_tracker,
            holdfast_writers,
            carried,
            reports,
            write_back,
            revert_orders,
        };
        let run = AgentRun { loaded, state };
        let (mut agent, changes) = run.assemble(&host).unwrap();
        let own = agent.verifications.verifier.registry.find(FILE.as_ref()).unwrap();
        agent.verifications.verifier.set_marked(own, !self.unwatched.get());
        let mut daemon = Daemon { agent, changes, readiness };
        self.settle(&mut daemon).await;
        daemon
    }

    /// Advances the clock by a second, and runs each turn that is due.
    async fn settle(&self, daemon: &mut Daemon) {
        let end = self.clock.boot_ns() + 1_000_000_000;
        loop {
            daemon.agent.turn(&mut daemon.changes).await.unwrap();
            let next =
                daemon.agent.verdicts.detector.next_deadline().into_iter().chain(daemon.agent.next_revert());
            match next.min().filter(|at| *at < end) {
                Some(at) => self.clock.0.fetch_max(at, Ordering::Relaxed),
                None => break,
            };
        }
        self.clock.0.fetch_max(end, Ordering::Relaxed);
    }

    /// An actor changed a thing, and the daemon verified it.
    async fn changed(&self, daemon: &mut Daemon, thing: &Thing, actor: Option<Actor>) {
        self.announced(daemon, thing, actor, false);
        self.settle(daemon).await;
    }

    /// A record announces a change of a thing. `refused`: the kernel refuses the change.
    fn announced(&self, daemon: &mut Daemon, thing: &Thing, actor: Option<Actor>, refused: bool) {
        let at_ns = self.clock.boot_ns();
        let thing = daemon.thing(thing);
        let operation = Operation::Write.name();
        daemon.agent.verdicts.add_change(thing, AttributedChange { actor, operation, at_ns }, refused);
        daemon.agent.verdicts.detector.changed(
            thing,
            at_ns,
            ThingChange { own: false, outside_evidence: true },
        );
    }

    /// Ends a run of the loop.
    async fn end(&self, mut daemon: Daemon) -> CarriedState {
        let carried = daemon.agent.carry();
        daemon.agent.end_turn();
        daemon.agent.verdicts.reports.close().await.unwrap();
        carried
    }

    /// The log's records of a kind.
    fn recorded(&self, kind: RecordKind) -> Vec<Record> {
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
