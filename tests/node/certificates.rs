//! Tests HTTPS on both ports: certificates that are renewed while the program runs, client certificates, and `top`.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The agent reads the files every 10 s.
const NEXT_READ: Duration = Duration::from_secs(20);
/// Three times this is less than the time between two regular readings of the files. So a regular reading can find at most
/// one of three renewals in a row; the others must become visible by SIGHUP.
const AT_ONCE: Duration = Duration::from_secs(3);

struct Files {
    chain: PathBuf,
    key: PathBuf,
}

impl Files {
    fn within(folder: &Path) -> Files {
        Files { chain: folder.join("chain.pem"), key: folder.join("key.pem") }
    }

    /// Replaces the certificate as renewal tools do: writes the new file beside the old one, then renames it.
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

/// The client's certificate and key; `None` for a client without a certificate.
type ClientCertificate = Option<(CertificateDer<'static>, KeyPair)>;

/// Gets `/loglevel` over HTTPS from an admin port that must show exactly this certificate.
fn get_loglevel(agent: &Agent, certificate: &CertificateDer<'static>) -> std::io::Result<String> {
    get_loglevel_as(agent, certificate, &None)
}

fn get_loglevel_as(
    agent: &Agent,
    certificate: &CertificateDer<'static>,
    client: &ClientCertificate,
) -> std::io::Result<String> {
    get(agent.admin.expect("an admin port"), "/loglevel", certificate, client)
}

/// Gets a path over HTTPS from a server that must show exactly this certificate.
fn get(
    address: SocketAddr,
    path: &str,
    certificate: &CertificateDer<'static>,
    client: &ClientCertificate,
) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = match client {
        None => config.with_no_client_auth(),
        Some((own, key)) => {
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            config.with_client_auth_cert(vec![own.clone()], key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// A certificate authority, and two client certificates that it signed: a valid one, and an expired one.
fn authority() -> (String, [ClientCertificate; 2]) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let client = |expired: bool| {
        let mut params = CertificateParams::new(vec!["prometheus".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if expired {
            params.not_after = rcgen::date_time_ymd(2026, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let own = params.signed_by(&key, &ca).unwrap();
        Some((own.der().clone(), key))
    };
    (ca.pem(), [client(false), client(true)])
}

fn shows(agent: &Agent, certificate: &CertificateDer<'static>, within: Duration) {
    eventually("the new certificate", within, || {
        get_loglevel(agent, certificate).ok().filter(|text| text.ends_with("0\n"))
    });
}

#[test]
fn a_renewed_certificate_is_used_soon_and_at_once_after_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::within(folder.path());
    let first = files.renew();
    let agent = Agent::standalone(BINARY)
        .with("--gpus", "none")
        .with("--admin-tls-cert", &files.chain)
        .with("--admin-tls-key", &files.key)
        .launch();
    shows(&agent, &first, AT_ONCE);
    let second = files.renew();
    shows(&agent, &second, NEXT_READ);
    assert!(get_loglevel(&agent, &first).is_err(), "the old certificate is not used any more");
    for _ in 0..3 {
        let next = files.renew();
        agent.signal(libc::SIGHUP);
        shows(&agent, &next, AT_ONCE);
    }
    // If a renewal has written only the key, the agent keeps the old pair and logs this.
    let last = files.renew();
    agent.signal(libc::SIGHUP);
    shows(&agent, &last, AT_ONCE);
    std::fs::write(&files.key, "no key").unwrap();
    agent.signal(libc::SIGHUP);
    agent.logs("admin certificates changed but cannot be used; the old ones stay");
    shows(&agent, &last, AT_ONCE);
    assert_eq!(agent.terminate().status.code(), Some(0));
}

#[test]
fn the_admin_port_answers_only_clients_with_a_certificate_of_the_authority() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::within(folder.path());
    let server = files.renew();
    let ((ours, [known, expired]), (_, [stranger, _])) = (authority(), authority());
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, ours).unwrap();
    let agent = Agent::standalone(BINARY)
        .with("--gpus", "none")
        .with("--admin-tls-cert", &files.chain)
        .with("--admin-tls-key", &files.key)
        .with("--admin-client-ca", &ca)
        .launch();
    let answer = get_loglevel_as(&agent, &server, &known).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    for (name, client) in [
        ("a client without a certificate", None),
        ("a client of another authority", stranger),
        ("a client whose certificate has expired", expired),
    ] {
        let answer = get_loglevel_as(&agent, &server, &client);
        assert!(answer.is_err(), "{name}: {answer:?}");
    }
    assert!(get_loglevel_as(&agent, &server, &known).is_ok(), "and it is still answered");
    assert_eq!(agent.terminate().status.code(), Some(0));
}

#[test]
fn with_certificates_the_metrics_port_serves_https_to_scrapers_and_to_top() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::within(folder.path());
    let first = files.renew();
    std::fs::write(folder.path().join("token"), "secret\n").unwrap();
    let agent = Agent::standalone(BINARY)
        .with("--gpus", "simulated=H100:2")
        .with("--tls-cert", &files.chain)
        .with("--tls-key", &files.key)
        .with("--api-token-file", folder.path().join("token"))
        .launch();
    let scrape = |certificate| get(agent.metrics, "/metrics", certificate, &None);
    let text = eventually("two GPUs", NEXT_READ, || {
        scrape(&first).ok().filter(|text| text.matches("gpu_steward_gpu_memory_used_bytes{").count() == 2)
    });
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    let mut plain = TcpStream::connect(agent.metrics).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(plain, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "no metrics over plain HTTP: {}", String::from_utf8_lossy(&answer));

    let url = format!("https://localhost:{}", agent.metrics.port());
    let token = folder.path().join("token");
    let top = |url: &str, more: &[&Path]| {
        let mut top = Command::new(BINARY);
        top.args(["top", "--once", "--url", url]).args(more).env_remove("COLUMNS").stdin(Stdio::null());
        let output = top.output().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        (output.status.code(), text)
    };
    let ca = |path: &Path| [PathBuf::from("--token-file"), token.clone(), PathBuf::from("--ca-file"), path.to_owned()];
    let with = |url: &str, path: &Path| top(url, &ca(path).each_ref().map(PathBuf::as_path));
    let (code, text) = with(&url, &files.chain);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("SIMULATED GPUs") && text.contains("H100"), "{text}");
    // Another certificate is not trusted, HTTPS is not guessed, and each error says what to do.
    let stranger = folder.path().join("stranger.pem");
    std::fs::write(&stranger, rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap().cert.pem())
        .unwrap();
    for ((code, text), wanted, part) in [
        (with(&url, &stranger), 69, "signed by an authority in --ca-file"),
        (top(&url, &[]), 64, "give --ca-file"),
        (top(&url.replace("https", "http"), &[]), 69, "https://"),
    ] {
        assert_eq!(code, Some(wanted), "{text}");
        assert!(text.contains(part), "{part:?} in {text}");
    }

    // SIGHUP reads the renewed certificates of this port as well, and changes settings without a gap.
    let second = files.renew();
    agent.signal(libc::SIGHUP);
    eventually("the new certificate", AT_ONCE, || scrape(&second).ok());
    assert!(scrape(&first).is_err(), "the old certificate is not used any more");
    assert_eq!(with(&url, &files.chain).0, Some(0));
    assert_eq!(agent.terminate().status.code(), Some(0));
}

#[test]
fn certificates_that_cannot_be_used_stop_the_start_and_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let files = Files::within(folder.path());
    for (cert, key, port) in [("--tls-cert", "--tls-key", "metrics"), ("--admin-tls-cert", "--admin-tls-key", "admin")]
    {
        let agent = Agent::standalone(BINARY).with("--gpus", "none").with(cert, &files.chain).with(key, &files.key);
        let output = agent.run();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{log}");
        assert!(log.contains(&format!("cannot serve HTTPS on the {port} port")) && log.contains("chain.pem"), "{log}");
    }
}
