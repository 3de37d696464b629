use super::*;
use crate::apply::orders::NodePolicies;
use crate::desired::{DaemonInputs, NamedSources, cluster_policies};
use crate::report::socket::PolicyOrders as _;
use sensor_model::drift_policy::ActionLimits;
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

/// A state directory with what Holdfast makes there, and a log with two files.
struct Host {
    _folder: TempDir,
    state: PathBuf,
    log: PathBuf,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (state, log) = (folder.path().join("state"), folder.path().join("log"));
        for directory in DIRECTORIES {
            fs::create_dir_all(state.join(directory)).unwrap();
            fs::write(state.join(directory).join("file"), "").unwrap();
        }
        drop(Store::open(&state).unwrap());
        symlink("generations/1/config", state.join("apply/current")).unwrap();
        for file in FILES.into_iter().chain([forensic::NOTE]) {
            fs::write(state.join(file), "").unwrap();
        }
        drop(Quarantine::open(&state).unwrap());
        fs::create_dir(&log).unwrap();
        for name in ["forensic.jsonl", "forensic-00000000000000000009.jsonl"] {
            fs::write(log.join(name), "").unwrap();
        }
        Self { _folder: folder, state, log }
    }

    fn purge(&self, purges_state: bool, purges_log: bool) -> Result<Purged, PurgeError> {
        let log = purges_log.then_some(&*self.log);
        Purge::prepare(PurgeScope { state: &self.state, purges_state, log })?.run()
    }

    /// The purge of everything is refused, and deletes nothing.
    fn refused(&self) -> PurgeError {
        let before = names(&self.state);
        let error = self.purge(true, true).unwrap_err();
        assert_eq!(names(&self.state), before);
        assert!(self.log.join("forensic.jsonl").exists());
        error
    }
}

fn names(directory: &Path) -> Vec<OsString> {
    sys::names(sys::directory(directory).unwrap()).unwrap()
}

#[test]
fn both_directories_are_deleted_and_a_second_time_nothing_is_left() {
    let host = Host::new();
    let done = host.purge(true, true).unwrap();
    assert!(done.kept.is_empty() && done.kept_note.is_none(), "{done:?}");
    assert!(done.removed.contains(&host.state) && done.removed.contains(&host.log), "{done:?}");
    assert!(!host.state.exists() && !host.log.exists());
    assert_eq!(host.purge(true, true).unwrap(), Purged::default());
}

#[test]
fn the_log_and_the_note_of_its_end_stay_unless_the_log_is_purged_and_go_together() {
    let host = Host::new();
    let done = host.purge(true, false).unwrap();
    assert_eq!(
        (names(&host.state), done.kept_note),
        (vec![OsString::from(forensic::NOTE)], Some(host.state.join(forensic::NOTE)))
    );
    assert_eq!(names(&host.log).len(), 2);
    host.purge(true, true).unwrap();
    assert!(!host.state.exists() && !host.log.exists());

    let host = Host::new();
    let before = names(&host.state).len();
    host.purge(false, true).unwrap();
    assert_eq!(
        (names(&host.state).len(), host.log.exists()),
        (before - 1, false),
        "the note alone is deleted"
    );
}

#[test]
fn what_holdfast_did_not_make_stays_and_is_named() {
    let host = Host::new();
    fs::write(host.state.join("notes.txt"), "").unwrap();
    fs::create_dir(host.log.join("forensic-old.jsonl")).unwrap();
    fs::write(host.log.join("audit.log"), "").unwrap();
    let done = host.purge(true, true).unwrap();
    let kept =
        [host.log.join("audit.log"), host.log.join("forensic-old.jsonl"), host.state.join("notes.txt")];
    assert_eq!(done.kept, kept);
    assert!(kept.iter().all(|path| path.exists()));
    assert_eq!((names(&host.state).len(), names(&host.log).len()), (1, 2));
}

#[test]
fn what_a_failed_replacement_of_the_clusters_policies_leaves_is_deleted() {
    let host = Host::new();
    for file in FILES {
        fs::remove_file(host.state.join(file)).unwrap();
    }
    let sources = NamedSources {
        root: host.state.clone(),
        state: Some(host.state.clone()),
        configs: Vec::new(),
        policies: Vec::new(),
        allow_unknown: false,
    };
    let inputs = sources.daemon_inputs(DaemonInputs::default(), crate::apply::waits_or_none);
    // A rename replaces no directory by a file.
    fs::create_dir(cluster_policies(&host.state)).unwrap();
    let before = names(&host.state).len();
    let policy = json!({
        "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": { "name": "one" },
        "spec": { "rules": [{ "path": "/etc/a", "action": "observe" }] },
    });
    let policies = json!({ "policies": [policy] }).to_string();
    NodePolicies::new(&inputs, ActionLimits::MANAGE).take(policies.as_bytes()).unwrap_err();
    assert_eq!(names(&host.state).len(), before + 1, "a temporary file is left");
    fs::remove_dir(cluster_policies(&host.state)).unwrap();
    assert_eq!(host.purge(true, true).unwrap().kept, Vec::<PathBuf>::new());
    assert!(!host.state.exists());
}

#[test]
fn no_symbolic_link_is_followed() {
    let host = Host::new();
    let others = host.state.parent().unwrap().join("others");
    fs::create_dir(&others).unwrap();
    fs::write(others.join("file"), "").unwrap();
    // In a directory that Holdfast deletes, instead of one, and instead of a file.
    symlink(&others, host.state.join("scan/link")).unwrap();
    fs::remove_dir_all(host.state.join("order")).unwrap();
    symlink(&others, host.state.join("order")).unwrap();
    fs::remove_file(host.state.join("canary")).unwrap();
    symlink(others.join("file"), host.state.join("canary")).unwrap();
    let done = host.purge(true, true).unwrap();
    assert_eq!(done.kept, [host.state.join("order")]);
    assert_eq!(names(&host.state), ["order"]);
    assert!(others.join("file").exists());

    let host = Host::new();
    let moved = host.state.with_file_name("moved");
    fs::rename(&host.state, &moved).unwrap();
    symlink(&moved, &host.state).unwrap();
    let error = host.purge(true, true).unwrap_err();
    assert!(matches!(error, PurgeError::NoDirectory { .. }), "{error}");
    assert!(moved.join("canary").exists() && host.log.join("forensic.jsonl").exists());
}

#[test]
fn while_an_apply_runs_or_has_not_ended_nothing_is_deleted() {
    let host = Host::new();
    let store = Store::open(&host.state).unwrap();
    let lock = store.lock().unwrap().unwrap();
    assert!(matches!(host.refused(), PurgeError::Applies { .. }));
    drop(lock);
    fs::write(host.state.join("apply/journal"), "damaged").unwrap();
    let error = host.refused();
    assert!(matches!(error, PurgeError::Store(_) | PurgeError::Unfinished { .. }), "{error}");
    fs::remove_file(host.state.join("apply/journal")).unwrap();
    host.purge(true, true).unwrap();
}

#[test]
fn whatever_is_in_the_quarantine_is_named_and_nothing_is_deleted() {
    let host = Host::new();
    let item = host.state.join("quarantine/20260102-1");
    fs::create_dir(&item).unwrap();
    fs::write(item.join("object"), "precious").unwrap();
    let error = host.refused().to_string();
    assert!(error.contains("20260102-1 (without a readable manifest)"), "{error}");
    assert!(error.contains("holdfast quarantine restore ID"), "{error}");
    fs::remove_dir_all(&item).unwrap();
    fs::write(host.state.join("quarantine/lock"), "").unwrap();
    host.purge(true, true).unwrap();
    assert!(!host.state.exists());
}
