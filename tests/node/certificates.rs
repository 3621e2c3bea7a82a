//! HTTPS of the admin port: certificates that are renewed while the program runs.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The files are looked at every 10 s.
const NEXT_LOOK: Duration = Duration::from_secs(20);
/// Three times this is less than the time between two looks: of three renewals in a row, at most one can be seen by a look.
const AT_ONCE: Duration = Duration::from_secs(3);

struct Files {
    chain: PathBuf,
    key: PathBuf,
}

impl Files {
    fn within(folder: &Path) -> Files {
        Files { chain: folder.join("chain.pem"), key: folder.join("key.pem") }
    }

    /// Puts a new certificate in place, as tools do that renew them: beside, then over.
    fn renew(&self) -> CertificateDer<'static> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        for (path, text) in [(&self.key, made.signing_key.serialize_pem()), (&self.chain, made.cert.pem())] {
            let next = path.with_extension("next");
            std::fs::write(&next, text).unwrap();
            std::fs::rename(next, path).unwrap();
        }
        made.cert.der().clone()
    }
}

/// Who asks, and how it shows who it is.
type Shown = Option<(CertificateDer<'static>, KeyPair)>;

/// `/loglevel` over HTTPS, from a server that shows this certificate and no other.
fn ask(agent: &Agent, certificate: &CertificateDer<'static>) -> std::io::Result<String> {
    ask_as(agent, certificate, &None)
}

fn ask_as(agent: &Agent, certificate: &CertificateDer<'static>, shown: &Shown) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = match shown {
        None => config.with_no_client_auth(),
        Some((own, key)) => {
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            config.with_client_auth_cert(vec![own.clone()], key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let socket = TcpStream::connect(agent.admin.expect("an admin port"))?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket);
    stream.write_all(b"GET /loglevel HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// An authority, and a caller whose certificate it signed.
fn authority() -> (String, Shown) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::new(vec!["prometheus".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let own = params.signed_by(&key, &ca).unwrap();
    (ca.pem(), Some((own.der().clone(), key)))
}

fn shown(agent: &Agent, certificate: &CertificateDer<'static>, within: Duration) {
    eventually("the new certificate", within, || ask(agent, certificate).ok().filter(|text| text.ends_with("0\n")));
}

#[test]
fn certificates_that_are_renewed_are_shown_soon_and_at_once_on_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::within(folder.path());
    let first = files.renew();
    let agent = Agent::standalone(BINARY)
        .with("--gpus", "none")
        .with("--admin-tls-cert", &files.chain)
        .with("--admin-tls-key", &files.key)
        .launch();
    shown(&agent, &first, AT_ONCE);
    let second = files.renew();
    shown(&agent, &second, NEXT_LOOK);
    assert!(ask(&agent, &first).is_err(), "the old one is not shown any more");
    for _ in 0..3 {
        let next = files.renew();
        agent.signal(libc::SIGHUP);
        shown(&agent, &next, AT_ONCE);
    }
    // Half of a renewal: the old pair stays, and that is said.
    let last = files.renew();
    agent.signal(libc::SIGHUP);
    shown(&agent, &last, AT_ONCE);
    std::fs::write(&files.key, "no key").unwrap();
    agent.signal(libc::SIGHUP);
    agent.logs("admin certificates changed but cannot be used; the old ones stay");
    shown(&agent, &last, AT_ONCE);
    assert_eq!(agent.terminate().status.code(), Some(0));
}

#[test]
fn only_who_shows_a_certificate_of_the_authority_is_answered_on_the_admin_port() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::within(folder.path());
    let server = files.renew();
    let ((ours, known), (_, stranger)) = (authority(), authority());
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, ours).unwrap();
    let agent = Agent::standalone(BINARY)
        .with("--gpus", "none")
        .with("--admin-tls-cert", &files.chain)
        .with("--admin-tls-key", &files.key)
        .with("--admin-client-ca", &ca)
        .launch();
    let answer = ask_as(&agent, &server, &known).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    for (who, shown) in [("nobody", None), ("one of another authority", stranger)] {
        let answer = ask_as(&agent, &server, &shown);
        assert!(answer.is_err(), "{who}: {answer:?}");
    }
    assert!(ask_as(&agent, &server, &known).is_ok(), "and it is still answered");
    assert_eq!(agent.terminate().status.code(), Some(0));
}
