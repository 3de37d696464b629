//! The certificate of the TLS port.
//!
//! In: the files of a certificate and its key, or names for a self-signed one. Out: the configuration of TLS connections. Files
//! that change are read again. Files that cannot be used leave the last valid certificate in use.

use super::error::SecureError;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_rustls::rustls::{
    self, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
};

/// Shortest time between two looks at the files.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The files of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate and those that sign it, in PEM.
    pub certificate: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
}

/// What tells one version of a file from another.
type FileVersion = (u64, u64, i64, i64, u64);

/// The certificate that connections get now.
#[derive(Debug)]
pub struct Certificates {
    current: Arc<ServerConfig>,
    files: Option<WatchedFiles>,
}

#[derive(Debug)]
struct WatchedFiles {
    files: CertificateFiles,
    /// `None` if a file could not be looked at.
    versions: Option<[FileVersion; 2]>,
    looked_at: Instant,
}

impl Certificates {
    /// A certificate from files.
    ///
    /// # Errors
    /// Why the files cannot be used.
    pub fn from_files(files: CertificateFiles) -> Result<Self, SecureError> {
        // The versions come first: a change between the two is then seen as a change.
        let versions = versions(&files);
        let current = load(&files)?;
        Ok(Self { current, files: Some(WatchedFiles { files, versions, looked_at: Instant::now() }) })
    }

    /// A self-signed certificate for these names. Its key is only in this process.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub fn self_signed(mut names: Vec<String>) -> Result<Self, SecureError> {
        names.sort();
        names.dedup();
        let made = rcgen::generate_simple_self_signed(names.clone())
            .map_err(|error| SecureError::SelfSigned { names, error })?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let current = config(vec![made.cert.der().clone()], key.into())?;
        Ok(Self { current, files: None })
    }

    /// The configuration for the next connection.
    pub fn current(&mut self) -> Arc<ServerConfig> {
        if let Some(watched) = &mut self.files
            && watched.looked_at.elapsed() >= LOOK_AGAIN
        {
            watched.looked_at = Instant::now();
            let found = versions(&watched.files);
            if found != watched.versions {
                watched.versions = found;
                match load(&watched.files) {
                    Ok(new) => {
                        tracing::info!("The certificate of the TLS port was read again.");
                        self.current = new;
                    }
                    Err(error) => {
                        let error = anyhow::Error::from(error);
                        tracing::warn!(
                            error = format!("{error:#}"),
                            "The new certificate of the TLS port cannot be used. The old one stays in use."
                        );
                    }
                }
            }
        }
        Arc::clone(&self.current)
    }
}

fn versions(files: &CertificateFiles) -> Option<[FileVersion; 2]> {
    // A projected Secret changes by a symbolic link, so the file behind it counts.
    let version = |path: &Path| fs::metadata(path).ok().map(|metadata| version(&metadata));
    Some([version(&files.certificate)?, version(&files.key)?])
}

fn version(metadata: &Metadata) -> FileVersion {
    (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len())
}

fn load(files: &CertificateFiles) -> Result<Arc<ServerConfig>, SecureError> {
    let read =
        |path: &PathBuf| fs::read(path).map_err(|error| SecureError::Read { path: path.clone(), error });
    let (chain, key) = (read(&files.certificate)?, read(&files.key)?);
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(&chain).collect::<Result<_, _>>().map_err(|error| {
            SecureError::Pem { path: files.certificate.clone(), content: "certificate", error }
        })?;
    if chain.is_empty() {
        return Err(SecureError::NoCertificate { path: files.certificate.clone() });
    }
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| SecureError::Pem {
        path: files.key.clone(),
        content: "private key",
        error,
    })?;
    config(chain, key)
}

fn config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, SecureError> {
    let build = || -> Result<ServerConfig, rustls::Error> {
        ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)
    };
    let mut config = build().map_err(SecureError::Unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(files: &CertificateFiles) {
        let made = rcgen::generate_simple_self_signed(vec!["n1".to_owned()]).unwrap();
        fs::write(&files.certificate, made.cert.pem()).unwrap();
        fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_certificate_is_read_again_and_a_broken_one_leaves_the_last_one_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let files = CertificateFiles {
            certificate: folder.path().join("tls.crt"),
            key: folder.path().join("tls.key"),
        };
        assert!(matches!(Certificates::from_files(files.clone()), Err(SecureError::Read { .. })));
        write(&files);
        let mut certificates = Certificates::from_files(files.clone()).unwrap();
        let first = certificates.current();
        fs::write(&files.key, "no key, and of another length").unwrap();
        tokio::time::advance(LOOK_AGAIN).await;
        assert!(Arc::ptr_eq(&first, &certificates.current()), "the broken key is not used");
        write(&files);
        tokio::time::advance(LOOK_AGAIN).await;
        let second = certificates.current();
        assert!(!Arc::ptr_eq(&first, &second), "the new files are used");
        tokio::time::advance(LOOK_AGAIN).await;
        assert!(Arc::ptr_eq(&second, &certificates.current()), "unchanged files are not read again");
    }

    #[test]
    fn a_file_without_a_certificate_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let files =
            CertificateFiles { certificate: folder.path().join("empty"), key: folder.path().join("tls.key") };
        write(&files);
        fs::write(&files.certificate, "").unwrap();
        let error = Certificates::from_files(files).unwrap_err();
        assert!(error.to_string().contains("empty: no certificate"), "{error}");
    }
}
