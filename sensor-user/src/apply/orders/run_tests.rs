//! Orders beside other processes and earlier applies, and orders whose plan is another one than the published one.

use super::*;
use crate::{
    apply::orders::{files::OrderName, published_plan::NodeDisturbance},
    clock::boot_id,
    store::HistoryEntry,
};
use sensor_model::{
    journal::{ApplyEnd, Begin, JournalRecord, codec},
    socket::DesiredConfig,
};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::MetadataExt as _};
use tempfile::TempDir;

const FORCE_FILE: &str = "run/machine-config-daemon-force";

/// A host with a config of the service that declares `/etc/file`.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        for directory in ["etc/systemd/system", "run", SERVICE_CONFIGS, "state"] {
            fs::create_dir_all(host.at(directory)).unwrap();
        }
        fs::write(host.at("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
        fs::write(host.at("etc/group"), "root:x:0:\n").unwrap();
        let old = host.config("old", &["/etc/file"]);
        fs::write(host.at(SERVICE_CONFIGS).join("a.yaml"), old.to_string()).unwrap();
        fs::write(host.at("etc/file"), "old").unwrap();
        host
    }

    /// The same with an order that declares another content of the file. The answer said that it leaves the workloads alone.
    fn ordered() -> Self {
        let host = Self::new();
        host.plan("new");
        host.directory().accept_new(&PublishedPlan::default(), &[]).unwrap();
        host.directory().order_planned().unwrap();
        host
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn state(&self) -> PathBuf {
        self.at("state")
    }

    fn directory(&self) -> OrderDirectory {
        OrderDirectory::new(&self.state())
    }

    fn file(&self) -> String {
        fs::read_to_string(self.at("etc/file")).unwrap()
    }

    /// A config that declares these files with this content.
    fn config(&self, content: &str, files: &[&str]) -> Value {
        let owner = fs::metadata(self.0.path()).unwrap();
        let file = |path: &&str| {
            json!({
                "path": path, "mode": 0o644, "contents": { "source": format!("data:,{content}") },
                "user": { "id": owner.uid() }, "group": { "id": owner.gid() },
            })
        };
        let files: Vec<Value> = files.iter().map(file).collect();
        json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
            "metadata": { "name": content, "labels": { "machineconfiguration.openshift.io/role": "worker" } },
            "spec": { "config": { "ignition": { "version": "3.4.0" }, "storage": { "files": files } } },
        })
    }

    /// Hands a config in that declares the file with this content. No action is needed for this file.
    fn plan(&self, content: &str) {
        let policy = json!({
            "apiVersion": "operator.openshift.io/v1", "kind": "MachineConfiguration",
            "metadata": { "name": "cluster" },
            "spec": { "nodeDisruptionPolicy": { "files": [{ "path": "/etc/file", "actions": [{ "type": "None" }] }] } },
        });
        let machine_config = self.config(content, &["/etc/file"]);
        let desired = DesiredConfig { machine_config, node_disruption: Some(policy) };
        let name = OrderName { id: content.to_owned(), config: content.to_owned() };
        self.directory().set_new(&name, &desired).unwrap();
    }

    /// What the answer to a config says.
    async fn answer(&self, content: &str) -> (NodeDisturbance, bool) {
        self.plan(content);
        match plan_order(self.0.path(), &self.state()).await {
            PlanAnswer::Planned { published, is_open, .. } => (published.node, is_open),
            other => panic!("{other:?}"),
        }
    }

    /// Runs the order. Gives its end.
    async fn run(&self) -> OrderEnd {
        run_order(self.0.path(), &self.state(), Interrupts::default(), |_| {}).await.unwrap();
        self.directory().end().unwrap()
    }

    /// Applies a config as a person does who has no order, without acts.
    async fn apply(&self, config: &Value) {
        let new = self.at("config.yaml");
        fs::write(&new, config.to_string()).unwrap();
        let options = HostApplyOptions::of_test(self.0.path(), self.state());
        let host = HostApply::open(options, Interrupts::default()).unwrap();
        let (new, current) = ([new], [self.at(SERVICE_CONFIGS)]);
        let wanted = NewConfig { new: &new, current: &current, unknown: Unknown::Refuse, allow_empty: false };
        let configs = host.configs(wanted, false, &mut |_| {}).await.unwrap();
        let given = GivenConsent { yes: true, reboot: true };
        let ended = host.run(configs, given, |_| Ok(true), &mut |_| {}).await.unwrap();
        assert!(
            matches!(&ended, HostRunEnd::Reported(report) if report.result == ApplyResult::Done),
            "{ended:?}"
        );
    }

    /// Leaves the journal of apply number 1, with another config and these records after its begin.
    fn interrupt(&self, reboot: bool, more: &[JournalRecord]) -> PathBuf {
        let store = Store::open(&self.state()).unwrap();
        let config = self.config("other", &["/etc/file"]).to_string();
        store.add_generation(1, &[("000-other.yaml".to_owned(), config.into_bytes())]).unwrap();
        let history: HistoryEntry = serde_json::from_value(json!({
            "id": 1, "previous": null, "rollback_to": null, "began": "", "ended": null, "result": null, "reason": "",
            "problems": [], "config": "", "paths": 0,
            "plan": {
                "schema": "holdfast.plan/v1", "reconcilable": true, "reasons": [], "changes": [], "steps": [],
                "drain": reboot, "reboot": reboot,
            },
        }))
        .unwrap();
        store.set_history(1, &history).unwrap();
        let boot = boot_id(Path::new("/proc")).unwrap();
        let begin: Begin = serde_json::from_value(json!({
            "id": 1, "time": "", "boot_id": boot, "old": "", "new": "", "targets": [], "acts": [], "reboot": reboot,
        }))
        .unwrap();
        let (mut text, mut digest) = (String::new(), String::new());
        for record in [JournalRecord::Begin(Box::new(begin))].iter().chain(more) {
            let (line, next) = codec::line(&digest, record).unwrap();
            text += &line;
            digest = next;
        }
        let journal = store.path().join("journal");
        fs::write(&journal, text).unwrap();
        journal
    }
}

#[tokio::test]
async fn an_ordered_apply_waits_for_a_process_that_writes_back_and_does_not_fail() {
    let host = Host::ordered();
    let writes_back = Store::open(&host.state()).unwrap().lock().unwrap().unwrap();
    let release = async {
        while !host.directory().line().is_some_and(|line| line.contains("waits")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(host.file(), "old");
        drop(writes_back);
    };
    let (end, ()) = tokio::join!(host.run(), release);
    assert_eq!((end.result, host.file().as_str()), (OrderResult::Done, "new"), "{end:?}");
}

#[tokio::test]
async fn an_order_from_another_config_than_the_published_one_does_not_reboot_a_node_that_was_not_drained() {
    let host = Host::ordered();
    // Its removal needs a reboot, as no policy knows it.
    host.apply(&host.config("old", &["/etc/file", "/etc/other"])).await;
    let end = host.run().await;
    assert_eq!(end.result, OrderResult::Failed, "{end:?}");
    assert_eq!(
        end.reason,
        "the plan changed since it was published: the config that was applied last was none and is number 1, and the plan from \
         it now drains and reboots the node; Holdfast publishes the new plan before the next attempt"
    );
    assert!(host.file() == "old" && host.at("etc/other").exists(), "nothing is written");
    // The reporter hands the config in again, and the answer has the drain and the reboot.
    assert_eq!(host.answer("new").await, (NodeDisturbance { drains: true, reboots: true }, false));
}

#[tokio::test]
async fn an_order_does_not_follow_a_force_file_that_the_published_plan_does_not_know() {
    let host = Host::ordered();
    fs::write(host.at(FORCE_FILE), "").unwrap();
    let end = host.run().await;
    assert_eq!(end.result, OrderResult::Failed, "{end:?}");
    assert!(end.reason.contains("published: it now drains and reboots the node;"), "{end:?}");
    assert!(host.file() == "old" && host.at(FORCE_FILE).exists());
    assert_eq!(host.answer("new").await.0, NodeDisturbance { drains: true, reboots: true });
}

#[tokio::test]
async fn an_order_does_not_continue_an_apply_that_reboots_a_node_that_was_not_drained() {
    let host = Host::ordered();
    assert_eq!(host.answer("new").await, (NodeDisturbance::default(), false));
    let journal = host.interrupt(true, &[]);
    let before = fs::read(&journal).unwrap();
    let end = host.run().await;
    assert_eq!(end.result, OrderResult::Failed, "{end:?}");
    let wanted = "apply number 1 was interrupted, and its continuation now drains and reboots the node;";
    assert!(end.reason.contains(wanted), "{end:?}");
    assert!(fs::read(&journal).unwrap() == before && host.file() == "old");
    assert_eq!(host.answer("new").await, (NodeDisturbance { drains: true, reboots: true }, true));
}

#[tokio::test]
async fn an_order_comes_after_an_interrupted_apply_of_another_config_however_that_ends() {
    // Without the record that everything is written it is rolled back, too.
    for more in [vec![], vec![JournalRecord::RollingBack { reason: "the other failed".to_owned() }]] {
        let host = Host::ordered();
        let journal = host.interrupt(false, &more);
        let end = host.run().await;
        assert_eq!((end.result, end.reason.as_str()), (OrderResult::Done, ""), "{more:?}: {end:?}");
        assert_eq!(host.file(), "new");
        assert!(!journal.exists());
        let history = Store::open(&host.state()).unwrap().history(1).unwrap().unwrap();
        assert_eq!(history.result, Some(ApplyEnd::RolledBack), "{more:?}");
    }
}

#[tokio::test]
async fn an_order_whose_own_apply_rolls_back_ends_so() {
    let host = Host::ordered();
    let more = [JournalRecord::RollingBack { reason: "its action failed".to_owned() }];
    host.interrupt(false, &more);
    // The journal is that of the order.
    let kept = host.at("state/apply/generations/1/config/000-other.yaml");
    fs::copy(host.at("state/order/ordered/config.yaml"), kept).unwrap();
    let end = host.run().await;
    assert_eq!((end.result, end.reason.as_str()), (OrderResult::RolledBack, "its action failed"), "{end:?}");
    assert_eq!(host.file(), "old");
}

#[tokio::test]
async fn an_order_of_which_an_earlier_version_noted_no_plan_does_not_disturb_the_node() {
    let host = Host::ordered();
    let note = host.at("state/order/ordered/plan.json");
    fs::remove_file(&note).unwrap();
    fs::write(host.at(FORCE_FILE), "").unwrap();
    let end = host.run().await;
    assert_eq!((end.result, host.file().as_str()), (OrderResult::Failed, "old"), "{end:?}");
    assert!(end.reason.contains("an earlier version of Holdfast"), "{end:?}");
    fs::remove_file(host.at(FORCE_FILE)).unwrap();
    let end = host.run().await;
    assert_eq!((end.result, host.file().as_str()), (OrderResult::Done, "new"), "{end:?}");
}
