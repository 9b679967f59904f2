//! `pontoon-bench` at servers that don't answer everybody.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::command::{at, code, said};
use super::store::Store;

const LOAD: &str = "run put --count 50 --clients 4 --connections 2 --warm-up 0s --key-space 100";

/// Vouches for others.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// A certificate for a name, and its key.
    fn vouch(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }

    /// A server that it vouches for, for clients that it vouches for.
    fn server(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .unwrap();
        let (certificate, key) = self.vouch("127.0.0.1");
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }

    /// Writes what a client of it needs; returns its options.
    fn client(&self, dir: &Path, name: &str) -> (String, String) {
        let path = |what: &str| dir.join(format!("{name}-{what}.pem"));
        let (certificate, key) = self.vouch(name);
        fs::write(path("ca"), self.0.pem()).unwrap();
        fs::write(path("cert"), certificate.pem()).unwrap();
        fs::write(path("key"), key.serialize_pem()).unwrap();
        let trust = format!("--cacert {}", path("ca").display());
        let (cert, key) = (path("cert"), path("key"));
        let own = format!("--cert {} --key {}", cert.display(), key.display());
        (trust, own)
    }
}

#[test]
fn tls_needs_who_vouches_on_either_side() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let store = Store::behind(Some(ours.server()), Some(("root", "secret")));
    let (trust, own) = ours.client(dir.path(), "client");
    let (trust_theirs, own_theirs) = theirs.client(dir.path(), "stranger");
    let password = dir.path().join("password");
    fs::write(&password, "secret\n").unwrap();
    let in_file = format!("--user root --password-file {}", password.display());
    for more in [
        format!("{trust} {own} --user root:secret"),
        format!("{trust} {own} {in_file}"),
        format!("--insecure-skip-tls-verify {own} {in_file}"),
    ] {
        let output = at(&store, &format!("{LOAD} {more}"));
        assert_eq!(code(&output), 0, "{more}: {}", said(&output));
        assert!(said(&output).contains("(50 answers)"), "{}", said(&output));
    }
    let keys = store.keys();
    for (more, text) in [
        (format!("{trust_theirs} {own} {in_file}"), "UnknownIssuer"),
        (format!("{own} {in_file}"), "https needs --cacert"),
        (format!("{trust} {own_theirs} {in_file}"), "can't connect"),
        (format!("{trust} {in_file}"), "can't connect"),
        (
            format!("{trust} {own} --user root:guess"),
            "InvalidArgument",
        ),
        (format!("{trust} {own}"), "Unauthenticated"),
    ] {
        let output = at(&store, &format!("{LOAD} {more}"));
        assert_ne!(code(&output), 0, "{more}: {}", said(&output));
        assert!(said(&output).contains(text), "{more}: {}", said(&output));
    }
    assert_eq!(store.keys(), keys, "nobody else has put anything");
}
