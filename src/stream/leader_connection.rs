//! A TLS connection to an extender at any address. The name in the certificate, and the authority that signed it, prove
//! that the server is an extender.

use crate::authority::SERVER_NAME;
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

/// Time limit for the connection and the handshake. After a leader change, the new leader may have thousands of
/// handshakes to do before this handshake, and a connection waits up to 4 s.
const WITHIN: Duration = Duration::from_secs(10);

/// The protocol of a connection, as negotiated in the TLS handshake (ALPN).
#[derive(Clone, Copy, Debug)]
pub enum AlpnProtocol {
    /// HTTP/1.1, with which the stream of an agent begins.
    Http1,
    /// HTTP/2: many requests at once.
    Http2,
}

/// Connects to the extender at this address; `trusted` contains the certificates of its authority, as PEM.
///
/// # Errors
/// A network error, or the reason why the extender is not trusted.
pub async fn connect(address: &str, trusted: &[u8], protocol: AlpnProtocol) -> io::Result<TlsStream<TcpStream>> {
    let connector = TlsConnector::from(config(trusted, protocol)?);
    let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        let _ = stream.set_nodelay(true);
        connector.connect(name, stream).await
    };
    timeout(WITHIN, connecting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn config(trusted: &[u8], protocol: AlpnProtocol) -> io::Result<Arc<ClientConfig>> {
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
    let name = match protocol {
        AlpnProtocol::Http1 => &b"http/1.1"[..],
        AlpnProtocol::Http2 => &b"h2"[..],
    };
    config.alpn_protocols = vec![name.to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    /// Starts a TLS server whose certificate has this name and expires in this year. Returns the certificate of its
    /// authority, and the server's address.
    async fn server(name: &str, until: i32) -> (String, std::net::SocketAddr) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let own = params.signed_by(&key, &ca).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that does not trust the certificate ends the handshake.
            let _ = TlsAcceptor::from(Arc::new(config)).accept(stream).await;
        });
        (ca.pem(), address)
    }

    #[tokio::test]
    async fn an_extender_whose_certificate_has_expired_or_is_not_one_of_its_authority_is_not_trusted() {
        let (other, _) = server(SERVER_NAME, 4000).await;
        for (name, until, trusts, expected) in [
            (SERVER_NAME, 4000, true, None),
            (SERVER_NAME, 2026, true, Some("expired")),
            ("other.gpu-steward.io", 4000, true, Some("not valid for name")),
            (SERVER_NAME, 4000, false, Some("BadSignature")),
        ] {
            let (own, address) = server(name, until).await;
            let trusted = if trusts { &own } else { &other };
            let connected = connect(&address.to_string(), trusted.as_bytes(), AlpnProtocol::Http2).await;
            let why = connected.err().map(|why| why.to_string());
            let as_expected = match (&why, expected) {
                (Some(why), Some(words)) => why.contains(words),
                (why, words) => why.is_none() && words.is_none(),
            };
            assert!(as_expected, "{name} {until} {trusts}: {why:?}");
        }
    }

    #[test]
    fn an_empty_bundle_and_one_that_is_none_are_no_trust_in_everybody() {
        for bad in [&b""[..], b"nothing", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(config(bad, AlpnProtocol::Http1).is_err());
        }
    }
}
