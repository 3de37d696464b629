//! Orders that are refused, started again and over.

use super::published_plan::PublishedPlan;
use super::*;
use crate::apply::actions::tests::played::{PlayedHost, Plays};
use crate::clock::boot_id;
use std::sync::Arc;

/// A config that is ordered.
fn ordered(orders: &NodeOrders) -> OrderName {
    let config = serde_json::json!({ "metadata": { "name": "one" } });
    let desired = DesiredConfig { machine_config: config, node_disruption: None };
    let name = OrderName { id: "id".to_owned(), config: "one".to_owned() };
    orders.directory.set_new(&name, &desired).unwrap();
    orders.directory.accept_new(&PublishedPlan::default(), &[]).unwrap();
    orders.directory.order_planned().unwrap();
    name
}

#[test]
fn a_config_whose_name_no_object_of_the_api_can_have_is_refused_and_not_kept() {
    let (root, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let orders = NodeOrders::new(root.path(), state.path());
    for name in ["", "a/b", "../a", "a\nb", "a\u{202e}b", &"a".repeat(254)] {
        let config = serde_json::json!({ "machine_config": { "metadata": { "name": name } } });
        let error = orders.plan(config.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.reason, SocketErrorReason::Refused, "{name:?}: {error:?}");
        assert!(error.error.starts_with("machine_config: metadata.name: must be"), "{error:?}");
        assert!(!state.path().join("order").exists(), "{name:?}");
    }
}

#[test]
fn an_object_of_another_kind_is_refused_and_not_kept() {
    let (root, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let orders = NodeOrders::new(root.path(), state.path());
    for mut config in [
        serde_json::json!({ "kind": "List", "items": [{ "kind": "MachineConfig" }] }),
        serde_json::json!({ "ignition": { "version": "3.4.0" } }),
    ] {
        config["metadata"] = serde_json::json!({ "name": "one" });
        let desired = serde_json::json!({ "machine_config": config });
        let error = orders.plan(desired.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.reason, SocketErrorReason::Refused, "{error:?}");
        assert!(error.error.starts_with("machine_config: kind: must be"), "{error:?}");
        assert!(!state.path().join("order").exists());
    }
}

/// The progress of an order whose process is gone, asked for so often, and the number of starts that the directory has.
async fn asked(plays: Plays, times: u32, break_directory: impl Fn(&Path)) -> (ApplyPhase, u32) {
    let host = PlayedHost::new(plays);
    let state = tempfile::tempdir().unwrap();
    let orders = Arc::new(NodeOrders::new(host.root.path(), state.path()));
    ordered(&orders);
    break_directory(&state.path().join("order"));
    let mut phase = ApplyPhase::Idle;
    for _ in 0..times {
        let orders = Arc::clone(&orders);
        let ask = move || orders.newest_if(&mut None, |_| Ok(false)).phase;
        phase = tokio::task::spawn_blocking(ask).await.unwrap();
    }
    let boot = tokio::task::spawn_blocking(move || orders.boot().map(|boot| orders.directory.starts(&boot)));
    (phase, boot.await.unwrap().unwrap())
}

#[tokio::test]
async fn a_start_that_a_host_refuses_because_it_shuts_down_does_not_count() {
    assert_eq!(asked(Plays::Well, STARTS + 1, |_| {}).await, (ApplyPhase::Failed, STARTS));
    assert_eq!(asked(Plays::Stopping, STARTS + 1, |_| {}).await, (ApplyPhase::Running, 0));
}

#[tokio::test]
async fn starts_are_counted_where_no_file_can_have_their_number() {
    // A directory in the place of the file, as root can write everywhere else.
    let full = |order: &Path| std::fs::create_dir(order.join("starts.json")).unwrap();
    assert_eq!(asked(Plays::Well, STARTS, full).await, (ApplyPhase::Running, 0));
    assert_eq!(asked(Plays::Well, STARTS + 1, full).await, (ApplyPhase::Failed, 0));
}

#[test]
fn a_process_that_ends_between_two_looks_is_not_started_again() {
    let (root, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let orders = NodeOrders::new(root.path(), state.path());
    let name = ordered(&orders);
    let boot = Boot::of_kernel(&boot_id(Path::new("/proc")).unwrap());
    let progress = orders.newest_if(&mut None, |orders| {
        orders.directory.set_end(&OrderEnd::failed(&name, boot.clone(), "reason".to_owned()));
        Ok(false)
    });
    assert_eq!((progress.phase, progress.message.as_deref()), (ApplyPhase::Failed, Some("reason")));
    assert_eq!(orders.directory.starts(&boot), 0);
}

#[test]
fn an_apply_of_which_systemd_says_nothing_is_running_with_the_reason() {
    let (root, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let orders = NodeOrders::new(root.path(), state.path());
    ordered(&orders);
    let progress = orders.newest(&mut None);
    assert_eq!(progress.phase, ApplyPhase::Running);
    let message = progress.message.unwrap();
    assert!(
        message
            .starts_with("whether holdfast-apply.service runs is not known: the system bus does not answer"),
        "{message}"
    );
}

#[test]
fn the_config_of_the_node_is_that_of_the_operator_only_if_holdfast_has_applied_none() {
    let (root, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let orders = NodeOrders::new(root.path(), state.path());
    let stored = root.path().join(OPERATOR_CONFIG);
    std::fs::create_dir_all(stored.parent().unwrap()).unwrap();
    std::fs::write(&stored, r#"{"metadata": {"name": "rendered-a"}}"#).unwrap();
    let current = || orders.newest_if(&mut None, |_| Ok(false)).current;
    assert_eq!(current().as_deref(), Some("rendered-a"));
    let store = Store::open(state.path()).unwrap();
    assert_eq!(current().as_deref(), Some("rendered-a"));
    // Something else than Holdfast has written the link.
    std::os::unix::fs::symlink("elsewhere", store.path().join("current")).unwrap();
    assert_eq!(current(), None);
}

#[tokio::test]
async fn an_order_that_waits_for_a_reboot_goes_on_after_a_soft_reboot_and_not_by_an_unknown_count() {
    // Its systemd has made three soft reboots.
    let host = PlayedHost::new(Plays::RebootedSoftly);
    let state = tempfile::tempdir().unwrap();
    let orders = Arc::new(NodeOrders::new(host.root.path(), state.path()));
    let name = ordered(&orders);
    for (soft_reboots, phase) in
        [(Some(3), ApplyPhase::Rebooting), (None, ApplyPhase::Rebooting), (Some(2), ApplyPhase::Running)]
    {
        let boot = Boot { soft_reboots, ..Boot::of_kernel(&boot_id(Path::new("/proc")).unwrap()) };
        let (result, reason) = (OrderResult::Rebooting, String::new());
        orders.directory.set_end(&OrderEnd { id: name.id.clone(), boot, result, reason });
        let orders = Arc::clone(&orders);
        let progress = tokio::task::spawn_blocking(move || orders.progress()).await.unwrap();
        assert_eq!(progress.phase, phase, "{soft_reboots:?}");
    }
}

#[test]
fn a_config_that_an_earlier_version_planned_is_not_ordered_but_planned_anew() {
    let (root, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let orders = NodeOrders::new(root.path(), state.path());
    let name = OrderName { id: "id".to_owned(), config: "one".to_owned() };
    let config = serde_json::json!({ "metadata": { "name": "one" } });
    let desired = DesiredConfig { machine_config: config, node_disruption: None };
    orders.directory.set_new(&name, &desired).unwrap();
    // It did not note what its answer said.
    let order = state.path().join("order");
    std::fs::rename(order.join("new"), order.join("planned")).unwrap();
    let error = orders.begin(&ApplyOrder { id: name.id }).unwrap_err();
    assert_eq!(error.reason, SocketErrorReason::NotPlanned, "{error:?}");
    assert!(orders.directory.ordered().is_none());
}
