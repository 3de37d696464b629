//! The processes of an order: one plans, one applies.
//!
//! In: the files of an order. Out: the plan, or the end of the apply, which the daemon reads.

use super::boot::present_boot;
use super::files::{KeptOrder, OrderDirectory, OrderEnd, OrderResult, PlanAnswer};
use crate::apply::{
    ApplyConfigs, ApplyError, ApplyReport, ApplyResult, GivenConsent, HostApply, HostApplyError,
    HostApplyOptions, HostRunEnd, Interrupts, NewConfig, OperatorRule,
};
use crate::{
    desired::{OPERATOR_CONFIG, SERVICE_CONFIGS, Unknown, node_policies},
    store::Store,
};
use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The reporter has orders, so nobody is asked.
const GIVEN: GivenConsent = GivenConsent { yes: true, reboot: true };

/// The error of a command without an order.
const NO_ORDER: &str = "there is no order: only the daemon calls this command";

/// How long an apply waits for the lock.
const PATIENCE: Duration = Duration::from_mins(2);
/// The pause between two attempts to take it.
const PAUSE: Duration = Duration::from_secs(1);

/// Plans the config that was handed in last. It changes nothing.
pub async fn plan_order(root: &Path, state: &Path) -> PlanAnswer {
    let Some(order) = OrderDirectory::new(state).new_config() else {
        return PlanAnswer::Failed(NO_ORDER.to_owned());
    };
    let planned = async {
        let host = HostApply::open(options(&order, root, state), Interrupts::default())?;
        let configs = configs(&host, &order, root, true, &mut |_| {}).await?;
        host.dry_run(&configs, &mut |_| {})
    };
    match planned.await {
        Ok(HostRunEnd::Planned { plan, .. }) => PlanAnswer::Planned(plan),
        Ok(HostRunEnd::Refused | HostRunEnd::Reported(_)) => PlanAnswer::Failed("no plan".to_owned()),
        Err(error) if error.is_input() => PlanAnswer::Refused(error.to_string()),
        Err(error) => PlanAnswer::Failed(error.to_string()),
    }
}

/// Applies the config of the newest order, or continues its apply, and notes the end. Gives whether the node has the config.
///
/// # Errors
/// There is no order, or its end cannot be noted.
pub async fn run_order(root: &Path, state: &Path, interrupts: Interrupts, say: fn(&str)) -> io::Result<bool> {
    let directory = OrderDirectory::new(state);
    let Some(order) = directory.ordered_config() else {
        return Err(io::Error::new(io::ErrorKind::NotFound, NO_ORDER));
    };
    let mut progress = |line: &str| {
        say(line);
        directory.set_line(line);
    };
    let began = Instant::now();
    let applied = loop {
        let applied = apply(&order, root, state, interrupts.clone(), &mut progress).await;
        let is_locked = matches!(applied, Err(HostApplyError::Apply(ApplyError::Locked(_))));
        if !is_locked || began.elapsed() >= PATIENCE {
            break applied;
        }
        // The process that writes back has the lock for a moment.
        progress("waits for another process of Holdfast that writes");
        tokio::time::sleep(PAUSE).await;
    };
    let (result, reason) = match &applied {
        Ok(report) => of_report(report),
        Err(error) => of_error(error),
    };
    if result == OrderResult::Done
        && let Err(error) = directory.store_as_operator(root)
    {
        tracing::error!(%error, path = OPERATOR_CONFIG, "Cannot store the config where the Machine Config Operator's daemon keeps its own.");
    }
    let boot = present_boot(root).await?;
    directory.set_end(&OrderEnd { id: order.name.id, boot, result, reason });
    Ok(matches!(result, OrderResult::Done | OrderResult::Rebooting))
}

async fn apply(
    order: &KeptOrder,
    root: &Path,
    state: &Path,
    interrupts: Interrupts,
    progress: &mut dyn FnMut(&str),
) -> Result<ApplyReport, HostApplyError> {
    let host = HostApply::open(options(order, root, state), interrupts)?;
    if let Some(store) = Store::open_existing(state)?
        && store.open_journal()?.is_some()
    {
        // The apply of this order, or an earlier one. If it was an earlier one, the order itself comes next.
        let report = host.resume(progress).await?;
        let is_of_another = match report.result {
            ApplyResult::Unchanged => true,
            ApplyResult::Done => !is_current(state, order),
            _ => false,
        };
        if !is_of_another {
            return Ok(report);
        }
    }
    let configs = configs(&host, order, root, false, progress).await?;
    match host.run(configs, GIVEN, |_| Ok(true), progress).await? {
        HostRunEnd::Reported(report) => Ok(*report),
        HostRunEnd::Planned { .. } | HostRunEnd::Refused => Ok(ApplyReport::nothing_to_resume(state)),
    }
}

/// Whether the node's current config is that of the order.
fn is_current(state: &Path, order: &KeptOrder) -> bool {
    let Ok(Some((_, manifests))) = Store::current_in(state) else { return false };
    let Ok(kept) = std::fs::read_dir(&manifests) else { return false };
    let wanted = std::fs::read(&order.config).ok();
    kept.flatten().any(|entry| std::fs::read(entry.path()).ok() == wanted)
}

fn options(order: &KeptOrder, root: &Path, state: &Path) -> HostApplyOptions {
    HostApplyOptions {
        root: root.to_owned(),
        state: state.to_owned(),
        disruption_policies: order.disruption.iter().cloned().collect(),
        drift_policies: node_policies(root, state).into_iter().collect(),
        pool: None,
        force: false,
        act: true,
        operator: OperatorRule::TakeOver,
    }
}

async fn configs(
    host: &HostApply,
    order: &KeptOrder,
    root: &Path,
    is_dry: bool,
    progress: &mut dyn FnMut(&str),
) -> Result<ApplyConfigs, HostApplyError> {
    // Until the first apply the present config is that of the daemon: of another daemon before it, or of the host's service.
    let known = [OPERATOR_CONFIG, SERVICE_CONFIGS].map(|path| root.join(path));
    let present: Vec<PathBuf> = known.into_iter().find(|path| path.exists()).into_iter().collect();
    let current = if Store::current_in(host.state())?.is_some() { &[][..] } else { &present[..] };
    let wanted = NewConfig {
        new: std::slice::from_ref(&order.config),
        current,
        unknown: Unknown::Refuse,
        allow_empty: false,
    };
    host.configs(wanted, is_dry, progress).await
}

fn of_report(report: &ApplyReport) -> (OrderResult, String) {
    let result = match report.result {
        ApplyResult::Done | ApplyResult::Unchanged => OrderResult::Done,
        ApplyResult::Rebooting => OrderResult::Rebooting,
        ApplyResult::Drifted => OrderResult::Drifted,
        ApplyResult::RolledBack => OrderResult::RolledBack,
        ApplyResult::Abandoned | ApplyResult::Halted => OrderResult::Failed,
    };
    let problems: Vec<&str> = report.problems_besides_reason().collect();
    let texts = Some(report.reason.as_str()).into_iter().chain(problems).filter(|text| !text.is_empty());
    (result, texts.collect::<Vec<_>>().join("; "))
}

fn of_error(error: &HostApplyError) -> (OrderResult, String) {
    let result = match error {
        HostApplyError::Apply(ApplyError::Unreconcilable(_)) => OrderResult::Unreconcilable,
        HostApplyError::Apply(ApplyError::Preflight(_)) => OrderResult::Drifted,
        _ => OrderResult::Failed,
    };
    (result, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::orders::files::OrderName;
    use sensor_model::socket::DesiredConfig;
    use serde_json::json;
    use std::{fs, os::unix::fs::MetadataExt as _};

    /// A host with a config of the service, and an order that declares another content of its file. No action is needed for it.
    fn ordered() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for directory in ["etc/systemd/system", SERVICE_CONFIGS, "state"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        fs::write(at("etc/passwd"), "root:x:0:0::/:/bin/sh\n").unwrap();
        fs::write(at("etc/group"), "root:x:0:\n").unwrap();
        let owner = fs::metadata(root.path()).unwrap();
        let config = |content: &str| {
            json!({
                "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
                "metadata": { "name": content, "labels": { "machineconfiguration.openshift.io/role": "worker" } },
                "spec": { "config": {
                    "ignition": { "version": "3.4.0" },
                    "storage": { "files": [{
                        "path": "/etc/file", "mode": 0o644, "contents": { "source": format!("data:,{content}") },
                        "user": { "id": owner.uid() }, "group": { "id": owner.gid() },
                    }] },
                } },
            })
        };
        fs::write(at(SERVICE_CONFIGS).join("a.yaml"), config("old").to_string()).unwrap();
        fs::write(at("etc/file"), "old").unwrap();
        let policy = json!({
            "apiVersion": "operator.openshift.io/v1", "kind": "MachineConfiguration", "metadata": { "name": "cluster" },
            "spec": { "nodeDisruptionPolicy": { "files": [{ "path": "/etc/file", "actions": [{ "type": "None" }] }] } },
        });
        let desired = DesiredConfig { machine_config: config("new"), node_disruption: Some(policy) };
        let directory = OrderDirectory::new(&at("state"));
        let name = OrderName { id: "1".to_owned(), config: "new".to_owned() };
        directory.set_new(&name, &desired).unwrap();
        directory.accept_new().unwrap();
        directory.order_planned().unwrap();
        root
    }

    #[tokio::test]
    async fn an_ordered_apply_waits_for_a_process_that_writes_back_and_does_not_fail() {
        let root = ordered();
        let state = root.path().join("state");
        let writes_back = Store::open(&state).unwrap().lock().unwrap().unwrap();
        let apply = run_order(root.path(), &state, Interrupts::default(), |_| {});
        let release = async {
            let directory = OrderDirectory::new(&state);
            while !directory.line().is_some_and(|line| line.contains("waits")) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(fs::read_to_string(root.path().join("etc/file")).unwrap(), "old");
            drop(writes_back);
        };
        let (applied, ()) = tokio::join!(apply, release);
        let end = OrderDirectory::new(&state).end().unwrap();
        assert!(applied.unwrap(), "{end:?}");
        assert_eq!(end.result, OrderResult::Done, "{end:?}");
        assert_eq!(fs::read_to_string(root.path().join("etc/file")).unwrap(), "new");
    }
}
