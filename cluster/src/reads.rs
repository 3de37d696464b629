//! Reads of the own Node and of its pods.
//!
//! In: a read. Out: the API server's answer. The read is sent in the name of the node, `system:node:NAME`: from Kubernetes 1.36 on the
//! API server lets a token do so for the node that the token names, and for no other one (KEP-5284). An API server that refuses this
//! gets the read with the reporter's own rights. No write goes this way: the admission policies would not see who writes.

use crate::client::{ClientError, client};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ApiResource, DynamicObject, GetParams, PartialObjectMeta};
use kube::{Client, Config};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The status code of a refusal.
const FORBIDDEN: u16 = 403;

/// In whose name a read is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// The node.
    Node,
    /// The reporter's service account.
    Account,
}

impl Reader {
    /// The other one.
    const fn other(self) -> Self {
        match self {
            Self::Node => Self::Account,
            Self::Account => Self::Node,
        }
    }
}

/// The two clients, and which of them the API server allows to read.
#[derive(Clone)]
pub struct Reads {
    node: Client,
    account: Client,
    /// Whether the account is asked first, since its last read succeeded after one of the node was refused.
    is_account: Arc<AtomicBool>,
    /// Whether it is logged that neither may read.
    is_noted: Arc<AtomicBool>,
}

impl std::fmt::Debug for Reads {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Reads").field("first", &self.first()).finish_non_exhaustive()
    }
}

impl Reads {
    /// Reads in the name of this node. The config is that of the reporter's own client. Nothing is asked yet.
    ///
    /// # Errors
    /// Why there is no client.
    pub fn new(config: &Config, node: &str) -> Result<Self, ClientError> {
        let mut own = config.clone();
        // A watch is silent for longer than any answer. It has a limit of its own, and so has every other read.
        own.read_timeout = None;
        let mut as_node = own.clone();
        as_node.auth_info.impersonate = Some(format!("system:node:{node}"));
        Ok(Self::with(client(as_node)?, client(own)?))
    }

    /// Reads with these clients.
    pub(crate) fn with(node: Client, account: Client) -> Self {
        Self { node, account, is_account: Arc::default(), is_noted: Arc::default() }
    }

    /// In whose name a read is sent first.
    fn first(&self) -> Reader {
        if self.is_account.load(Ordering::Relaxed) { Reader::Account } else { Reader::Node }
    }

    /// The client of a reader.
    fn client(&self, reader: Reader) -> Client {
        match reader {
            Reader::Node => self.node.clone(),
            Reader::Account => self.account.clone(),
        }
    }

    /// The client of the reader that may read, for a watch. A read before finds out which one it is.
    pub fn reading(&self) -> Client {
        self.client(self.first())
    }

    /// The reporter's own client without a limit for the pause of an answer, for watches of other kinds.
    pub fn account(&self) -> Client {
        self.account.clone()
    }

    /// Objects of a kind without a type here, read by the reporter's own client.
    pub(crate) fn objects(&self, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
        let kind = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: format!("{group}/{version}"),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        Api::all_with(self.account(), &kind)
    }

    /// The `MachineConfigs` of the cluster.
    pub(crate) fn machine_configs(&self) -> Api<DynamicObject> {
        self.objects("machineconfiguration.openshift.io", "v1", "MachineConfig", "machineconfigs")
    }

    /// A read of this reader succeeded after one of the other was refused.
    fn prefer(&self, reader: Reader) {
        let is_account = reader == Reader::Account;
        if self.is_account.swap(is_account, Ordering::Relaxed) == is_account {
            return;
        }
        match reader {
            Reader::Node => tracing::info!("The API server allows reads in the name of the node."),
            Reader::Account => tracing::warn!(
                "The API server refuses reads in the name of the node (constrained impersonation, Kubernetes 1.36). Node and pods are \
                 read with the rights of the service account, which are not limited to this node."
            ),
        }
    }

    /// The Node of this name.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn node(&self, name: &str) -> kube::Result<Node> {
        self.read(|client| async move { Api::all(client).get(name).await }).await
    }

    /// The metadata of the Node of this name, not older than this version if there is one.
    ///
    /// # Errors
    /// Why there is no answer. The status code is 504 if the API server has only earlier versions.
    pub async fn node_metadata(
        &self,
        name: &str,
        version: Option<&str>,
    ) -> kube::Result<PartialObjectMeta<Node>> {
        let asked = &GetParams { resource_version: version.map(str::to_owned) };
        self.read(|client| async move { Api::<Node>::all(client).get_metadata_with(name, asked).await }).await
    }

    /// Sends a read, and sends it once more in the other name if it was refused. If both are refused, the first refusal is the answer.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn read<T, Answer>(&self, read: impl Fn(Client) -> Answer) -> kube::Result<T>
    where
        Answer: Future<Output = kube::Result<T>>,
    {
        let first = self.first();
        let answer = read(self.client(first)).await;
        if !answer.as_ref().is_err_and(is_refusal) {
            return answer;
        }
        let other = read(self.client(first.other())).await;
        if other.as_ref().is_err_and(is_refusal) {
            if !self.is_noted.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "The API server refuses reads in the name of the node and with the rights of the service account. Before \
                     Kubernetes 1.36 the account needs those of deploy/kustomize/components/plain-reads."
                );
            }
            return answer;
        }
        if other.is_ok() {
            self.prefer(first.other());
        }
        other
    }
}

/// Whether the API server refuses a request for want of a right.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == FORBIDDEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::played_server::{PlayedAnswer, PlayedLog, played};
    use serde_json::json;
    use std::sync::atomic::AtomicU16;

    /// A server that answers with the code of now.
    fn server(code: &Arc<AtomicU16>) -> (Client, PlayedLog) {
        let code = Arc::clone(code);
        played(move |_| match code.load(Ordering::Relaxed) {
            200 => {
                PlayedAnswer::Json(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}))
            }
            code => PlayedAnswer::Code(code),
        })
    }

    /// Reads one Node, and gives the answer's code and how often node and account were asked.
    struct Played {
        reads: Reads,
        codes: [Arc<AtomicU16>; 2],
        logs: [PlayedLog; 2],
    }

    impl Played {
        fn new() -> Self {
            let codes = [200, 403].map(|code| Arc::new(AtomicU16::new(code)));
            let [(node, node_log), (account, account_log)] = [server(&codes[0]), server(&codes[1])];
            Self { reads: Reads::with(node, account), codes, logs: [node_log, account_log] }
        }

        async fn read(&self, node: u16, account: u16) -> (u16, [usize; 2]) {
            self.codes[0].store(node, Ordering::Relaxed);
            self.codes[1].store(account, Ordering::Relaxed);
            let answer = self.reads.node("n1").await;
            let code = match answer {
                Ok(_) => 200,
                Err(kube::Error::Api(status)) => status.code,
                Err(error) => panic!("{error}"),
            };
            (code, [&self.logs[0], &self.logs[1]].map(|log| log.take().len()))
        }
    }

    #[tokio::test]
    async fn a_node_that_may_read_is_the_only_one_that_reads() {
        let played = Played::new();
        for _ in 0..3 {
            assert_eq!(played.read(200, 200).await, (200, [1, 0]));
        }
        assert_eq!(played.reads.first(), Reader::Node);
    }

    #[tokio::test]
    async fn after_a_refusal_the_account_reads_and_goes_on_reading_until_it_is_refused() {
        let played = Played::new();
        assert_eq!(played.read(403, 200).await, (200, [1, 1]));
        assert_eq!(played.read(403, 200).await, (200, [0, 1]));
        assert_eq!(
            played.read(200, 403).await,
            (200, [1, 1]),
            "the plain right was taken away after an upgrade"
        );
        assert_eq!(played.read(200, 403).await, (200, [1, 0]));
    }

    #[tokio::test]
    async fn only_a_refusal_is_answered_with_another_reader() {
        let played = Played::new();
        for code in [401, 404, 429, 503] {
            assert_eq!(played.read(code, 200).await, (code, [1, 0]));
        }
        assert_eq!(played.read(403, 403).await, (403, [1, 1]));
        assert_eq!(played.read(403, 503).await, (503, [1, 1]), "the account may be allowed");
        assert_eq!(played.reads.first(), Reader::Node);
    }
}
