//! A TLS connection to an extender, by whatever address: what proves that it is one is the name in its certificate and the
//! authority that signed it.

use effects::stream::SERVER_NAME;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Time for the connection and the handshake. After a leader change connections wait for up to 4 s at the next leader, and then
/// thousands of handshakes come before this one.
const WITHIN: Duration = Duration::from_secs(10);
/// HTTP/2 in the handshake (ALPN).
const HTTP2: &[u8] = b"h2";

/// Connects over HTTP/2 to the extender at this address; `trusted` are the certificates of its authority, PEM.
///
/// # Errors
/// That of the network, or why the extender is not trusted.
pub(crate) async fn connect(address: &str, trusted: &[u8]) -> io::Result<TlsStream<TcpStream>> {
    let connector = TlsConnector::from(config(trusted)?);
    let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        let _ = stream.set_nodelay(true);
        connector.connect(name, stream).await
    };
    timeout(WITHIN, connecting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn config(trusted: &[u8]) -> io::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(trusted) {
        roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    if roots.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "there is no certificate of the extenders' authority yet",
        ));
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_bundle_and_one_that_is_none_are_no_trust_in_everybody() {
        for bad in [&b""[..], b"nothing", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(config(bad).is_err());
        }
    }
}
