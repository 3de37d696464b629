//! The pages of a node's reporter, through a port that the API server forwards.
//!
//! In: a client of the API server, a node's name, and the header with the caller's token. Out: answers of the node's sensor, as its
//! socket gives them. The API server checks that the caller may forward ports of the pod, and leads the connection to it.

use super::access::Access;
use super::error::PluginError;
use super::status::INSTALL;
use crate::listen::SECURE_PORT;
use crate::remove::{PODS, REPORTER};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{ListParams, Portforwarder};
use kube::{Api, ResourceExt as _};
use sensor_model::socket::{PREFER, RECORDS_BYTES, STATUS_BYTES, SocketError, prefer_wait};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme};

/// The name in the TLS handshake, which the certificate need not have.
const NAME: &str = "holdfast";
/// Longest time until an answer is here, without the time that the request asks to wait.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of an answer: those of the longest one, with one entry of the log beyond its limit.
const ANSWER_BYTES: usize = STATUS_BYTES + RECORDS_BYTES;

/// The pages of one node.
pub(super) struct NodePages<'a> {
    access: &'a Access,
    node: &'a str,
    pod: String,
    authorization: HeaderValue,
    connection: Option<Connection>,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// The connection ends with it.
    _forwarded: Portforwarder,
}

/// An answer of the reporter: the body of a success, or why there is none.
pub(super) type NodeAnswer = Result<Bytes, SocketError>;

impl<'a> NodePages<'a> {
    /// Finds the reporter of a node, and gets the caller's token.
    pub(super) async fn of(access: &'a Access, node: &'a str) -> Result<Self, PluginError> {
        let pods: Api<Pod> = Api::namespaced(access.client.clone(), &access.namespace);
        let here = ListParams::default().labels(PODS).fields(&format!("spec.nodeName={node}"));
        let found = pods.list(&here).await;
        let found = found.map_err(|error| PluginError::request("the pods of Holdfast", INSTALL, error))?;
        let pod = reporter_of(found.items).ok_or_else(|| PluginError::NoReporter {
            node: node.to_owned(),
            namespace: access.namespace.clone(),
        })?;
        let authorization = access.authorization().await?;
        Ok(Self { access, node, pod: pod.name_any(), authorization, connection: None })
    }

    /// The answer to a request, which the reporter may delay by `wait` until there is news.
    pub(super) async fn get(&mut self, target: &str, wait: Duration) -> Result<NodeAnswer, PluginError> {
        let opened = self.connection.take().filter(|open| !open.sender.is_closed());
        let failed = |reason: &dyn std::fmt::Display| self.failed(reason);
        let request = Request::get(target)
            .header(HOST, NAME)
            .header(AUTHORIZATION, self.authorization.clone())
            .header(PREFER, prefer_wait(wait.as_secs()))
            .body(Full::default())
            .map_err(|error| failed(&error))?;
        // The reporter ends connections after ten minutes.
        let mut connection = match opened {
            Some(open) => open,
            None => timeout(TIMEOUT, self.connect()).await.map_err(|_| failed(&silence(TIMEOUT)))??,
        };
        let answer = async {
            let response = connection.sender.send_request(request).await.map_err(|error| failed(&error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES).collect().await;
            Ok::<_, PluginError>((head.status, body.map_err(|error| failed(&error))?.to_bytes()))
        };
        let time = wait + TIMEOUT;
        let (status, body) = timeout(time, answer).await.map_err(|_| failed(&silence(time)))??;
        let answer = if status == StatusCode::OK {
            Ok(Ok(body))
        } else {
            // Errors of the reporter itself have reasons that the sensor does not have.
            match serde_json::from_slice::<SocketError>(&body) {
                Ok(error) => Ok(Err(error)),
                Err(_) => Err(failed(&refusal(status, &body))),
            }
        };
        self.connection = Some(connection);
        answer
    }

    fn failed(&self, reason: &dyn std::fmt::Display) -> PluginError {
        PluginError::Tunnel {
            node: self.node.to_owned(),
            reason: reason.to_string(),
            namespace: self.access.namespace.clone(),
            pod: self.pod.clone(),
        }
    }

    async fn connect(&self) -> Result<Connection, PluginError> {
        let failed = |reason: &dyn std::fmt::Display| self.failed(reason);
        let pods: Api<Pod> = Api::namespaced(self.access.client.clone(), &self.access.namespace);
        let object = format!("pods/portforward of {}/{}", self.access.namespace, self.pod);
        let mut forwarded = pods.portforward(&self.pod, &[SECURE_PORT]).await.map_err(|error| {
            PluginError::request(&object, "the pod has ended meanwhile; try again", error)
        })?;
        let stream =
            forwarded.take_stream(SECURE_PORT).ok_or_else(|| failed(&"the port is not forwarded"))?;
        let name = ServerName::try_from(NAME).map_err(|error| failed(&error))?;
        let config = client_config().map_err(|error| failed(&error))?;
        let stream =
            TlsConnector::from(config).connect(name, stream).await.map_err(|error| failed(&error))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        // It ends with the sender. Its errors reach the requests.
        tokio::spawn(connection);
        Ok(Connection { sender, _forwarded: forwarded })
    }
}

/// The pod whose reporter answers for the node. During an update of the `DaemonSet` there may be two: the one that is ready is asked, and of
/// those the newer one.
pub(super) fn reporter_of(pods: Vec<Pod>) -> Option<Pod> {
    let is_ready = |pod: &Pod| reporter_status(pod).is_some_and(|status| status.ready);
    let running = pods.into_iter().filter(is_running_reporter);
    running.max_by_key(|pod| (is_ready(pod), pod.creation_timestamp().map(|time| time.0)))
}

fn reporter_status(pod: &Pod) -> Option<&ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == REPORTER)
}

fn is_running_reporter(pod: &Pod) -> bool {
    let state = reporter_status(pod).and_then(|status| status.state.as_ref());
    state.is_some_and(|state| state.running.is_some()) && pod.metadata.deletion_timestamp.is_none()
}

/// Why there is no answer after a time.
fn silence(time: Duration) -> String {
    format!("no answer in {} seconds", time.as_secs())
}

/// What a refusal of the reporter says.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let text = parsed.as_ref().and_then(|body| body["error"].as_str()).unwrap_or("no reason given");
    format!("{status}: {text}")
}

/// TLS without a check of who signed the certificate: a reporter makes its own, which nobody knows.
fn client_config() -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(ForwardedPod(Arc::clone(&provider)));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The pod to which the API server forwards the port. The API server and the kubelet identify it; its certificate does not.
#[derive(Debug)]
struct ForwardedPod(Arc<CryptoProvider>);

impl ServerCertVerifier for ForwardedPod {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
