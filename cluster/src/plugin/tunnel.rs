//! Connections to a node's reporter, through a port that the API server forwards.
//!
//! In: a client of the API server, and a node's name. Out: connections to the TLS port of the node's reporter, and tokens of the caller. The API
//! server checks that the caller may forward ports of the pod, and leads the connection to it.

use super::access::Access;
use super::error::PluginError;
use super::pages::{NAME, NodePages, Reporter};
use super::status::INSTALL;
use crate::listen::SECURE_PORT;
use crate::remove::{PODS, REPORTER};
use hyper::header::HeaderValue;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{ListParams, Portforwarder};
use kube::{Api, ResourceExt as _};
use std::fmt::Display;
use std::sync::Arc;
use tokio::io::DuplexStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme};

/// The reporter of a node behind the API server.
pub(super) struct ForwardedReporter<'a> {
    access: &'a Access,
    node: &'a str,
    pod: String,
    /// The newest connection ends with it.
    forwarded: Option<Portforwarder>,
}

impl<'a> ForwardedReporter<'a> {
    /// Finds the reporter of a node.
    async fn of(access: &'a Access, node: &'a str) -> Result<Self, PluginError> {
        let mut found = Self { access, node, pod: String::new(), forwarded: None };
        found.find().await?;
        Ok(found)
    }

    /// Finds the pod.
    async fn find(&mut self) -> Result<(), PluginError> {
        let (access, node) = (self.access, self.node);
        let pods: Api<Pod> = Api::namespaced(access.client.clone(), &access.namespace);
        let here = ListParams::default().labels(PODS).fields(&format!("spec.nodeName={node}"));
        let found = pods.list(&here).await;
        let found = found.map_err(|error| PluginError::request("the pods of Holdfast", INSTALL, error))?;
        let pod = reporter_of(found.items).ok_or_else(|| PluginError::NoReporter {
            node: node.to_owned(),
            namespace: access.namespace.clone(),
        })?;
        self.pod = pod.name_any();
        Ok(())
    }
}

impl Reporter for ForwardedReporter<'_> {
    type Stream = TlsStream<DuplexStream>;

    async fn authorization(&self) -> Result<HeaderValue, PluginError> {
        self.access.authorization().await
    }

    async fn connect(&mut self) -> Result<Self::Stream, PluginError> {
        if self.forwarded.take().is_some() {
            // The `DaemonSet` may have replaced the pod since the last connection.
            self.find().await?;
        }
        let pods: Api<Pod> = Api::namespaced(self.access.client.clone(), &self.access.namespace);
        let object = format!("pods/portforward of {}/{}", self.access.namespace, self.pod);
        let forwarded = pods.portforward(&self.pod, &[SECURE_PORT]).await.map_err(|error| {
            PluginError::request(&object, "the pod has ended meanwhile; try again", error)
        })?;
        let stream = self.forwarded.insert(forwarded).take_stream(SECURE_PORT);
        let stream = stream.ok_or_else(|| self.failed(&"the port is not forwarded"))?;
        let name = ServerName::try_from(NAME).map_err(|error| self.failed(&error))?;
        let config = client_config().map_err(|error| self.failed(&error))?;
        TlsConnector::from(config).connect(name, stream).await.map_err(|error| self.failed(&error))
    }

    fn failed(&self, reason: &dyn Display) -> PluginError {
        PluginError::Tunnel {
            node: self.node.to_owned(),
            reason: reason.to_string(),
            namespace: self.access.namespace.clone(),
            pod: self.pod.clone(),
        }
    }
}

/// The pages of a node's reporter.
pub(super) async fn pages_of<'a>(
    access: &'a Access,
    node: &'a str,
) -> Result<NodePages<ForwardedReporter<'a>>, PluginError> {
    Ok(NodePages::of(ForwardedReporter::of(access, node).await?))
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
