//! Why not everything was removed.

use jiff::Timestamp;
use thiserror::Error;

/// Why not everything was removed.
#[derive(Debug, Error)]
pub enum RemoveError {
    /// No config leads to an API server.
    #[error("cannot find the API server: set KUBECONFIG to the config of an admin")]
    Config(#[source] Box<kube::config::InferConfigError>),
    /// A request failed.
    #[error("{object}: the API server did not do what was asked")]
    Request {
        /// The object.
        object: String,
        /// The reason.
        #[source]
        error: Box<kube::Error>,
    },
    /// A reporter would write everything again.
    #[error(
        "the reporter in the pod {pod} on the node {node} still runs and would write everything again: apply the overlay `remove` \
         first, and wait for its rollout"
    )]
    Reporter {
        /// The pod.
        pod: String,
        /// Its node.
        node: String,
    },
    /// A reporter on a node that seems to be off has written a short while ago.
    #[error(
        "the reporter in the pod {pod} on the node {node} renewed its Lease at {renewed}, and the Node is not ready: if the node is off, \
         try again five minutes after that time; if only its kubelet does not work, start the kubelet, so that the pod ends"
    )]
    Renewed {
        /// The pod.
        pod: String,
        /// Its node.
        node: String,
        /// When the Lease was renewed last.
        renewed: Timestamp,
    },
    /// Another writer puts it back.
    #[error("Node {node}: another writer puts back what was removed: find it in the Node's managed fields")]
    Changing {
        /// The Node.
        node: String,
    },
}

impl RemoveError {
    /// The error of a request about this object.
    pub(super) fn request(object: impl Into<String>, error: kube::Error) -> Self {
        Self::Request { object: object.into(), error: Box::new(error) }
    }
}
