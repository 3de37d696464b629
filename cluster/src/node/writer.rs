//! The task that writes to the API server.

use crate::api::ReportedOsImage;
use crate::pods::Pods;
use crate::publish::{ManagedNode, NodeMetadata, PolicyStanding, Publisher, WrittenNode};
use crate::reports::{ComparedConfig, NodeFinding, mark_update, name_pods, unnamed_pods};
use sensor_model::socket::ApplyProgress;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Shortest time between the beginnings of two rounds. A newer finding meanwhile replaces the older one.
const SHORTEST: Duration = Duration::from_millis(200);
/// The time between rounds doubles up to this one while findings come without a pause.
const LONGEST: Duration = Duration::from_secs(2);
/// Without a finding for this time the next one begins anew.
const QUIET: Duration = Duration::from_secs(5);
/// Longest wait of a first finding for the Node, which shows whether an update is under way.
const FIRST_NODE: Duration = Duration::from_secs(5);

/// What the writer takes from the tasks that read other objects of the cluster. The other sides may never say anything.
#[derive(Debug)]
pub(super) struct ClusterChannels {
    pub(super) policies: watch::Receiver<Option<PolicyStanding>>,
    pub(super) os_image: watch::Receiver<Option<ReportedOsImage>>,
    pub(super) config: watch::Receiver<ComparedConfig>,
    pub(super) node: NodeChannel,
    /// What the sensor says about applies in the mode `manage`; none in the mode `observe`, in which others update the node.
    pub(super) progress: Option<watch::Receiver<Option<ApplyProgress>>>,
}

impl ClusterChannels {
    /// Whether another program updates the node, also in the mode `manage`, where the Machine Config Operator's daemon still runs. `None`: the
    /// sensor gives no progress.
    fn is_led_by_others(&mut self) -> Option<bool> {
        let Some(progress) = &mut self.progress else { return Some(true) };
        progress.borrow_and_update().as_ref().map(|progress| progress.is_managed_by_operator)
    }
}

/// The Node's newest metadata.
pub(super) type NodeChannel = watch::Receiver<Option<NodeMetadata>>;

/// What the writer takes from mode `manage`, and tells it and the pages. In mode `observe` the other side never says anything.
#[derive(Debug)]
pub(super) struct ManagedChannels {
    pub(super) managed: watch::Receiver<Option<ManagedNode>>,
    pub(super) written: watch::Sender<WrittenNode>,
    /// When the Lease was written last, for the page about readiness.
    pub(super) renewals: watch::Sender<Option<Instant>>,
}

/// Writes the newest finding and the newest state of the update whenever they change, and what is due without a change. Ends after the
/// round that is under way.
pub(super) async fn write(
    mut publisher: Publisher,
    mut pods: Pods,
    mut findings: watch::Receiver<Option<NodeFinding>>,
    mut update: ManagedChannels,
    mut cluster: ClusterChannels,
    mut stop: watch::Receiver<bool>,
) {
    let mut spacing = SHORTEST;
    let mut last_change = Instant::now();
    // The sensor's socket is faster than the API server, and an update that is under way would be drift.
    let mut held_until = Some(last_change + FIRST_NODE);
    let mut is_led_by_others = None;
    loop {
        let begin = Instant::now();
        let node = cluster.node.borrow_and_update().clone();
        // A sensor that restarts gives its status before its progress.
        is_led_by_others = cluster.is_led_by_others().or(is_led_by_others);
        held_until =
            held_until.filter(|until| begin < *until && (node.is_none() || is_led_by_others.is_none()));
        let mut finding = findings.borrow_and_update().clone().filter(|_| held_until.is_none());
        let mut again = held_until;
        if let Some(uid) = node.as_ref().and_then(|node| node.uid.as_ref()) {
            publisher.see_node(uid);
        }
        if let Some(finding) = &mut finding {
            let names = pods.names(&unnamed_pods(&finding.status)).await;
            name_pods(&mut finding.status, names);
            if is_led_by_others == Some(true) && node.as_ref().is_some_and(NodeMetadata::is_being_updated) {
                mark_update(&mut finding.status);
            }
            again = pods.again_at();
        }
        let managed = update.managed.borrow_and_update().clone();
        publisher.set_policies(cluster.policies.borrow_and_update().clone());
        let os_image = cluster.os_image.borrow_and_update().clone();
        publisher.set_compared(os_image, cluster.config.borrow_and_update().clone());
        let round = publisher.round(finding.as_ref(), managed.as_ref()).await;
        update.renewals.send_replace(publisher.renewed());
        update.written.send_if_modified(|last| {
            let is_other = last != publisher.written();
            last.clone_from(publisher.written());
            is_other
        });
        let again = again.map_or(round, |again| again.min(round)).max(begin + SHORTEST);
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = sleep_until(again) => continue,
            changed = findings.changed() => if changed.is_err() {
                // The task that asks the sensor ends only at the shutdown.
                return;
            },
            changed = update.managed.changed() => if changed.is_err() {
                return;
            },
            changed = cluster.policies.changed() => if changed.is_err() {
                return;
            },
            changed = cluster.os_image.changed() => if changed.is_err() {
                return;
            },
            changed = cluster.config.changed() => if changed.is_err() {
                return;
            },
            () = changed(Some(&mut cluster.node)) => {}
            () = changed(cluster.progress.as_mut()) => {}
        }
        // A round that was due without a change, such as one that renews the Lease, does not end the quiet time.
        if last_change.elapsed() >= QUIET {
            spacing = SHORTEST;
        }
        last_change = Instant::now();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = sleep_until(begin + spacing) => {}
        }
        spacing = (spacing * 2).min(LONGEST);
    }
}

/// Waits for another value, for ever without a channel and after the end of the task that fills it.
async fn changed<T>(channel: Option<&mut watch::Receiver<T>>) {
    if let Some(channel) = channel
        && channel.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}
