//! Certificates for HTTPS. The server reads them again when their files change, and at once on SIGHUP.

use axum_server::tls_rustls::RustlsConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Pause between two checks of the files. Renewal tools replace certificates days before the old ones expire.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// PEM files for HTTPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate chain.
    pub chain: PathBuf,
    /// The key of the server's certificate.
    pub key: PathBuf,
    /// Authorities for client certificates; with `None` the server asks for no client certificate.
    pub client_ca: Option<PathBuf>,
}

/// Reads the files.
///
/// # Errors
/// When a file cannot be read, or key and chain do not match; the message names the file.
pub fn load(tls: &Tls) -> io::Result<RustlsConfig> {
    Ok(RustlsConfig::from_config(read(tls)?))
}

/// Checks the files for ever, and loads them when they change or when `asked` is notified. If the new files cannot be
/// used, the old certificates stay in use.
pub async fn keep_fresh(config: &RustlsConfig, tls: &Tls, asked: &Notify) -> Infallible {
    let stamps = || [Some(&tls.chain), Some(&tls.key), tls.client_ca.as_ref()].map(|path| stamp(path?));
    let mut known = stamps();
    loop {
        let wanted = tokio::time::timeout(LOOK_EVERY, asked.notified()).await.is_ok();
        let seen = stamps();
        if seen == known && !wanted {
            continue;
        }
        known = seen;
        match read(tls) {
            Ok(fresh) => {
                config.reload_from_config(fresh);
                tracing::info!(chain = %tls.chain.display(), "admin certificates read again");
            }
            Err(error) => tracing::warn!(%error, "admin certificates changed but cannot be used; the old ones stay"),
        }
    }
}

/// Inode, size and modification time: at least one changes when a file is replaced or rewritten.
fn stamp(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
}

fn failed(what: &str, path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} {}: {error}", path.display()))
}

fn certificates(what: &str, path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    certificates.map_err(|error| failed(what, path, &error))
}

fn read(tls: &Tls) -> io::Result<Arc<ServerConfig>> {
    let chain = certificates("reading the certificate chain", &tls.chain)?;
    let private =
        PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| failed("reading the key", &tls.key, &error))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = match &tls.client_ca {
        Some(path) => builder.with_client_cert_verifier(callers(path, provider)?),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(chain, private)
        .map_err(|error| failed("using the certificate chain", &tls.chain, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A verifier that accepts only client certificates from these authorities.
fn callers(path: &Path, provider: Arc<CryptoProvider>) -> io::Result<Arc<dyn ClientCertVerifier>> {
    let what = "reading the authorities of callers from";
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, path)? {
        roots.add(certificate).map_err(|error| failed(what, path, &error))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    // A file without any certificate is refused here.
    verifier.map_err(|error| failed(what, path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(folder: &Path) -> Tls {
        Tls { chain: folder.join("chain.pem"), key: folder.join("key.pem"), client_ca: None }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = load(&tls(Path::new("/nowhere"))).unwrap_err();
        assert!(error.to_string().contains("/nowhere/chain.pem"), "{error}");
    }

    #[test]
    fn a_key_that_does_not_belong_to_the_chain_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let make = || rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (one, other) = (make(), make());
        let mut tls = tls(folder.path());
        fs::write(&tls.chain, one.cert.pem()).unwrap();
        fs::write(&tls.key, other.signing_key.serialize_pem()).unwrap();
        assert!(load(&tls).is_err());
        fs::write(&tls.key, one.signing_key.serialize_pem()).unwrap();
        load(&tls).unwrap();
        tls.client_ca = Some(folder.path().join("ca.pem"));
        for text in ["", "no certificate"] {
            fs::write(folder.path().join("ca.pem"), text).unwrap();
            assert!(load(&tls).is_err_and(|error| error.to_string().contains("ca.pem")), "{text:?}");
        }
        fs::write(folder.path().join("ca.pem"), one.cert.pem()).unwrap();
        load(&tls).unwrap();
    }
}
