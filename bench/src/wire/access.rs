//! What a server wants to see before it answers: certificates and passwords.
//!
//! Kept true: a server is trusted only with a reason: a certificate authority
//! that was named, or the explicit wish not to check.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// How to get in.
#[derive(Clone, Default)]
pub struct Access {
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) user: Option<(String, String)>,
}

/// Passwords and keys are not for logs.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("tls", &self.tls.is_some())
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .finish()
    }
}

/// The files that an encrypted connection needs.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    /// Who may vouch for the server.
    pub authority: Option<PathBuf>,
    /// Our own certificate and its key.
    pub own: Option<(PathBuf, PathBuf)>,
    /// Anybody may say to be the server.
    pub unchecked: bool,
}

impl Access {
    /// Reads the files. Without an authority and without the wish not to check
    /// there is no way to a server with https.
    pub fn new(
        certificates: &Certificates,
        user: Option<(String, String)>,
    ) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match &certificates.authority {
            _ if certificates.unchecked => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Unchecked(provider))),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in read_all(path)? {
                    let added = roots.add(certificate);
                    added.map_err(|error| format!("{}: {error}", path.display()))?;
                }
                builder.with_root_certificates(roots)
            }
            None if certificates.own.is_some() => {
                return Err(NO_AUTHORITY.to_owned());
            }
            None => return Ok(Self { tls: None, user }),
        };
        let mut config = match &certificates.own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let read = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| format!("{}: {error}", key.display()))?;
                builder
                    .with_client_auth_cert(read_all(certificate)?, read)
                    .map_err(|error| format!("{}: {error}", certificate.display()))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self {
            tls: Some(Arc::new(config)),
            user,
        })
    }
}

pub(super) const NO_AUTHORITY: &str =
    "https needs --cacert FILE, or --insecure-skip-tls-verify to trust anybody";

fn read_all(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bad = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| bad(&error))?;
    let certificates: Vec<_> = certificates
        .collect::<Result<_, _>>()
        .map_err(|error| bad(&error))?;
    match certificates.is_empty() {
        true => Err(bad(&"no certificate is in it")),
        false => Ok(certificates),
    }
}

/// Takes any certificate; signatures must be right still.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
