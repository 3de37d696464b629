//! Files in the state directory that a daemon in another mode left.
//!
//! In: the mode of the daemon that starts. Out: a state directory in which each file belongs to that mode. It comes after the daemon
//! has its locks: a second daemon, which ends at once, changes nothing of the first.

use super::{UNIT, durable, files::OrderDirectory};
use crate::{
    apply::actions::transient,
    bounded,
    desired::{Inputs, cluster_policies, kept_cluster_policies, put_aside},
};
use sensor_model::{drift_policy::ActionLimits, socket::POLICIES_BYTES};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// What the mode of a daemon lets stay.
#[derive(Debug)]
pub struct ModeFiles {
    root: PathBuf,
    state: PathBuf,
    policies: Option<ActionLimits>,
    takes_configs: bool,
}

impl ModeFiles {
    /// For the daemon with these inputs. `policies`: the limits of the cluster's policies, if the mode uses these. `takes_configs`: the
    /// reporter may hand in configs.
    pub fn new(inputs: &Inputs, policies: Option<ActionLimits>, takes_configs: bool) -> Self {
        Self { root: inputs.root.clone(), state: inputs.state.clone(), policies, takes_configs }
    }

    /// Limits or removes what belongs to another mode. A failure is logged: detection needs none of these files.
    pub fn settle(&self) {
        match self.policies {
            Some(limits) => self.limit_policies(limits),
            None => self.put_policies_aside(),
        }
        if !self.takes_configs {
            self.remove_orders();
        }
    }

    fn limit_policies(&self, limits: ActionLimits) {
        // The daemon uses the copies if the configs or policies of this start cannot be used.
        for file in std::iter::once(cluster_policies(&self.state)).chain(kept_cluster_policies(&self.state)) {
            if let Err(error) = limit(&file, limits) {
                tracing::error!(%error, path = %file.display(), "Cannot read the policies of the cluster that this node has: the next ones replace them.");
            }
        }
    }

    /// A host without a cluster has no policies of one. Its commands, such as `check`, would use them.
    fn put_policies_aside(&self) {
        match put_aside(&self.state) {
            Ok(None) => {}
            Ok(Some(path)) => {
                tracing::warn!(path = %path.display(), "This daemon belongs to no cluster: the policies of the cluster, which an earlier daemon took, are put aside.");
            }
            Err(error) => {
                let file = cluster_policies(&self.state);
                tracing::error!(%error, path = %file.display(), "Cannot put the policies of the cluster aside: `check` and `explain` use them, and this daemon does not.");
            }
        }
        for file in kept_cluster_policies(&self.state) {
            if let Err(error) = fs::remove_file(&file) {
                tracing::error!(%error, path = %file.display(), "Cannot remove the copy of the cluster's policies: a start with unusable configs would use it.");
            }
        }
    }

    /// Configs may have secrets, and an order that stays would be applied once the mode is `manage` again, however old it is.
    fn remove_orders(&self) {
        let directory = OrderDirectory::new(&self.state);
        if !directory.has_orders() {
            return;
        }
        match self.is_applying() {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!(
                    unit = UNIT.name,
                    "An apply that the mode `manage` ordered is under way and goes on. Its files stay until the next start of the daemon."
                );
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "systemd does not say whether an ordered apply is under way: the files of orders stay.");
                return;
            }
        }
        let unfinished = directory.ordered().filter(|_| directory.end().is_none());
        if let Err(error) = directory.remove_orders() {
            tracing::error!(%error, "Cannot remove the files of orders that the mode `manage` left.");
            return;
        }
        let Some(order) = unfinished else {
            tracing::info!("Removed the files of orders that the mode `manage` left.");
            return;
        };
        tracing::warn!(
            config = order.config,
            "This mode does not continue the apply of this config, which the mode `manage` ordered. If `holdfast history` shows it as \
             under way, `holdfast apply --resume` continues it."
        );
    }

    fn is_applying(&self) -> io::Result<bool> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(transient::is_active(&self.root, UNIT.name)).map_err(io::Error::other)
    }
}

/// A daemon in another mode may have taken them.
fn limit(file: &Path, limits: ActionLimits) -> io::Result<()> {
    let kept = match bounded::read(file, 2 * POLICIES_BYTES as u64) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        kept => kept?,
    };
    let list: serde_json::Value = serde_json::from_slice(&kept)?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let (list, limited) = limits.list(&items);
    if limited.is_empty() { Ok(()) } else { durable::replace(file, &serde_json::to_vec(&list)?) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::orders::files::OrderName;
    use crate::apply::orders::published_plan::PublishedPlan;
    use crate::{
        apply::actions::tests::played::{PlayedHost, Plays},
        desired::{DaemonInputs, NamedSources},
    };
    use sensor_model::{journal::Boot, socket::DesiredConfig};
    use serde_json::json;

    /// The files of a mode on the host at `root`, whose state directory is `root` too.
    async fn settle(root: &Path, policies: Option<ActionLimits>, takes_configs: bool) {
        let sources = NamedSources {
            root: root.to_owned(),
            state: Some(root.to_owned()),
            configs: Vec::new(),
            policies: Vec::new(),
            allow_unknown: false,
        };
        let inputs = sources.daemon_inputs(DaemonInputs::default(), crate::apply::waits_or_none);
        let files = ModeFiles::new(&inputs, policies, takes_configs);
        tokio::task::spawn_blocking(move || files.settle()).await.unwrap();
    }

    fn order(root: &Path) -> OrderDirectory {
        let directory = OrderDirectory::new(root);
        let config = json!({ "metadata": { "name": "one" }, "secret": "hunter2" });
        let desired = DesiredConfig { machine_config: config, node_disruption: None };
        for id in ["ordered", "planned", "new"] {
            let name = OrderName { id: id.to_owned(), config: "one".to_owned() };
            directory.set_new(&name, &desired).unwrap();
            if id != "new" {
                directory.accept_new(&PublishedPlan::default(), &[]).unwrap();
            }
            if id == "ordered" {
                directory.order_planned().unwrap();
            }
        }
        directory.set_line("a line");
        directory.set_starts(Boot::of_kernel("boot"), 1);
        directory
    }

    #[tokio::test]
    async fn a_mode_that_takes_no_configs_removes_those_of_orders_and_manage_keeps_them() {
        let host = PlayedHost::new(Plays::Well);
        let root = host.root.path();
        let directory = order(root);
        settle(root, Some(ActionLimits::MANAGE), true).await;
        assert_eq!(directory.ordered().unwrap().id, "ordered");
        // What the daemon's loop ordered has no contents, and the mode `manage` records its results later.
        fs::write(root.join("order/revert.json"), "{}").unwrap();
        settle(root, Some(ActionLimits::OBSERVE), false).await;
        let left: Vec<_> =
            fs::read_dir(root.join("order")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["revert.json"]);
        assert!(directory.ordered().is_none() && directory.new_config().is_none());
    }

    #[tokio::test]
    async fn the_files_of_an_apply_stay_while_its_unit_runs_or_waits_and_while_systemd_does_not_answer() {
        for plays in [Plays::RunningUnits, Plays::Booting] {
            let host = PlayedHost::new(plays);
            let directory = order(host.root.path());
            settle(host.root.path(), None, false).await;
            assert_eq!(directory.ordered().unwrap().id, "ordered", "{plays:?}");
        }
        let host = tempfile::tempdir().unwrap();
        let directory = order(host.path());
        settle(host.path(), None, false).await;
        assert!(directory.ordered().is_some());
    }

    #[tokio::test]
    async fn a_daemon_without_a_cluster_puts_its_policies_aside_so_that_no_command_uses_them() {
        let root = tempfile::tempdir().unwrap();
        let file = cluster_policies(root.path());
        fs::write(&file, "{\"items\":[]}").unwrap();
        settle(root.path(), Some(ActionLimits::OBSERVE), false).await;
        assert!(file.exists(), "they are those of this node");
        settle(root.path(), None, false).await;
        assert!(!file.exists());
        let aside = fs::read_to_string(root.path().join("cluster-policies.detached.json")).unwrap();
        assert_eq!(aside, "{\"items\":[]}");
    }

    #[tokio::test]
    async fn the_copy_for_a_start_with_unusable_configs_has_no_rule_that_the_mode_does_not_allow() {
        let root = tempfile::tempdir().unwrap();
        let kept = root.path().join("last-config/policies");
        fs::create_dir_all(kept.join("000000")).unwrap();
        fs::create_dir_all(kept.join("000001")).unwrap();
        let (own, copy) = (kept.join("000000/a.json"), kept.join("000001/cluster-policies.json"));
        let rules = json!([{ "path": "/etc/a", "action": "deny" }]);
        let list = json!({
            "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicyList",
            "items": [{
                "apiVersion": "holdfast.dev/v1alpha1", "kind": "DriftPolicy", "metadata": { "name": "a" },
                "spec": { "rules": rules },
            }],
        });
        for file in [&own, &copy] {
            fs::write(file, list.to_string()).unwrap();
        }
        settle(root.path(), Some(ActionLimits::MANAGE), false).await;
        assert!(fs::read_to_string(&copy).unwrap().contains("deny"));
        settle(root.path(), Some(ActionLimits::OBSERVE), false).await;
        let limited = fs::read_to_string(&copy).unwrap();
        assert!(limited.contains("/etc/a") && !limited.contains("deny"), "{limited}");
        settle(root.path(), None, false).await;
        assert!(!copy.exists());
        assert!(fs::read_to_string(&own).unwrap().contains("deny"), "the node's own policy stays");
    }
}
