//! The certificate of one TLS port of this extender. The authority issues the certificate, and the next certificate
//! before it expires.

use super::authority_keeper::{AuthorityKeeper, seconds};
use decide::authority::{CERTIFICATE_USED, CERTIFICATE_VALID};
use model::authority::AuthoritySet;
use model::backoff::Backoff;
use parking_lot::Mutex;
use serve::server::certificate::{Certificates, HttpVersions};
use std::sync::Arc;
use std::time::Duration;
use stream::authority::{IssuedCertificate, issue};
use tokio::time::sleep;

/// How often the authority is read.
const EVERY: Duration = Duration::from_secs(10 * 60);
/// Shortest pause after a failure, while the port has no certificate.
const FIRST: Duration = Duration::from_millis(500);
/// Longest pause after a failure, while the port has no certificate.
const LONGEST: Duration = Duration::from_secs(30);

/// A port that needs a certificate.
#[derive(Clone, Debug)]
pub(super) struct TlsPort {
    /// The port's name in the log and in `/readyz`, with the setting that opens it.
    pub(super) name: &'static str,
    /// The clients that cannot connect while the port has no certificate.
    pub(super) callers: &'static str,
    /// The DNS names that these clients expect in the certificate.
    pub(super) dns_names: Vec<String>,
    /// The protocols of the port.
    pub(super) versions: HttpVersions,
}

/// The certificate of one port.
#[derive(Debug)]
pub(super) struct PortCertificate {
    port: TlsPort,
    authority: Arc<AuthorityKeeper>,
    state: Mutex<CertificateState>,
}

/// What is known about the certificate.
#[derive(Debug, Default)]
struct CertificateState {
    /// Which authority signed the certificate, and when; `None` before it exists.
    issued: Option<IssuedBy>,
    /// Why the last attempt to read the authority or to make a certificate failed.
    failure: Option<String>,
}

/// Which authority signed a certificate, and when, in Unix seconds.
#[derive(Debug)]
struct IssuedBy {
    authority: Arc<str>,
    at: u64,
}

impl PortCertificate {
    /// A port without a certificate.
    pub(super) fn new(port: TlsPort, authority: Arc<AuthorityKeeper>) -> PortCertificate {
        PortCertificate { port, authority, state: Mutex::default() }
    }

    /// Why the port has no valid certificate, and what to do; `None` if it has a valid certificate.
    pub(super) fn missing(&self) -> Option<String> {
        let CertificateState { issued, failure } = &*self.state.lock();
        let name = self.port.name;
        let state = match issued {
            Some(issued) if issued.at + CERTIFICATE_VALID.as_secs() > seconds() => return None,
            Some(_) => format!("the certificate of the {name} has expired"),
            None => format!("the {name} has no certificate yet"),
        };
        let Some(why) = failure else { return Some(state) };
        Some(format!("{state}: {why}; {}", self.authority.advice()))
    }

    /// Makes the first certificate. Retries until it succeeds.
    pub(super) async fn first(&self) -> Arc<Certificates> {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        loop {
            match self.make().await {
                Ok(made) => return Arc::new(made),
                Err(why) => {
                    tracing::warn!(why, "{} cannot connect yet: {why}", self.port.callers);
                    self.failed(why);
                    sleep(backoff.pause()).await;
                }
            }
        }
    }

    async fn make(&self) -> Result<Certificates, String> {
        let (issued, by) = self.issue(&self.authority.look().await?)?;
        let made = Certificates::made(self.port.name, (&issued.chain, &issued.key), self.port.versions);
        let made = made.map_err(|why| why.to_string())?;
        self.has_certificate(by);
        Ok(made)
    }

    /// Replaces the certificate before it expires, and when the authority has changed. Never returns.
    pub(super) async fn keep_fresh(&self, certificates: Arc<Certificates>) {
        let name = self.port.name;
        loop {
            sleep(EVERY).await;
            let set = match self.authority.look().await {
                Ok(set) => set,
                Err(why) => {
                    tracing::warn!(
                        why,
                        "the certificate authority cannot be read: {why}; the {name} keeps its certificate"
                    );
                    self.failed(why);
                    continue;
                }
            };
            if self.is_fresh(&set) {
                continue;
            }
            let replaced = self.issue(&set).and_then(|(issued, by)| {
                certificates.replace((&issued.chain, &issued.key)).map_err(|why| why.to_string())?;
                self.has_certificate(by);
                Ok(())
            });
            match replaced {
                Ok(()) => tracing::info!("the {name} has a new certificate"),
                Err(why) => {
                    tracing::warn!(why, "the {name} keeps its certificate: {why}");
                    self.failed(why);
                }
            }
        }
    }

    fn is_fresh(&self, set: &AuthoritySet) -> bool {
        self.state.lock().issued.as_ref().is_some_and(|issued| {
            issued.authority == set.current.certificate
                && seconds().saturating_sub(issued.at) < CERTIFICATE_USED.as_secs()
        })
    }

    fn issue(&self, set: &AuthoritySet) -> Result<(IssuedCertificate, IssuedBy), String> {
        let at = seconds();
        let issued = issue(&set.current, &self.port.dns_names, at, CERTIFICATE_VALID).map_err(|why| why.to_string())?;
        Ok((issued, IssuedBy { authority: Arc::clone(&set.current.certificate), at }))
    }

    fn has_certificate(&self, by: IssuedBy) {
        *self.state.lock() = CertificateState { issued: Some(by), failure: None };
    }

    /// Records a failed attempt. The present certificate stays in use.
    fn failed(&self, why: String) {
        self.state.lock().failure = Some(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apiserver::kept_object::KeptObject;
    use lab::api_server::FakeApiServer;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName};

    fn port(name: &'static str, dns_name: &str) -> TlsPort {
        TlsPort { name, callers: "agents", dns_names: vec![dns_name.to_owned()], versions: HttpVersions::Http1 }
    }

    /// Whether a client that trusts the authority accepts this certificate for this name.
    fn accepted(trusted: &str, chain: &str, name: &'static str) -> bool {
        let chain = CertificateDer::from_pem_slice(chain.as_bytes()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        CertificateDer::pem_slice_iter(trusted.as_bytes()).for_each(|one| roots.add(one.unwrap()).unwrap());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let name = ServerName::try_from(name).unwrap();
        let now = rustls::pki_types::UnixTime::since_unix_epoch(Duration::from_secs(seconds()));
        let verifier: Arc<dyn rustls::client::danger::ServerCertVerifier> = verifier.build().unwrap();
        verifier.verify_server_cert(&chain, &[], &name, &[], now).is_ok()
    }

    #[tokio::test]
    async fn two_ports_get_certificates_of_one_authority_each_for_its_own_names() {
        let (server, folder) = (FakeApiServer::start(), tempfile::tempdir().unwrap());
        let connection = apiserver::connect(Some(&server.kubeconfig(folder.path()))).await.unwrap();
        let place: [Arc<str>; 2] = ["gpu".into(), "lease-ca".into()];
        let [namespace, name] = place.clone();
        let secret = KeptObject::secret(connection.clone(), namespace, name);
        let [namespace, name] = place;
        let authority = Arc::new(AuthorityKeeper::new(secret, KeptObject::config_map(connection, namespace, name)));
        let stream = PortCertificate::new(port("stream port", "streams.example"), Arc::clone(&authority));
        let webhook = PortCertificate::new(port("webhook port", "hook.gpu.svc"), Arc::clone(&authority));
        assert_eq!(stream.missing().unwrap(), "the stream port has no certificate yet");
        // The first attempt succeeds for both ports, although they run at the same time.
        let (one, other) = tokio::join!(stream.make(), webhook.make());
        one.unwrap();
        other.unwrap();
        assert_eq!((stream.missing(), webhook.missing()), (None, None));
        let set = authority.look().await.unwrap();
        assert!(stream.is_fresh(&set) && webhook.is_fresh(&set), "no other authority was made for the second port");
        for (certificate, own, others) in
            [(&stream, "streams.example", "hook.gpu.svc"), (&webhook, "hook.gpu.svc", "streams.example")]
        {
            let issued = certificate.issue(&set).unwrap().0;
            assert!(accepted(&authority.trusted(), &issued.chain, own));
            assert!(!accepted(&authority.trusted(), &issued.chain, others));
        }
    }
}
