//! Users of changes, from audit logs and the names of the kubelet's log files.

use super::*;
use crate::report::forensic::PathChange;
use flate2::{Compression, write::GzEncoder};
use sensor_model::record::{Actor, RecordKind};
use serde_json::json;
use std::{fs, io::Write as _, path::PathBuf};
use tempfile::TempDir;

const UID: &str = "2b6f1d3e-8c47-4d0a-9e51-7a3c5b8d9f10";

/// A change at 03:05:00 by a shell that started 10 s before in container `app` of a pod.
fn change() -> PathChange {
    PathChange {
        seq: 1,
        time: "2026-01-02T03:05:00.000000000Z".to_owned(),
        kind: RecordKind::Drift,
        operation: None,
        actor: Some(Actor {
            start_ns: 90_000_000_000,
            container_id: Some("c".repeat(64)),
            pod_uid: Some(UID.to_owned()),
            ..Actor::default()
        }),
        actors: Vec::new(),
        users: None,
        monotonic_ns: 100_000_000_000,
        verdict: None,
        differences: Vec::new(),
        source: None,
        thing: None,
        before: None,
        after: None,
        diff: None,
    }
}

/// An event about `shop/web-0` of alice's exec at 03:04:49.
fn exec(container: &str, uid: &str) -> String {
    let event = json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "auditID": format!("id-{container}"), "stage": "ResponseStarted",
        "verb": "create", "requestURI": format!("/api/v1/namespaces/shop/pods/web-0/exec?container={container}"),
        "user": {"username": "alice"}, "sourceIPs": ["192.0.2.7"],
        "objectRef": {"resource": "pods", "namespace": "shop", "name": "web-0", "subresource": "exec", "uid": uid},
        "requestReceivedTimestamp": "2026-01-02T03:04:49.000000Z", "stageTimestamp": "2026-01-02T03:04:49.000000Z",
    });
    format!("{event}\n")
}

/// A host with the kubelet's directories, and one audit log.
struct Host {
    directory: TempDir,
    files: Vec<PathBuf>,
}

impl Host {
    fn with(log: &[u8]) -> Self {
        let directory = TempDir::new().unwrap();
        fs::create_dir(directory.path().join("pods")).unwrap();
        fs::create_dir(directory.path().join("containers")).unwrap();
        let file = directory.path().join("audit.log");
        fs::write(&file, log).unwrap();
        Self { directory, files: vec![file] }
    }

    /// Adds what the kubelet creates for the pod.
    fn kubelet(self) -> Self {
        let pod = format!("pods/shop_web-0_{UID}");
        fs::create_dir(self.directory.path().join(pod)).unwrap();
        let link = format!("containers/web-0_shop_app-{}.log", "c".repeat(64));
        fs::write(self.directory.path().join(link), "").unwrap();
        self
    }

    fn ask(&self, change: PathChange) -> Result<(Vec<String>, AuditNotes), AuditLogError> {
        let mut changes = [change];
        let notes =
            AuditLogs { files: &self.files, pod_logs: self.directory.path() }.name_users(&mut changes)?;
        let [change] = changes;
        Ok((change.users.unwrap().into_iter().map(|user| user.audit_id).collect(), notes))
    }
}

#[test]
fn the_kubelets_file_names_tell_pod_and_container_of_a_change() {
    let log = [exec("app", ""), exec("proxy", "")].concat();
    let found = Host::with(log.as_bytes()).kubelet().ask(change()).unwrap();
    assert_eq!(found, (vec!["id-app".to_owned()], AuditNotes::default()));
}

#[test]
fn a_pod_that_is_gone_gets_its_name_from_the_audit_log_or_a_note() {
    let known = Host::with(exec("app", UID).as_bytes()).ask(change()).unwrap();
    assert_eq!(known.0, ["id-app"]);
    let unknown = Host::with(exec("app", "").as_bytes()).ask(change()).unwrap();
    assert_eq!(unknown, (Vec::new(), AuditNotes { unnamed_pods: [UID.to_owned()].into(), skipped: 0 }));
}

#[test]
fn a_change_outside_pods_matches_no_user() {
    let mut change = change();
    change.actor = Some(Actor::default());
    assert_eq!(
        Host::with(exec("app", UID).as_bytes()).kubelet().ask(change).unwrap().0,
        Vec::<String>::new()
    );
}

#[test]
fn an_earlier_actor_of_a_change_is_matched_too() {
    let mut change = change();
    change.actors = vec![Actor { pid: 7, ..Actor::default() }, change.actor.clone().unwrap()];
    change.actor = Some(change.actors[0].clone());
    assert_eq!(Host::with(exec("app", "").as_bytes()).kubelet().ask(change).unwrap().0, ["id-app"]);
}

#[test]
fn a_compressed_log_is_unpacked() {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(exec("app", "").as_bytes()).unwrap();
    let host = Host::with(&packed.finish().unwrap()).kubelet();
    assert_eq!(host.ask(change()).unwrap().0, ["id-app"]);
}

#[test]
fn lines_that_are_no_events_are_counted_and_the_others_are_read() {
    let cut = &exec("proxy", "")[..300];
    let log = [exec("app", "").as_str(), "not json\n\n", cut].concat();
    let (users, notes) = Host::with(log.as_bytes()).kubelet().ask(change()).unwrap();
    assert_eq!((users.len(), notes.skipped), (1, 2));
}

#[test]
fn a_file_without_an_event_and_a_directory_are_errors_that_name_them() {
    let host = Host::with(b"{\"kind\":\"Pod\"}\n");
    assert!(matches!(host.ask(change()), Err(AuditLogError::NoEvent { path }) if path == host.files[0]));
    let host = Host { files: vec![host.directory.path().to_owned()], ..host };
    assert!(matches!(host.ask(change()), Err(AuditLogError::NoFile { path }) if path == host.files[0]));
}
