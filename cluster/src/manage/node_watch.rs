//! The watch on the own Node.
//!
//! In: the API server. Out: the annotations that lead an update, whenever they change. It is one list and one watch of metadata,
//! each for this Node alone.

use crate::publish::NodeMetadata;
use crate::watching::watched;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher::{Config, Event};
use tokio::sync::watch;

/// Hands on each change of the Node's metadata. Ends when nothing takes it any more.
pub(crate) async fn follow(
    nodes: Api<PartialObjectMeta<Node>>,
    name: String,
    newest: watch::Sender<Option<NodeMetadata>>,
) {
    let here = Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watched(nodes, here, "the own Node");
    while let Some(event) = events.next().await {
        if newest.is_closed() {
            return;
        }
        match event {
            Event::Apply(node) | Event::InitApply(node) => {
                let node = NodeMetadata::of(&node.metadata);
                newest.send_if_modified(|known| {
                    let is_other = known.as_ref().is_none_or(|known| known.annotations != node.annotations);
                    *known = Some(node);
                    is_other
                });
            }
            Event::Delete(_) => {
                newest.send_replace(None);
            }
            Event::Init | Event::InitDone => {}
        }
    }
}
