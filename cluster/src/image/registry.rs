//! One repository of a registry.
//!
//! In: a reference and credentials. Out: documents and blobs, each as the registry sent it. A transfer that breaks off goes on where it
//! was. A registry that is busy is asked again. What it wishes in `Retry-After` is not known here: its client does not show headers.

use super::error::PullError;
use super::layout::{BlobDescriptor, Layout};
use futures_util::StreamExt as _;
use oci_client::client::{BlobResponse, Certificate, CertificateEncoding, ClientConfig, ClientProtocol};
use oci_client::errors::{OciDistributionError, OciErrorCode};
use oci_client::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};
use std::io;
use std::time::Duration;
use tokio::time::sleep;

/// Longest time to connect.
const CONNECT: Duration = Duration::from_secs(20);
/// Longest pause of an answer.
const READ: Duration = Duration::from_mins(1);
/// How often a document or a transfer is tried.
const ATTEMPTS: u32 = 6;
/// The pause after the first failure. It doubles.
const PAUSE: Duration = Duration::from_millis(500);
/// Status codes of a registry, or of a proxy before it, that is busy: too many requests, bad gateway, unavailable, gateway timeout.
const BUSY: [u16; 4] = [429, 502, 503, 504];
/// The documents that an image begins with.
const DOCUMENTS: [&str; 4] = [
    OCI_IMAGE_INDEX_MEDIA_TYPE,
    IMAGE_MANIFEST_LIST_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
    IMAGE_MANIFEST_MEDIA_TYPE,
];

/// How the registry is reached.
#[derive(Debug, Default)]
pub(super) struct Transport {
    /// Without TLS.
    pub(super) is_plain: bool,
    /// A certificate in PEM that is trusted besides those of the system.
    pub(super) authority: Option<Vec<u8>>,
}

/// One repository.
pub(super) struct Repository {
    client: Client,
    auth: RegistryAuth,
    reference: Reference,
}

impl Repository {
    /// The repository of a reference. Nothing is asked yet.
    ///
    /// # Errors
    /// The certificate cannot be used.
    pub(super) fn new(
        reference: Reference,
        auth: RegistryAuth,
        transport: Transport,
    ) -> Result<Self, PullError> {
        let certificate = |data| Certificate { encoding: CertificateEncoding::Pem, data };
        let config = ClientConfig {
            protocol: if transport.is_plain { ClientProtocol::Http } else { ClientProtocol::Https },
            extra_root_certificates: transport.authority.into_iter().map(certificate).collect(),
            connect_timeout: Some(CONNECT),
            read_timeout: Some(READ),
            user_agent: concat!("holdfast-cluster/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        // TLS needs a provider of its algorithms. Another one that is installed already serves as well.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let client = Client::try_from(config).map_err(|error| PullError::Registry {
            object: "a connection for the image".to_owned(),
            reference: reference.whole(),
            error: Box::new(error),
        })?;
        Ok(Self { client, auth, reference })
    }

    /// The reference as text.
    pub(super) fn name(&self) -> String {
        self.reference.whole()
    }

    /// The document of the reference, or of a digest in the same repository.
    ///
    /// # Errors
    /// The registry does not give it. A document of another digest is refused.
    pub(super) async fn document(&self, digest: Option<&str>) -> Result<Vec<u8>, PullError> {
        let reference = match digest {
            Some(digest) => self.reference.clone_with_digest(digest.to_owned()),
            None => self.reference.clone(),
        };
        let mut attempt = 1;
        let mut pause = PAUSE;
        loop {
            match self.client.pull_manifest_raw(&reference, &self.auth, &DOCUMENTS).await {
                Ok((content, _)) => return Ok(content.to_vec()),
                Err(error) if attempt < ATTEMPTS && is_busy(&error) => {}
                Err(error) => {
                    let object = digest
                        .map_or_else(|| "the manifest".to_owned(), |digest| format!("the manifest {digest}"));
                    return Err(self.failed(object, error));
                }
            }
            attempt += 1;
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Transfers a blob into the layout, and tells how far it is after each part.
    ///
    /// # Errors
    /// The registry does not give it, it is not what its descriptor says, or the disk does not take it.
    pub(super) async fn blob(
        &self,
        blob: &BlobDescriptor,
        layout: &Layout,
        mut told: impl FnMut(u64),
    ) -> Result<(), PullError> {
        let mut writer = layout.begin(blob)?;
        let mut attempt = 1;
        let mut pause = PAUSE;
        loop {
            let begun = writer.bytes();
            let digest = &*blob.digest;
            let answer = if begun == 0 {
                self.client.pull_blob_stream(&self.reference, digest).await
            } else {
                let rest = self.client.pull_blob_stream_partial(&self.reference, digest, begun, None).await;
                match rest {
                    Ok(BlobResponse::Partial(stream)) => Ok(stream),
                    Ok(BlobResponse::Full(stream)) => {
                        writer.restart()?;
                        Ok(stream)
                    }
                    Err(error) => Err(error),
                }
            };
            let broken = match answer {
                Ok(mut answer) => loop {
                    match answer.stream.next().await {
                        Some(Ok(bytes)) => {
                            writer.write(&bytes)?;
                            told(writer.bytes());
                        }
                        None if writer.bytes() < blob.size => {
                            break io::Error::new(
                                io::ErrorKind::UnexpectedEof,
                                "the registry ended the transfer",
                            );
                        }
                        // All bytes are here. If they are wrong, the digest shows it.
                        None => return writer.finish(),
                        Some(Err(_)) if writer.bytes() == blob.size => return writer.finish(),
                        Some(Err(error)) => break error,
                    }
                },
                Err(error)
                    if attempt < ATTEMPTS
                        && (is_busy(&error) || matches!(error, OciDistributionError::RequestError(_))) =>
                {
                    io::Error::other(error)
                }
                Err(error) => return Err(self.failed(format!("the blob {}", blob.digest), error)),
            };
            if attempt == ATTEMPTS {
                let (digest, bytes) = (blob.digest.clone(), writer.bytes());
                return Err(PullError::Transfer { digest, attempts: attempt, bytes, error: broken });
            }
            attempt += 1;
            sleep(pause).await;
            pause *= 2;
        }
    }

    fn failed(&self, object: String, error: OciDistributionError) -> PullError {
        PullError::Registry { object, reference: self.name(), error: Box::new(error) }
    }
}

/// Whether the registry may answer the same request otherwise a moment later.
fn is_busy(error: &OciDistributionError) -> bool {
    match error {
        OciDistributionError::ServerError { code, .. } => BUSY.contains(code),
        // The client shows no status code of an answer in the form of the distribution specification.
        OciDistributionError::RegistryError { envelope, .. } => {
            envelope.errors.iter().any(|error| error.code == OciErrorCode::Toomanyrequests)
        }
        _ => false,
    }
}
