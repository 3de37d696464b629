//! A daemon whose picture a test makes. Its reports are the daemon's own: the forensic log, `status.json` and the reporter's socket.
//!
//! In: a directory, the reporter's user id, and lines on the standard input. With a third argument `manage` the daemon's own socket takes
//! configs for the host in `root` in the directory, as in the mode `manage`, and plans by this program, as the daemon does. Out: `log`, `state`, `run/reporter.sock` and
//! `run/manage.sock` in the directory. Both sockets take policies of the cluster, as in the mode `observe`. The second socket also takes
//! configs and orders. A line is `drift PATH LOGIN`, `drift PATH LOGIN layer` for a file of the image, `drift PATH pod UID` or `recover PATH`, `boots IMAGE` with the config of its label if there is one, `expects FILE` with the MachineConfig in this file as that of the Machine Config Operator's daemon, or about applies: `current NAME`, `drains yes`, `drains no`, `operator yes`, `operator no`, `ordered`, `finish` or `fail-drift`. Each is answered
//! with a line: `done`, or `not ordered` if there is no order under way. The end of the input ends the program. It is an example, so
//! that the product does not contain it.

mod applies;

use anyhow::{Context as _, Result, bail};
use applies::Applies;
use holdfast::agent::open_drift::OpenDrift;
use holdfast::agent::reports::{AgentReport, BackendName, DaemonFacts, NodeCounts, Reports as _, RunFacts};
use holdfast::apply::{NodeOrders, NodePolicies, plan_order, waits_or_none};
use holdfast::clock::{Clock, SystemClock};
use holdfast::desired::{DaemonInputs, NamedSources};
use holdfast::report::metrics::{BuildInfo, Metrics};
use holdfast::report::reporter::{Places, Reporter};
use holdfast::report::socket::{ReporterOrders, ReporterPeer};
use sensor_model::config_digest::digest_of_object;
use sensor_model::difference::{Difference, DifferenceKind};
use sensor_model::drift_policy::{ActionLimits, DriftAction};
use sensor_model::expectation::SourceKind;
use sensor_model::record::{Actor, Record, RecordKind, ThingKind, ThingName};
use sensor_model::status::{BootedImage, ConfigOrigin, ExpectedConfig};
use sensor_model::strength::Strength;
use sensor_model::verdict::VerdictKind;
use std::fs;
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::unbounded_channel;

const BEAT: Duration = Duration::from_secs(1);
const BOOT: &str = "played";
/// The first word of the daemon's command line for a process that plans.
const SUBCOMMAND: &str = "order";
const SOURCE: &str = "99-worker";
/// What ships a file of the image.
const LAYER: &str = "layer 2 of 2, sha256:2222222222222222222222222222222222222222222222222222222222222222, RUN dnf install -y kubelet";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|first| first == SUBCOMMAND).is_some() {
        return order(arguments.collect()).await;
    }
    let directory = arguments.next().context("give a directory")?;
    let uid = arguments.next().context("give the reporter's user id")?.parse()?;
    let manages = arguments.next().is_some_and(|mode| mode == "manage");
    let mut reporter = reporter(Path::new(&directory), uid, manages)?;
    let counts = node_counts(&reporter);
    reporter.end_turn(&mut vec![record(RecordKind::Start)], &counts);
    let applies = Applies::serve(&Path::new(&directory).join("run"))?;
    let (sender, mut lines) = unbounded_channel();
    std::thread::spawn(move || io::stdin().lines().try_for_each(|line| sender.send(line)));
    let mut beat = tokio::time::interval(BEAT);
    loop {
        tokio::select! {
            line = lines.recv() => {
                let Some(line) = line else { break };
                let line = line?;
                if let Some(answer) = applies.take(&line) {
                    println!("{answer}");
                    continue;
                }
                let done = turn(&mut reporter, &line)?;
                let counts = node_counts(&reporter);
                reporter.end_turn(&mut vec![done], &counts);
                println!("done");
            }
            _ = beat.tick() => {
                let counts = node_counts(&reporter);
                reporter.beat(&counts);
            }
            written = poll_fn(|context| reporter.poll_progress(context)) => written?,
        }
    }
    reporter.close().await?;
    Ok(())
}

/// What the daemon's own program does for an order: it plans.
async fn order(arguments: Vec<String>) -> Result<()> {
    let [what, root, state] =
        ["plan", "--host-root", "--state"].map(|name| arguments.iter().position(|word| word == name));
    let after = |index: Option<usize>| index.and_then(|index| arguments.get(index + 1)).context("a path");
    if what != Some(0) {
        bail!("this program only plans");
    }
    let answer = plan_order(Path::new(after(root)?), Path::new(after(state)?)).await;
    println!("{}", serde_json::to_string(&answer)?);
    Ok(())
}

/// The daemon's reporter, at the beginning of a run.
fn reporter(directory: &Path, uid: u32, manages: bool) -> Result<Reporter> {
    let [log, state, run] = ["log", "state", "run"].map(|name| directory.join(name));
    for directory in [&state, &run] {
        fs::create_dir_all(directory)?;
    }
    let build = BuildInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: "unknown".to_owned(),
        object: String::new(),
        kernel: String::new(),
    };
    let peer = ReporterPeer { uid, unit: None, pod: None };
    let sources = NamedSources {
        root: directory.to_owned(),
        state: Some(state.clone()),
        configs: Vec::new(),
        policies: Vec::new(),
        allow_unknown: false,
    };
    let inputs = sources.daemon_inputs(DaemonInputs::default(), waits_or_none);
    let policies = Arc::new(NodePolicies::new(&inputs, ActionLimits::OBSERVE));
    let configs = manages.then(|| Arc::new(NodeOrders::new(&directory.join("root"), &state)) as _);
    let orders = ReporterOrders { policies: Some(policies), configs };
    let places = Places { log, state, run, listen: None, reporter: Some(peer), orders };
    let metrics = Arc::new(Metrics::new(build, SystemClock.now()));
    let mut reporter = Reporter::new(places, Arc::new(SystemClock), metrics);
    reporter.prepare()?;
    reporter.open(DaemonFacts { boot_id: BOOT.to_owned(), beat: BEAT, ..DaemonFacts::default() })?;
    reporter.report(run_began(None, None));
    Ok(reporter)
}

/// A run begins on a host that booted this image and has this config.
fn run_began(booted_image: Option<BootedImage>, config: Option<ExpectedConfig>) -> AgentReport<'static> {
    AgentReport::RunBegan(RunFacts {
        backend: BackendName::Lsm,
        sources: vec![SOURCE.to_owned()],
        config,
        waiting: Vec::new(),
        refused: None,
        booted_image,
    })
}

/// What a line asks for. Gives its record.
fn turn(reporter: &mut Reporter, line: &str) -> Result<Record> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let name = |path: &str| ThingName { path: path.to_owned(), kind: ThingKind::File };
    match words[..] {
        ["drift", path, login] | ["drift", path, login, "layer"] | ["drift", path, login @ "pod", _] => {
            let pod_uid = (login == "pod").then(|| words.get(3).map(|uid| (*uid).to_owned())).flatten();
            let (source, source_kind, strength) = match words.get(3) {
                Some(&"layer") => (LAYER, SourceKind::Image, Some(Strength::Layer)),
                _ => (SOURCE, SourceKind::MachineConfig, None),
            };
            let actor = Actor {
                pid: 7,
                exe: Some("/usr/bin/vi".to_owned()),
                login_uid: pod_uid.is_none().then_some(1000),
                login_user: pod_uid.is_none().then(|| login.to_owned()),
                pod_uid,
                ..Actor::default()
            };
            let difference = Difference {
                kind: DifferenceKind::Content,
                expected: "sha256:0".to_owned(),
                found: "sha256:1".to_owned(),
                text: format!("content mismatch for file \"{path}\""),
            };
            let open = OpenDrift {
                differences: vec![difference.clone()],
                since: SystemClock.now(),
                actor: Some(actor.clone()),
                actors: Vec::new(),
                more_actors: false,
                allowed: false,
                source: source.to_owned(),
                source_kind: Some(source_kind),
                strength,
                action: Some(DriftAction::Degrade),
                found: None,
                confirmed: true,
            };
            reporter.report(AgentReport::Drifted(name(path), Box::new(open)));
            Ok(Record {
                path: Some(path.to_owned()),
                thing: Some(ThingKind::File),
                actor: Some(actor),
                differences: vec![difference],
                verdict: Some(VerdictKind::Drifted),
                source: Some(source.to_owned()),
                ..record(RecordKind::Drift)
            })
        }
        ["recover", path] => {
            reporter.report(AgentReport::Recovered(&name(path)));
            Ok(Record {
                path: Some(path.to_owned()),
                thing: Some(ThingKind::File),
                verdict: Some(VerdictKind::Compliant),
                ..record(RecordKind::Recovered)
            })
        }
        ["boots", image] | ["boots", image, _] => {
            let digest = image.split_once('@').map(|(_, digest)| digest.to_owned());
            let config = words.get(2).map(|config| (*config).to_owned());
            let booted = BootedImage { name: Some(image.to_owned()), digest, config };
            reporter.report(run_began(Some(booted), None));
            Ok(record(RecordKind::Start))
        }
        ["expects", file] => {
            let bytes = fs::read(file)?;
            let stored: serde_json::Value = serde_json::from_slice(&bytes)?;
            let config = ExpectedConfig {
                origin: ConfigOrigin::Operator,
                name: stored["metadata"]["name"].as_str().map(str::to_owned),
                digest: digest_of_object(file, &bytes)?,
            };
            reporter.report(run_began(None, Some(config)));
            Ok(record(RecordKind::Start))
        }
        _ => bail!("no such line: {line}"),
    }
}

fn record(kind: RecordKind) -> Record {
    Record::new(kind, SystemClock.now().to_string(), BOOT.to_owned(), SystemClock.boot_ns())
}

/// The counts of a node with ten things.
fn node_counts(reporter: &Reporter) -> NodeCounts {
    const MANAGED: usize = 10;
    let drifted = reporter.drifts().iter().count();
    NodeCounts {
        verdict: if drifted > 0 { VerdictKind::Drifted } else { VerdictKind::Compliant },
        managed: MANAGED,
        compliant: MANAGED.saturating_sub(drifted),
        drifted,
        unknown: 0,
        records_lost: 0,
        is_verifying: false,
    }
}
