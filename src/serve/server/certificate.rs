//! Certificates for HTTPS. The server reads them again when their files change, and at once on SIGHUP.

use parking_lot::RwLock;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsAcceptor;

/// Pause between two checks of the files. Renewal tools replace certificates days before they expire.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// The protocols of HTTP/1 and HTTP/2 in the TLS handshake (ALPN).
const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// The versions of HTTP that a port offers in the TLS handshake (ALPN). A client that offers no protocol gets HTTP/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersions {
    /// HTTP/1 only.
    Http1,
    /// Also HTTP/2, for many requests at once on one connection. For a client with a small HTTP/2 flow control window,
    /// the server keeps the last part of an answer in memory until the connection has been idle for too long, so this
    /// is only for ports whose answers are small.
    Http1AndHttp2 {
        /// Maximum number of requests at once on one connection.
        streams: u32,
    },
}

/// PEM files for HTTPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate chain.
    pub chain: PathBuf,
    /// The key of the server's certificate.
    pub key: PathBuf,
    /// Authorities for client certificates; with `None` the server requests no client certificate.
    pub client_ca: Option<PathBuf>,
}

/// The metadata of a file that changes when the file is replaced or rewritten.
type Stamp = (u64, u64, i64, i64);

/// The certificates of one port. A new handshake uses the newest certificates.
#[derive(Debug)]
pub struct Certificates {
    /// The port, for the log: `admin` or `metrics`.
    port: &'static str,
    /// `None` if the program itself makes the certificates.
    files: Option<Tls>,
    versions: HttpVersions,
    /// The stamps of the files that [`Certificates::load`] has read.
    loaded: [Option<Stamp>; 3],
    current: RwLock<Arc<ServerConfig>>,
    /// Notified when the files must be read again at once.
    again: Notify,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// When a file cannot be read, or key and chain do not match; the message names the file.
    pub fn load(port: &'static str, files: Tls, versions: HttpVersions) -> io::Result<Certificates> {
        let loaded = stamps(&files);
        let current = RwLock::new(read(&files, versions)?);
        Ok(Certificates { port, files: Some(files), versions, loaded, current, again: Notify::new() })
    }

    /// Certificates that the program itself makes: chain and key, both PEM.
    ///
    /// # Errors
    /// When key and chain cannot be read, or do not match.
    pub fn made(port: &'static str, pem: (&str, &str), versions: HttpVersions) -> io::Result<Certificates> {
        let current = RwLock::new(made(pem, versions)?);
        Ok(Certificates { port, files: None, versions, loaded: [None; 3], current, again: Notify::new() })
    }

    /// Uses another certificate from now on. If it cannot be used, the old certificate stays in use.
    ///
    /// # Errors
    /// As [`Certificates::made`].
    pub fn replace(&self, pem: (&str, &str)) -> io::Result<()> {
        *self.current.write() = made(pem, self.versions)?;
        Ok(())
    }

    /// An acceptor for one handshake.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.read()))
    }

    /// The limit of requests at once if the handshake has chosen HTTP/2; `None` for HTTP/1.
    pub(super) fn http2_streams(&self, chosen: Option<&[u8]>) -> Option<u32> {
        match self.versions {
            HttpVersions::Http1AndHttp2 { streams } if chosen == Some(HTTP2) => Some(streams),
            HttpVersions::Http1AndHttp2 { .. } | HttpVersions::Http1 => None,
        }
    }

    /// Makes [`Certificates::keep_fresh`] read the files at once.
    pub fn read_again(&self) {
        self.again.notify_one();
    }

    /// Checks the files for ever, and loads them when they change or after [`Certificates::read_again`]. If the new
    /// files cannot be used, the old certificates stay in use. The files are read on a thread that may wait for the
    /// disk.
    pub async fn keep_fresh(&self) -> Infallible {
        let Some(tls) = &self.files else { return std::future::pending().await };
        let mut known = self.loaded;
        loop {
            let requested = tokio::time::timeout(CHECK_EVERY, self.again.notified()).await.is_ok();
            let files = tls.clone();
            let seen = spawn_blocking(move || stamps(&files)).await.unwrap_or_default();
            if seen == known && !requested {
                continue;
            }
            known = seen;
            let (files, versions) = (tls.clone(), self.versions);
            let fresh = spawn_blocking(move || read(&files, versions)).await;
            match fresh.unwrap_or_else(|error| Err(io::Error::other(error))) {
                Ok(fresh) => {
                    *self.current.write() = fresh;
                    tracing::info!(chain = %tls.chain.display(), "{} certificates read again", self.port);
                }
                Err(error) => {
                    tracing::warn!(%error, "{} certificates changed but cannot be used; the old ones stay", self.port);
                }
            }
        }
    }
}

fn stamps(Tls { chain, key, client_ca }: &Tls) -> [Option<Stamp>; 3] {
    [Some(chain), Some(key), client_ca.as_ref()].map(|path| stamp(path?))
}

/// Inode, size and modification time: at least one changes when a file is replaced or rewritten.
fn stamp(path: &Path) -> Option<Stamp> {
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

fn read(tls: &Tls, versions: HttpVersions) -> io::Result<Arc<ServerConfig>> {
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
    let config = builder
        .with_single_cert(chain, private)
        .map_err(|error| failed("using the certificate chain", &tls.chain, &error))?;
    Ok(offering(config, versions))
}

fn made((chain, key): (&str, &str), versions: HttpVersions) -> io::Result<Arc<ServerConfig>> {
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<Vec<_>, _>>();
    let private = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(io::Error::other)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain.map_err(io::Error::other)?, private)
        .map_err(io::Error::other)?;
    Ok(offering(config, versions))
}

/// The configuration that offers these versions of HTTP in the handshake.
fn offering(mut config: ServerConfig, versions: HttpVersions) -> Arc<ServerConfig> {
    let offered: &[&[u8]] = match versions {
        HttpVersions::Http1 => &[HTTP1],
        HttpVersions::Http1AndHttp2 { .. } => &[HTTP2, HTTP1],
    };
    config.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
    if let HttpVersions::Http1AndHttp2 { .. } = versions {
        // Clients of such a port keep one connection for hours and resume no session, so session tickets would only
        // cost memory.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
    }
    Arc::new(config)
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

    fn load(files: Tls) -> io::Result<Certificates> {
        Certificates::load("admin", files, HttpVersions::Http1)
    }

    #[test]
    fn a_missing_certificate_file_is_named_in_the_error() {
        let error = load(tls(Path::new("/nowhere"))).unwrap_err();
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
        assert!(load(tls.clone()).is_err());
        fs::write(&tls.key, one.signing_key.serialize_pem()).unwrap();
        load(tls.clone()).unwrap();
        tls.client_ca = Some(folder.path().join("ca.pem"));
        for text in ["", "no certificate"] {
            fs::write(folder.path().join("ca.pem"), text).unwrap();
            assert!(load(tls.clone()).is_err_and(|error| error.to_string().contains("ca.pem")), "{text:?}");
        }
        fs::write(folder.path().join("ca.pem"), one.cert.pem()).unwrap();
        load(tls.clone()).unwrap();
    }

    #[test]
    fn a_made_certificate_is_replaced_by_one_that_can_be_used_only() {
        let make = || rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let pem = [make(), make()].map(|made| (made.cert.pem(), made.signing_key.serialize_pem()));
        let certificates = Certificates::made("streams", (&pem[0].0, &pem[0].1), HttpVersions::Http1).unwrap();
        assert!(certificates.replace((&pem[1].0, &pem[0].1)).is_err(), "the key of another certificate");
        certificates.replace((&pem[1].0, &pem[1].1)).unwrap();
        assert!(Certificates::made("streams", ("", &pem[0].1), HttpVersions::Http1).is_err());
    }
}
