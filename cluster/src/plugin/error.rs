//! Why `kubectl holdfast` has no answer.

use crate::reports::Rewriting;
use sensor_model::chain::EntryFault;
use sensor_model::socket::SocketError;
use std::io;
use thiserror::Error;

/// The status code about a user without the right.
pub(super) const FORBIDDEN: u16 = 403;
/// The status code about an object, or a kind, that does not exist.
pub(super) const NOT_FOUND: u16 = 404;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum PluginError {
    /// No config leads to an API server.
    #[error("cannot use the config of kubectl; name another one with --kubeconfig or --context")]
    Config(#[source] Box<kube::config::KubeconfigError>),
    /// Neither a config nor a pod.
    #[error("no config of kubectl; set KUBECONFIG or use --kubeconfig")]
    NoConfig(#[source] Box<kube::config::InferConfigError>),
    /// The client cannot be made from the config.
    #[error("the config of kubectl cannot be used")]
    Client(#[source] Box<kube::Error>),
    /// The user lacks a right.
    #[error("{message}; ask an admin to bind the ClusterRole and the Role `holdfast-log-reader` to you")]
    Forbidden {
        /// What the API server says. It names the user, the verb and the object.
        message: String,
    },
    /// The API server does not have the object.
    #[error("{object} does not exist: {next}")]
    NotFound {
        /// The object.
        object: String,
        /// What to do.
        next: &'static str,
    },
    /// A request failed.
    #[error("{object}: the API server gave no answer")]
    Request {
        /// The object.
        object: String,
        /// The reason.
        #[source]
        error: Box<kube::Error>,
    },
    /// No reporter runs on the node.
    #[error(
        "node {node}: no pod of Holdfast with a running reporter in the namespace {namespace}; see `kubectl -n {namespace} get pods -o wide`"
    )]
    NoReporter {
        /// The node.
        node: String,
        /// The namespace.
        namespace: String,
    },
    /// The config has no token.
    #[error(
        "the config of kubectl has no token, and the node's reporter accepts nothing else: name a service account of the namespace \
         {namespace} with the right to read logs by --service-account"
    )]
    NoToken {
        /// The namespace.
        namespace: String,
    },
    /// The token of the caller cannot be had.
    #[error("cannot get the token of the config of kubectl: {0}")]
    Token(String),
    /// The forwarded connection failed.
    #[error(
        "node {node}: the connection to the reporter failed: {reason}; see `kubectl -n {namespace} logs {pod} -c reporter`"
    )]
    Tunnel {
        /// The node.
        node: String,
        /// Why.
        reason: String,
        /// The namespace.
        namespace: String,
        /// The reporter's pod.
        pod: String,
    },
    /// The reporter or the sensor refuses.
    #[error("node {node}: {}", error.error)]
    Refused {
        /// The node.
        node: String,
        /// What it says.
        error: SocketError,
    },
    /// The answer is not what the contract says.
    #[error(
        "node {node}: the answer to {request} cannot be read: {reason}; is the reporter of another version?"
    )]
    Answer {
        /// The node.
        node: String,
        /// The request.
        request: String,
        /// Why.
        reason: String,
    },
    /// An entry of the log is not what its daemon wrote.
    #[error("node {node}: the log is not sound: entry {seq}: {fault}")]
    Unsound {
        /// The node.
        node: String,
        /// The number that the entry has, or was to have.
        seq: u64,
        /// What is wrong.
        fault: EntryFault,
    },
    /// The log is another one than before.
    #[error(
        "node {node}: the log was written anew: {known} entry {sequence}, and {found}; do not believe this log, and compare it with a \
         copy that is not on the node"
    )]
    Rewritten {
        /// The node.
        node: String,
        /// Who knew the entry.
        known: &'static str,
        /// The number of the entry.
        sequence: u64,
        /// What the log has in its place.
        found: Rewriting,
    },
    /// The log cannot be compared with the DriftReport.
    #[error(
        "node {node}: cannot compare the log with entry {sequence}, which the DriftReport keeps: {reason}; see `holdfast log verify` \
         on the node"
    )]
    Uncompared {
        /// The node.
        node: String,
        /// The number of the entry.
        sequence: u64,
        /// Why not.
        reason: String,
    },
    /// The answer cannot be written.
    #[error("cannot write the answer")]
    Output(#[from] io::Error),
    /// The answer has no form in this format.
    #[error("cannot write the answer in this format: {0}")]
    Format(String),
}

impl PluginError {
    /// The error of a request about this object. `next` is what to do if it does not exist.
    pub(super) fn request(object: &str, next: &'static str, error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) if status.code == FORBIDDEN => {
                Self::Forbidden { message: status.message.clone() }
            }
            kube::Error::Api(status) if status.code == NOT_FOUND => {
                Self::NotFound { object: object.to_owned(), next }
            }
            _ => Self::Request { object: object.to_owned(), error: Box::new(error) },
        }
    }
}
