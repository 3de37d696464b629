//! The process that writes back, on hosts of the tests.

use super::*;
use crate::{agent::writer_protocol, quarantine::Quarantine};
use sensor_model::record::Actor;
use serde_json::json;
use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
        net::UnixListener,
    },
    path::Path,
    thread,
};
use tempfile::TempDir;

const DECLARED: &str = "declared";

/// A host with a config of the service and these rules in its policy.
struct Case(TempDir);

impl Case {
    fn new(rules: &serde_json::Value) -> Self {
        let case = Self(tempfile::tempdir().unwrap());
        for directory in [
            "etc/systemd/system",
            "etc/closed",
            "etc/holdfast/machine-configs",
            "etc/holdfast/policies",
            "state",
        ] {
            fs::create_dir_all(case.at(directory)).unwrap();
        }
        fs::write(case.at("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
        fs::write(case.at("etc/group"), "root:x:0:\n").unwrap();
        let owner = fs::metadata(case.0.path()).unwrap();
        let file = |path: &str| {
            json!({
                "path": path, "mode": 0o644, "contents": { "source": format!("data:,{DECLARED}") },
                "user": { "id": owner.uid() }, "group": { "id": owner.gid() },
            })
        };
        let config = json!({
            "ignition": { "version": "3.4.0" },
            "storage": { "files": [file("/etc/file"), file("/etc/other")] },
        });
        let policy = json!({
            "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": { "name": "test" },
            "spec": { "rules": rules },
        });
        fs::write(case.at("etc/holdfast/machine-configs/a.ign"), config.to_string()).unwrap();
        fs::write(case.at("etc/holdfast/policies/a.json"), policy.to_string()).unwrap();
        for path in ["etc/file", "etc/other"] {
            fs::write(case.at(path), "drift").unwrap();
            fs::set_permissions(case.at(path), fs::Permissions::from_mode(0o644)).unwrap();
        }
        case
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn state(&self) -> PathBuf {
        self.at("state")
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    fn sources(&self) -> NamedSources {
        NamedSources {
            root: self.0.path().to_owned(),
            state: Some(self.state()),
            configs: Vec::new(),
            policies: Vec::new(),
            allow_unknown: false,
        }
    }

    /// Nothing here waits for the clock: the runtime's time passes at once where every task waits for it.
    fn run(&self) -> io::Result<bool> {
        let sources = self.sources();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(run_reverts(&RevertHost { sources, own: Vec::new() }))
    }

    /// Asks for these things, and gives the results in the order of the answer.
    fn revert(&self, things: &[Thing]) -> Vec<RevertedThing> {
        self.revert_for(false, things)
    }

    /// The same for a daemon that uses the last usable configs, or not.
    fn revert_for(&self, last_usable: bool, things: &[Thing]) -> Vec<RevertedThing> {
        let actors = vec![Actor { pid: 8, ..Actor::default() }];
        let things = things.iter().map(|thing| OrderedRevert {
            thing: thing.clone(),
            found: None,
            actors: actors.clone(),
        });
        let files = RevertFiles::new(&self.state());
        let request = RevertRequest { id: "1".to_owned(), last_usable, things: things.collect() };
        files.set_request(&request).unwrap();
        let is_done = self.run().unwrap();
        let RevertedThings { id, things } = files.results().unwrap().unwrap();
        assert_eq!((id.as_str(), is_done), ("1", things.iter().all(|thing| thing.error.is_none())));
        things
    }
}

fn revert_file() -> serde_json::Value {
    json!([{ "path": "/etc/file", "action": "revert" }])
}

#[test]
fn a_file_is_restored_and_one_that_was_not_asked_for_stays() {
    let case = Case::new(&json!([{ "path": "/etc/", "action": "revert" }]));
    let [restored] = &case.revert(&[Thing::file("/etc/file")])[..] else { panic!("one result") };
    assert_eq!((restored.error.as_deref(), restored.before.len()), (None, 1), "{restored:?}");
    assert!(!restored.actions.is_empty());
    assert_eq!((case.read("etc/file"), case.read("etc/other")), (DECLARED.to_owned(), "drift".to_owned()));
    // Nothing differs any more.
    let again = &case.revert(&[Thing::file("/etc/file")])[0];
    assert_eq!((again.error.as_deref(), again.before.len(), again.actions.len()), (None, 0, 0));
}

#[test]
fn a_request_cannot_name_a_thing_whose_rule_is_not_revert_or_that_nothing_declares() {
    let case = Case::new(&revert_file());
    fs::write(case.at("etc/undeclared"), "kept").unwrap();
    let asked = ["/etc/other", "/etc/undeclared", "/etc/file"].map(Thing::file);
    let results = case.revert(&asked);
    let errors: Vec<_> = results.iter().map(|result| result.error.clone().unwrap_or_default()).collect();
    assert!(errors[0].contains("is `degrade`") && errors[1].contains("declares it"), "{errors:?}");
    assert_eq!(errors[2], "");
    assert_eq!(case.read("etc/other"), "drift");
    assert_eq!(
        (case.read("etc/undeclared"), case.read("etc/file")),
        ("kept".to_owned(), DECLARED.to_owned())
    );
}

#[test]
fn an_undeclared_name_of_a_closed_directory_goes_to_the_quarantine_with_the_actors_of_the_request() {
    let case = Case::new(&json!([{ "path": "/etc/closed/", "closed": true, "action": "revert" }]));
    fs::write(case.at("etc/closed/x"), "content").unwrap();
    let results = case.revert(&[Thing::closed_directory("/etc/closed")]);
    assert_eq!(results[0].error, None);
    assert!(!case.at("etc/closed/x").exists());
    let quarantine = Quarantine::open_existing(&case.state()).unwrap().unwrap();
    let items = quarantine.items().unwrap().0;
    assert_eq!((items.len(), items[0].path.as_str(), items[0].actors[0].pid), (1, "/etc/closed/x", 8));
    assert_eq!(results[0].quarantined[0].item, items[0].id);
}

#[test]
fn during_an_apply_nothing_is_written_and_each_thing_has_the_reason() {
    let case = Case::new(&revert_file());
    let store = Store::open(&case.state()).unwrap();
    let apply = store.lock().unwrap().unwrap();
    let results = case.revert(&[Thing::file("/etc/file"), Thing::file("/etc/other")]);
    assert_eq!(results.len(), 2);
    for result in &results {
        assert!(result.error.as_ref().unwrap().starts_with("an apply is under way"), "{result:?}");
    }
    assert_eq!(case.read("etc/file"), "drift");
    drop(apply);
    assert_eq!(case.revert(&[Thing::file("/etc/file")])[0].error, None);
}

#[test]
fn beside_the_operators_daemon_nothing_is_written() {
    let case = Case::new(&revert_file());
    let process = case.at("proc/7");
    fs::create_dir_all(&process).unwrap();
    fs::write(process.join("cmdline"), "/usr/bin/machine-config-daemon\0start\0").unwrap();
    let error = case.revert(&[Thing::file("/etc/file")])[0].error.clone().unwrap();
    assert!(error.starts_with("machine-config-daemon runs here (process 7)"), "{error}");
    assert_eq!(case.read("etc/file"), "drift");
    fs::remove_dir_all(process).unwrap();
    assert_eq!(case.revert(&[Thing::file("/etc/file")])[0].error, None);
}

#[test]
fn without_an_answer_of_the_running_daemon_nothing_is_written() {
    let case = Case::new(&revert_file());
    Store::open(&case.state()).unwrap();
    let socket = writer_protocol::socket(&case.state());
    let refused = || {
        let error = case.revert(&[Thing::file("/etc/file")])[0].error.clone().unwrap();
        assert!(error.starts_with("the running daemon gave no answer"), "{error}");
        assert_eq!(case.read("etc/file"), "drift");
    };
    let daemon = UnixListener::bind(&socket).unwrap();
    // A daemon that hangs accepts no connection and gives no answer until the time limit.
    refused();
    // The connection ends without an answer. The first one in the queue is that of the case before.
    let ends = thread::spawn(move || {
        for _ in 0..2 {
            drop(daemon.accept().unwrap());
        }
    });
    refused();
    ends.join().unwrap();
    // The socket cannot be reached.
    fs::remove_file(&socket).unwrap();
    symlink(&socket, &socket).unwrap();
    refused();
}

#[test]
fn the_config_that_was_applied_last_is_written_and_not_that_of_the_service() {
    let case = Case::new(&revert_file());
    let store = Store::open(&case.state()).unwrap();
    let config = store.config(1);
    fs::create_dir_all(&config).unwrap();
    let applied = case.read("etc/holdfast/machine-configs/a.ign").replace(DECLARED, "applied");
    fs::write(config.join("a.ign"), applied).unwrap();
    store.set_current(1).unwrap();
    assert_eq!(case.revert(&[Thing::file("/etc/file")])[0].error, None);
    assert_eq!(case.read("etc/file"), "applied");
}

#[test]
fn a_daemon_with_the_last_usable_configs_and_policies_gets_their_state_written_back() {
    let case = Case::new(&revert_file());
    let files = [case.at("etc/holdfast/machine-configs/a.ign"), case.at("etc/holdfast/policies/a.json")];
    for broken in &files {
        let usable = fs::read(broken).unwrap();
        fs::write(broken, "{ a typo").unwrap();
        let named = case.revert(&[Thing::file("/etc/file")]).remove(0).error.unwrap();
        assert!(named.contains(broken.file_name().unwrap().to_str().unwrap()), "{named}");
        fs::write(broken, usable).unwrap();
    }
    for broken in &files {
        let usable = fs::read(broken).unwrap();
        // A daemon with usable files keeps them.
        let observer = Observer::guarded(case.0.path()).unwrap();
        let mut of_daemon = inputs(&case.sources(), false).unwrap();
        of_daemon.keep = Some(case.state().join("last-config"));
        desired::load(&of_daemon, &observer).unwrap();
        fs::write(broken, "{ a typo").unwrap();
        // The mistake was made while the daemon ran, or before it started.
        for started_with_them in [false, true] {
            fs::write(case.at("etc/file"), "drift").unwrap();
            let kept = case.revert_for(started_with_them, &[Thing::file("/etc/file")]).remove(0);
            assert_eq!(
                (kept.error, case.read("etc/file")),
                (None, DECLARED.to_owned()),
                "{}",
                broken.display()
            );
        }
        fs::write(broken, usable).unwrap();
    }
}

#[test]
fn a_policy_of_the_cluster_is_in_force_too() {
    let case = Case::new(&json!([]));
    let policy = json!({
        "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicyList",
        "items": [{
            "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": { "name": "cluster" },
            "spec": { "rules": revert_file() },
        }],
    });
    fs::write(desired::cluster_policies(&case.state()), policy.to_string()).unwrap();
    assert_eq!(case.revert(&[Thing::file("/etc/file")])[0].error, None);
    assert_eq!(case.read("etc/file"), DECLARED);
}

#[test]
fn a_missing_or_malformed_request_is_an_error_and_writes_nothing() {
    let case = Case::new(&revert_file());
    assert_eq!(case.run().unwrap_err().kind(), io::ErrorKind::NotFound);
    fs::create_dir_all(case.at("state/order")).unwrap();
    for text in
        ["", "[]", "{\"id\": \"1\", \"things\": [{}]}", "{\"id\": \"1\", \"things\": [], \"more\": 1}"]
    {
        fs::write(case.at("state/order/revert.json"), text).unwrap();
        assert!(case.run().is_err(), "{text}");
    }
    assert_eq!(case.read("etc/file"), "drift");
    assert!(Path::new(&case.at("state/order")).join("reverted.json").symlink_metadata().is_err());
}
