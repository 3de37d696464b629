//! The reporter with an API server that is away, slow, throttles, loses answers, or refuses an old token or version.
//!
//! The API server is the real one, behind a server that makes the faults and counts the requests.

use super::control_plane::ClientPlace;
use super::faulty_server::{Fault, FaultyServer, SeenRequest};
use super::installed::NAMESPACE;
use super::process::LoggedProcess;
use super::reporter_tests::{Cluster, LIMIT, PlayedSensor};
use crate::run::output;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use std::fs;
use std::path::PathBuf;

/// Faults of every request.
const FAULTS: [Fault; 8] = [
    Fault::Code(401),
    Fault::Code(409),
    Fault::Code(429),
    Fault::Code(503),
    Fault::Cut,
    Fault::LostAnswer,
    Fault::Silence,
    Fault::Late,
];
/// Most requests while a fault lasts. Each of five objects is tried again after pauses that double, up to a minute.
const MOST_REQUESTS: usize = 45;
/// Most reads and most watches of the Node while watches fail. The pauses between two of them double, up to half a minute.
const MOST_WATCHES: usize = 15;
/// Changes while a fault lasts. Each of them would be a few requests.
const CHANGES: usize = 50;

/// A node in mode `manage`, whose reporter reaches the API server through the faulty one.
struct Faulty {
    cluster: Cluster,
    sensor: PlayedSensor,
    server: FaultyServer,
    token: PathBuf,
    reporter: LoggedProcess,
}

impl Faulty {
    /// The reporter has a token that the API server does not know.
    fn start() -> Self {
        let cluster = Cluster::start("faults", "overlays/manage");
        let mut sensor = PlayedSensor::start(cluster.folder.path());
        sensor.turn("current rendered-a");
        let server =
            FaultyServer::start(cluster.plane.port(), &cluster.plane.certificate().unwrap()).unwrap();
        let token = cluster.file("token", "unknown");
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "test", "cluster": { "server": server.url() } }],
            "users": [{ "name": "test", "user": { "tokenFile": token } }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
            "current-context": "test",
        });
        let config = cluster.file("faulty.kubeconfig", &config.to_string());
        desire(&cluster, "rendered-a");
        let log = cluster.plane.log("reporter");
        let reporter = cluster.start_reporter("manage.sock", &config, &["--mode", "manage"], &log);
        Self { cluster, sensor, server, token, reporter }
    }

    fn until(&self, is_so: impl FnMut() -> Result<()>) {
        self.reporter.until(LIMIT, is_so).unwrap();
    }

    /// Waits until so many requests of a kind have come since [`FaultyServer::take`].
    fn until_seen(&self, count: usize, is_one: impl Fn(&SeenRequest) -> bool) {
        self.until(|| {
            let seen = self.server.seen().into_iter().filter(&is_one).count();
            ensure!(seen >= count, "{seen} of {count} requests");
            Ok(())
        });
    }

    /// The requests since the last call. Reads of Node and pods are in the name of the node, and nothing else is.
    fn requests(&self) -> Vec<SeenRequest> {
        let seen = self.server.take();
        for request in &seen {
            let reads = ["GET /api/v1/nodes", "GET /api/v1/pods"];
            let is_read = reads.iter().any(|read| request.line.starts_with(read));
            let user = is_read.then_some("system:node:n1");
            // Any refusal leads to a read of the account.
            assert!(request.user.as_deref() == user || (is_read && request.user.is_none()), "{request:?}");
        }
        seen
    }

    /// Waits until report and condition have so many drifts, and this one as the newest, and until an Event has it.
    fn until_reported(&self, path: &str, count: usize) {
        self.until(|| {
            let (report, _) = self.cluster.state("n1", "Drifted", "True")?;
            ensure!(report["newest"]["path"] == path && report["count"] == count, "{report}");
            ensure!(self.told(path)? == 1, "no Event has {path}");
            Ok(())
        });
    }

    /// How many Events have this path. More than one is a failure for good.
    fn told(&self, path: &str) -> Result<usize> {
        let selector = "involvedObject.kind=Node,reason=ConfigDriftDetected";
        let events = self.cluster.get(&["events", "--namespace", "default", "--field-selector", selector])?;
        let events = events["items"].as_array().context("no list of Events")?;
        let told = events.iter().filter(|event| {
            let note = event["message"].as_str().unwrap_or_default();
            note.split([' ', ',', ';']).any(|word| word == path)
        });
        let told = told.count();
        assert!(told <= 1, "{path} was told {told} times: {events:?}");
        Ok(told)
    }
}

fn desire(cluster: &Cluster, config: &str) {
    let prefix = "machineconfiguration.openshift.io";
    let mut kubectl = cluster.plane.kubectl();
    kubectl.args(["annotate", "--overwrite", "node", "n1"]);
    output(
        kubectl
            .args([format!("{prefix}/desiredConfig={config}"), format!("{prefix}/currentConfig=rendered-a")]),
    )
    .unwrap();
}

/// `cargo xtask test` builds the programs first, and then runs this.
#[test]
#[ignore = "needs the programs of `cargo xtask kube-assets`"]
fn after_each_fault_the_api_has_the_present_state_and_no_event_twice_and_a_fault_causes_few_requests() {
    let mut node = Faulty::start();
    // The token's file gets a token that the API server knows.
    node.until_seen(1, |seen| seen.code == 401);
    let mut tokens = None;
    node.until(|| {
        tokens = Some(node.cluster.reporter_token("n1")?);
        Ok(())
    });
    let (pod, token) = tokens.unwrap();
    fs::write(&node.token, &token).unwrap();
    node.until(|| node.cluster.state("n1", "InSync", "False").map(drop));
    node.requests();

    watches_that_fail_are_resumed(&node);

    let mut lasting = Vec::new();
    for (number, fault) in FAULTS.into_iter().enumerate() {
        node.server.set(fault);
        node.server.cut();
        node.sensor.turn(&format!("drift /etc/passing-{number} alice"));
        node.until_seen(2, |seen| !seen.line.contains("watch=true"));
        for _ in 0..CHANGES {
            node.sensor.turn(&format!("recover /etc/passing-{number}"));
            node.sensor.turn(&format!("drift /etc/passing-{number} bob"));
        }
        node.sensor.turn(&format!("recover /etc/passing-{number}"));
        lasting.push(format!("/etc/lasting-{number}"));
        node.sensor.turn(&format!("drift /etc/lasting-{number} carol"));
        node.until_seen(3, |seen| !seen.line.contains("watch=true"));
        let during = node.requests();
        assert!(during.len() <= MOST_REQUESTS, "{fault:?}: {} requests: {during:?}", during.len());
        node.server.set(Fault::None);
        node.server.cut();
        node.until_reported(&format!("/etc/lasting-{number}"), lasting.len());
        node.requests();
    }

    // A token that is revoked while the reporter has it. The API server forgets it within seconds.
    let namespace = ["--namespace", NAMESPACE];
    let delete = ["delete", "pod", &pod, "--force", "--grace-period=0"];
    output(node.cluster.plane.kubectl().args(delete).args(namespace)).unwrap();
    let old = node.cluster.plane.config_with("old", &token, ClientPlace::Host).unwrap();
    let old = node.cluster.file("old.kubeconfig", &old);
    node.until(|| {
        let answer = node.cluster.kubectl_as(&old, &["get", "--raw", "/version"]);
        ensure!(answer.is_err(), "the token is still known");
        Ok(())
    });
    node.sensor.turn("drift /etc/revoked erin");
    node.until_seen(1, |seen| seen.code == 401);
    let mut token = None;
    node.until(|| {
        let (name, new) = node.cluster.reporter_token("n1")?;
        ensure!(name != pod, "no new pod yet");
        token = Some(new);
        Ok(())
    });
    fs::write(&node.token, token.unwrap()).unwrap();
    lasting.push("/etc/revoked".to_owned());
    node.until_reported("/etc/revoked", lasting.len());
    node.requests();

    for path in &lasting {
        assert_eq!(node.told(path).unwrap(), 1, "{path}");
    }
    for number in 0..FAULTS.len() {
        node.told(&format!("/etc/passing-{number}")).unwrap();
    }
    node.cluster.notes("ConfigDriftRecovered", 0).unwrap();
    node.cluster.plane.check().unwrap();
    node.reporter.check().unwrap();
}

fn watches_that_fail_are_resumed(node: &Faulty) {
    let is_watch = |seen: &SeenRequest| seen.line.contains("watch=true");
    for (number, fault) in [Fault::EndedWatch, Fault::Gone].into_iter().enumerate() {
        node.server.set(fault);
        node.server.cut();
        node.until_seen(1, is_watch);
        let config = format!("rendered-{number}");
        desire(&node.cluster, &config);
        node.until_seen(2, is_watch);
        let during = node.requests();
        let watches = during.iter().filter(|seen| is_watch(seen)).count();
        let reads = during.iter().filter(|seen| seen.line.starts_with("GET /api/v1/nodes/n1")).count();
        assert!(watches <= MOST_WATCHES && reads <= MOST_WATCHES, "{fault:?}: {during:?}");
        node.server.set(Fault::None);
        node.until(|| {
            let annotations = node.cluster.get(&["node", "n1"])?["metadata"]["annotations"].clone();
            let reason = annotations["machineconfiguration.openshift.io/reason"].as_str().unwrap_or_default();
            ensure!(reason.contains(&format!("\"{config}\" not found")), "{annotations}");
            Ok(())
        });
        node.requests();
    }
    desire(&node.cluster, "rendered-a");
    node.until(|| {
        let annotations = node.cluster.get(&["node", "n1"])?["metadata"]["annotations"].clone();
        ensure!(annotations["machineconfiguration.openshift.io/state"] == "Done", "{annotations}");
        Ok(())
    });
    node.requests();
}
